"""What became of the groups: which were kept, split, merged, and which of their numbers changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rulespack.diff.model import Change, GroupChange, Regrouped
from rulespack.diff.plans import differing, paired
from rulespack.kv.plan import Group, Plan

#: The numbers of a group, and what its requests pin: all that the public JSON states, and how blocks are counted.
GROUP_KEYS: Final = ("type", "block_size", "page_size_bytes", "blocks_per_request", "draft", "padding_bytes")
PAGE_KEYS: Final = ("bound", "extra", "shards")


def group_changes(old: Plan, new: Plan) -> tuple[GroupChange, ...]:
    """Every group that is not what it was, those that exchanged caches together."""
    pairs = paired(old, new)
    was_in = {cache: number for number, group in enumerate(old.groups) for cache in group.caches}
    is_in = {cache: number for number, group in enumerate(new.groups) for cache in group.caches}
    links = [(None if a is None else was_in.get(a), None if b is None else is_in.get(b)) for a, b in pairs]
    moved = dict(pair for pair in pairs if pair[0] is not None)
    return tuple(_changed(old, new, moved, links))


def _changed(
    old: Plan, new: Plan, moved: dict[int | None, int | None], links: list[tuple[int | None, int | None]]
) -> Iterator[GroupChange]:
    for was, is_now in _connected(len(old.groups), len(new.groups), links):
        kind = _kind(was, is_now)
        found: tuple[Change, ...] = ()
        if kind == "kept":
            before, after = old.groups[was[0]], new.groups[is_now[0]]
            found = tuple(_group_changes(before, after))
            if [moved.get(cache) for cache in before.caches] != list(after.caches):
                held = [tuple(plan.caches[i][0] for i in group.caches) for plan, group in ((old, before), (new, after))]
                found = (Change("caches", *held), *found)
            if was != is_now:
                kind = "renumbered"
            elif not found:
                continue
        plan, numbers = (new, is_now) if is_now else (old, was)
        names = tuple(plan.caches[i][0] for number in numbers for i in plan.groups[number].caches)
        yield GroupChange(kind, was, is_now, names, found)


def _group_changes(old: Group, new: Group) -> Iterator[Change]:
    yield from differing(GROUP_KEYS, old, new)
    yield from differing(PAGE_KEYS, old.pages, new.pages, "pages.")


def _kind(old: tuple[int, ...], new: tuple[int, ...]) -> Regrouped:
    if not old or not new:
        return "added" if new else "removed"
    if len(old) == 1:
        return "kept" if len(new) == 1 else "split"
    return "merged" if len(new) == 1 else "regrouped"


def _connected(
    old: int, new: int, links: list[tuple[int | None, int | None]]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The groups of both sides in sets that share caches, in the order of their first group."""
    parent = list(range(old + new))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for was, is_now in links:
        if was is not None and is_now is not None:
            parent[root(old + is_now)] = root(was)
    sets: dict[int, tuple[list[int], list[int]]] = {}
    for node in range(old + new):
        members = sets.setdefault(root(node), ([], []))
        members[node >= old].append(node - old if node >= old else node)
    for was_set, new_set in sets.values():
        yield tuple(was_set), tuple(new_set)
