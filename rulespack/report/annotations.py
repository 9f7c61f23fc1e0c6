"""Annotations of GitHub Actions: one line each on standard output, which the run then shows beside its summary."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from rulespack.diff import Comparison, Pair
from rulespack.report.changes import (
    STATUS_WORDS,
    TOLD,
    Section,
    answers,
    group_sentences,
    percent,
    row,
    sections,
    title,
)

Level: TypeAlias = Literal["error", "warning", "notice"]
LEVELS: Final[tuple[Level, ...]] = ("error", "warning", "notice")
#: Annotations of each level that GitHub shows of one step; it drops the rest without a word.
MOST: Final = 10
#: A longer title or message is cut, so that the list stays readable.
TITLE, MESSAGE = 120, 600


def annotation_lines(comparison: Comparison) -> list[str]:
    """A command for each section of what changed, the gravest level first and no more than GitHub shows.

    What is refused now is an error, what gains or is newly accepted a notice, any other change a warning.
    """
    found: dict[Level, list[tuple[str, str]]] = {level: [] for level in LEVELS}
    for section in sections(comparison, TOLD):
        names = ", ".join(title(pair, comparison) for pair in section.pairs)
        found[_level(section)].append((f"{names}: {STATUS_WORDS[section.status]}", _message(section, comparison)))
    lines = []
    for level, said in found.items():
        if len(said) > MOST:
            rest = len(said) - MOST + 1
            said[MOST - 1 :] = [(f"{rest} more", "rulespack diff prints them all; so does the summary of this step")]
        lines += [
            f"::{level} title={_property(_cut(head, TITLE))}::{_data(_cut(body, MESSAGE))}" for head, body in said
        ]
    return lines


def _level(section: Section) -> Level:
    if section.status in ("no-longer-served", "newly-refused"):
        return "error"
    gains = all((pair.capacity or 0) > 1 for pair in section.pairs)
    return "notice" if gains or section.status in ("newly-accepted", "newly-served") else "warning"


def _message(section: Section, comparison: Comparison) -> str:
    if section.status != "changed":
        return "; ".join(f"{release}: {said}" for release, said in answers(section, comparison))
    return _changes(section.pairs[0])


def _changes(pair: Pair) -> str:
    held = percent(pair.capacity)
    said = [f"{held.lstrip('+-')} {'more' if held.startswith('+') else 'less'} in the same memory"] if held else []
    said += [f"{one.label} {one.old} -> {one.new}" for one in map(row, (*pair.changes, *pair.weights))]
    said += [f"{what}: {how}" for what, how in group_sentences(pair)]
    return f"{pair.old.release} -> {pair.new.release}: {'; '.join(said)}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
