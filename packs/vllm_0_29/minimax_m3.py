"""MiniMax M3: grouped attention to blocks an indexer chose, beside ordinary layers.

Source: ``vllm/models/minimax_m3/nvidia/model.py``, ``common/indexer.py``, ``common/sparse_attention.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from vllm_0_29.backend_terms import Kernel, handed
from vllm_0_29.model import Architecture, CacheName, DraftNames
from vllm_0_29.specs import Builder, plain_index, plain_keys_values

if TYPE_CHECKING:
    pass

INDEX, MAIN = "MiniMaxM3IndexerCache", "MiniMaxM3SparseAttention"


#: In the order a layer registers its caches; a layer without an index attends as usual.
ARCHITECTURES: Final = {
    "MiniMaxM3SparseForConditionalGeneration": Architecture(
        prefix="language_model.model.layers.",
        caches={"index": CacheName(".self_attn.attn.index_cache", INDEX), "kv": CacheName(".self_attn.attn")},
        indexed={"kv": MAIN},
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
