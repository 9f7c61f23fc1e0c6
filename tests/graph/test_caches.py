"""What a token of context costs, the order of layers, and who reads whose cache."""

from __future__ import annotations

from pathlib import Path

import pytest
from graph_texts import BASE

import rulespack
from rulespack.graph.caches import context_bytes_per_token, entry_bytes
from rulespack.graph.capability import for_capability
from rulespack.graph.load import inspect_graph, load_graph
from rulespack.graph.model import Cache
from rulespack.graph.sequence import state_bytes_per_sequence
from rulespack.graph.stack import expand, layers, owned_caches, runs, uses

EXAMPLE = Path(__file__).parents[2] / "docs/examples/model-graph-deepseek-v4.1.yaml"
GRAPH = load_graph(BASE)


def test_the_worked_example_is_clean() -> None:
    graph, problems = inspect_graph(EXAMPLE.read_bytes(), str(EXAMPLE))
    assert graph is not None
    assert problems == []


@pytest.mark.parametrize(
    ("family", "cache_dtype", "expected"),
    [(9, None, 1790), (10, None, 1650), (10, "nvfp4_ds_mla", 1050)],
)
def test_the_worked_example_costs_so_many_bytes_a_token(family: int, cache_dtype: str | None, expected: int) -> None:
    graph = for_capability(load_graph(EXAMPLE.read_bytes()), family)
    assert context_bytes_per_token(graph, cache_dtype) == expected


def test_a_cache_dtype_the_graph_does_not_name_is_not_guessed() -> None:
    graph = for_capability(load_graph(EXAMPLE.read_bytes()), 9)
    dense = rulespack.load_model("gemma-4-26b-a4b")
    for question in (context_bytes_per_token, lambda of, name: state_bytes_per_sequence(of, cache_dtype=name)):
        with pytest.raises(ValueError, match=r"under the cache dtype nvfp4_ds_mla; it names none"):
            question(graph, "nvfp4_ds_mla")
        with pytest.raises(ValueError, match=r"under the cache dtype fp8"):
            question(dense, "fp8")


def test_the_worked_examples_layers_are_the_models() -> None:
    graph = load_graph(EXAMPLE.read_bytes())
    order = expand(graph.stack)
    assert len(order) == 40
    owners = [use.layer for use in owned_caches(graph) if use.cache.name == "compressed"]
    assert owners == [2, 8, 14, 20]
    read = {use.layer: use.owner for use in uses(graph, layers(graph)) if use.cache.name == "compressed"}
    assert (read[3], read[7], read[9], read[19], read[21], read[39]) == (2, 2, 8, 14, 20, 20)


def test_windows_and_states_do_not_grow_with_context() -> None:
    # Of the small graph only the latent grows: 64 bytes for 2 tokens, and 40 under fp8.
    assert context_bytes_per_token(GRAPH) == 32
    assert context_bytes_per_token(GRAPH, "fp8") == 20


def test_an_entry_under_a_dtype_that_is_not_listed_is_the_base_record() -> None:
    cache = Cache(name="c", kind="kv", owned=True, bytes_per_entry=64, bytes_by_cache_dtype={"fp8": 40})
    assert [entry_bytes(cache, dtype) for dtype in (None, "fp8", "auto")] == [64, 40, 64]


def test_a_stack_is_its_prologue_its_pattern_repeated_and_its_epilogue() -> None:
    assert expand(GRAPH.stack) == ("source", "reader", "plain", "reader", "plain", "state")
    assert runs(GRAPH)["plain"] == 2
    assert runs(GRAPH)["draft"] == 1


def test_an_attention_that_lists_no_caches_owns_one() -> None:
    owned = {(use.layer, use.cache.name): use.cache for use in owned_caches(GRAPH)}
    assert owned[2, "kv"] == Cache(name="kv", kind="window", owned=True, bytes_per_entry=2 * 32 * 2, window=64)
