"""A comparison as GitHub-flavoured Markdown, in parts that can be left out where there is a limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rulespack.diff import Comparison, Pair
from rulespack.report.changes import (
    KINDS,
    RANKED,
    STATUS_WORDS,
    TOLD,
    Section,
    accepts_sentences,
    answers,
    asked,
    cache_sentences,
    capacity_text,
    group_sentences,
    many,
    percent,
    reason_rows,
    reason_text,
    rows,
    sections,
    title,
    unmodelled,
)
from rulespack.report.same import same
from rulespack.report.style import count

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
    parts = [_lines(_summary(comparison))]
    parts += [_lines(_section(section, comparison)) for section in sections(comparison, TOLD)]
    if comparison.accepts:
        parts.append(_lines(_accepts(comparison)))
    if not only_changed:
        if said := unmodelled(comparison):
            told = [f"- **{escape(name)}**: {escape(why)}" for name, why in said]
            parts.append(_lines(["## Not modelled, so nothing is said", "", *told, ""]))
        for heading, names in same(comparison):
            parts.append(
                _lines([f"## {escape(heading[0].upper() + heading[1:])}", "", ", ".join(map(escape, names)), ""])
            )
    return parts


def escape(text: str) -> str:
    """``text`` as Markdown shows it letter by letter, on one line."""
    return " ".join(text.split()).translate(_SPECIAL)


def _lines(lines: Sequence[str] | Iterator[str]) -> str:
    return "\n".join(lines)


def _summary(comparison: Comparison) -> Iterator[str]:
    yield f"# {escape(comparison.engine)} {comparison.old} → {comparison.new}"
    yield ""
    deployments = {pair.name: asked(pair.deployment) for pair in comparison.pairs}
    yield f"{many(len({pair.model for pair in comparison.pairs}), 'model')}, {many(len(deployments), 'deployment')}."
    yield ""
    yield from (f"- **{escape(name)}**: {escape(said)}" for name, said in deployments.items())
    yield ""
    found = [(STATUS_WORDS[status], count(number)) for status, number in comparison.counts.items()]
    yield from _table(("status", "pairs"), found, right=(1,))
    ranked = [*comparison.losses(RANKED), *reversed(comparison.gains(RANKED))]
    if ranked:
        yield "What the same memory holds, the largest losses and gains:"
        yield ""
        said = [(title(pair, comparison), percent(pair.capacity) or "0 %", capacity_text(pair)) for pair in ranked]
        yield from _table(("model", "change", "from"), said, right=(1,))


def _accepts(comparison: Comparison) -> Iterator[str]:
    yield "## What the releases accept"
    yield ""
    for change in comparison.accepts:
        yield f"- **{escape(KINDS.get(change.kind, change.kind))}**: {escape('; '.join(accepts_sentences(change)))}"
    yield ""


def _section(section: Section, comparison: Comparison) -> Iterator[str]:
    names = ", ".join(escape(title(pair, comparison)) for pair in section.pairs)
    yield f"## {names}: {STATUS_WORDS[section.status]}"
    yield ""
    first = section.pairs[0]
    if section.status != "changed" or first.old.refusal is not None:
        yield from (f"- **{release}**: {escape(said)}" for release, said in answers(section, comparison))
        yield ""
    if section.status == "changed":
        yield from _changed(first)


def _changed(pair: Pair) -> Iterator[str]:
    old, new = pair.old.release, pair.new.release
    found = [(row.label, row.old, row.new, row.delta) for row in rows(pair)]
    yield from _table(("", old, new, "change"), found, right=(1, 2, 3))
    told = [(f"caches {what}", how) for what, how in cache_sentences(pair)] + group_sentences(pair)
    if told:
        yield from (f"- {escape(what)}: {escape(how)}" for what, how in told)
        yield ""
    reasons = [(rule, reason_text(said.old), reason_text(said.new)) for rule, said in reason_rows(pair)]
    if reasons:
        yield "<details><summary>Why</summary>"
        yield ""
        yield from _table(("rule", old, new), reasons)
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
