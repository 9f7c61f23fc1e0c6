"""MiniMax M3: grouped attention to blocks an indexer chose, beside ordinary layers.

Source: ``vllm/models/minimax_m3/nvidia/model.py``, ``common/indexer.py``, ``common/sparse_attention.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from rulespack.errors import not_modelled
from vllm_0_29.backend_terms import Kernel, handed
from vllm_0_29.model import Architecture, CacheName, DraftNames
from vllm_0_29.specs import Builder, plain_index, plain_keys_values

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import Model

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


SPECS: Final[Mapping[str, Builder]] = {INDEX: plain_index, MAIN: plain_keys_values}
