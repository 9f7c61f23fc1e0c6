"""Quantization stated by hand."""

from __future__ import annotations

from typing import Any

import pytest
from small_graphs import RELEASES, full, graph_of, plan

import rulespack
from rulespack import Deployment, ModelGraph, Plan, Refused
from rulespack.graph.model import Quantization

DENSE = graph_of([full()] * 4)


def refused(release: str, graph: ModelGraph = DENSE, **deployment: Any) -> Refused:
    with pytest.raises(Refused) as error:
        plan(release, graph, **deployment)
    return error.value


def catalog(release: str, model: str, **deployment: Any) -> Plan:
    return rulespack.engine(release).plan(rulespack.load_model(model), Deployment(max_model_len=4096, **deployment))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("method", ["fp8", "fp8_per_tensor", "fp8_per_channel", "int8_per_channel_weight_only"])
def test_weights_quantized_while_they_are_loaded_leave_the_cache_alone(release: str, method: str) -> None:
    own, asked = (catalog(release, "qwen3-8b", **more) for more in ({}, {"quantization": method}))
    assert (asked.groups, asked.specs, asked.backends) == (own.groups, own.specs, own.backends)


@pytest.mark.parametrize("release", RELEASES)
def test_what_such_weights_take_is_not_stated(release: str) -> None:
    graph, engine = rulespack.load_model("qwen3-8b"), rulespack.engine(release)
    assert engine.weights(graph, Deployment()) is not None
    assert engine.weights(graph, Deployment(quantization="fp8")) is None


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("method", "rule", "error"),
    [
        ("fp9", "quantization-accepted", "ValidationError"),
        ("awq", "quantization-accepted", "ValidationError"),
        ("fp_quant", "quantization-accepted", "ValidationError"),
        ("torchao", "quantization-has-config", "TypeError"),
    ],
)
def test_a_method_the_checkpoint_has_nothing_for_is_refused(release: str, method: str, rule: str, error: str) -> None:
    answer = refused(release, quantization=method)
    assert (answer.by, answer.rule, answer.type, answer.stage) == ("engine", rule, error, "config")


@pytest.mark.parametrize("release", RELEASES)
def test_fp8_weights_run_in_sixteen_bits(release: str) -> None:
    assert refused(release, quantization="fp8", dtype="float32").rule == "quantized-model-dtype"
    assert plan(release, DENSE, quantization="fp8", dtype="float16", kv_cache_dtype="fp8")


def test_weights_made_fp8_while_they_are_loaded_count_as_a_checkpoints_in_0_29_alone() -> None:
    asked = {"quantization": "fp8", "kv_cache_dtype": "fp8_e5m2"}
    assert catalog("0.31.0", "qwen3-8b", **asked).groups
    with pytest.raises(Refused) as caught:
        catalog("0.29.0", "qwen3-8b", **asked)
    assert (caught.value.rule, caught.value.type, caught.value.stage) == (
        "e5m2-without-scales",
        "ValueError",
        "construct",
    )


@pytest.mark.parametrize("release", RELEASES)
def test_some_checkpoints_insist_on_what_they_are_and_others_are_refused_as_another(release: str) -> None:
    own = catalog(release, "gpt-oss-20b")
    assert catalog(release, "gpt-oss-20b", quantization="awq").groups == own.groups
    fp8 = graph_of([full()] * 4, quantization=Quantization(method="fp8"))
    assert plan(release, fp8, quantization="fp8").groups == plan(release, fp8).groups
    answer = refused(release, fp8, quantization="awq")
    assert (answer.by, answer.rule, answer.type) == ("engine", "quantization-accepted", "ValidationError")
    composed = refused(release, rulespack.load_model("gpt-oss-20b"), quantization="fp8_per_tensor")
    assert (composed.by, composed.rule) == ("pack", "quantization-as-checkpoint")


@pytest.mark.parametrize("release", RELEASES)
def test_experts_are_not_quantized_to_mxfp4_on_hopper(release: str) -> None:
    answer = refused(release, rulespack.load_model("qwen3-30b-a3b"), quantization="mxfp4")
    assert (answer.by, answer.type, answer.stage) == ("engine", "NotImplementedError", "construct")
