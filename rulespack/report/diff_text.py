"""A comparison as text for people: the summary first, then what changed, model by model."""

from __future__ import annotations

from rulespack.diff import Comparison
from rulespack.report.style import Style, pairs, wrap
from rulespack.report.told import Part, Told, told


def diff_text(comparison: Comparison, *, style: Style, only_changed: bool = False) -> str:
    """The whole report."""
    said = told(comparison, only_changed=only_changed)
    parts = [_summary(said, style)]
    parts += [_part(part, said, style) for part in said.parts]
    if said.accepts:
        parts.append([style.strong("what the releases accept"), *pairs(said.accepts, style)])
    parts += _unchanged(said, style)
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _summary(said: Told, style: Style) -> list[str]:
    lines = [*map(style.strong, wrap(f"{said.engine} {said.old} -> {said.new}: {said.counted}", style.width))]
    lines += pairs(said.deployments, style)
    lines.append("")
    lines += pairs(said.counts, style)
    for heading, ranked in (("less", said.losses), ("more", said.gains)):
        if ranked:
            lines += ["", f"holds {heading} in the same memory"]
            lines += pairs([(one.title, f"{one.change}: {one.amounts}") for one in ranked], style)
    return lines


def _part(part: Part, said: Told, style: Style) -> list[str]:
    lines = [*map(style.strong, wrap(f"{part.names}: {part.status}", style.width))]
    if part.answers:
        lines += pairs(part.answers, style)
    rows = [(label, f"{old} -> {new}" + (f", {delta}" if delta else "")) for label, old, new, delta in part.rows]
    lines += pairs(rows, style)
    for what, how in part.moved:
        first, *more = wrap(f"{what}: {how}", style.width - 4)
        lines += [f"  {first}", *(f"    {line}" for line in more)]
    if part.reasons:
        lines.append(f"  why, {said.old} and {said.new}")
        for rule, old, new in part.reasons:
            lines += [f"    {rule}", *pairs(((said.old, old), (said.new, new)), style, indent=6)]
    return lines


def _unchanged(said: Told, style: Style) -> list[list[str]]:
    parts = []
    if said.unmodelled:
        parts.append([style.strong("not modelled, so nothing is said"), *pairs(said.unmodelled, style)])
    for heading, names in said.same:
        lines = wrap(", ".join(names), style.width - 2)
        parts.append([*map(style.strong, wrap(heading, style.width)), *(f"  {line}" for line in lines)])
    return parts
