"""Resident weights of one rank, and the format of each weight, from the graph alone.

The graph is as :func:`~rulespack.graph.capability.for_capability` describes it for the GPU that is meant. Biases, norms
and other vectors are no weights here; together they are a few thousandths of a model at the most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rulespack.errors import RulespackError
from rulespack.graph.model import GEMM, AnyNode, Gather, GroupedGEMM, LayerKind, ModelGraph
from rulespack.graph.shares import NO_PADDING, ExpertPadding, Ranks, held, padded_vocabulary
from rulespack.graph.stack import expand, layers, stage_slice
from rulespack.graph.weights import (
    Held,
    Parameters,
    Part,
    WeightFormat,
    holdings,
    implied_embedding,
    stored_format,
    tied,
    weight_of,
)


class AmbiguousRole(RulespackError):
    """Two nodes that share a place and a role are stored in different formats."""


def resident_weights(
    graph: ModelGraph,
    *,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    pipeline_stage: int = 0,
    data_parallel_size: int = 1,
    enable_expert_parallel: bool = False,
    layers_of_stage: Sequence[int] | None = None,
    head_on_every_stage: bool = False,
    padding: ExpertPadding = NO_PADDING,
) -> Parameters:
    """What the first rank of a pipeline stage holds: elements and bytes, by role and by format.

    A column-parallel layer is shared by its outputs, a row-parallel one by its inputs, a replicated one is whole on
    every rank. Each rank holds at least one KV head. The vocabulary is padded to a multiple of 64 and shared. Routed
    experts are shared by the tensor-parallel ranks of all data-parallel replicas together: by their inner dimension,
    or expert by expert with ``enable_expert_parallel``; everything else is whole in each replica. With all three, the
    engine splits tokens over the ranks in front of a mixture of experts that allows it, and shared experts are whole;
    so is, without stages, what a model's own sequence parallelism runs on split tokens.
    The first stage holds the embedding, the last one the head and the draft module. An alias adds nothing, unless what
    it reads is on another stage: then its stage holds a copy.

    The rest is the release's to decide and comes in from there: ``layers_of_stage`` counts the layers on each stage,
    and must be stated with more than one; ``head_on_every_stage`` tells a model class whose stages all keep the head;
    ``padding`` what a kernel adds to routed experts.

    Raises ValueError for an impossible layout, :class:`~rulespack.graph.state.Uneven` (a ValueError) where the ranks
    cannot share a dimension evenly, :class:`~rulespack.graph.shares.Undivided` where a layer does not say how they
    share it.
    """
    split = enable_expert_parallel and tensor_parallel_size > 1 and data_parallel_size > 1
    ranks = Ranks(
        tensor=_positive("tensor_parallel_size", tensor_parallel_size),
        experts=tensor_parallel_size * _positive("data_parallel_size", data_parallel_size),
        by_expert=enable_expert_parallel,
        split_tokens=split,
        own_split=split and pipeline_parallel_size == 1,
        padding=padding,
    )
    order = expand(graph.stack)
    on_stage = order[stage_slice(len(order), pipeline_parallel_size, pipeline_stage, layers_of_stage)]
    first, last = pipeline_stage == 0, pipeline_stage == pipeline_parallel_size - 1
    running = Counter(on_stage)
    read = _read(graph, running, last)

    def copies(one: Held) -> int:
        if one.part == "speculator":
            return one.copies if last else 0
        if isinstance(one.place, LayerKind):
            return running[one.place.id] or f"{one.place.id}.{one.node.role}" in read
        here = first if one.place == "embedding" else last or head_on_every_stage
        return here or f"{one.place}.{one.node.role}" in read

    weights = [
        weight_of(graph, one._replace(copies=number), held(graph, one.place, one.node, ranks))
        for one in holdings(graph)
        if (number := int(copies(one)))
    ]
    if not graph.embedding and (first or (last and any(tied(graph, node) for node in graph.head))):
        rows = padded_vocabulary(graph.globals_.vocab_size)
        weights.insert(0, implied_embedding(graph, -(-rows // ranks.tensor)))
    return Parameters(tuple(weights))


def precision_schedule(graph: ModelGraph, part: Part = "target") -> dict[tuple[int | None, str], WeightFormat]:
    """The stored format of every weight by layer and role, in the order they run.

    The layer is counted from 0, None for the embedding and the head; a node without a role goes by its primitive. An
    alias is listed in the format it is read in, which is its target's. Of the speculator these are the layers of its
    stack and, counted on, of its context stack. Empty for the speculator of a graph that has none. Raises AmbiguousRole
    where two nodes of one layer share a role and not their format.
    """
    schedule: dict[tuple[int | None, str], WeightFormat] = {}
    for layer, where, nodes in _places(graph, part):
        for node in nodes:
            if not isinstance(node, (GEMM, GroupedGEMM, Gather)):
                continue
            key = (layer, node.role or node.op)
            stored = stored_format(graph, node)
            if schedule.setdefault(key, stored) != stored:
                raise AmbiguousRole(
                    f"{where}: two nodes of role {key[1]} are stored as {schedule[key].dtype} and {stored.dtype}; "
                    "give each a role of its own"
                )
    return schedule


def _places(graph: ModelGraph, part: Part) -> Iterator[tuple[int | None, str, tuple[AnyNode, ...]]]:
    if part == "target":
        yield None, "embedding", graph.embedding
        for index, kind in enumerate(layers(graph)):
            yield index, f"layer kind {kind.id}", kind.nodes
        yield None, "head", graph.head
    elif graph.speculator is not None:
        draft = graph.speculator
        yield None, "speculator embedding", draft.embedding
        stacks = (draft.stack,) if draft.context_stack is None else (draft.stack, draft.context_stack)
        kinds = (kind for stack in stacks for kind in layers(graph, stack))
        for index, kind in enumerate(kinds):
            yield index, f"layer kind {kind.id}", kind.nodes
        yield None, "speculator head", draft.head + draft.sequential_head


def _read(graph: ModelGraph, running: Mapping[str, int], last: bool) -> frozenset[str]:
    """The weights that nodes of a stage read and others hold, as their ``aliases`` name them."""
    nodes = [node for kind in graph.layer_kinds if kind.id in running for node in kind.nodes]
    if last:
        nodes += graph.head
        if graph.speculator is not None:
            nodes += [node for _, _, some in _places(graph, "speculator") for node in some]
    return frozenset(node.aliases for node in nodes if node.aliases is not None)


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1")
    return value
