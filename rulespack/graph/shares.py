"""What one rank holds of one node's weights.

Source: vLLM 0.29.0 and 0.31.0, model_executor/layers/linear.py (column and row parallel layers, the query, key and
value projection), vocab_parallel_embedding.py, mamba/mamba_mixer2.py and mamba/gdn/kimi_gdn_linear_attn.py (the
projections whose parts the ranks cannot all share), fused_moe/config.py (FusedMoEParallelConfig.make: experts are
shared by all the ranks of all data-parallel replicas, with expert parallelism or without).
"""

from __future__ import annotations

from typing import Final

import msgspec

from rulespack.errors import RulespackError
from rulespack.graph.model import GEMM, AnyNode, Attention, Gather, GroupedGEMM, LayerKind, ModelGraph, RecurrentUpdate
from rulespack.graph.state import share
from rulespack.graph.vocabulary import LATENT_KINDS
from rulespack.graph.weights import Holder, Place

#: A vocabulary is padded to a multiple of this before the ranks share it.
VOCABULARY_PADDING: Final = 64
#: What each rank's rows of a delta attention's input projection are padded to where they hold a full output gate.
GATED_ROWS: Final = 16
#: Roles of the projections that hold queries, keys and values; the second one an indexer's, too.
QKV: Final = ("qkv_proj", "qkv_index_proj")
#: The emit condition that tells a mixture of experts whose tokens the engine can split over the ranks.
UNLESS_SPLIT: Final = "tensor_parallel_unless_sp_moe"
#: How a node divides under a model's own sequence parallelism.
TOKEN_SHARDED: Final = "token_sharded"


class Undivided(RulespackError):
    """A layer's ``tp`` is not stated, so there is no saying what of it one of several ranks holds."""


class ExpertPadding(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel that runs the routed experts adds to their weights on every rank.

    The inner dimension is at least ``least_inner`` where ranks share it, and a multiple of ``inner_multiple``; the
    outer one is a multiple of ``outer_multiple``.
    """

    least_inner: int = 0
    inner_multiple: int = 1
    outer_multiple: int = 1


NO_PADDING: Final = ExpertPadding()


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks that share a model's weights.

    ``tensor`` is the tensor-parallel size, ``experts`` the ranks that share routed experts, ``by_expert`` whether they
    do so by whole experts. ``split_tokens``: in front of a mixture of experts that allows it each rank takes its own
    part of the tokens, so that every one holds the shared experts whole. ``own_split``: a model that splits its tokens
    by itself does, so that every rank holds whole what runs on them.
    """

    tensor: int = 1
    experts: int = 1
    by_expert: bool = False
    split_tokens: bool = False
    own_split: bool = False
    padding: ExpertPadding = NO_PADDING


def padded_vocabulary(rows: int) -> int:
    """Rows of a vocabulary as the engine allocates them over all ranks."""
    return _rounded(rows, VOCABULARY_PADDING)


def held(graph: ModelGraph, place: Place, node: Holder, ranks: Ranks) -> int:
    """The elements of a node's weights that the first rank holds, or the rows where the node is a table.

    Raises Undivided, or Uneven where the ranks cannot share a dimension.
    """
    if isinstance(node, Gather):
        return _rows(graph, node, ranks.tensor)
    if isinstance(node, GroupedGEMM):
        return _experts(node, ranks)
    name = node.role or "a GEMM"
    if ranks.tensor == 1 or node.tp == "replicated" or _runs_on_split_tokens(place, node, ranks):
        return _rows_of(graph, place, node) * node.k
    if node.tp == "row":
        return node.n * share(name, node.k, ranks.tensor)
    if node.tp == "column":
        return _columns(graph, place, node, ranks.tensor) * node.k
    where = place if isinstance(place, str) else f"layer kind {place.id}"
    raise Undivided(f"{where}: {name} does not say how tensor-parallel ranks share it; state its tp")


def _rows_of(graph: ModelGraph, place: Place, node: GEMM) -> int:
    return padded_vocabulary(node.n) if _is_head(graph, place, node) else node.n


def _is_head(graph: ModelGraph, place: Place, node: GEMM) -> bool:
    return place == "head" and node.n == graph.globals_.vocab_size and node.tp != "replicated"


def _rows(graph: ModelGraph, node: Gather, ranks: int) -> int:
    """A vocabulary's rows are shared after padding; a table of several heads goes by whole heads."""
    if node.shard == "rows":
        rows = padded_vocabulary(node.rows) if node.rows == graph.globals_.vocab_size else node.rows
        return -(-rows // ranks)
    if node.shard == "heads":
        return node.rows * -(-node.rows_per_token // ranks) // node.rows_per_token
    return node.rows


def _experts(node: GroupedGEMM, ranks: Ranks) -> int:
    name, padding = node.role or "experts", ranks.padding
    inner, outer = (node.k, node.n) if name.endswith("_down") else (node.n, node.latent_size or node.k)
    halves = 2 if name.endswith("gate_up") else 1  # a gate and an up projection one after another, padded one by one
    inner = share(name, inner, halves)
    count = node.experts
    if ranks.by_expert:
        count = -(-count // ranks.experts)  # the first ranks take what is left over
    elif ranks.experts > 1:
        inner = max(share(name, inner, ranks.experts), padding.least_inner)
    routed = count * halves * _rounded(inner, padding.inner_multiple) * _rounded(outer, padding.outer_multiple)
    if not node.shared_experts:
        return routed
    width = node.shared_experts * (node.shared_intermediate_size or node.n)
    return routed + node.k * (width if ranks.split_tokens else share(name, width, ranks.tensor))


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _runs_on_split_tokens(place: Place, node: GEMM, ranks: Ranks) -> bool:
    """Whether each rank runs a layer on tokens of its own: one that says so, or the shared experts of a mixture."""
    if node.under_sequence_parallel == TOKEN_SHARDED:
        return ranks.own_split
    return (
        ranks.split_tokens
        and isinstance(place, LayerKind)
        and (node.role or "").startswith("shared_")
        and any(other.emit == UNLESS_SPLIT for other in place.nodes)
    )


def _columns(graph: ModelGraph, place: Place, node: GEMM, ranks: int) -> int:
    """One rank's rows of a column-parallel layer: an even part, and whole what the ranks cannot share."""
    name = node.role or "a GEMM"
    if isinstance(place, str):
        return share(name, _rows_of(graph, place, node), ranks)
    if name.endswith(QKV):
        after = _after(place, node)
        reader = next((one for one in after if isinstance(one, Attention) and one.kind not in LATENT_KINDS), None)
        if reader is not None:
            index = next((one for one in after if isinstance(one, Attention) and one.kind in LATENT_KINDS), None)
            return _projected(node, reader, index if name.endswith("qkv_index_proj") else None, ranks)
    if name.startswith("in_proj"):
        update = next((one for one in _after(place, node) if isinstance(one, RecurrentUpdate)), None)
        if update is not None and update.recurrent_kind == "mamba2":
            return _scanned(node, update, ranks)
        if update is not None and update.recurrent_kind == "kda":
            return _decayed(node, update, ranks)
    return share(name, node.n, ranks)


def _after(kind: LayerKind, node: GEMM) -> tuple[AnyNode, ...]:
    """The nodes that are launched after one in its layer."""
    return kind.nodes[kind.nodes.index(node) + 1 :]


def _projected(node: GEMM, reader: Attention, index: Attention | None, ranks: int) -> int:
    """Query heads are shared; with more ranks than KV heads each rank holds one of them. An index key is whole, and
    an indexer's query heads go with the KV heads."""
    width = reader.d_h + (reader.d_v or reader.d_h)
    whole = 0
    if index is not None:
        width += index.d_h
        whole = index.d_h
    heads = 1 if ranks >= reader.n_kv else share("KV heads", reader.n_kv, ranks)
    return share(node.role or "", node.n - reader.n_kv * width - whole, ranks) + heads * width + whole


def _scanned(node: GEMM, update: RecurrentUpdate, ranks: int) -> int:
    """Mamba-2's projection: where the ranks cannot share the groups, each holds one."""
    groups = update.n_groups or 1
    each = 2 * update.state_size
    local = 1 if groups % ranks else groups // ranks
    return share(node.role or "", node.n - groups * each, ranks) + local * each


def _decayed(node: GEMM, update: RecurrentUpdate, ranks: int) -> int:
    """A delta attention's projection: the low rank of the decay is whole on every rank, and the rows of each rank are
    padded where a full gate is among them."""
    width = update.state_size
    inner = update.n_heads * width
    gated = node.n >= 4 * inner
    shared = (4 if gated else 3) * inner + update.n_heads
    local = share(node.role or "", shared, ranks) + width
    return _rounded(local, GATED_ROWS) if gated else local
