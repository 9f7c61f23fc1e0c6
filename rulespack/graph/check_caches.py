"""What makes a cache, a layer's use of it, or a reader's view of its owner's cache invalid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from rulespack.graph.findings import Finding, nodes_outside, not_among, some
from rulespack.graph.model import Attention, Cache, Elementwise, LayerKind, ModelGraph
from rulespack.graph.problems import Path, show_path
from rulespack.graph.stack import node_caches
from rulespack.graph.vocabulary import CACHE_KINDS

Findings: TypeAlias = Iterator[Finding]

_SIZES: Final = ("tokens_per_entry", "window", "entries", "block_size", "page_alignment")
#: Sizes something is divided by or rounded to, so that a zero means nothing.
_DIVISORS: Final = ("tokens_per_entry", "block_size", "page_alignment")
#: The key one kind of cache needs and every other kind refuses, with the rules for both.
_KEY_OF_KIND: Final = (
    ("window", "window", "window-cache-without-window", "window-on-other-cache"),
    ("state", "entries", "state-cache-without-entries", "entries-on-other-cache"),
)


def check_cache(cache: Cache, path: Path) -> Findings:
    """Every rule about a cache by itself."""
    if not cache.name:
        yield Finding("cache-name-missing", (*path, "name"), "the cache has no name: readers find it by name")
    if cache.kind not in CACHE_KINDS:
        yield Finding("cache-kind-unknown", (*path, "kind"), not_among("cache kind", cache.kind, CACHE_KINDS))
    if cache.bytes_per_entry < 1:
        message = f"bytes_per_entry is {cache.bytes_per_entry}: a stored entry has a positive size"
        yield Finding("cache-bytes-not-positive", (*path, "bytes_per_entry"), message)
    yield from _sizes(cache, path)
    yield from _keys_of_kind(cache, path)
    if cache.bytes_by_cache_dtype is not None:
        yield from check_entries(cache.bytes_by_cache_dtype, (*path, "bytes_by_cache_dtype"), "cache")
    if not cache.owned:
        yield from _read_only(cache, path)


def check_entries(entries: dict[str, int], path: Path, what: str) -> Findings:
    """``bytes_by_cache_dtype`` of a ``what``: every entry named and positive."""
    for name, size in entries.items():
        if not name:
            message = "an entry has no name: name the engine's cache dtype it is for"
            yield Finding(f"{what}-dtype-entry-unnamed", (*path, name), message)
        if size < 1:
            message = f"the entry under {name or 'no name'} is {size} bytes: a stored entry has a positive size"
            yield Finding(f"{what}-dtype-entry-not-positive", (*path, name), message)


def _sizes(cache: Cache, path: Path) -> Findings:
    for key in _SIZES:
        value = getattr(cache, key)
        if value is None or value > 0:
            continue
        if value < 0:
            yield Finding("cache-size-negative", (*path, key), f"{key} is {value}, and a size cannot be negative")
        elif key in _DIVISORS:
            message = f"{key} is 0, which says nothing: remove it or state a positive one"
            yield Finding("cache-size-zero", (*path, key), message)


def _keys_of_kind(cache: Cache, path: Path) -> Findings:
    for kind, key, lacks, elsewhere in _KEY_OF_KIND:
        value = getattr(cache, key)
        uses = ((*path, "kind"),)
        if cache.kind == kind and not (value is not None and value > 0):
            yield Finding(lacks, (*path, key), f"a {kind} cache is bounded by {key}: state a positive {key}", uses)
        elif cache.kind != kind and value is not None:
            message = f"{key} belongs to a {kind} cache, and {cache.name} is of kind {cache.kind}: remove it"
            yield Finding(elsewhere, (*path, key), message, uses)


def _read_only(cache: Cache, path: Path) -> Findings:
    uses = ((*path, "owned"),)
    for key in ("block_size", "page_alignment"):
        if getattr(cache, key) is not None:
            message = f"how {cache.name} is paged is its owner's to say: remove {key} from the layer that reads it"
            yield Finding(f"reader-states-{key.replace('_', '-')}", (*path, key), message, uses)
    if cache.kind == "state":
        message = f"a state cache belongs to the layer that updates it: set owned: true on {cache.name}"
        yield Finding("state-cache-not-owned", (*path, "owned"), message, ((*path, "kind"),))


def check_layer_caches(graph: ModelGraph, kind: LayerKind, path: Path, spec_tokens: int | None) -> Findings:
    """The caches of one layer kind against its nodes.

    ``spec_tokens`` is num_spec_tokens where only a parallel_block draft runs the kind, None elsewhere.
    """
    named: dict[str, tuple[Cache, Path]] = {}
    for number, node in enumerate(kind.nodes):
        if not isinstance(node, Attention):
            continue
        here = (*path, "nodes", number)
        for index, cache in enumerate(node_caches(graph, node)):
            where = here if node.caches is None else (*here, "caches", index)
            if cache.name in named:
                yield _repeated(cache, where, named[cache.name][1], implied=node.caches is None)
            else:
                named[cache.name] = cache, where
            if node.caches is not None:
                yield from check_cache(cache, where)
                yield from _against_node(cache, where, node, here, spec_tokens)
    ratios = {node.compress_ratio for node in kind.nodes if isinstance(node, Attention)}
    for number, node in enumerate(kind.nodes):
        if isinstance(node, Elementwise):
            yield from _cache_work(node, (*path, "nodes", number), named, ratios, path)


def _repeated(cache: Cache, where: Path, other: Path, implied: bool) -> Finding:
    why = "lists no caches and so owns one called" if implied else "has a second cache called"
    message = f"the layer {why} {cache.name}, as {show_path(other)} does: list caches with names of their own"
    return Finding("cache-name-repeated", where if implied else (*where, "name"), message, (other,))


def _against_node(cache: Cache, path: Path, node: Attention, here: Path, spec_tokens: int | None) -> Findings:
    if cache.kind == "window" and cache.window is not None:
        read = cache.window + (spec_tokens or 0)
        if node.window != read:
            plus = f" plus the {spec_tokens} drafted tokens" if spec_tokens else ""
            message = (
                f"the cache {cache.name} keeps a window of {cache.window}, and its node's window is "
                f"{'not stated' if node.window is None else node.window}: make the node's {read}, the cache's{plus}"
            )
            uses: tuple[Path, ...] = ((*path, "kind"), (*here, "window"), ("stack",), ("speculator",))
            yield Finding("cache-window-disagrees", (*path, "window"), message, uses)
    ratio = node.compress_ratio or 1
    if cache.kind in ("kv", "index") and cache.tokens_per_entry != ratio:
        message = (
            f"an entry of {cache.name} covers {cache.tokens_per_entry} tokens, and its node reads at a "
            f"compress_ratio of {ratio}: make them equal"
        )
        uses = ((*path, "kind"), (*here, "compress_ratio"))
        yield Finding("cache-ratio-disagrees", (*path, "tokens_per_entry"), message, uses)


def _cache_work(
    node: Elementwise, here: Path, named: dict[str, tuple[Cache, Path]], ratios: set[int | None], layer: Path
) -> Findings:
    """An elementwise node that writes or reads a cache of its layer, or runs at a compressed rate."""
    uses = ((*layer, "nodes"),)
    if node.writes_cache is not None:
        where = (*here, "writes_cache")
        cache, origin = named.get(node.writes_cache, (None, ()))
        if cache is None:
            message = f"the layer has no cache {node.writes_cache!r}; its caches: {some(named)}"
            yield Finding("writes-cache-unknown", where, message, uses)
        elif not cache.owned:
            message = f"the layer reads {cache.name} and does not own it: write it in the layer that owns it"
            yield Finding("writes-cache-not-owned", where, message, ((*origin, "owned"),))
        if cache is not None and (node.per_tokens or 1) != cache.tokens_per_entry:
            message = (
                f"the node writes {cache.name}, whose entry covers {cache.tokens_per_entry} tokens: "
                f"make per_tokens {cache.tokens_per_entry}"
            )
            yield Finding("per-tokens-differs", (*here, "per_tokens"), message, (where, (*origin, "tokens_per_entry")))
    if node.context is not None and node.context.reads_cache is not None and node.context.reads_cache not in named:
        message = f"the layer has no cache {node.context.reads_cache!r}; its caches: {some(named)}"
        yield Finding("reads-cache-unknown", (*here, "context", "reads_cache"), message, uses)
    if node.per_tokens is not None and node.per_tokens > 1 and node.per_tokens not in ratios:
        read = some(str(ratio) for ratio in ratios if ratio)
        message = f"no attention of the layer has a compress_ratio of {node.per_tokens}; its ratios: {read}"
        yield Finding("per-tokens-no-ratio", (*here, "per_tokens"), message, uses)


def check_outside(graph: ModelGraph) -> Findings:
    """Nodes outside every layer have no caches to state, write or read."""
    for path, node in nodes_outside(graph):
        if isinstance(node, Attention) and node.caches is not None:
            message = "only nodes of a layer kind state caches: remove them"
            yield Finding("caches-outside-layer", (*path, "caches"), message)
            for index, cache in enumerate(node.caches):
                yield from check_cache(cache, (*path, "caches", index))
        if not isinstance(node, Elementwise):
            continue
        if node.writes_cache is not None:
            message = "there is no layer here whose cache could be written: remove writes_cache"
            yield Finding("writes-cache-outside-layer", (*path, "writes_cache"), message)
        if node.context is not None and node.context.reads_cache is not None:
            message = "there is no layer here whose cache could be read: remove reads_cache"
            yield Finding("reads-cache-outside-layer", (*path, "context", "reads_cache"), message)
        if node.per_tokens is not None and node.per_tokens > 1:
            message = "there is no compressed cache here to keep pace with: remove per_tokens"
            yield Finding("per-tokens-outside-layer", (*path, "per_tokens"), message)
