"""Whisper: a decoder whose layers also attend an encoder's output, which they keep for the whole request.

Source: ``vllm/model_executor/models/whisper.py``, ``vllm/model_executor/layers/attention/cross_attention.py``,
``vllm/v1/kv_cache_interface.py: CrossAttentionSpec``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from rulespack.kv.specs import Spec
from vllm_0_29.backends import constructed, select, wants
from vllm_0_29.model import Architecture, CacheName
from vllm_0_29.specs import Builder

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import LayerBackend
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Rules, Settings

CROSS: Final = "CrossAttention"

#: In the order a layer registers its caches.
ARCHITECTURES: Final = {
    "WhisperForConditionalGeneration": Architecture(
        prefix=".decoder.layers.",
        caches={"kv": CacheName(".layers.self_attn.attn"), "cross": CacheName(".layers.encoder_attn.attn", CROSS)},
        attends="encoder_decoder",
        pipeline_parallel=False,
    ),
}


def cross_backend(rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, cache_dtype: str) -> str:
    """What is selected among the backends that attend an encoder's output."""
    want = msgspec.structs.replace(wants(rules, model, deployment, cls, cache_dtype, cache_dtype), cross=True)
    return constructed(rules.backends[select(rules, deployment, want, [])], want)


def cross_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """Keys and values as an ordinary layer keeps them, of the encoder's tokens."""
    ordinary = rules.specs["Attention"](rules, model, deployment, cls, part, settings)
    return msgspec.structs.replace(ordinary, type="CrossAttentionSpec")


MODEL_BACKENDS: Final = {CROSS: cross_backend}
SPECS: Final[Mapping[str, Builder]] = {CROSS: cross_spec}
