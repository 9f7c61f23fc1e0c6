"""A cache a layer reads but does not own, against the record its owner stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from rulespack.graph.findings import Finding
from rulespack.graph.model import Attention, Cache, ModelGraph, Stack
from rulespack.graph.problems import Path, show_path
from rulespack.graph.stack import MAX_LAYERS, length, node_caches, stacks

Findings: TypeAlias = Iterator[Finding]


class _Seen(msgspec.Struct, frozen=True):
    """A cache of a layer kind and where it stands."""

    cache: Cache
    path: Path
    layer: str


def check_readers(graph: ModelGraph) -> Findings:
    """Every reader of every stack against the nearest earlier owner of the same name."""
    caches: dict[str, list[_Seen]] = {}
    for index, kind in enumerate(graph.layer_kinds):
        seen = caches[kind.id] = []
        for number, node in enumerate(kind.nodes):
            if isinstance(node, Attention):
                here: Path = ("layer_kinds", index, "nodes", number)
                for place, cache in enumerate(node_caches(graph, node)):
                    where = here if node.caches is None else (*here, "caches", place)
                    seen.append(_Seen(cache, where, kind.id))
    done: set[tuple[Path, Path | None]] = set()
    for where, stack in stacks(graph):
        if length(stack) > MAX_LAYERS:
            continue
        yield from _readers_of(where, stack, caches, done)


def _readers_of(
    where: Path, stack: Stack, caches: dict[str, list[_Seen]], done: set[tuple[Path, Path | None]]
) -> Findings:
    # A third turn of the pattern would find the owners that the second found: two show every pair there is.
    owners: dict[str, _Seen] = {}
    for name in stack.prologue + stack.pattern * min(stack.repeat, 2) + stack.epilogue:
        layer = caches.get(name, [])
        for reader in layer:
            if reader.cache.owned:
                continue
            owner = owners.get(reader.cache.name)
            pair = reader.path, None if owner is None else owner.path
            if pair in done:
                continue
            done.add(pair)
            if owner is None:
                message = (
                    f"the layer {reader.layer} reads {reader.cache.name}, and no earlier layer of {show_path(where)} "
                    "owns a cache of that name: set owned: true here, or run the owner first"
                )
                yield Finding("reader-without-owner", reader.path, message, (where, ("layer_kinds",)))
            else:
                yield from _differences(reader, owner)
        owners.update((seen.cache.name, seen) for seen in layer if seen.cache.owned)


def _differences(reader: _Seen, owner: _Seen) -> Findings:
    mine, theirs = reader.cache, owner.cache
    uses = (reader.path, owner.path)
    for rule, key in (
        ("reader-entry-differs", "bytes_per_entry"),
        ("reader-kind-differs", "kind"),
        ("reader-tokens-per-entry-differs", "tokens_per_entry"),
        ("reader-window-differs", "window"),
        ("reader-entries-differ", "entries"),
    ):
        read, stored = getattr(mine, key), getattr(theirs, key)
        if read != stored:
            yield _differs(rule, (*reader.path, key), key, read, stored, owner, uses)
    read_by, stored_by = mine.bytes_by_cache_dtype or {}, theirs.bytes_by_cache_dtype or {}
    for dtype in {**read_by, **stored_by}:
        entry = read_by.get(dtype, mine.bytes_per_entry)
        record = stored_by.get(dtype, theirs.bytes_per_entry)
        if entry != record:
            where = (*reader.path, "bytes_by_cache_dtype")
            yield _differs("reader-entry-differs", where, f"the entry under {dtype}", entry, record, owner, uses)


def _differs(
    rule: str, path: Path, key: str, read: object, stored: object, owner: _Seen, uses: tuple[Path, ...]
) -> Finding:
    message = (
        f"{key} is {'not stated' if read is None else read}, and the owner's, {show_path(owner.path)} of layer "
        f"{owner.layer}, {'is not stated' if stored is None else f'is {stored}'}: make them equal"
    )
    return Finding(rule, path, message, uses)
