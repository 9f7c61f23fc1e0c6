"""A comparison as GitHub-flavoured Markdown, in parts that can be left out where there is a limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rulespack.diff import Comparison
from rulespack.report.told import Part, Told, told

#: What Markdown or HTML would read as its own.
_SPECIAL: Final = str.maketrans({char: "\\" + char for char in "\\`*[]<|~"})


def diff_markdown(comparison: Comparison, *, only_changed: bool = False) -> str:
    """The whole report."""
    return "\n".join(markdown_parts(comparison, only_changed=only_changed))


def fitted(parts: Sequence[str], limit: int, more: str) -> str:
    """As many parts, from the first on, as fit ``limit`` bytes; where some are left out, ``more`` says so at the end.

    ``{}`` in ``more`` becomes the number of parts that are left out. Empty where not even the first fits.
    """
    whole = "\n".join(parts)
    if len(whole.encode()) <= limit:
        return whole
    for kept in range(len(parts) - 1, 0, -1):
        text = "\n".join([*parts[:kept], more.format(len(parts) - kept)])
        if len(text.encode()) <= limit:
            return text
    return ""


def markdown_parts(comparison: Comparison, *, only_changed: bool = False) -> list[str]:
    """The summary, each section of what changed, what the releases accept, and what is left."""
    said = told(comparison, only_changed=only_changed)
    parts = [_lines(_summary(said))]
    parts += [_lines(_part(part, said)) for part in said.parts]
    if said.accepts:
        parts.append(_lines(["## What the releases accept", "", *_list(said.accepts), ""]))
    if said.unmodelled:
        parts.append(_lines(["## Not modelled, so nothing is said", "", *_list(said.unmodelled), ""]))
    for heading, names in said.same:
        parts.append(_lines([f"## {escape(heading[0].upper() + heading[1:])}", "", ", ".join(map(escape, names)), ""]))
    return parts


def escape(text: str) -> str:
    """``text`` as Markdown shows it letter by letter, on one line."""
    return " ".join(text.split()).translate(_SPECIAL)


def _lines(lines: Sequence[str] | Iterator[str]) -> str:
    return "\n".join(lines)


def _list(said: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A list of names with what there is to say of each."""
    return (f"- **{escape(name)}**: {escape(what)}" for name, what in said)


def _summary(said: Told) -> Iterator[str]:
    yield f"# {escape(said.engine)} {said.old} → {said.new}"
    yield ""
    yield f"{said.counted}."
    yield ""
    yield from _list(said.deployments)
    yield ""
    yield from _table(("status", "pairs"), said.counts, right=(1,))
    ranked = [(one.title, one.change, one.amounts) for one in (*said.losses, *reversed(said.gains))]
    if ranked:
        yield "What the same memory holds, the largest losses and gains:"
        yield ""
        yield from _table(("model", "change", "from"), ranked, right=(1,))


def _part(part: Part, said: Told) -> Iterator[str]:
    yield f"## {escape(part.names)}: {part.status}"
    yield ""
    if part.answers:
        yield from _list(part.answers)
        yield ""
    yield from _table(("", said.old, said.new, "change"), part.rows, right=(1, 2, 3))
    if part.moved:
        yield from (f"- {escape(what)}: {escape(how)}" for what, how in part.moved)
        yield ""
    if part.reasons:
        yield "<details><summary>Why</summary>"
        yield ""
        yield from _table(("rule", said.old, said.new), part.reasons)
        yield "</details>"
        yield ""


def _table(headings: Sequence[str], found: Sequence[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
    if not found:
        return
    yield f"| {' | '.join(headings)} |"
    yield f"| {' | '.join('---:' if column in right else '---' for column in range(len(headings)))} |"
    for cells in found:
        yield f"| {' | '.join(map(escape, cells))} |"
    yield ""
