"""MiniMax M3: grouped attention to blocks an indexer chose, beside ordinary layers.

Source: ``vllm/models/minimax_m3/nvidia/model.py``, ``common/indexer.py``, ``common/sparse_attention.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from rulespack.errors import not_modelled
from rulespack.kv.specs import DTYPE_BYTES, Spec, attention_spec
from vllm_0_29.backend_facts import Kernel, handed
from vllm_0_29.model import Architecture, CacheName, DraftNames
from vllm_0_29.specs import Builder, local_heads, stored_dtype

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import LayerBackend
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Rules, Settings

INDEX, MAIN = "MiniMaxM3IndexerCache", "MiniMaxM3SparseAttention"


def check(model: Model, deployment: Deployment) -> None:
    """Each pipeline stage asks its own first layer for the block size, and stages that disagree are not modelled."""
    if deployment.pipeline_parallel_size > 1 and deployment.block_size is None:
        raise not_modelled(
            "stages-share-block-size",
            "the first stage starts with an ordinary layer and the others with sparse ones, which prefer another block "
            "size; state block_size",
        )


#: In the order a layer registers its caches; a layer without an index attends as usual.
ARCHITECTURES: Final = {
    "MiniMaxM3SparseForConditionalGeneration": Architecture(
        prefix="language_model.model.layers.",
        caches={"index": CacheName(".self_attn.attn.index_cache", INDEX), "kv": CacheName(".self_attn.attn")},
        indexed={"kv": MAIN},
        check=check,
        draft_names=DraftNames(counted_on=False),
    ),
}

MODEL_BACKENDS: Final = {
    INDEX: lambda rules, model, deployment, cls, cache_dtype: "MINIMAX_M3_SPARSE_INDEXER",
    MAIN: lambda rules, model, deployment, cls, cache_dtype: "MINIMAX_M3_SPARSE",
}
BACKENDS: Final = {
    "MINIMAX_M3_SPARSE_INDEXER": handed("MINIMAX_M3_SPARSE_INDEXER", lambda want: Kernel((128,)), mla=False),
    "MINIMAX_M3_SPARSE": msgspec.structs.replace(
        handed("MINIMAX_M3_SPARSE", lambda want: Kernel((128,)), mla=False), dcp=False
    ),
}


def index_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """The indexer's keys, in bfloat16 whatever the cache dtype."""
    entry = cls.cache.bytes_per_entry
    return attention_spec(
        "MLAAttentionSpec",
        block_size=settings.block_size,
        head_slots=1,
        content_bytes=entry,
        dtype="bfloat16",
        num_kv_heads=1,
        head_size=entry // DTYPE_BYTES["bfloat16"],
        tokens_per_state=cls.cache.tokens_per_entry,
    )


def main_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """Keys and values as an ordinary layer keeps them."""
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
        cache_dtype=part.cache_dtype,
    )


SPECS: Final[Mapping[str, Builder]] = {INDEX: index_spec, MAIN: main_spec}
