"""Drafters: what they add, what each release takes, and what it refuses in its own terms."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from small_graphs import RELEASES, full, graph_of

import rulespack
from rulespack import Deployment, Plan, Refused
from rulespack.graph.model import Speculator, Stack

GPT_OSS = {"method": "eagle3", "model": "gpt-oss-120b-eagle3-specforge", "num_speculative_tokens": 3}
EAGLE3 = {"method": "eagle3", "model": "qwen3-8b-eagle3-specforge", "num_speculative_tokens": 3}
MTP = {"method": "mtp", "num_speculative_tokens": 3}


def planned(release: str, model: str, drafter: dict[str, Any] | None, **arguments: Any) -> Plan:
    deployment = Deployment(speculative_config=drafter, **arguments) if drafter else Deployment(**arguments)
    return rulespack.engine(release).plan(rulespack.load_model(model), deployment)


def refused(release: str, model: str, drafter: dict[str, Any], **arguments: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        planned(release, model, drafter, **arguments)
    return caught.value


@pytest.mark.parametrize("release", RELEASES)
def test_one_more_full_layer_decides_the_group_size_of_gpt_oss(release: str) -> None:
    """18 windows and 18 full layers are two groups of 18; the draft's full layer makes it groups of 19, one padded."""
    bare, drafting = planned(release, "gpt-oss-120b", None), planned(release, "gpt-oss-120b", GPT_OSS)
    assert [len(group.caches) for group in bare.groups] == [18, 18]
    assert [len(group.caches) for group in drafting.groups] == [18, 19]
    assert [group.padding_bytes for group in drafting.groups] == [drafting.specs[0].page_size_bytes, 0]
    assert drafting.bytes_per_block == bare.bytes_per_block // 18 * 19
    assert drafting.draft_caches == (36,)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("model", "drafter"),
    [("qwen3-8b", EAGLE3), ("qwen3.5-27b", MTP), ("deepseek-v3", MTP), ("gpt-oss-120b", GPT_OSS)],
)
def test_a_drafts_caches_stand_after_the_targets(release: str, model: str, drafter: dict[str, Any]) -> None:
    plan, bare = planned(release, model, drafter), planned(release, model, None)
    assert [name for name, _ in plan.caches][: len(bare.caches)] == [name for name, _ in bare.caches]
    assert plan.draft_caches == tuple(range(len(bare.caches), len(plan.caches)))
    assert plan.resolved.num_speculative_tokens == drafter["num_speculative_tokens"]
    assert "speculative-method" in {reason.rule for reason in plan.reasons}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    "drafter", [{"method": "ngram"}, {"method": "suffix"}, {"method": "medusa", "model": "a/medusa/head"}]
)
def test_a_drafter_without_attention_adds_no_cache(release: str, drafter: dict[str, Any]) -> None:
    plan = planned(release, "qwen3-8b", {**drafter, "num_speculative_tokens": 3})
    assert plan.draft_caches == ()
    assert len(plan.caches) == len(planned(release, "qwen3-8b", None).caches)
    assert plan.resolved.async_scheduling is False


@pytest.mark.parametrize("release", RELEASES)
def test_a_drafts_graph_may_be_given_as_it_is(release: str) -> None:
    target, draft = rulespack.load_model("qwen3-8b"), rulespack.load_model("qwen3-8b-eagle3-specforge")
    unnamed = Deployment(speculative_config={"method": "eagle3", "num_speculative_tokens": 3})
    given = rulespack.engine(release).plan(target, unnamed, draft=draft)
    assert given.groups == planned(release, "qwen3-8b", EAGLE3).groups


def test_a_draft_that_is_nowhere_is_an_error_of_the_question() -> None:
    with pytest.raises(rulespack.UnknownModel, match="no-such-draft"):
        planned("0.31.0", "qwen3-8b", {**EAGLE3, "model": "no-such-draft"})


@pytest.mark.parametrize("release", RELEASES)
def test_a_draft_is_no_target(release: str) -> None:
    with pytest.raises(Refused) as caught:
        planned(release, "qwen3-8b-eagle3-specforge", None)
    assert (caught.value.by, caught.value.rule) == ("pack", "draft-has-a-target")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("model", "drafter", "error"),
    [
        ("qwen3-8b", {"method": "nobodys", "num_speculative_tokens": 3}, ("ValidationError", "config")),
        ("qwen3-8b", {"method": "eagle3", "num_speculative_tokens": 3}, ("ValidationError", "config")),
        ("qwen3-8b", {**EAGLE3, "num_speculative_tokens": None}, ("ValidationError", "config")),
        ("qwen3-8b", {**EAGLE3, "num_speculative_tokens": 0}, ("ValidationError", "config")),
        ("qwen3-8b", {**EAGLE3, "no_such_key": 1}, ("ValidationError", "config")),
        ("qwen3-8b", {"num_speculative_tokens": 3}, ("ValidationError", "config")),
        ("qwen3-8b", MTP, ("NotImplementedError", "config")),
        ("qwen3-8b", {"method": "dspark", "num_speculative_tokens": 5}, ("ValueError", "construct")),
        ("deepseek-v3", {"method": "mtp"}, ("ValidationError", "config")),
        ("minimax-m3-full", {"method": "mtp", "num_speculative_tokens": 8}, ("ValidationError", "config")),
        ("gemma-3-4b-it", EAGLE3, ("RuntimeError", "construct")),
        (
            "qwen3-14b",
            {"method": "draft_model", "model": "llama-3.1-8b-instruct", "num_speculative_tokens": 3},
            ("ValidationError", "config"),
        ),
        (
            "qwen3-8b",
            {"method": "dspark", "model": "qwen3-8b-dspark-specforge", "num_speculative_tokens": 7},
            ("AttributeError", "construct"),
        ),
    ],
)
def test_the_release_refuses_a_drafter_in_its_own_terms(
    release: str, model: str, drafter: dict[str, Any], error: tuple[str, str]
) -> None:
    stated = {key: value for key, value in drafter.items() if value is not None}
    said = refused(release, model, stated)
    assert (said.by, said.type, said.stage) == ("engine", *error)


@pytest.mark.parametrize(
    ("release", "model", "drafter", "error"),
    [
        ("0.29.0", "qwen3-8b", EAGLE3, "NotImplementedError"),
        ("0.29.0", "qwen3.5-27b", MTP, "NotImplementedError"),
        ("0.29.0", "glm-4.7-flash", MTP, None),
        ("0.31.0", "qwen3-8b", EAGLE3, None),
        ("0.31.0", "qwen3.5-27b", MTP, None),
        ("0.31.0", "gpt-oss-120b", GPT_OSS, "ValueError"),
    ],
)
def test_pipeline_stages_beside_a_drafter(release: str, model: str, drafter: dict[str, Any], error: str | None) -> None:
    if error is None:
        plan = planned(release, model, drafter, pipeline_parallel_size=2)
        assert plan.stages is not None
        assert {index for group in plan.stages[-1].groups for index in group} >= set(plan.draft_caches)
    else:
        assert refused(release, model, drafter, pipeline_parallel_size=2).type == error


def test_keeping_the_drafts_last_blocks_came_with_0_31() -> None:
    kept = {**MTP, "disable_eagle_block_drop": True}
    assert refused("0.29.0", "qwen3.5-27b", kept).rule == "speculative-key-known"
    marked = [group.draft for group in planned("0.31.0", "qwen3.5-27b", MTP).groups]
    assert marked == [False, False, False, True]
    assert not any(group.draft for group in planned("0.31.0", "qwen3.5-27b", kept).groups)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("tokens", [1, 3, 5])
def test_a_convolution_keeps_a_row_more_for_each_drafted_token(release: str, tokens: int) -> None:
    plan = planned(release, "qwen3.5-27b", {"method": "mtp", "num_speculative_tokens": tokens})
    shapes = next(spec.shapes for spec in plan.specs if spec.shapes is not None)
    bare = next(spec.shapes for spec in planned(release, "qwen3.5-27b", None).specs if spec.shapes is not None)
    assert shapes is not None
    assert bare is not None
    assert shapes[0][0] - bare[0][0] == tokens


@pytest.mark.parametrize("release", RELEASES)
def test_drafted_tokens_that_modules_do_not_divide_are_a_problem_of_the_graph(release: str) -> None:
    stack = Stack(pattern=("layer0",), repeat=1)
    graph = graph_of([full()] * 2)
    speculator = Speculator(method="mtp", num_spec_tokens=3, modules=1, stack=stack)
    uneven = msgspec.structs.replace(speculator, num_spec_tokens=3, modules=2, stack=stack)
    found = rulespack.engine(release).check_graph(msgspec.structs.replace(graph, speculator=uneven))
    assert [problem.rule for problem in found] == ["speculative-tokens-divide"]
    assert rulespack.engine(release).check_graph(msgspec.structs.replace(graph, speculator=speculator)) == ()


def test_a_draft_that_is_nowhere_says_where_it_was_named() -> None:
    with pytest.raises(rulespack.UnknownModel, match=r"speculative_config\.model: .*did you mean qwen3-8b-eagle3"):
        planned("0.31.0", "qwen3-8b", {**EAGLE3, "model": "qwen3-8b-eagle3-specforg"})
