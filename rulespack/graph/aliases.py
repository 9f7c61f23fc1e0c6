"""Which node's weights an ``aliases`` reference reads, and the rules about such references."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from rulespack.graph.findings import Finding, all_nodes, near, quoted
from rulespack.graph.model import GEMM, AnyNode, Gather, Global, GroupedGEMM, ModelGraph
from rulespack.graph.problems import Path, show_path
from rulespack.graph.stack import runs
from rulespack.graph.vocabulary import DTYPE_BITS, IMPLIED_SCALES

Findings: TypeAlias = Iterator[Finding]
Holder: TypeAlias = GEMM | GroupedGEMM | Gather
Holders: TypeAlias = dict[str, list[tuple[Path, Holder]]]


def holders(graph: ModelGraph) -> Holders:
    """The nodes an alias can name, by reference: ``<layer kind>.<role>``, ``head.<role>`` or ``embedding.<role>``."""
    found: Holders = {}
    lists: list[tuple[str, Path, tuple[AnyNode, ...]]] = [
        (kind.id, ("layer_kinds", index, "nodes"), kind.nodes) for index, kind in enumerate(graph.layer_kinds)
    ]
    lists += [("head", ("head",), graph.head), ("embedding", ("embedding",), graph.embedding)]
    for prefix, path, nodes in lists:
        for number, node in enumerate(nodes):
            if node.role is not None and isinstance(node, (GEMM, GroupedGEMM, Gather)):
                found.setdefault(f"{prefix}.{node.role}", []).append(((*path, number), node))
    return found


def target(graph: ModelGraph, node: GEMM | Gather) -> Holder:
    """The node whose weights an alias reads. Raises KeyError for a reference that names none (an unchecked graph)."""
    return holders(graph)[node.aliases or ""][0][1]


def check_aliases(graph: ModelGraph) -> Findings:
    """Every aliases reference resolves to one node of the same shape whose weights exist once."""
    known: Holders | None = None
    counts: dict[str, int] = {}
    for path, node in all_nodes(graph):
        if node.aliases is None or not isinstance(node, (GEMM, Gather)):
            continue
        if known is None:
            known, counts = holders(graph), runs(graph)
        yield from _reference(graph, node, (*path, "aliases"), known, counts)


def _reference(graph: ModelGraph, node: GEMM | Gather, path: Path, known: Holders, counts: dict[str, int]) -> Findings:
    reference = node.aliases or ""
    found = known.get(reference, [])
    everywhere: tuple[Path, ...] = (("layer_kinds",), ("head",), ("embedding",))
    if not found:
        guess = near(reference, known)
        meant = f"did you mean {guess}?" if guess else "write <layer kind>.<role>, head.<role> or embedding.<role>"
        message = f"{quoted(reference)} names no GEMM, GroupedGEMM or Gather of this graph; {meant}"
        yield Finding("alias-unresolved", path, message, everywhere)
        return
    if len(found) > 1:
        places = " and ".join(show_path(place) for place, _ in found[:2])
        message = (
            f"{quoted(reference)} names {len(found)} nodes, {places} among them: give the one meant a role of its own"
        )
        yield Finding("alias-ambiguous", path, message, everywhere)
        return
    place, holder = found[0]
    uses = (place, path[:-1])
    if holder.aliases is not None:
        message = f"{reference} is itself an alias: name {holder.aliases}, which it reads"
        yield Finding("alias-of-alias", path, message, uses)
    if not _same_shape(node, holder, graph.globals_):
        message = f"{reference} is {_shape(holder)}, and this node reads it as {_shape(node)}: they must be one shape"
        yield Finding("alias-shape-differs", path, message, (*uses, ("global",)))
    if place[0] == "layer_kinds":
        kind = graph.layer_kinds[int(place[1])].id
        if (count := counts.get(kind, 0)) > 1:
            message = f"the stacks run {kind} {count} times, so {reference} is as many weights: name a kind run once"
            yield Finding("alias-kind-runs-often", path, message, (("stack",), ("speculator",)))


def _same_shape(node: GEMM | Gather, holder: Holder, shapes: Global) -> bool:
    if isinstance(node, GEMM) and isinstance(holder, GEMM):
        return (node.n, node.k) == (holder.n, holder.k)
    if isinstance(node, Gather) and isinstance(holder, Gather):
        return (node.rows, node.row_bytes) == (holder.rows, holder.row_bytes)
    if isinstance(node, GEMM) and isinstance(holder, Gather):
        return node.n == holder.rows and holder.row_bytes in _row_sizes(node.k, shapes)
    return False


def _row_sizes(elements: int, shapes: Global) -> set[int]:
    """The bytes a stored row of so many elements can have: any format, plain or with a scale layout the graph knows."""
    sizes: set[int] = set()
    for dtype, bits in DTYPE_BITS.items():
        payload = -(-elements * bits // 8)
        layouts = [IMPLIED_SCALES.get(dtype, (1, 0)), (1, 0)]
        if shapes.weight_scale is not None and dtype == shapes.weight_dtype and shapes.weight_scale.elements > 0:
            layouts.append((shapes.weight_scale.elements, shapes.weight_scale.bytes))
        sizes.update(payload + -(-elements // group) * size for group, size in layouts)
    return sizes


def _shape(node: Holder) -> str:
    if isinstance(node, Gather):
        return f"a Gather of {node.rows} rows of {node.row_bytes} bytes"
    return f"a {node.op} of n {node.n} and k {node.k}"
