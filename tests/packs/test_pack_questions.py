"""The four questions asked one at a time give what the plan is made of."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Final

import pytest
from small_graphs import MODELS, RELEASES, chunked, full, graph_of, sliding

import rulespack
from rulespack import Deployment, Engine, ModelGraph, Plan, Refused
from rulespack.engine import WINDOW_TYPES

H200 = Deployment()


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("model", MODELS)
def test_every_question_gives_its_part_of_the_plan(release: str, model: str) -> None:
    engine, graph = rulespack.engine(release), rulespack.load_model(model)
    try:
        plan = engine.plan(graph)
    except Refused as refused:
        if refused.plan is None:
            the_questions_are_refused_alike(engine, graph, refused)
        return
    assert engine.resolve_cache_dtype(graph, H200).value == plan.resolved.cache_dtype
    owned = engine.owned_kv_cache_layers(graph, H200)
    assert tuple(zip(owned.names, owned.spec_of, strict=True)) == plan.caches
    assert (owned.specs, owned.backends) == (plan.specs, plan.backends)
    grouping = engine.kv_cache_groups(graph, H200)
    assert grouping.bytes_per_block == plan.bytes_per_block
    assert [group.caches for group in grouping.groups] == [group.caches for group in plan.groups]
    windows = engine.window_pages_per_request(graph, H200)
    for position, (group, made) in enumerate(zip(plan.groups, grouping.groups, strict=True)):
        kind = made.spec.members or made.spec.type
        assert (position in windows) == (kind in WINDOW_TYPES)
        if position in windows:
            assert windows[position].at(plan.resolved.max_model_len) == group.blocks_per_request
    resolution = engine.resolve_engine(graph, H200)
    assert resolution.resolved.block_size == plan.resolved.block_size
    assert resolution.resolved.scheduler_block_size is None  # known only once there are groups


def the_questions_are_refused_alike(engine: Engine, graph: ModelGraph, wanted: Refused) -> None:
    """The last question comes through all the others, and meets what the plan met."""
    with pytest.raises(Refused) as refused:
        engine.window_pages_per_request(graph, H200)
    assert (refused.value.by, refused.value.rule, refused.value.stage) == (wanted.by, wanted.rule, wanted.stage)


@pytest.mark.parametrize("release", RELEASES)
def test_only_a_window_has_window_pages(release: str) -> None:
    engine = rulespack.engine(release)
    assert engine.window_pages_per_request(graph_of([full()] * 2), H200) == {}
    assert engine.window_pages_per_request(graph_of([full(), chunked(1024)]), H200) == {}
    pages = engine.window_pages_per_request(graph_of([full(), sliding(128)]), Deployment(max_num_batched_tokens=2048))
    # 127 tokens behind the next one and two batches in flight, in one block more than they fill
    assert pages[1].at(8192) == -(-(127 + 2 * 2048) // 16) + 1
    assert pages[1].at(100) == -(-100 // 16) + 1


@pytest.mark.parametrize("release", RELEASES)
def test_a_question_is_refused_as_the_plan_is(release: str) -> None:
    engine, graph = rulespack.engine(release), rulespack.load_model("qwen3-14b")
    wrong = Deployment(tensor_parallel_size=7)
    for ask in (
        engine.plan,
        engine.resolve_cache_dtype,
        engine.resolve_engine,
        engine.owned_kv_cache_layers,
        engine.kv_cache_groups,
        engine.window_pages_per_request,
    ):
        with pytest.raises(Refused, match="not divisible by 7") as refused:
            ask(graph, wrong)
        assert (refused.value.by, refused.value.rule, refused.value.stage) == ("engine", "heads-divide", "config")


@pytest.mark.parametrize("release", RELEASES)
def test_a_plan_depends_on_nothing_asked_before(release: str) -> None:
    engine, graph = rulespack.engine(release), rulespack.load_model("gemma-4-26b-a4b")
    alone = engine.plan(graph)
    engine.plan(graph, Deployment(gpu="B200", kv_cache_dtype="fp8", tensor_parallel_size=8))
    engine.plan(graph, Deployment(disable_hybrid_kv_cache_manager=True))
    assert engine.plan(graph) == alone
    assert engine.plan(rulespack.load_model("gemma-4-26b-a4b")) == alone


def test_a_model_that_only_a_later_release_serves() -> None:
    """DeepSeek V4.1 came with a later Transformers than 0.29.0 has: the release cannot read its configuration."""
    graph = rulespack.load_model("deepseek-v4.1-flash")
    assert rulespack.engine("0.29.0").check_graph(graph) == ()
    with pytest.raises(Refused, match="deepseek_v41") as refused:
        rulespack.engine("0.29.0").plan(graph)
    assert refused.value.by == "engine"
    assert (refused.value.rule, refused.value.type, refused.value.stage) == (
        "architecture-served",
        "ValidationError",
        "config",
    )
    assert rulespack.engine("0.31.0").plan(graph).architecture == "DeepseekV41ForCausalLM"


#: Questions that differ in little: where a draft is named and where not, by which method, over how many stages.
DRAFTED: Final[tuple[dict[str, Any], ...]] = (
    {},
    *(
        {"speculative_config": {"num_speculative_tokens": 3, **speculation}, **stated}
        for speculation in (
            {"method": "medusa"},
            {"method": "medusa", "model": "qwen3-0.6b"},
            {"method": "mlp_speculator"},
            {"method": "mlp_speculator", "model": "qwen3-0.6b"},
            {"method": "ngram"},
            {"method": "mtp"},
            {"method": "mtp", "model": "ngram"},
            {"method": "draft_model", "model": "qwen3-0.6b"},
            {"model": "qwen3-0.6b"},
            {"method": "eagle3", "model": "qwen3-8b-eagle3-specforge"},
            {"method": "dflash", "model": "qwen3-8b-dflash-specforge"},
            {"method": "extract_hidden_states"},
        )
        for stated in ({}, {"pipeline_parallel_size": 2}, {"disable_sliding_window": True})
    ),
)


def outcome(release: str, graph: ModelGraph, stated: dict[str, Any]) -> Plan | tuple[object, ...]:
    try:
        return rulespack.engine(release).plan(graph, Deployment(**stated))
    except Refused as refused:
        return (refused.by, refused.rule, refused.type, refused.stage, refused.reason)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("model", ["qwen3-8b", "deepseek-v3"])
def test_a_drafted_plan_depends_on_nothing_asked_before(release: str, model: str) -> None:
    alone = [outcome(release, rulespack.load_model(model), stated) for stated in DRAFTED]
    graph = rulespack.load_model(model)
    for order in (range(len(DRAFTED)), range(len(DRAFTED) - 1, -1, -1)):
        for position in order:
            assert outcome(release, graph, DRAFTED[position]) == alone[position], DRAFTED[position]


@pytest.mark.parametrize("stated", [{}, DRAFTED[-3], {"disable_sliding_window": True}], ids=["plain", "drafted", "off"])
def test_a_graph_is_not_kept_by_what_was_asked_of_it(stated: dict[str, Any]) -> None:
    graph = rulespack.load_model("qwen3-8b")
    gone = weakref.ref(graph)
    outcome("0.31.0", graph, stated)
    del graph
    gc.collect()
    assert gone() is None
