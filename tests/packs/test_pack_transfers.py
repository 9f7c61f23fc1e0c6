"""KV connectors: one alone, several at once, and the one an offloading size stands for."""

from __future__ import annotations

from typing import Any

import pytest
from small_graphs import RELEASES, full, graph_of, latent, plan, sliding

from rulespack import ModelGraph, Refused

WINDOWS = graph_of([sliding(1024), full()] * 2)
LATENT = graph_of([latent()] * 2, architecture="DeepseekV2ForCausalLM")


def one(name: str, **more: Any) -> dict[str, Any]:
    return {"kv_connector": name, "kv_role": "kv_both", **more}


def several(*parts: dict[str, Any]) -> dict[str, Any]:
    return one("MultiConnector", kv_connector_extra_config={"connectors": list(parts)})


def refused(release: str, graph: ModelGraph = WINDOWS, **deployment: Any) -> Refused:
    with pytest.raises(Refused) as error:
        plan(release, graph, **deployment)
    return error.value


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("parts", "layout", "manager"),
    [
        (["NixlConnector", "OffloadingConnector"], "LBHNC", True),
        (["NixlConnector", "ExampleConnector"], "LBHNC", False),
        (["SimpleCPUOffloadConnector", "DecodeBenchConnector"], "LBNHC", True),
        ([], "LBNHC", False),
    ],
)
def test_several_connectors_keep_what_every_one_keeps(
    release: str, parts: list[str], layout: str, manager: bool
) -> None:
    resolved = plan(release, WINDOWS, kv_transfer_config=several(*map(one, parts))).resolved
    assert (resolved.kv_cache_layout, resolved.hybrid_kv_cache_manager) == (layout, manager)


@pytest.mark.parametrize("release", RELEASES)
def test_connectors_within_connectors_count(release: str) -> None:
    nested = several(one("NixlConnector"), several(one("ExampleConnector")))
    assert not plan(release, WINDOWS, kv_transfer_config=nested).resolved.hybrid_kv_cache_manager


@pytest.mark.parametrize("release", RELEASES)
def test_two_layouts_are_too_many(release: str) -> None:
    both = several(one("NixlConnector"), one("ExampleHiddenStatesConnector"))
    answer = refused(release, kv_transfer_config=both)
    assert (answer.by, answer.rule, answer.type, answer.stage) == (
        "engine",
        "connector-parts-share-layout",
        "ValueError",
        "groups",
    )
    # NIXL asks nothing of a latent cache, and nobody is asked where the environment says it.
    assert plan(release, LATENT, kv_transfer_config=both).resolved.kv_cache_layout == "LBNHC"
    said = plan(release, WINDOWS, kv_transfer_config=both, env={"VLLM_KV_CACHE_LAYOUT": "LBHNC"})
    assert said.resolved.kv_cache_layout == "LBHNC"


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("part", "rule"),
    [
        ({"kv_connector": "NixlConnector"}, "connector-role-stated"),
        ({"kv_connector": "NixlConnector", "kv_role": "all"}, "connector-role-accepted"),
        ({"kv_role": "kv_both"}, "connector-named"),
        (one("NixlConnector", port=1), "connector-key-known"),
        (one("Nixl"), "connector-known"),
    ],
)
def test_a_part_is_held_to_what_a_connector_is(release: str, part: dict[str, Any], rule: str) -> None:
    answer = refused(release, kv_transfer_config=several(part))
    assert (answer.by, answer.rule, answer.type, answer.stage) == ("engine", rule, "ValidationError", "config")


@pytest.mark.parametrize("release", RELEASES)
def test_a_transfer_without_a_name_comes_further_where_the_manager_is_decided(release: str) -> None:
    nameless = {"kv_role": "kv_both"}
    assert refused(release, kv_transfer_config=nameless).stage == "config"
    assert refused(release, kv_transfer_config=nameless, disable_hybrid_kv_cache_manager=True).stage == "groups"


@pytest.mark.parametrize("release", RELEASES)
def test_an_offloading_size_stands_for_a_connector(release: str) -> None:
    def resolved(**deployment: Any) -> tuple[str | None, bool]:
        kept = plan(release, WINDOWS, **deployment).resolved
        return kept.kv_cache_layout, kept.hybrid_kv_cache_manager

    assert resolved(kv_offloading_size=0) == resolved(kv_transfer_config=one("OffloadingConnector"))
    assert resolved(kv_offloading_size=4, kv_offloading_backend="lmcache") == ("LBNHC", False)
    assert resolved(kv_offloading_backend="lmcache") == ("LBNHC", True)
    simple = resolved(kv_offloading_size=4, env={"VLLM_USE_SIMPLE_KV_OFFLOAD": "1"})
    assert simple == resolved(kv_transfer_config=one("SimpleCPUOffloadConnector"))
    assert resolved(kv_offloading_size=4, kv_transfer_config=one("ExampleConnector")) == ("LBHNC", True)
    unknown = refused(release, kv_offloading_size=4, kv_transfer_config=one("Nixl"))
    assert (unknown.rule, unknown.stage) == ("connector-known", "config")
