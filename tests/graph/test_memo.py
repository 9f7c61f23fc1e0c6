"""Work kept for as long as its graph is."""

from __future__ import annotations

import gc
import weakref

import pytest
from graph_texts import BASE

from rulespack.graph.load import load_graph
from rulespack.graph.memo import PerGraph
from rulespack.graph.model import ModelGraph


def test_work_is_done_once_for_each_graph() -> None:
    made: list[str] = []

    def name(graph: ModelGraph) -> str:
        made.append(graph.name)
        return graph.name

    kept = PerGraph(name)
    graph, equal = load_graph(BASE), load_graph(BASE)
    assert [kept(graph), kept(graph), kept(equal)] == ["tiny"] * 3
    assert len(made) == 2


@pytest.mark.parametrize("make", [lambda graph: graph.name, lambda graph: graph], ids=["a value", "the graph itself"])
def test_what_is_kept_does_not_keep_the_graph(make: object) -> None:
    kept: PerGraph[object] = PerGraph(make)  # type: ignore[arg-type]
    graph = load_graph(BASE)
    kept(graph)
    gone = weakref.ref(graph)
    del graph
    gc.collect()
    assert gone() is None
