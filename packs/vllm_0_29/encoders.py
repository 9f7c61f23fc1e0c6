"""Models that only encode: they attend in both directions, pool what they read, and keep no cache.

Source: ``vllm/model_executor/models/bert.py``, ``vllm/config/model.py: ModelConfig.is_chunked_prefill_supported``.
"""

from __future__ import annotations

from typing import Final

from vllm_0_29.model import Architecture

ARCHITECTURES: Final = {"BertModel": Architecture(caches={}, attends="encoder_only", pipeline_parallel=False)}
