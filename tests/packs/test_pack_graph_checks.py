"""What a graph says that a release does not know: a named problem each, and a plan that is refused for it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from small_graphs import ARCHITECTURE, MODELS, RELEASES, full, graph_of, latent, plan, sliding, table, with_caches

import rulespack
from rulespack import ModelGraph, Refused
from rulespack.graph.model import Cache, Positions, Speculator, Stack

ENTRY = 8 * 128 * 2 * 2
CONTROLLED = {"residency_control": "engram_cpu_offload"}


def kv(**keys: Any) -> Cache:
    return Cache(**{"name": "kv", "kind": "kv", "owned": True, "bytes_per_entry": ENTRY, **keys})


def drafting(method: str) -> ModelGraph:
    graph = graph_of([full()] * 2)
    stack = Stack(pattern=("layer0",), repeat=1)
    return msgspec.structs.replace(graph, speculator=Speculator(method=method, num_spec_tokens=1, stack=stack))


def problems(release: str, graph: ModelGraph) -> list[tuple[str, str]]:
    found = rulespack.engine(release).check_graph(graph)
    assert all(problem.severity == "error" for problem in found)
    return [(problem.rule, problem.path) for problem in found]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("model", MODELS)
def test_the_catalog_fits_every_release(release: str, model: str) -> None:
    assert problems(release, rulespack.load_model(model)) == []


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    "graph",
    [
        graph_of([full(), sliding(128)]),
        graph_of([latent()] * 2),
        drafting("mtp"),
        drafting("eagle3"),
        graph_of([with_caches(full(), kv())]),
        graph_of([with_caches(full(), kv(bytes_by_cache_dtype={"fp8": ENTRY // 2, "fp8_e4m3": ENTRY // 2}))]),
        graph_of([full()], extra=[table()]),
        graph_of([full()], extra=[table(residency="host")]),
    ],
)
def test_what_a_release_knows_is_no_problem(release: str, graph: ModelGraph) -> None:
    assert problems(release, graph) == []


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("graph", "rule", "path", "said"),
    [
        (graph_of([full()], architecture=None), "architecture-stated", "global.architecture", "is not stated"),
        (
            graph_of([full()], architecture="FalconForCausalLM"),
            "architecture-modelled",
            "global.architecture",
            "FalconForCausalLM is not modelled",
        ),
        (graph_of([full()], dtype=None), "fact-stated", "global.dtype", "the plan depends on it"),
        (graph_of([full()], positions=None), "fact-stated", "global.positions", "the plan depends on it"),
        (
            graph_of([msgspec.structs.replace(latent(), qk_nope_head_dim=None)]),
            "fact-stated",
            "layer_kinds.layer0",
            "qk_nope_head_dim",
        ),
        (drafting("telepathy"), "speculative-method-known", "speculator.method", "'telepathy'"),
        (
            graph_of([with_caches(full(), kv(bytes_by_cache_dtype={"fp9": 1}))]),
            "cache-dtype-known",
            "layer_kinds.layer0.caches.kv.bytes_by_cache_dtype",
            "'fp9'",
        ),
        (
            graph_of([with_caches(full(), kv(name="compressed"))]),
            "cache-modelled",
            "layer_kinds.layer0",
            f"'compressed' is not one that {ARCHITECTURE} keeps",
        ),
        (
            graph_of([full()], extra=[table(residency="host", residency_control="table_offload")]),
            "residency-control-known",
            "layer_kinds.layer0",
            "'table_offload'",
        ),
    ],
)
def test_what_a_release_does_not_know_is_a_named_problem(
    release: str, graph: ModelGraph, rule: str, path: str, said: str
) -> None:
    found = [problem for problem in rulespack.engine(release).check_graph(graph) if problem.rule == rule]
    assert [(problem.path, said in problem.message) for problem in found] == [(path, True)]
    with pytest.raises(Refused) as refused:
        plan(release, graph)
    assert (refused.value.by, refused.value.rule) == ("pack", rule)
    assert said in refused.value.reason


def test_a_table_lives_where_the_setting_puts_it_by_default() -> None:
    """0.31.0 keeps Engram tables in host memory unless told otherwise; 0.29.0 has no such setting."""
    right, wrong, unsaid = (
        graph_of([full()], extra=[table(**CONTROLLED, **where)])
        for where in ({"residency": "host"}, {"residency": "device"}, {})
    )
    assert problems("0.31.0", right) == []
    assert problems("0.31.0", wrong) == problems("0.31.0", unsaid) == [("residency-default", "layer_kinds.layer0")]
    for graph in (right, wrong):
        assert problems("0.29.0", graph) == [("residency-control-known", "layer_kinds.layer0")]


@pytest.mark.parametrize(("method", "since"), [("glm5_next_mtp", "0.31.0")])
def test_a_speculative_method_is_known_from_its_release_on(method: str, since: str) -> None:
    for release in RELEASES:
        known = release >= since
        assert problems(release, drafting(method)) == (
            [] if known else [("speculative-method-known", "speculator.method")]
        )


@pytest.mark.parametrize("name", ["nvfp4_ds_mla", "fp8_ds_mla"])
def test_a_graph_states_the_records_of_every_release(name: str) -> None:
    """nvfp4_ds_mla came with 0.30.0; a graph that states its record is still one of 0.29.0's."""
    graph = graph_of([with_caches(full(), kv(bytes_by_cache_dtype={name: 584}))])
    for release in RELEASES:
        assert problems(release, graph) == []


def test_a_ring_is_never_padded() -> None:
    graph = rulespack.load_model("deepseek-v4.1-flash")
    kinds = []
    for kind in graph.layer_kinds:
        nodes = [
            msgspec.structs.replace(node, caches=tuple(padded(cache) for cache in node.caches))
            if getattr(node, "caches", None)
            else node
            for node in kind.nodes
        ]
        kinds.append(msgspec.structs.replace(kind, nodes=tuple(nodes)))
    found = problems("0.31.0", msgspec.structs.replace(graph, layer_kinds=tuple(kinds)))
    assert {rule for rule, _ in found} == {"ring-unpadded"}
    assert all(path.endswith("caches.compressor_ring.page_alignment") for _, path in found)


def padded(cache: Cache) -> Cache:
    return msgspec.structs.replace(cache, page_alignment=576) if cache.kind == "state" else cache


@pytest.mark.parametrize("release", RELEASES)
def test_all_problems_are_said_at_once(release: str) -> None:
    graph = graph_of([full()], architecture="FalconForCausalLM", positions=None, dtype=None)
    assert [rule for rule, _ in problems(release, graph)] == ["architecture-modelled", "fact-stated", "fact-stated"]
    with pytest.raises(Refused, match=r"FalconForCausalLM.*global\.dtype.*global\.positions"):
        plan(release, graph)


@pytest.mark.parametrize("release", RELEASES)
def test_a_longer_positions_table_is_a_longer_request(release: str) -> None:
    graph = graph_of([full()], positions=Positions(max_position_embeddings=16_384))
    assert plan(release, graph).resolved.max_model_len == 16_384
