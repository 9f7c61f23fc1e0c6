"""Work that depends on a graph alone, done once for each graph object and forgotten with it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from rulespack.graph.model import ModelGraph

T = TypeVar("T")


class PerGraph(Generic[T]):
    """``PerGraph(make)(graph)`` is ``make(graph)``, computed once.

    Graphs are told apart by identity: two equal graphs are two entries, and hashing a whole graph is never needed.
    """

    def __init__(self, make: Callable[[ModelGraph], T]) -> None:
        self._make = make
        self._kept: dict[int, tuple[weakref.ref[ModelGraph], T]] = {}

    def __call__(self, graph: ModelGraph) -> T:
        """What ``make`` made, or makes, of the graph."""
        key = id(graph)
        kept = self._kept.get(key)
        if kept is not None and kept[0]() is graph:
            return kept[1]
        value = self._make(graph)
        # A value that is the graph itself would keep it alive for ever.
        if value is not graph:
            self._kept[key] = (weakref.ref(graph, lambda _: self._kept.pop(key, None)), value)
        return value
