"""A comparison as every report of it tells it, in words and in order; the reports only draw it."""

from __future__ import annotations

import msgspec

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


class Ranked(msgspec.Struct, frozen=True):
    """One of the largest gains or losses: whose, by how much, and from what to what."""

    title: str
    change: str
    amounts: str


class Part(msgspec.Struct, frozen=True):
    """Models of which the same is to be told.

    ``answers`` is what each release says, where they do not both have a plan; ``rows`` are values that changed: what,
    old, new and by how much; ``moved`` caches and groups that did, ``reasons`` rules with what the old and the new
    release decide.
    """

    names: str
    status: str
    answers: list[tuple[str, str]]
    rows: list[tuple[str, str, str, str]]
    moved: list[tuple[str, str]]
    reasons: list[tuple[str, str, str]]
    pairs: tuple[Pair, ...]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report: the summary first, then each part that changed, what the releases accept, and what is left."""

    engine: str
    old: str
    new: str
    counted: str
    deployments: list[tuple[str, str]]
    counts: list[tuple[str, str]]
    losses: list[Ranked]
    gains: list[Ranked]
    parts: list[Part]
    accepts: list[tuple[str, str]]
    unmodelled: list[tuple[str, str]]
    same: list[tuple[str, list[str]]]


def told(comparison: Comparison, *, only_changed: bool = False) -> Told:
    """What there is to tell; ``only_changed`` leaves out what is the same or not modelled."""
    deployments = {pair.name: asked(pair.deployment) for pair in comparison.pairs}
    models = many(len({pair.model for pair in comparison.pairs}), "model")
    return Told(
        engine=comparison.engine,
        old=comparison.old,
        new=comparison.new,
        counted=f"{models}, {many(len(deployments), 'deployment')}",
        deployments=[*deployments.items()],
        counts=[(STATUS_WORDS[status], count(number)) for status, number in comparison.counts.items()],
        losses=[_ranked(pair, comparison) for pair in comparison.losses(RANKED)],
        gains=[_ranked(pair, comparison) for pair in comparison.gains(RANKED)],
        parts=[_part(section, comparison) for section in sections(comparison, TOLD)],
        accepts=[
            (KINDS.get(change.kind, change.kind), "; ".join(accepts_sentences(change))) for change in comparison.accepts
        ],
        unmodelled=[] if only_changed else unmodelled(comparison),
        same=[] if only_changed else same(comparison),
    )


def _ranked(pair: Pair, comparison: Comparison) -> Ranked:
    return Ranked(title(pair, comparison), percent(pair.capacity) or "0 %", capacity_text(pair))


def _part(section: Section, comparison: Comparison) -> Part:
    first, changed = section.pairs[0], section.status == "changed"
    reasons = [(rule, reason_text(said.old), reason_text(said.new)) for rule, said in reason_rows(first)]
    return Part(
        names=", ".join(title(pair, comparison) for pair in section.pairs),
        status=STATUS_WORDS[section.status],
        answers=answers(section, comparison) if not changed or first.old.refusal is not None else [],
        rows=[(row.label, row.old, row.new, row.delta) for row in rows(first)] if changed else [],
        moved=[(f"caches {what}", how) for what, how in cache_sentences(first)] + group_sentences(first)
        if changed
        else [],
        reasons=reasons if changed else [],
        pairs=section.pairs,
    )
