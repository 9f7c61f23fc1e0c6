"""The device state one sequence holds however long it gets, from the graph alone: before paging and grouping.

What a cost model reserves for each sequence before any engine exists. An engine keeps this in blocks and adds to it:
tokens in flight beside a window, a block that is cut on both ends, checkpoints of a state. A plan counts those.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rulespack.graph.caches import check_described, entry_bytes
from rulespack.graph.model import Attention, ModelGraph
from rulespack.graph.stack import Use, layers, owned_caches, stage_slice, uses
from rulespack.graph.state import share, state_tensors
from rulespack.graph.vocabulary import LATENT_KINDS


class SequenceState(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on one rank that one sequence holds.

    ``recurrent``: states of recurrent layers with their convolutions. ``rings``: state caches of attention layers.
    ``windows``: sliding windows and chunks, filled.
    """

    recurrent: int = 0
    rings: int = 0
    windows: int = 0

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.recurrent + self.rings + self.windows


def state_bytes_per_sequence(
    graph: ModelGraph,
    *,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    pipeline_stage: int = 0,
    layers_of_stage: Sequence[int] | None = None,
    extra_rows: int = 0,
    conv_dtype: str | None = None,
    state_dtype: str | None = None,
    cache_dtype: str | None = None,
) -> SequenceState:
    """What one sequence holds on one rank of a pipeline stage, in the target's layers, whatever its length.

    Recurrent layers are shared by their heads or channels, what belongs to KV heads by those, down to one on each rank;
    what belongs to a latent is whole on every rank. ``extra_rows`` are inputs the convolutions keep beyond their
    width, one for each speculative token. ``conv_dtype`` and ``state_dtype`` are formats of the graph's vocabulary that
    stand for the model's own and for what each layer states; ``cache_dtype`` an engine's name that selects a cache's
    record. ``layers_of_stage`` counts the layers on each stage and must be stated with more than one.

    Raises ValueError for an impossible layout and for a cache dtype no cache of the graph names,
    :class:`~rulespack.graph.state.Uneven` (a ValueError) where the ranks cannot share a dimension. Apply
    ``for_capability`` first where the graph describes several GPU architectures.
    """
    sequence = layers(graph)
    on_stage = range(len(sequence))[stage_slice(len(sequence), pipeline_parallel_size, pipeline_stage, layers_of_stage)]
    check_described((use.cache for use in owned_caches(graph)), cache_dtype)
    own = graph.globals_.dtype or "bf16"
    recurrent = rings = windows = 0
    for use in uses(graph, sequence):
        if not use.cache.owned or use.layer not in on_stage:
            continue
        if not isinstance(use.node, Attention):
            tensors = state_tensors(
                use.node,
                conv_dtype=conv_dtype or own,
                state_dtype=state_dtype or use.node.state_dtype or own,
                tensor_parallel_size=tensor_parallel_size,
                extra_rows=extra_rows,
            )
            recurrent += sum(tensor.bytes for tensor in tensors)
        elif use.cache.kind == "state":
            rings += (use.cache.entries or 0) * _local_entry(use, tensor_parallel_size, cache_dtype)
        elif (tokens := use.cache.window or use.node.attention_chunk_size) is not None:
            windows += -(-tokens // use.cache.tokens_per_entry) * _local_entry(use, tensor_parallel_size, cache_dtype)
    return SequenceState(recurrent=recurrent, rings=rings, windows=windows)


def _local_entry(use: Use, ranks: int, cache_dtype: str | None) -> int:
    """One rank's part of an entry: one of several KV heads is shared by heads."""
    assert isinstance(use.node, Attention)
    entry = entry_bytes(use.cache, cache_dtype)
    if use.node.kind in LATENT_KINDS:
        return entry
    heads = 1 if ranks >= use.node.n_kv else share("KV heads", use.node.n_kv, ranks)
    return entry // use.node.n_kv * heads
