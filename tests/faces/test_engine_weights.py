"""What the first rank holds, as an engine and its plans say it."""

from __future__ import annotations

import pytest

import rulespack
from rulespack import Deployment, Engine, Parameters
from rulespack.hooks import WeightLayout
from rulespack.report.json import plan_document


class Lays:
    """An override that lays weights out as it was told."""

    def __init__(self, layout: object) -> None:
        self.layout = layout

    @rulespack.hookimpl
    def weight_layout(self) -> object:
        return self.layout


def held(layout: object, model: str = "gpt-oss-120b", **arguments: object) -> Parameters | None:
    return Engine("0.31.0", plugins=[Lays(layout)]).weights(rulespack.load_model(model), Deployment(**arguments))  # type: ignore[arg-type]


def test_an_engine_takes_the_layout_from_its_plugin_and_the_rest_from_graph_and_deployment() -> None:
    graph = rulespack.load_model("gpt-oss-120b")
    asked = {"tensor_parallel_size": 8, "data_parallel_size": 2, "enable_expert_parallel": True}
    assert held(WeightLayout(layers_of_stage=(36,)), **asked) == rulespack.resident_weights(graph, **asked)  # type: ignore[arg-type]
    padded = WeightLayout(layers_of_stage=(36,), expert_inner_multiple=128, expert_outer_multiple=256)
    both = (
        held(padded),
        rulespack.resident_weights(graph, padding=rulespack.ExpertPadding(inner_multiple=128, outer_multiple=256)),
    )
    assert both[0] == both[1]
    assert both[1].target.bytes > rulespack.resident_weights(graph).target.bytes


def test_the_first_stage_is_the_one_that_is_told() -> None:
    first = held(WeightLayout(layers_of_stage=(10, 26)), pipeline_parallel_size=2)
    assert first is not None
    assert first.by_role().keys() >= {"embed_tokens", "experts_down"}
    assert "lm_head" not in first.by_role()
    kept = held(WeightLayout(layers_of_stage=(10, 26), head_on_every_stage=True), pipeline_parallel_size=2)
    assert kept is not None
    assert kept.by_role()["lm_head"] == first.by_role()["embed_tokens"]


def test_weights_are_those_of_the_gpu() -> None:
    layout = WeightLayout(layers_of_stage=(40,))
    hopper, blackwell = (held(layout, "deepseek-v4.1-flash", gpu=gpu) for gpu in ("H200", "B200"))
    assert hopper is not None
    assert blackwell is not None
    assert hopper.target.elements == blackwell.target.elements
    assert hopper.target.bytes > blackwell.target.bytes


def test_ranks_that_cannot_share_what_the_graph_says_they_do_leave_weights_unsaid() -> None:
    assert held(WeightLayout(layers_of_stage=(40,)), "qwen3-14b", data_parallel_size=2) is not None
    uneven = held(WeightLayout(layers_of_stage=(36,)), tensor_parallel_size=8, data_parallel_size=7)
    assert uneven is None


def test_a_layout_of_another_kind_is_a_bad_pack() -> None:
    with pytest.raises(rulespack.BadPack, match="a tuple is no answer to weight_layout"):
        held((36,))


def test_arguments_the_release_does_not_accept_are_refused() -> None:
    with pytest.raises(rulespack.Refused, match="divisible"):
        held(WeightLayout(layers_of_stage=(36,)), tensor_parallel_size=7)


def test_a_plans_weights_in_json() -> None:
    graph = rulespack.load_model("gpt-oss-120b")
    deployment = Deployment(tensor_parallel_size=2)
    plan = rulespack.engine("0.31.0").plan(graph, deployment)
    weights = rulespack.resident_weights(graph, tensor_parallel_size=2)
    model = plan_document(plan, weights=weights)["weights"]["model"]
    assert (model["elements"], model["bytes"]) == (weights.target.elements, weights.target.bytes)
    assert model["by_format"].keys() == {"bf16", "mxfp4"}
    assert sum(part["bytes"] for part in model["by_format"].values()) == model["bytes"]
    assert "weights" not in plan_document(plan)
