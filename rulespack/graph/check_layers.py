"""What makes the layer kinds, the stacks that order them, or the speculator invalid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from rulespack.graph.findings import Finding, near, not_among, quoted, some
from rulespack.graph.model import LayerKind, ModelGraph, Speculator, Stack
from rulespack.graph.problems import Path
from rulespack.graph.stack import MAX_LAYERS, length, stacks
from rulespack.graph.vocabulary import DRAFTING_MODES

Findings: TypeAlias = Iterator[Finding]


def check_layer_kinds(graph: ModelGraph) -> Findings:
    """There are layer kinds, each with an id of its own and nodes."""
    if not graph.layer_kinds:
        yield Finding("layer-kinds-empty", ("layer_kinds",), "there are no layer kinds: a model has at least one")
    first: dict[str, int] = {}
    for index, kind in enumerate(graph.layer_kinds):
        path = ("layer_kinds", index)
        if not kind.id:
            yield Finding(
                "layer-kind-id-empty", (*path, "id"), "the layer kind has no id: the stack refers to it by id"
            )
        elif kind.id in first:
            message = f"layer_kinds[{first[kind.id]}] is called {kind.id} already: give each kind an id of its own"
            yield Finding("layer-kind-id-repeated", (*path, "id"), message, (("layer_kinds", first[kind.id], "id"),))
        else:
            first[kind.id] = index
        if not kind.nodes:
            message = f"the layer kind {kind.id} has no nodes: a layer launches at least one"
            yield Finding("layer-kind-without-nodes", (*path, "nodes"), message)


def check_edges(kind: LayerKind, path: Path) -> Findings:
    """Edges join two different nodes that exist, and lead nowhere back."""
    count = len(kind.nodes)
    following: dict[int, list[int]] = {}
    for index, (tail, head) in enumerate(kind.edges):
        where = (*path, "edges", index)
        for end in (tail, head):
            if not 0 <= end < count:
                message = f"there is no node {end} in {kind.id}: its nodes are 0 to {count - 1}"
                yield Finding("edge-node-missing", where, message, given=((*path, "nodes"),))
        if tail == head:
            yield Finding("edge-to-itself", where, f"the edge joins node {tail} to itself: remove it")
        else:
            following.setdefault(tail, []).append(head)
    if cycle := _cycle(following):
        message = f"the edges close a cycle, {' -> '.join(map(str, cycle))}: remove one of them"
        yield Finding("edge-cycle", (*path, "edges", kind.edges.index((cycle[-2], cycle[-1]))), message)


def _cycle(following: dict[int, list[int]]) -> list[int]:
    """The nodes of one cycle, its first node repeated at the end; empty where there is none."""
    done: set[int] = set()
    for start in following:
        trail, open_ends = [start], [iter(following[start])]
        on_trail = {start}
        while trail and start not in done:
            for node in open_ends[-1]:
                if node in on_trail:
                    return [*trail[trail.index(node) :], node]
                if node in following and node not in done:
                    trail.append(node)
                    on_trail.add(node)
                    open_ends.append(iter(following[node]))
                    break
            else:
                open_ends.pop()
                on_trail.discard(trail[-1])
                done.add(trail.pop())
    return []


def check_stacks(graph: ModelGraph) -> Findings:
    """The target's stack, and the draft's."""
    declared = dict.fromkeys(kind.id for kind in graph.layer_kinds)
    yield from _repeats(graph.stack, ("stack",))
    yield from _undeclared(graph.stack, ("stack",), declared, "stack-kind-undeclared")
    if graph.speculator is not None:
        yield from _speculator(graph.speculator)
        for path, stack in list(stacks(graph))[1:]:
            yield from _undeclared(stack, path, declared, "speculator-kind-undeclared")
    for path, stack in stacks(graph):
        if (layers := length(stack)) > MAX_LAYERS:
            message = f"the stack expands to {layers} layers, and at most {MAX_LAYERS} are taken"
            yield Finding("stack-too-long", path, message, ((*path, "repeat"),))


def _repeats(stack: Stack, path: Path) -> Findings:
    """How often the pattern runs, and that something does."""
    where, uses = (*path, "repeat"), ((*path, "pattern"),)
    if stack.repeat < 0:
        message = f"repeat is {stack.repeat}, and cannot be negative: say how many times the pattern runs"
        yield Finding("stack-repeat-negative", where, message)
    elif stack.pattern and stack.repeat == 0:
        message = "the pattern has no repeat: say how many times it runs"
        yield Finding("stack-pattern-without-repeat", where, message, uses)
    elif stack.repeat and not stack.pattern:
        message = f"there is no pattern to repeat {stack.repeat} times: state pattern or remove repeat"
        yield Finding("stack-repeat-without-pattern", where, message, uses)
    if not (stack.prologue or stack.pattern or stack.epilogue):
        yield Finding(
            "stack-empty", path, "the stack expands to no layers: state a prologue, or a pattern and a repeat"
        )


def _undeclared(stack: Stack, path: Path, declared: dict[str, None], rule: str) -> Findings:
    for part in ("prologue", "pattern", "epilogue"):
        for index, name in enumerate(getattr(stack, part)):
            if name not in declared:
                guess = near(name, declared)
                meant = f"did you mean {guess}?" if guess else f"the kinds are {some(declared)}"
                message = f"no layer kind is called {quoted(name)}; {meant}"
                yield Finding(rule, (*path, part, index), message, (("layer_kinds",),))


def _speculator(speculator: Speculator) -> Findings:
    path = ("speculator",)
    if not speculator.method:
        yield Finding("speculator-method-missing", (*path, "method"), "state the engine's name for the method")
    if speculator.num_spec_tokens < 1:
        message = f"num_spec_tokens is {speculator.num_spec_tokens}: a draft proposes at least 1 token"
        yield Finding("speculator-draft-tokens", (*path, "num_spec_tokens"), message)
    if not speculator.stack.pattern:
        message = "the draft's stack has no pattern: state the layer kinds of the draft"
        yield Finding("speculator-pattern-missing", (*path, "stack", "pattern"), message)
    if speculator.stack.repeat < 1:
        message = f"repeat is {speculator.stack.repeat}: the draft's pattern runs at least once"
        yield Finding("speculator-repeat", (*path, "stack", "repeat"), message)
    yield from _modules(speculator)
    drafting = speculator.drafting
    if drafting is not None and drafting not in DRAFTING_MODES:
        message = f"{not_among('drafting mode', drafting, DRAFTING_MODES)}, or leave it out for one pass a token"
        yield Finding("speculator-drafting-unknown", (*path, "drafting"), message)
    if speculator.sequential_head and drafting != "parallel_block":
        message = "a sequential_head follows a block drafted at once: state drafting: parallel_block or remove it"
        yield Finding("speculator-sequential-head", (*path, "sequential_head"), message, ((*path, "drafting"),))
    if speculator.context_stack is not None:
        yield from _repeats(speculator.context_stack, (*path, "context_stack"))


def _modules(speculator: Speculator) -> Findings:
    count, total = speculator.modules, length(speculator.stack)
    path = ("speculator", "modules")
    if count < 1:
        message = f"modules is {count}: the draft's stack holds at least 1 module; leave it out for one"
        yield Finding("speculator-modules", path, message)
    elif total % count:
        message = f"{count} modules do not divide the {total} layers of the draft's stack: list each module's layers"
        yield Finding("speculator-modules", path, message, (("speculator", "stack"),))


def check_unused(graph: ModelGraph) -> Findings:
    """A layer kind that no stack names."""
    used = {name for _, stack in stacks(graph) for name in stack.prologue + stack.pattern + stack.epilogue}
    for index, kind in enumerate(graph.layer_kinds):
        if kind.id and kind.id not in used:
            message = f"neither the stack nor the speculator uses {kind.id}: remove it, or name it where it runs"
            yield Finding("layer-kind-unused", ("layer_kinds", index), message, (("stack",), ("speculator",)))


def draft_only(graph: ModelGraph) -> frozenset[str]:
    """The layer kinds that a parallel_block draft's stack runs and nothing else does."""
    speculator = graph.speculator
    if speculator is None or speculator.drafting != "parallel_block":
        return frozenset()

    def names(stack: Stack | None) -> set[str]:
        return set() if stack is None else {*stack.prologue, *stack.pattern, *stack.epilogue}

    return frozenset(names(speculator.stack) - names(graph.stack) - names(speculator.context_stack))
