"""The stacks of a graph expanded to layers, and each cache reader paired with the layer that owns what it reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from rulespack.graph.model import Attention, Cache, LayerKind, ModelGraph, RecurrentUpdate, Stack
from rulespack.graph.state import state_tensors
from rulespack.graph.vocabulary import DTYPE_BITS, LATENT_KINDS

#: The name of the one cache an attention node owns when it lists none.
IMPLIED_CACHE: Final = "kv"

#: The name of the one state a recurrent node owns.
IMPLIED_STATE: Final = "state"

#: The most layers a stack may expand to; a checked graph has no longer one.
MAX_LAYERS: Final = 4096


class Use(msgspec.Struct, frozen=True):
    """One cache as one layer uses it.

    ``layer`` is the position in its stack, counted from 0; ``owner`` the position of the layer that allocates the
    cache (``layer`` itself where the cache is owned, None where no earlier layer owns one of that name).
    """

    layer: int
    kind: str
    node: Attention | RecurrentUpdate
    cache: Cache
    owner: int | None


def expand(stack: Stack) -> tuple[str, ...]:
    """The layer-kind ids of a stack, in the order the layers run."""
    return stack.prologue + stack.pattern * stack.repeat + stack.epilogue


def length(stack: Stack) -> int:
    """How many layers a stack expands to, without expanding it."""
    return len(stack.prologue) + len(stack.pattern) * max(stack.repeat, 0) + len(stack.epilogue)


def stage_slice(count: int, stages: int, stage: int, layers_of_stage: Sequence[int] | None) -> slice:
    """Which of ``count`` layers one of ``stages`` pipeline stages holds; ``layers_of_stage`` counts those on each.

    Raises ValueError where the stage is none, where more than one is not counted, or where the counts do not fit.
    """
    if not 0 <= stage < stages:
        raise ValueError(f"pipeline_stage {stage} is none of {stages}")
    if layers_of_stage is None:
        if stages > 1:
            raise ValueError(f"layers_of_stage: state how many of {count} layers each of {stages} stages holds")
        return slice(0, count)
    if len(layers_of_stage) != stages or sum(layers_of_stage) != count or min(layers_of_stage) < 0:
        raise ValueError(f"layers_of_stage {list(layers_of_stage)} does not part {count} layers over {stages} stages")
    start = sum(layers_of_stage[:stage])
    return slice(start, start + layers_of_stage[stage])


def runs(graph: ModelGraph) -> dict[str, int]:
    """How many layers of each kind there are, counted over all stacks of the graph together."""
    counts: dict[str, int] = {}
    for _, stack in stacks(graph):
        for names, times in ((stack.prologue, 1), (stack.pattern, max(stack.repeat, 0)), (stack.epilogue, 1)):
            for name in names:
                counts[name] = counts.get(name, 0) + times
    return counts


def stacks(graph: ModelGraph) -> Iterator[tuple[tuple[str, ...], Stack]]:
    """Every stack of the graph with the keys that lead to it: the target's, the draft's, the draft's context."""
    yield ("stack",), graph.stack
    if graph.speculator is not None:
        yield ("speculator", "stack"), graph.speculator.stack
        if graph.speculator.context_stack is not None:
            yield ("speculator", "context_stack"), graph.speculator.context_stack


def layers(graph: ModelGraph, stack: Stack | None = None) -> tuple[LayerKind, ...]:
    """The layers of ``stack`` (the target's by default), in the order they run.

    Raises KeyError where the stack names a layer kind that is not declared; a checked graph has none.
    """
    kinds = {kind.id: kind for kind in graph.layer_kinds}
    return tuple(kinds[name] for name in expand(graph.stack if stack is None else stack))


def implied_cache(graph: ModelGraph, node: Attention) -> Cache:
    """The cache of an attention node that lists none: every KV head, or one latent, at the model's own dtype."""
    # A dtype that is none is a named problem of its own; the checks still look through such a graph.
    element = DTYPE_BITS.get(graph.globals_.dtype or "bf16", 16) // 8
    if node.kind in LATENT_KINDS:
        entry = node.d_h * element
    else:
        entry = node.n_kv * (node.d_h + (node.d_v or node.d_h)) * element
    if node.kind == "swa":
        return Cache(name=IMPLIED_CACHE, kind="window", owned=True, bytes_per_entry=entry, window=node.window)
    return Cache(
        name=IMPLIED_CACHE, kind="kv", owned=True, bytes_per_entry=entry, tokens_per_entry=node.compress_ratio or 1
    )


def implied_state(graph: ModelGraph, node: RecurrentUpdate) -> Cache:
    """The one state a recurrent node keeps for a request, whole (over all ranks)."""
    own = graph.globals_.dtype or "bf16"
    tensors = state_tensors(node, conv_dtype=own, state_dtype=node.state_dtype or own)
    return Cache(
        name=IMPLIED_STATE, kind="state", owned=True, bytes_per_entry=sum(tensor.bytes for tensor in tensors), entries=1
    )


def node_caches(graph: ModelGraph, node: Attention | RecurrentUpdate) -> tuple[Cache, ...]:
    """The caches a node reads, the implied one included."""
    if isinstance(node, RecurrentUpdate):
        return (implied_state(graph, node),)
    return (implied_cache(graph, node),) if node.caches is None else node.caches


def uses(graph: ModelGraph, sequence: Sequence[LayerKind]) -> Iterator[Use]:
    """Every cache of every layer in order, each reader paired with the nearest earlier owner of the same name."""
    owners: dict[str, int] = {}
    for position, layer in enumerate(sequence):
        owned: dict[str, int] = {}
        for node in layer.nodes:
            if not isinstance(node, (Attention, RecurrentUpdate)):
                continue
            for cache in node_caches(graph, node):
                if cache.owned:
                    owned[cache.name] = position
                owner = position if cache.owned else owners.get(cache.name)
                yield Use(position, layer.id, node, cache, owner)
        owners.update(owned)


def owned_caches(graph: ModelGraph) -> tuple[Use, ...]:
    """The caches the target's layers allocate, in layer order."""
    return tuple(use for use in uses(graph, layers(graph)) if use.cache.owned)
