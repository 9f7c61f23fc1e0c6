"""Inkling: windows and full layers, and beside each the state of its short convolutions as a window of a few tokens.

Source: ``vllm/models/inkling/nvidia/attention.py``, ``sconv_swa_attn.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rulespack.errors import Refused, engine_refuses, not_modelled
from rulespack.kv.specs import DTYPE_BYTES, Spec, attention_spec
from vllm_0_29.backend_terms import handed
from vllm_0_29.model import Architecture, CacheName, DraftNames
from vllm_0_29.specs import Builder, local_heads, stored_dtype

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import LayerBackend
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Rules, Settings

CONV_SOURCE: Final = "vllm/models/inkling/nvidia/sconv_swa_attn.py: InklingConvState.__init__"

CONV, ATTENTION = "InklingConvState", "InklingAttention"

#: In the order a layer registers its caches.
ARCHITECTURES: Final = {
    "InklingForConditionalGeneration": Architecture(
        window_elsewhere=True,
        caches={"conv_state": CacheName(".conv_state", CONV), "kv": CacheName(".attn", ATTENTION)},
        draft_names=DraftNames(modelled=False, without="ValidationError"),
    ),
}

MODEL_BACKENDS: Final = {
    CONV: lambda rules, model, deployment, cls, cache_dtype: "INKLING_SCONV_SWA",
    ATTENTION: lambda rules, model, deployment, cls, cache_dtype: "FLASH_ATTN",
}
BACKENDS: Final = {"INKLING_SCONV_SWA": handed("INKLING_SCONV_SWA", mla=False)}


def conv_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """The convolutions' last inputs, as many as their kernel reads: one block, in bfloat16.

    Refused by the engine for more ranks than KV heads, and for a model that runs in another dtype.
    """
    node, cache, ranks = cls.attention, cls.cache, settings.tensor_parallel_size
    if ranks > node.n_kv:
        raise _refused(f"a convolution's state is kept for {node.n_kv} KV heads and cannot be split over {ranks} ranks")
    if settings.model_dtype != "bfloat16":
        raise _refused(f"a convolution's state is kept in bfloat16, and the model runs in {settings.model_dtype}")
    if cache.block_size is None:
        raise not_modelled("fact-stated", f"the cache {cache.name} lacks its block_size")
    heads, width = node.n_kv // ranks, cache.bytes_per_entry // node.n_kv
    return attention_spec(
        "SlidingWindowSpec",
        block_size=cache.block_size,
        head_slots=heads,
        content_bytes=width,
        dtype="bfloat16",
        num_kv_heads=heads,
        head_size=width // DTYPE_BYTES["bfloat16"],
        sliding_window=cache.entries,
    )


def _refused(reason: str) -> Refused:
    return engine_refuses("inkling-conv-state", "AssertionError", "construct", reason, CONV_SOURCE)


def attention_spec_of(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """An attention layer's keys and values, windows too in blocks of the engine's size."""
    node = cls.attention
    heads = local_heads(node.n_kv, settings.tensor_parallel_size)
    dtype = stored_dtype(part.cache_dtype, settings.model_dtype)
    return attention_spec(
        "FullAttentionSpec" if node.window is None else "SlidingWindowSpec",
        block_size=settings.block_size,
        head_slots=heads,
        content_bytes=2 * node.d_h * DTYPE_BYTES[dtype],
        dtype=dtype,
        num_kv_heads=heads,
        head_size=node.d_h,
        sliding_window=node.window,
    )


SPECS: Final[Mapping[str, Builder]] = {CONV: conv_spec, ATTENTION: attention_spec_of}
