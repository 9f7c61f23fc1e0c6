"""Which draft runs for a name: by the method that is stated, and by what the draft's own configuration is taken for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from small_graphs import RELEASES

import rulespack
from rulespack import Deployment, ModelGraph, Plan, Refused


def drafted(release: str, target: str, draft: str | ModelGraph, **stated: Any) -> Plan:
    speculation = {"model": draft if isinstance(draft, str) else "given", "num_speculative_tokens": 3, **stated}
    deployment = Deployment(max_model_len=2048, speculative_config=speculation)
    if not isinstance(draft, str):
        deployment = deployment.with_draft(draft)
    return rulespack.engine(release).plan(rulespack.load_model(target), deployment)


def refused(release: str, target: str, draft: str | ModelGraph, **stated: Any) -> tuple[object, ...]:
    with pytest.raises(Refused) as caught:
        drafted(release, target, draft, **stated)
    answer = caught.value
    return answer.by, answer.type, answer.stage, answer.rule


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("stated", [{}, {"method": "draft_model"}])
def test_a_model_with_a_prediction_module_of_its_own_drafts_by_that_module(
    release: str, stated: dict[str, Any]
) -> None:
    module = drafted(release, "deepseek-v3", "deepseek-v3", **stated)
    assert len(module.draft_caches) == 1
    assert module.resolved == drafted(release, "deepseek-v3", "deepseek-v3", method="mtp").resolved
    assert refused(release, "qwen3.5-27b", "qwen3.5-4b", **stated)[0] == "pack"


@pytest.mark.parametrize("release", RELEASES)
def test_an_eagle_method_names_the_class_it_runs(release: str) -> None:
    wrong = refused(release, "qwen3-8b", "qwen3-8b-eagle3-specforge", method="eagle")
    assert wrong == ("engine", "ValidationError", "config", "draft-class-known")
    head = rulespack.load_model("qwen3-8b-eagle3-specforge")
    for architecture, method in (("LlamaForCausalLM", "eagle"), ("LlamaForCausalLM", "eagle3")):
        named = msgspec.structs.replace(
            head, globals_=msgspec.structs.replace(head.globals_, architecture=architecture)
        )
        plan = drafted(release, "qwen3-8b", named, method=method)
        assert [plan.caches[i][0] for i in plan.draft_caches] == ["model.layers.36.self_attn.attn"]
        assert plan.bytes_per_block == 2_424_832


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("method", ["medusa", "mlp_speculator"])
def test_a_whole_model_is_no_head(release: str, method: str) -> None:
    assert refused(release, "qwen3-8b", "qwen3-0.6b", method=method)[0] == "pack"


@pytest.mark.parametrize("release", RELEASES)
def test_a_head_nobody_described_is_taken_for_one_where_the_release_has_its_class(release: str) -> None:
    assert drafted(release, "qwen3-8b", "somebody/own-head", method="medusa").draft_caches == ()
    said = refused(release, "qwen3-8b", "somebody/own-head", method="mlp_speculator")
    assert said[:3] == ("engine", "ValidationError", "config")


@pytest.mark.parametrize("release", RELEASES)
def test_layers_that_are_called_alike_are_not_built_twice(release: str) -> None:
    assert refused(release, "smollm3-3b", "smollm3-3b", method="draft_model")[:3] == (
        "engine",
        "ValueError",
        "construct",
    )


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("target", "draft", "method", "windows"),
    [
        ("mistral-7b-v0.1", "llama-2-7b-hf", "draft_model", {4096}),
        ("mistral-7b-v0.1", "mistral-7b-v0.1", "draft_model", {4096}),
        ("mistral-7b-v0.1", "qwen3-8b-eagle3-specforge", "eagle3", {4096}),
        ("mistral-7b-v0.1", "qwen3-8b-dflash-specforge", "dflash", {4096}),
        ("llama-2-7b-hf", "mistral-7b-v0.1", "draft_model", {None}),
        ("mixtral-8x22b-v0.1", "mistral-7b-v0.1", "draft_model", {None}),
    ],
)
def test_a_draft_has_the_window_its_target_states_for_all_layers(
    release: str, target: str, draft: str, method: str, windows: set[int | None]
) -> None:
    plan = drafted(release, target, draft, method=method)
    assert {plan.specs[plan.caches[i][1]].sliding_window for i in plan.draft_caches} == windows


def test_a_count_that_nobody_states_is_missed_before_the_draft_is_built() -> None:
    speculation = {"method": "dspark", "model": "qwen3-8b-dspark-specforge"}
    with pytest.raises(Refused) as caught:
        rulespack.engine("0.29.0").plan(rulespack.load_model("qwen3-8b"), Deployment(speculative_config=speculation))
    assert (caught.value.type, caught.value.stage) == ("ValidationError", "config")


@pytest.mark.parametrize("release", RELEASES)
def test_a_draft_without_its_markov_rank_is_missed_after_every_configuration(release: str) -> None:
    draft = "qwen3.6-27b-dspark-specforge"
    assert refused(release, "qwen3.5-27b", draft, method="dspark")[1:3] == ("AttributeError", "construct")
    speculation = {"method": "dspark", "model": draft, "num_speculative_tokens": 1}
    with pytest.raises(Refused) as caught:
        rulespack.engine(release).plan(
            rulespack.load_model("qwen3.5-27b"), Deployment(tensor_parallel_size=16, speculative_config=speculation)
        )
    assert (caught.value.type, caught.value.stage) == ("ValidationError", "config")
