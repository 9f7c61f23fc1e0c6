"""Values of arguments and switches that a release refuses, whatever else is asked."""

from __future__ import annotations

from typing import Any

import pytest
from small_graphs import RELEASES, chunked, full, graph_of, plan

import rulespack
from rulespack import Deployment, ModelGraph, Plan, Refused
from rulespack.graph.model import Quantization

DENSE = graph_of([full()] * 4)
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
CUBINS = "VLLM_HAS_FLASHINFER_CUBIN"
CHUNKED = "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE"


def refused(release: str, graph: ModelGraph = DENSE, **deployment: Any) -> Refused:
    with pytest.raises(Refused) as error:
        plan(release, graph, **deployment)
    return error.value


def said(answer: Refused) -> tuple[str, str | None, str | None]:
    return answer.by, answer.type, answer.stage


def catalog(release: str, model: str, **deployment: Any) -> Plan:
    return rulespack.engine(release).plan(rulespack.load_model(model), Deployment(**deployment))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("value", ["True", "false", "", "1.0"])
def test_the_model_runner_is_switched_by_an_integer(release: str, value: str) -> None:
    answer = refused(release, env={RUNNER: value})
    assert said(answer) == ("engine", "ValidationError", "config")
    assert answer.rule == "model-runner-switch"


@pytest.mark.parametrize("release", RELEASES)
def test_any_integer_but_zero_asks_for_the_second_runner(release: str) -> None:
    """The first runner keeps no more than the stages' batches in flight, so the two differ on two stages."""
    flights = {
        value: plan(release, DENSE, pipeline_parallel_size=2, env={RUNNER: value}).resolved
        for value in ("00", "0", "1", "2", " 1 ")
    }
    batches = {value: kept.max_in_flight_tokens // kept.max_num_batched_tokens for value, kept in flights.items()}
    assert batches == {"00": 2, "0": 2, "1": 3, "2": 3, " 1 ": 3}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", [CUBINS, CHUNKED])
def test_other_switches_are_integers_or_are_refused_by_the_pack(release: str, name: str) -> None:
    answer = refused(release, env={name: "yes"})
    assert (answer.by, answer.rule) == ("pack", "environment-switch-modelled")
    assert name in answer.reason


@pytest.mark.parametrize("release", RELEASES)
def test_a_switch_is_off_at_any_spelling_of_zero(release: str) -> None:
    graph = graph_of([chunked(1024), full()])
    kept = {
        value: plan(release, graph, env={CHUNKED: value}).resolved.hybrid_kv_cache_manager for value in ("0", "00", "2")
    }
    assert kept == {"0": False, "00": False, "2": True}


@pytest.mark.parametrize("release", RELEASES)
def test_a_longer_context_is_admitted_whatever_blanks_surround_the_word(release: str) -> None:
    answer = plan(release, DENSE, max_model_len=16_384, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": " True "})
    assert answer.resolved.max_model_len == 16_384


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("argument", "known"),
    [
        ("performance_mode", ("balanced", "interactivity", "throughput")),
        ("distributed_executor_backend", ("mp", "ray", "uni")),
        ("all2all_backend", ("allgather_reducescatter", "deepep_v2")),
        ("kv_offloading_backend", ("native", "lmcache")),
        ("config_format", ("auto", "hf", "mistral")),
    ],
)
def test_an_argument_that_takes_a_few_names_takes_no_other(release: str, argument: str, known: tuple[str, ...]) -> None:
    answer = refused(release, **{argument: "foo"})
    assert said(answer) == ("engine", "ValidationError", "config")
    assert argument in answer.reason
    for name in known:
        assert plan(release, DENSE, **{argument: name}).groups


def test_an_executor_class_of_ones_own_is_not_modelled() -> None:
    assert refused("0.31.0", distributed_executor_backend="mine.Executor").by == "pack"


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("share", [0, -1, 1.5])
def test_a_share_of_memory_is_one(release: str, share: float) -> None:
    assert said(refused(release, gpu_memory_utilization=share)) == ("engine", "ValidationError", "config")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("stated", [{"kv_conector": "NixlConnector"}, {"kv_connector": "NixlConnector", "foo": 1}])
def test_a_key_of_a_connector_that_there_is_not(release: str, stated: dict[str, Any]) -> None:
    answer = refused(release, kv_transfer_config=stated)
    assert said(answer) == ("engine", "ValidationError", "config")
    assert answer.rule == "connector-key-known"


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("version", [1, 5, "4", True])
def test_a_version_of_flash_attention_is_one_of_three(release: str, version: Any) -> None:
    answer = refused(release, attention_config={"flash_attn_version": version})
    assert said(answer) == ("engine", "ValidationError", "config")


@pytest.mark.parametrize("release", RELEASES)
def test_turboquant_skips_layers_by_index_alone(release: str) -> None:
    answer = refused(release, kv_cache_dtype="turboquant_k8v4", kv_cache_dtype_skip_layers=["sliding_window", "3"])
    assert said(answer) == ("engine", "ValueError", "config")
    assert answer.rule == "turboquant-skips-indices"
    assert "'sliding_window'" in answer.reason
    assert plan(release, DENSE, kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=["sliding_window", "3"]).groups


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("method", "taken"),
    [
        ("fp8", {"bfloat16", "float16"}),
        ("deepseek_v4_fp8", {"bfloat16", "float16"}),
        ("modelopt_fp4", {"bfloat16", "float16"}),
        ("mxfp4", {"bfloat16"}),
        ("compressed-tensors", {"bfloat16", "float16", "float32"}),
        (None, {"bfloat16", "float16", "float32"}),
    ],
)
def test_a_quantization_method_runs_in_some_dtypes_alone(release: str, method: str | None, taken: set[str]) -> None:
    graph = graph_of([full()] * 2, quantization=None if method is None else Quantization(method=method))
    for dtype in ("bfloat16", "float16", "float32"):
        if dtype in taken:
            assert plan(release, graph, dtype=dtype).groups
        else:
            answer = refused(release, graph, dtype=dtype)
            assert said(answer) == ("engine", "ValidationError", "config")
            assert answer.rule == "quantized-model-dtype"


@pytest.mark.parametrize("release", RELEASES)
def test_a_checkpoints_own_dtype_is_asked_too(release: str) -> None:
    graph = graph_of([full()] * 2, quantization=Quantization(method="mxfp4"), dtype="fp16")
    assert refused(release, graph).rule == "quantized-model-dtype"


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("model", ["gemma-2-9b", "gemma-3-4b-it"])
@pytest.mark.parametrize("dtype", ["float16", "half"])
def test_a_model_that_is_unstable_in_float16_is_not_run_in_it(release: str, model: str, dtype: str) -> None:
    with pytest.raises(Refused) as error:
        catalog(release, model, dtype=dtype)
    assert said(error.value) == ("engine", "ValidationError", "config")
    assert error.value.rule == "float16-stable"
    assert catalog(release, model, dtype="bfloat16").groups


@pytest.mark.parametrize("release", RELEASES)
def test_a_float16_checkpoint_of_such_a_model_is_run_in_bfloat16(release: str) -> None:
    stored = {
        architecture: {
            spec.dtype for spec in plan(release, graph_of([full()], architecture=architecture, dtype="fp16")).specs
        }
        for architecture in ("Gemma2ForCausalLM", "LlamaForCausalLM")
    }
    assert stored == {"Gemma2ForCausalLM": {"bfloat16"}, "LlamaForCausalLM": {"float16"}}


def test_a_connector_of_sparse_caches_serves_no_other_model_and_is_not_modelled_for_one() -> None:
    asked = {"kv_connector": "HiSparseConnector", "kv_role": "kv_both"}
    answer = refused("0.31.0", kv_transfer_config=asked)
    assert (answer.by, answer.rule, answer.stage) == ("engine", "connector-needs-sparse-attention", "config")
    answer = refused("0.31.0", rulespack.load_model("deepseek-v3.2"), kv_transfer_config=asked)
    assert (answer.by, answer.rule) == ("pack", "connector-modelled")
    answer = refused("0.29.0", kv_transfer_config=asked)
    assert (answer.by, answer.rule, answer.stage) == ("engine", "connector-known", "config")
