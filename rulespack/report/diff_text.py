"""A comparison as text for people: the summary first, then what changed, model by model."""

from __future__ import annotations

from collections.abc import Iterable

from rulespack.diff import AcceptsChange, Comparison, Pair
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
from rulespack.report.style import Style, count, pairs, wrap


def diff_text(comparison: Comparison, *, style: Style, only_changed: bool = False) -> str:
    """The whole report."""
    parts = [_summary(comparison, style)]
    parts += [_section(section, comparison, style) for section in sections(comparison, TOLD)]
    if comparison.accepts:
        parts.append(_accepts(comparison.accepts, style))
    if not only_changed:
        parts += _unchanged(comparison, style)
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _summary(comparison: Comparison, style: Style) -> list[str]:
    models = len({pair.model for pair in comparison.pairs})
    deployments = {pair.name: asked(pair.deployment) for pair in comparison.pairs}
    said = f"{comparison.engine} {comparison.old} -> {comparison.new}: {many(models, 'model')}"
    lines = [*map(style.strong, wrap(f"{said}, {many(len(deployments), 'deployment')}", style.width))]
    lines += pairs(deployments.items(), style)
    lines.append("")
    lines += pairs([(STATUS_WORDS[status], count(number)) for status, number in comparison.counts.items()], style)
    for heading, ranked in (("less", comparison.losses(RANKED)), ("more", comparison.gains(RANKED))):
        if ranked:
            lines += ["", f"holds {heading} in the same memory"]
            lines += pairs([(title(pair, comparison), _ranked(pair)) for pair in ranked], style)
    return lines


def _ranked(pair: Pair) -> str:
    return f"{percent(pair.capacity) or '+0 %'}: {capacity_text(pair)}"


def _accepts(changes: Iterable[AcceptsChange], style: Style) -> list[str]:
    said = [(KINDS.get(change.kind, change.kind), "; ".join(accepts_sentences(change))) for change in changes]
    return [style.strong("what the releases accept"), *pairs(said, style)]


def _section(section: Section, comparison: Comparison, style: Style) -> list[str]:
    named = ", ".join(title(pair, comparison) for pair in section.pairs)
    lines = [*map(style.strong, wrap(f"{named}: {STATUS_WORDS[section.status]}", style.width))]
    first = section.pairs[0]
    if section.status != "changed" or first.old.refusal is not None:
        lines += pairs(answers(section, comparison), style)
    if section.status == "changed":
        lines += _changed(first, style)
    return lines


def _changed(pair: Pair, style: Style) -> list[str]:
    said = [(row.label, f"{row.old} -> {row.new}" + (f", {row.delta}" if row.delta else "")) for row in rows(pair)]
    lines = pairs(said, style)
    told = [(f"caches {what}", how) for what, how in cache_sentences(pair)] + group_sentences(pair)
    for what, how in told:
        first, *more = wrap(f"{what}: {how}", style.width - 4)
        lines += [f"  {first}", *(f"    {line}" for line in more)]
    reasons = reason_rows(pair)
    if reasons:
        lines.append(f"  why, {pair.old.release} and {pair.new.release}")
        for rule, decision in reasons:
            sides = ((pair.old.release, reason_text(decision.old)), (pair.new.release, reason_text(decision.new)))
            lines += [f"    {rule}", *pairs(sides, style, indent=6)]
    return lines


def _unchanged(comparison: Comparison, style: Style) -> list[list[str]]:
    parts = []
    if said := unmodelled(comparison):
        parts.append([style.strong("not modelled, so nothing is said"), *pairs(said, style)])
    for heading, names in same(comparison):
        lines = wrap(", ".join(names), style.width - 2)
        parts.append([*map(style.strong, wrap(heading, style.width)), *(f"  {line}" for line in lines)])
    return parts
