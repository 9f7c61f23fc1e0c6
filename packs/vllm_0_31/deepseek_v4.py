"""DeepSeek V4 in vLLM 0.31.0: ``auto`` is fp8, and the wrong cache dtype a ValueError.

Source: ``vllm/models/deepseek_v4/attention.py: _resolve_dsv4_kv_cache_dtype``,
``vllm/v1/attention/backends/mla/sparse_swa.py``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from vllm_0_29 import deepseek_v4 as earlier
from vllm_0_29.backend_terms import Kernel

MODEL_BACKENDS: Final = {earlier.MAIN: earlier.main_backend("ValueError")}


def takes(cache_dtype: str) -> bool:
    """The names the packed classes take."""
    return cache_dtype == "auto" or earlier.is_fp8(cache_dtype)


BACKENDS: Final = {
    **{
        name: msgspec.structs.replace(earlier.BACKENDS[name], canonical=earlier.record(takes, name))
        for name in (earlier.FLASHMLA, earlier.FLASHINFER)
    },
    "DEEPSEEK_SPARSE_SWA": msgspec.structs.replace(
        earlier.BACKENDS["DEEPSEEK_SPARSE_SWA"], kernel=lambda want: Kernel((32,), multiples=True)
    ),
}
