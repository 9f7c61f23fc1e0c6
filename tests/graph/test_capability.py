"""One GPU architecture's facts laid over a graph."""

from __future__ import annotations

import pytest
from graph_texts import BASE, edited

from rulespack.graph.capability import UndescribedFamily, families, for_capability
from rulespack.graph.check import check_graph
from rulespack.graph.load import load_graph
from rulespack.graph.model import GEMM, Attention, Cache, ModelGraph, WeightScale

GRAPH = load_graph(BASE)


def cache(graph: ModelGraph, kind: int, node: int, name: str) -> Cache:
    attention = graph.layer_kinds[kind].nodes[node]
    assert isinstance(attention, Attention)
    return next(cache for cache in attention.caches or () if cache.name == name)


def gemm(graph: ModelGraph, kind: int, node: int) -> GEMM:
    found = graph.layer_kinds[kind].nodes[node]
    assert isinstance(found, GEMM)
    return found


def test_a_base_family_gets_the_base_graph_without_overrides() -> None:
    served = for_capability(GRAPH, 9)
    assert served.arch_overrides == ()
    assert served.base_capability_families == (9,)
    assert served.layer_kinds == GRAPH.layer_kinds


def test_an_overridden_family_gets_what_the_override_restates_and_nothing_else() -> None:
    served = for_capability(GRAPH, 10)
    assert served.base_capability_families == (10,)
    assert gemm(served, 0, 0).weight_dtype == "fp8"
    assert gemm(served, 0, 0).weight_scale == WeightScale(elements=32, bytes=1)
    assert gemm(served, 2, 1) == gemm(GRAPH, 2, 1)
    assert cache(served, 0, 2, "recent") == cache(GRAPH, 0, 2, "recent")


def test_a_record_is_restated_for_owners_and_readers_its_alignment_for_owners() -> None:
    served = for_capability(GRAPH, 10)
    owner, reader = cache(served, 0, 2, "latent"), cache(served, 1, 0, "latent")
    assert owner.bytes_per_entry == reader.bytes_per_entry == 56
    assert owner.bytes_by_cache_dtype == reader.bytes_by_cache_dtype == {"fp8": 40, "nvfp4": 30}
    assert (owner.page_alignment, reader.page_alignment) == (128, None)


def test_nodes_outside_the_layers_are_restated_too() -> None:
    text = edited(
        ("{role: qkv_proj, weight_dtype: fp8}", "{role: extra, weight_scale: {elements: 8, bytes: 2}}"),
        ("- {op: Elementwise, role: final_norm}", "- {op: GEMM, role: extra, n: 8, k: 64}"),
        ("  - {op: Elementwise, role: draft_norm}", "  - {op: GEMM, role: extra, n: 8, k: 64}"),
    )
    served = for_capability(load_graph(text), 10)
    assert served.speculator is not None
    for node in (served.head[0], served.speculator.head[0]):
        assert isinstance(node, GEMM)
        assert node.weight_scale == WeightScale(elements=8, bytes=2)


def test_an_alias_is_left_to_its_target_format() -> None:
    # The alias shares its role with a weight of its own, as a tied head shares that of an untied draft head.
    text = edited(
        (
            "role: context_proj, n: 80, k: 64, aliases: draft.draft_proj",
            "role: qkv_proj, n: 80, k: 64, aliases: draft.draft_proj",
        ),
    )
    served = for_capability(load_graph(text), 10)
    assert gemm(served, 5, 0).weight_dtype is None
    assert check_graph(served) == []


@pytest.mark.parametrize("family", [0, 8, 12])
def test_a_family_nobody_describes_is_refused_with_those_that_are(family: int) -> None:
    with pytest.raises(UndescribedFamily, match=f"family {family}; it describes 9, 10") as caught:
        for_capability(GRAPH, family)
    assert caught.value.families == (9, 10)
    assert caught.value.family == family


def test_a_graph_without_families_holds_for_every_one() -> None:
    everywhere = load_graph(BASE[: BASE.index("base_capability_families")])
    assert families(everywhere) == ()
    assert for_capability(everywhere, 12) is everywhere


def test_a_base_alone_refuses_the_others() -> None:
    ninth = load_graph(BASE[: BASE.index("arch_overrides")])
    assert for_capability(ninth, 9) is ninth
    with pytest.raises(UndescribedFamily):
        for_capability(ninth, 10)


@pytest.mark.parametrize("family", [9, 10])
def test_what_comes_out_is_valid_and_laying_over_again_changes_nothing(family: int) -> None:
    served = for_capability(GRAPH, family)
    assert check_graph(served) == []
    assert for_capability(served, family) is served
