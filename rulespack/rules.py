"""The rules of the releases: their stable names, what each decides, and in which release it moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Final

import msgspec

from rulespack.engine import engine as engine_of
from rulespack.hooks import Rule
from rulespack.releases import DEFAULT_ENGINE, releases, resolve

#: Rules that are no release's: what a graph or a configuration must be to be asked about at all.
COMMON: Final = (
    Rule(
        name="capability-described",
        line="A graph with overlays must describe the GPU's family, or say what stands for it.",
        topic="The graph",
        steps={},
    ),
    Rule(
        name="configuration-translated",
        line="A configuration that no family translates has no graph, and no answer.",
        topic="The graph",
        steps={},
    ),
)


class Moved(msgspec.Struct, frozen=True):
    """What moved of a rule in one release, step by step: the step's name, and what is said of it in words."""

    release: str
    steps: tuple[tuple[str, str], ...]


class ListedRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of a release: ``since`` is the release it came with, None for the oldest there is a pack for; ``moved``
    what changed of it since."""

    name: str
    line: str
    topic: str
    since: str | None = None
    moved: tuple[Moved, ...] = ()


def rules(release: str | None = None, *, engine: str = DEFAULT_ENGINE) -> tuple[ListedRule, ...]:
    """The rules of a release (the newest there is a pack for if None), by topic in the order of the walk.

    Raises UnknownRelease.
    """
    known = releases(engine)
    last = known[-1] if release is None and known else resolve(release or "", engine)
    walked = known[: known.index(last) + 1]
    tables = [{rule.name: rule for rule in (*COMMON, *engine_of(each, engine=engine).rules())} for each in walked]
    listed = [_listed(name, walked, tables) for name in tables[-1]]
    topics = list(dict.fromkeys(rule.topic for rule in sorted(listed, key=_common_last)))
    return tuple(sorted(listed, key=lambda rule: topics.index(rule.topic)))


def _common_last(rule: ListedRule) -> bool:
    return any(rule.name == common.name for common in COMMON)


def _listed(name: str, walked: tuple[str, ...], tables: list[dict[str, Rule]]) -> ListedRule:
    since = None if name in tables[0] else next(r for r, table in zip(walked, tables, strict=True) if name in table)
    moved = []
    for before, release, after in zip(tables, walked[1:], tables[1:], strict=False):
        if name in before and name in after:
            steps = tuple(_moved_steps(before[name], after[name]))
            moved += [Moved(release, steps)] if steps else []
    rule = tables[-1][name]
    return ListedRule(name=name, line=rule.line, topic=rule.topic, since=since, moved=tuple(moved))


def _moved_steps(before: Rule, after: Rule) -> Iterator[tuple[str, str]]:
    for step, now in after.steps.items():
        was = before.steps.get(step)
        if was is not now and (callable(now) or was != now):
            yield step, _difference(was, now)


def _difference(was: object, now: object) -> str:
    """What a step is now that it was not: a function's own words, or the names of a table that came, went, changed."""
    if isinstance(now, Mapping) and isinstance(was, Mapping):
        changed = [str(key) for key in now if key in was and now[key] != was[key]]
        return _names(set(map(str, now)) - set(map(str, was)), set(map(str, was)) - set(map(str, now)), changed)
    if was is None and now is not None and not callable(now):
        return "new"
    if isinstance(now, Set) and isinstance(was, Set):
        return _names(set(map(str, now - was)), set(map(str, was - now)), [])
    if callable(now):
        return _first_sentences(now)
    if isinstance(now, (bool, int, str, type(None))) and isinstance(was, (bool, int, str, type(None))):
        return f"{was} before, {now} now"
    return "changed"


def _names(new: set[str], gone: set[str], changed: list[str]) -> str:
    parts = (("new", sorted(new)), ("gone", sorted(gone)), ("changed", sorted(changed)))
    return "; ".join(f"{word}: {', '.join(names)}" for word, names in parts if names)


def _first_sentences(function: Callable[..., object]) -> str:
    """The first paragraph of a function's docstring, on one line."""
    paragraph = (function.__doc__ or "").strip().split("\n\n")[0]
    return " ".join(paragraph.split()).replace("``", "`") or "changed"
