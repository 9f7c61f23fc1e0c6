"""What a deployment takes, and what a release makes of names and values."""

from __future__ import annotations

from typing import Any

import pytest
from small_graphs import RELEASES, full, graph_of, latent, plan

import rulespack
from rulespack import GPUS, BadDeployment, Deployment, Gpu, Plan, Refused

GIB = 1 << 30
DENSE = graph_of([full()] * 2)


def refused(release: str, **deployment: Any) -> Refused:
    with pytest.raises(Refused) as error:
        plan(release, DENSE, **deployment)
    return error.value


# names


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("tensor_paralel_size", "tensor_parallel_size"),
        ("tp", None),
        ("kv_cache_dtyp", "kv_cache_dtype"),
        ("max_model_length", "max_model_len"),
        ("served_model_nam", "served_model_name"),
        ("Block_size", "block_size"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_one_meant(wrong: str, meant: str | None) -> None:
    with pytest.raises(BadDeployment) as error:
        Deployment(**{wrong: 1})
    assert str(error.value).startswith(f"{wrong}: ")
    assert meant is None or f"did you mean {meant}?" in str(error.value)


@pytest.mark.parametrize("release", RELEASES)
def test_a_name_that_cannot_change_the_plan_is_accepted_and_echoed(release: str) -> None:
    stated = {"port": 8001, "served_model_name": "ours", "tensor_parallel_size": 2}
    answer = plan(release, DENSE, **stated)
    assert answer.deployment == stated
    assert answer.groups == plan(release, DENSE, tensor_parallel_size=2).groups


@pytest.mark.parametrize("release", RELEASES)
def test_a_name_that_could_change_the_plan_is_refused_by_name(release: str) -> None:
    answer = refused(release, enable_dbo=True)
    assert (answer.by, answer.rule) == ("pack", "argument-modelled")
    assert "enable_dbo" in answer.reason


@pytest.mark.parametrize(
    ("name", "value", "has", "has_not"),
    [
        ("swa_bounded_replay", False, "0.31.0", "0.29.0"),
        ("tool_strict_level", 1, "0.31.0", "0.29.0"),
        ("enable_bf16x3_router_gemm", True, "0.29.0", "0.31.0"),
    ],
)
def test_a_name_of_another_release_is_an_error(name: str, value: Any, has: str, has_not: str) -> None:
    assert plan(has, DENSE, **{name: value}).deployment == {name: value}
    with pytest.raises(BadDeployment, match=f"{name}: vLLM {has_not} has no such argument"):
        plan(has_not, DENSE, **{name: value})


@pytest.mark.parametrize("release", RELEASES)
def test_environment_variables_are_known_by_name(release: str) -> None:
    assert plan(release, DENSE, env={"VLLM_LOGGING_LEVEL": "DEBUG", "CUDA_VISIBLE_DEVICES": "0"})
    with pytest.raises(BadDeployment, match=r"env\.VLLM_KV_CACHE_LAYOT.*did you mean VLLM_KV_CACHE_LAYOUT\?"):
        plan(release, DENSE, env={"VLLM_KV_CACHE_LAYOT": "LBHNC"})
    assert plan(release, DENSE, env={"VLLM_KV_CACHE_LAYOUT": "LBHNC"}).resolved.kv_cache_layout == "LBHNC"
    answer = refused(release, env={"VLLM_BATCH_INVARIANT": "1"})
    assert (answer.by, answer.rule) == ("pack", "environment-modelled")


# values


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tensor_parallel_size", "2"),
        ("tensor_parallel_size", 2.0),
        ("tensor_parallel_size", True),
        ("tensor_parallel_size", 0),
        ("tensor_parallel_size", -1),
        ("block_size", 0),
        ("max_model_len", 0),
        ("max_model_len", -2),
        ("max_model_len", "8k"),
        ("enable_prefix_caching", 1),
        ("enable_prefix_caching", "true"),
        ("kv_cache_dtype", 8),
        ("kv_cache_dtype_skip_layers", "0"),
        ("kv_cache_dtype_skip_layers", [0.5]),
        ("kv_transfer_config", "NixlConnector"),
        ("speculative_config", []),
        ("gpu_memory_utilization", "0.9"),
        ("env", {"VLLM_LOGGING_LEVEL": None}),
        ("env", ["VLLM_LOGGING_LEVEL=DEBUG"]),
    ],
)
def test_a_value_of_another_type_is_an_error_that_names_the_argument(name: str, value: Any) -> None:
    with pytest.raises(BadDeployment, match=f"^{name}"):
        Deployment(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("max_model_len", -1, -1),
        ("kv_cache_dtype_skip_layers", [0, "sliding_window"], ("0", "sliding_window")),
        ("gpu_memory_utilization", 1, 1.0),
        ("block_size", None, None),
        ("env", {"VLLM_USE_V2_MODEL_RUNNER": 0}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}),
    ],
)
def test_a_value_is_read_as_the_engine_reads_it(name: str, value: Any, read: Any) -> None:
    deployment = Deployment(**{name: value})
    assert getattr(deployment, name) == read
    assert deployment.stated == {name: value}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("stated", "rule"),
    [
        ({"kv_cache_dtype": "fp9"}, "cache-dtype-accepted"),
        ({"dtype": "int8"}, "model-dtype-accepted"),
        ({"tensor_parallel_size": 3}, "heads-divide"),
        ({"tensor_parallel_size": 4, "decode_context_parallel_size": 3}, "dcp-divides-tp"),
        ({"tensor_parallel_size": 8, "decode_context_parallel_size": 2}, "dcp-beyond-kv-heads"),
        ({"enable_expert_parallel": True}, "experts-for-expert-parallelism"),
        ({"max_model_len": 8193}, "max-model-len-admitted"),
        ({"attention_backend": "FLASH_ATTENTION"}, "backend-known"),
        ({"attention_backend": "FLASH_ATTN", "attention_config": {"backend": "FLASH_ATTN"}}, "one-attention-backend"),
        ({"kv_transfer_config": {"kv_connector": "Nixl", "kv_role": "kv_both"}}, "connector-known"),
        ({"kv_transfer_config": {"kv_connector": "NixlConnector"}}, "connector-role-stated"),
        ({"kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_all"}}, "connector-role-accepted"),
        ({"mamba_cache_dtype": "int8"}, "mamba-dtype-accepted"),
        ({"mamba_cache_mode": "some"}, "mamba-mode-accepted"),
    ],
)
def test_a_value_the_release_rejects_is_its_refusal(release: str, stated: dict[str, Any], rule: str) -> None:
    answer = refused(release, **stated)
    assert (answer.by, answer.rule, answer.stage) == ("engine", rule, "config")
    assert answer.type in ("ValidationError", "ValueError")
    assert answer.source is not None
    assert answer.plan is None


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("stated", "rule"),
    [
        ({"hf_overrides": {"num_hidden_layers": 2}}, "hf-overrides-modelled"),
        ({"attention_config": {"flex_attn_block_m": "16"}}, "attention-config-modelled"),
        (
            {"kv_transfer_config": {"kv_connector": "Mine", "kv_role": "kv_both", "kv_connector_module_path": "mine"}},
            "connector-modelled",
        ),
        ({"max_model_len": -1}, "auto-fit-memory"),
        ({"gpu": {"capability": "7.5", "memory_bytes": 16 * GIB}}, "capability-modelled"),
    ],
)
def test_what_is_not_modelled_is_the_packs_refusal(release: str, stated: dict[str, Any], rule: str) -> None:
    answer = refused(release, **stated)
    assert (answer.by, answer.rule, answer.type, answer.stage) == ("pack", rule, None, None)
    assert answer.reason


@pytest.mark.parametrize("release", RELEASES)
def test_a_longer_context_is_admitted_by_the_environment(release: str) -> None:
    insisted = plan(release, DENSE, max_model_len=16_384, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
    assert insisted.resolved.max_model_len == 16_384


def test_a_deployment_is_frozen_and_compares_by_what_was_stated() -> None:
    deployment = Deployment(tensor_parallel_size=2)
    with pytest.raises(AttributeError, match="frozen"):
        deployment.tensor_parallel_size = 4  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        del deployment.tensor_parallel_size
    assert deployment == Deployment.of({"tensor_parallel_size": 2}) != Deployment(tensor_parallel_size=4)
    assert len({deployment, Deployment(tensor_parallel_size=2), Deployment()}) == 2
    assert repr(deployment) == "Deployment(tensor_parallel_size=2)"


def test_a_deployment_is_a_mapping_of_arguments() -> None:
    with pytest.raises(BadDeployment, match="deployment: expected a mapping"):
        Deployment.of(["tensor_parallel_size"])  # type: ignore[arg-type]


# GPUs


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_by_name_or_by_what_it_is(release: str, name: str) -> None:
    gpu = GPUS[name]
    major, minor = gpu.capability
    spelled = {"name": name, "capability": f"{major}.{minor}", "memory_bytes": gpu.memory_bytes}
    answers = [plan(release, DENSE, gpu=form) for form in (name, name.lower(), gpu, spelled)]
    assert all(same_answer(answer, answers[0]) for answer in answers)


def same_answer(one: Plan, other: Plan) -> bool:
    return (one.resolved, one.groups, one.backends) == (other.resolved, other.groups, other.backends)


@pytest.mark.parametrize("release", RELEASES)
def test_no_gpu_stated_is_an_h200(release: str) -> None:
    assert same_answer(plan(release, DENSE), plan(release, DENSE, gpu="H200"))


@pytest.mark.parametrize("release", RELEASES)
def test_the_memory_of_a_gpu_sets_the_batch(release: str) -> None:
    """The server's default batch is 8,192 tokens from 70 GiB on, and 2,048 below."""
    for gib, tokens in ((69, 2048), (70, 8192), (140, 8192)):
        answer = plan(release, DENSE, gpu={"capability": "9.0", "memory_bytes": gib * GIB})
        assert answer.resolved.max_num_batched_tokens == tokens


@pytest.mark.parametrize("release", RELEASES)
def test_the_capability_of_a_gpu_chooses_the_backend(release: str) -> None:
    graph = graph_of([latent()] * 2)
    served = {
        capability: next(iter(plan(release, graph, gpu={"capability": capability, "memory_bytes": 140 * GIB}).backends))
        for capability in ("8.0", "9.0", "10.0")
    }
    assert served == {"8.0": "TRITON_MLA", "9.0": "FLASH_ATTN_MLA", "10.0": "FLASHINFER_MLA"}


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        ("H20000", "did you mean H200"),
        ("", "known are A100, L40S, H100, H200"),
        ({"capability": "9.0"}, "gpu.memory_bytes"),
        ({"capability": "9.0", "memory_bytes": 0}, "gpu.memory_bytes"),
        ({"capability": "9.0", "memory_bytes": "80GiB"}, "gpu.memory_bytes"),
        ({"memory_bytes": GIB}, "gpu.capability"),
        ({"capability": 9.0, "memory_bytes": GIB}, "gpu.capability"),
        ({"capability": "sm90", "memory_bytes": GIB}, "gpu.capability"),
        ({"capability": "9.0", "memory_bytes": GIB, "name": 5}, "gpu.name"),
        ({"capability": "9.0", "memory_bytes": GIB, "memory": 1}, "gpu.memory: unknown key"),
        (90, "gpu: expected"),
    ],
)
def test_a_gpu_that_is_none_is_an_error(gpu: Any, said: str) -> None:
    with pytest.raises(BadDeployment) as error:
        Deployment(gpu=gpu)
    assert said in str(error.value)


def test_a_gpu_is_read_once_and_for_all() -> None:
    assert Deployment(gpu="b200").gpu == Gpu("B200", (10, 0), 183_359 << 20)
    assert Deployment(gpu={"capability": "12.1", "memory_bytes": GIB}).gpu == Gpu("custom", (12, 1), GIB)


@pytest.mark.parametrize("release", RELEASES)
def test_a_family_the_graph_does_not_describe_is_refused(release: str) -> None:
    graph = rulespack.load_model("deepseek-v4.1-flash")
    with pytest.raises(Refused) as answer:
        rulespack.engine(release).plan(graph, Deployment(gpu="RTXPRO6000"))
    assert (answer.value.by, answer.value.rule) == ("pack", "capability-described")


def test_a_deployment_keeps_what_was_stated_whatever_becomes_of_what_it_was_stated_in() -> None:
    speculation = {"method": "ngram", "num_speculative_tokens": 2}
    skipped = ["0"]
    stated = {"speculative_config": speculation, "kv_cache_dtype_skip_layers": skipped}
    deployment = Deployment.of(stated)
    answer = rulespack.engine("0.31.0").plan(rulespack.load_model("qwen3-8b"), deployment)
    speculation["num_speculative_tokens"] = 7
    skipped.append("1")
    asked = {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
        "kv_cache_dtype_skip_layers": ["0"],
    }
    assert deployment.stated == answer.deployment == asked
    assert deployment == Deployment(**asked)
    with pytest.raises(TypeError, match="does not support item assignment"):
        deployment.stated["tensor_parallel_size"] = 8  # type: ignore[index]


def test_equal_deployments_have_one_hash() -> None:
    pairs = [
        ({"attention_config": {"backend": "x", "flash_attn_version": 2}}, {"flash_attn_version": 2, "backend": "x"}),
        ({"attention_config": {"flash_attn_version": 2}}, {"flash_attn_version": 2.0}),
        ({"attention_config": {"x": [1, {"a": 1, "b": 2}]}}, {"x": [1, {"b": 2, "a": 1}]}),
    ]
    for one, other in pairs:
        first, second = Deployment(**one), Deployment(attention_config=other)
        assert first == second
        assert hash(first) == hash(second)
    assert hash(Deployment(port=1)) != hash(Deployment(port=2))
