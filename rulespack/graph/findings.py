"""What a check yields: a broken rule, where, and what the verdict rests on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from rulespack.graph.model import AnyNode, ModelGraph
from rulespack.graph.problems import Path, Problem, show_path
from rulespack.graph.rules import RULES

#: The longest word, and the most words, that a near miss is looked for among.
LONGEST_WORD: Final = 64
MOST_WORDS: Final = 500
#: How many names a message lists.
SHOWN_NAMES: Final = 12


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


def near(word: str, known: Collection[str]) -> str | None:
    """The known word that was probably meant, if any comes close; case and hyphens count for little.

    Nobody is helped with a very long word or out of very many, and comparing them would take long.
    """
    import difflib

    if len(word) > LONGEST_WORD or len(known) > MOST_WORDS:
        return None
    folded = {name.casefold().replace("-", "_"): name for name in known if len(name) <= LONGEST_WORD}
    wanted = word.casefold().replace("-", "_")
    if wanted in folded:
        return folded[wanted]
    found = difflib.get_close_matches(wanted, folded, n=1, cutoff=0.7)
    if not found and len(wanted) > 2:
        found = [name for name in folded if len(name) > 2 and (name.startswith(wanted) or wanted.startswith(name))]
    return folded[found[0]] if len(found) == 1 else None


def some(names: Iterable[str]) -> str:
    """The first few of a list of names, and that there are more."""
    listed = list(names)
    rest = f" and {len(listed) - SHOWN_NAMES} more" if len(listed) > SHOWN_NAMES else ""
    return (", ".join(listed[:SHOWN_NAMES]) or "none") + rest


def quoted(word: str) -> str:
    """A word in quotes, cut short where it is very long."""
    return repr(word if len(word) <= LONGEST_WORD else word[:LONGEST_WORD] + "...")


def not_among(what: str, value: str, known: Sequence[str]) -> str:
    """That a value is not one of a closed list, with the list and the entry that was probably meant."""
    guess = near(value, known)
    meant = f" (did you mean {guess}?)" if guess else ""
    return f"{quoted(value)} is no {what}{meant}: use {'one of ' if len(known) > 1 else ''}{', '.join(known)}"


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
