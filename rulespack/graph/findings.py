"""What a check yields: a broken rule, where, and what the verdict rests on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from rulespack.graph.model import AnyNode, ModelGraph
from rulespack.graph.problems import Path, Problem, show_path
from rulespack.graph.rules import RULES


class Finding(msgspec.Struct, frozen=True):
    """One broken rule.

    ``uses`` names what the verdict rests on besides ``path``, with all that is in it, ``given`` what only has to be
    there. Where a file holds something unusable there the finding would be a guess, and is left out.
    """

    rule: str
    path: Path
    message: str
    uses: tuple[Path, ...] = ()
    given: tuple[Path, ...] = ()


def problem(finding: Finding, line: int | None = None) -> Problem:
    """The finding as people get it."""
    rule = RULES[finding.rule]
    return Problem(
        rule=finding.rule,
        severity=rule.severity,
        path=show_path(finding.path),
        message=finding.message,
        line=line,
    )


def near(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant, if any comes close; case and hyphens count for little."""
    import difflib

    folded = {name.casefold().replace("-", "_"): name for name in known}
    wanted = word.casefold().replace("-", "_")
    if wanted in folded:
        return folded[wanted]
    found = difflib.get_close_matches(wanted, folded, n=1, cutoff=0.7)
    if not found and len(wanted) > 2:
        found = [name for name in folded if len(name) > 2 and (name.startswith(wanted) or wanted.startswith(name))]
    return folded[found[0]] if len(found) == 1 else None


def not_among(what: str, value: str, known: Sequence[str]) -> str:
    """That a value is not one of a closed list, with the list and the entry that was probably meant."""
    guess = near(value, known)
    meant = f" (did you mean {guess}?)" if guess else ""
    return f"{value!r} is no {what}{meant}: use {'one of ' if len(known) > 1 else ''}{', '.join(known)}"


def nodes_outside(graph: ModelGraph) -> Iterator[tuple[Path, AnyNode]]:
    """The nodes outside every layer, with where they stand: the embedding's, the head's, the speculator's."""
    lists: list[tuple[Path, tuple[AnyNode, ...]]] = [(("embedding",), graph.embedding), (("head",), graph.head)]
    if graph.speculator is not None:
        for part in ("embedding", "head", "sequential_head"):
            lists.append((("speculator", part), getattr(graph.speculator, part)))
    for path, nodes in lists:
        for number, node in enumerate(nodes):
            yield (*path, number), node


def nodes_inside(graph: ModelGraph) -> Iterator[tuple[Path, AnyNode]]:
    """The nodes of every layer kind, with where they stand."""
    for index, kind in enumerate(graph.layer_kinds):
        for number, node in enumerate(kind.nodes):
            yield ("layer_kinds", index, "nodes", number), node


def all_nodes(graph: ModelGraph) -> Iterator[tuple[Path, AnyNode]]:
    """Every node of the graph, with where it stands."""
    yield from nodes_inside(graph)
    yield from nodes_outside(graph)
