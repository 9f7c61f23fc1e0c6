"""Small graphs by hand: layers that differ only in what a rule looks at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import rulespack
from rulespack import Deployment, ModelGraph, Plan
from rulespack.graph.model import (
    Attention,
    Cache,
    DerivedFrom,
    Elementwise,
    Gather,
    Global,
    LayerKind,
    Positions,
    Stack,
)

RELEASES = rulespack.releases()
#: The models of the catalog that are proven against recordings.
MODELS = sorted({file.stem for file in (Path(__file__).parent.parent / "recordings").glob("*/*.json")})
#: Modelled, and without a peculiarity of its own.
ARCHITECTURE = "LlamaForCausalLM"


def full(n_kv: int = 8, d_h: int = 128, *, n_q: int = 8) -> Attention:
    """Full attention: a page of 16 tokens takes ``n_kv * d_h * 64`` bytes in bf16."""
    return Attention(kind="gqa", n_q=n_q, n_kv=n_kv, d_h=d_h)


def sliding(window: int, n_kv: int = 8, d_h: int = 128, *, n_q: int = 8) -> Attention:
    """Sliding-window attention."""
    return Attention(kind="swa", n_q=n_q, n_kv=n_kv, d_h=d_h, window=window)


def chunked(size: int, n_kv: int = 8, d_h: int = 128) -> Attention:
    """Attention within chunks."""
    return Attention(kind="chunked", n_q=8, n_kv=n_kv, d_h=d_h, attention_chunk_size=size)


def latent(d_h: int = 576) -> Attention:
    """Latent attention, one record of ``d_h`` elements a token."""
    return Attention(
        kind="mla", n_q=16, n_kv=1, d_h=d_h, kv_lora_rank=d_h - 64, qk_rope_head_dim=64, qk_nope_head_dim=128
    )


def graph_of(layers: Sequence[Attention], *, extra: Sequence[Any] = (), **facts: Any) -> ModelGraph:
    """A model of these layers in this order. ``extra`` nodes stand in the first layer, ``facts`` in ``global``."""
    kinds = [
        LayerKind(id=f"layer{i}", nodes=(node, *(extra if i == 0 else ()), Elementwise(role="norm")))
        for i, node in enumerate(layers)
    ]
    stated = {
        "architecture": ARCHITECTURE,
        "hidden_size": 1024,
        "vocab_size": 32000,
        "weight_dtype": "bf16",
        "dtype": "bf16",
        "positions": Positions(max_position_embeddings=8192),
    }
    return ModelGraph(
        kind="ModelGraph",
        name="small",
        derived_from=DerivedFrom(format="by_hand", path="none", sha256="0" * 64, deriver_version=1),
        globals_=Global(**{**stated, **facts}),
        layer_kinds=tuple(kinds),
        stack=Stack(prologue=tuple(kind.id for kind in kinds)),
    )


def with_caches(node: Attention, *caches: Cache) -> Attention:
    """The same attention with its caches spelled out."""
    return msgspec.structs.replace(node, caches=caches)


def table(**keys: Any) -> Gather:
    """A lookup table."""
    stated = {"role": "table", "rows": 100, "row_bytes": 64, "rows_per_token": 1, "out_bytes_per_token": 64}
    return Gather(**{**stated, **keys})


def plan(release: str, graph: ModelGraph, **deployment: Any) -> Plan:
    """The plan of a release, under the arguments given."""
    return rulespack.engine(release).plan(graph, Deployment(**deployment))
