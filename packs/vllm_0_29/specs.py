"""Each owned cache as a spec: what the layer classes answer the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from rulespack.errors import Refused, engine_refuses, not_modelled
from rulespack.kv.specs import DTYPE_BYTES, Spec, attention_spec
from vllm_0_29.attention_config import plain_key
from vllm_0_29.backend_terms import PLAIN
from vllm_0_29.backends import wants

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import LayerBackend
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Rules, Settings

#: A layer class's answer: one cache of the class as a spec.
Builder = Callable[["Rules", "Model", "Deployment", "CacheClass", "LayerBackend", "Settings"], Spec]


#: The label of a latent cache a draft decodes non-causally, several tokens at once.
NON_CAUSAL: Final = "non_causal_multi_token_decode"


#: How the names of cache dtypes end whose entries are records packed for one kernel, of a size no rule computes.
RECORD_SUFFIX: Final = "_ds_mla"


def without_record(cls: CacheClass, cache_dtype: str) -> Refused:
    """A packed record whose size the graph does not state."""
    return not_modelled(
        "fact-stated", f"the cache {cls.cache.name} states no bytes_by_cache_dtype for {cache_dtype}, a packed record"
    )


def stored_dtype(cache_dtype: str, model_dtype: str) -> str:
    """torch's name of what a cache of this dtype string is stored in (``vllm/utils/torch_utils.py``)."""
    if cache_dtype == "auto":
        return model_dtype
    if cache_dtype in ("float16", "bfloat16"):
        return cache_dtype
    return "int8" if cache_dtype == "int8_per_token_head" else "uint8"


def quant_mode(cache_dtype: str) -> str:
    """What tells the specs of two cache dtypes apart: the format a cache is quantized to, ``auto`` for none
    (``vllm/v1/kv_cache_interface.py: get_kv_quant_mode``)."""
    if cache_dtype in PLAIN:
        return "auto"
    if cache_dtype.endswith("per_token_head"):
        return cache_dtype
    return next((kind for kind in ("fp8", "nvfp4") if cache_dtype.startswith(kind)), cache_dtype)


def local_heads(total: int, tensor_parallel_size: int) -> int:
    """KV heads on one rank: divided, and replicated where there are more ranks than heads.

    Refused by the engine where neither number divides the other.
    """
    if total % tensor_parallel_size and tensor_parallel_size % total:
        raise engine_refuses(
            "kv-heads-divide",
            "AssertionError",
            "construct",
            f"{total} KV heads neither divide nor are divided by tensor_parallel_size {tensor_parallel_size}",
            "vllm/model_executor/models: each attention module's constructor",
        )
    return max(1, total // tensor_parallel_size)


def attention(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """An ordinary attention layer: a full cache in blocks of the engine's size, or a window in blocks of its own."""
    node = cls.attention
    backend = rules.backends[part.backend]
    if node.n_kv < settings.tensor_parallel_size and not model.architecture.replicates_kv_heads:
        raise engine_refuses(
            "kv-heads-replicate",
            "ZeroDivisionError",
            "construct",
            f"{model.architecture_name} leaves a rank none of {node.n_kv} KV heads over "
            f"{settings.tensor_parallel_size} ranks, and divides by that",
            "vllm/model_executor/layers/attention/attention.py: Attention.__init__",
        )
    heads = local_heads(node.n_kv, settings.tensor_parallel_size)
    dtype = stored_dtype(part.cache_dtype, settings.model_dtype)
    content = backend.content_bytes(part.cache_dtype, node.d_h, node.d_v or node.d_h, DTYPE_BYTES[dtype])
    slots = backend.head_slots(part.cache_dtype, heads)
    size, padded = settings.block_size, None
    if node.window is not None:
        padded = settings.skip_page_bytes
        want = wants(rules, model, deployment, cls, part.cache_dtype, part.cache_dtype)
        if cls.draft and model.draft is not None and model.draft.separate:
            want = msgspec.structs.replace(want, model_head_size=node.d_h)  # its own model is asked about
        size = rules.window_block_size(backend, want, settings.block_size, slots * content, padded)
        if padded is not None and padded < size * slots * content:
            raise engine_refuses(
                "padded-page-holds-block",
                "AssertionError",
                "groups",
                f"a block of {size} tokens of a window layer takes {size * slots * content} bytes, more than the page "
                f"of {padded} that every layer is given",
                "vllm/v1/kv_cache_interface.py: AttentionSpec.page_size_bytes",
            )
    return attention_spec(
        "FullAttentionSpec" if node.window is None else "SlidingWindowSpec",
        block_size=size,
        head_slots=slots,
        content_bytes=content,
        dtype=dtype,
        num_kv_heads=heads,
        head_size=node.d_h,
        sliding_window=node.window,
        padded_page=padded,
        cache_dtype=quant_mode(part.cache_dtype),
    )


def chunked_local_attention(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """Chunked local attention: blocks of the engine's size, bounded by the chunk."""
    node = cls.attention
    backend = rules.backends[part.backend]
    heads = local_heads(node.n_kv, settings.tensor_parallel_size)
    dtype = stored_dtype(part.cache_dtype, settings.model_dtype)
    return attention_spec(
        "ChunkedLocalAttentionSpec",
        block_size=settings.block_size,
        head_slots=backend.head_slots(part.cache_dtype, heads),
        content_bytes=backend.content_bytes(part.cache_dtype, node.d_h, node.d_v or node.d_h, DTYPE_BYTES[dtype]),
        dtype=dtype,
        num_kv_heads=heads,
        head_size=node.d_h,
        attention_chunk_size=node.attention_chunk_size,
        cache_dtype=quant_mode(part.cache_dtype),
    )


def mla_attention(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """Multi-head latent attention: one latent and rotary vector for each token, not divided over ranks.

    Packed records take what the graph says they do.
    """
    width = cls.attention.d_h
    dtype = stored_dtype(part.cache_dtype, settings.model_dtype)
    packed = (cls.cache.bytes_by_cache_dtype or {}).get(part.cache_dtype)
    if packed is None and part.cache_dtype.endswith(RECORD_SUFFIX):
        raise without_record(cls, part.cache_dtype)
    return attention_spec(
        "MLAAttentionSpec",
        block_size=settings.block_size,
        head_slots=1,
        content_bytes=width * DTYPE_BYTES[dtype] if packed is None else packed,
        dtype=dtype,
        num_kv_heads=1,
        head_size=width,
        cache_dtype=part.cache_dtype,
        labels=((NON_CAUSAL, True),) if cls.non_causal else (),
    )


SPECS: Final[Mapping[str, Builder]] = {
    "Attention": attention,
    "ChunkedLocalAttention": chunked_local_attention,
    "MLAAttention": mla_attention,
}


def scaled_keys(cls: CacheClass, block_size: int, alignment: int | None = None, *, entry: int | None = None) -> Spec:
    """An indexer's keys with their scales, ``entry`` bytes each or what the graph says; the engine counts the scale
    bytes into the head size."""
    entry = cls.cache.bytes_per_entry if entry is None else entry
    return attention_spec(
        "MLAAttentionSpec",
        block_size=block_size,
        head_slots=1,
        content_bytes=entry,
        dtype="uint8",
        num_kv_heads=1,
        head_size=entry,
        tokens_per_state=cls.cache.tokens_per_entry,
        alignment=alignment,
    )


def plain_index(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """An indexer's keys, one for every token or every few, in bfloat16 or the dtype asked for them, whatever the cache
    dtype."""
    entry, dtype = plain_key(rules, deployment, cls)
    return attention_spec(
        "MLAAttentionSpec",
        block_size=settings.block_size,
        head_slots=1,
        content_bytes=entry,
        dtype=dtype,
        num_kv_heads=1,
        head_size=entry // DTYPE_BYTES[dtype],
        tokens_per_state=cls.cache.tokens_per_entry,
    )


def plain_keys_values(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """Keys and values as an ordinary layer keeps them, whichever backend the model hands to it."""
    node = cls.attention
    heads = local_heads(node.n_kv, settings.tensor_parallel_size)
    dtype = stored_dtype(part.cache_dtype, settings.model_dtype)
    return attention_spec(
        "FullAttentionSpec",
        block_size=settings.block_size,
        head_slots=heads,
        content_bytes=2 * node.d_h * DTYPE_BYTES[dtype],
        dtype=dtype,
        num_kv_heads=heads,
        head_size=node.d_h,
        cache_dtype=quant_mode(part.cache_dtype),
    )
