"""What the caches of a graph cost a request, from the graph alone: before paging, grouping and parallelism."""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm

from rulespack.graph.model import Attention, Cache, ModelGraph
from rulespack.graph.stack import owned_caches


def entry_bytes(cache: Cache, cache_dtype: str | None = None) -> int:
    """The bytes of one stored entry under an engine's cache dtype; None, or a name not listed, is the base record."""
    listed = cache.bytes_by_cache_dtype
    return (
        cache.bytes_per_entry if cache_dtype is None or not listed else listed.get(cache_dtype, cache.bytes_per_entry)
    )


def check_described(caches: Iterable[Cache], cache_dtype: str | None) -> None:
    """Raises ValueError for a cache dtype no cache names: what it makes of a record is then the engine's to say."""
    if cache_dtype is None:
        return
    named = {name for cache in caches for name in cache.bytes_by_cache_dtype or ()}
    if cache_dtype not in named:
        there = f"it names {', '.join(sorted(named))}" if named else "it names none"
        raise ValueError(
            f"the graph does not say what a record takes under the cache dtype {cache_dtype}; {there}. A plan says it"
        )


def context_bytes_per_token(graph: ModelGraph, cache_dtype: str | None = None) -> float:
    """Bytes that one more token of context adds to what the target's layers keep for a request.

    The kv and index caches the target owns, each entry shared by the tokens it covers. Window and state caches are
    bounded and add nothing, nor does attention in chunks, which drops a chunk when the next one starts. Apply
    ``for_capability`` first where the graph describes several GPU architectures.

    Raises ValueError for a cache dtype that no cache of the graph names.
    """
    check_described((use.cache for use in owned_caches(graph)), cache_dtype)
    growing = [
        use.cache
        for use in owned_caches(graph)
        if use.cache.kind in ("kv", "index") and isinstance(use.node, Attention) and use.node.kind != "chunked"
    ]
    # Summed over the tokens after which every cache has taken a whole number of entries, so that no share is rounded.
    period = lcm(*(cache.tokens_per_entry for cache in growing))
    return sum(entry_bytes(cache, cache_dtype) * (period // cache.tokens_per_entry) for cache in growing) / period
