"""What the first rank holds, held against the parameters of the releases' own models."""

from __future__ import annotations

from functools import cache

import pytest

import rulespack
from rulespack import Deployment, ModelGraph, Parameters
from rulespack.graph.model import GroupedGEMM
from rulespack.graph.stack import layers

from .cases import Case, asked_graph, recorded

#: How far from the release an answer may be: vectors, such as norms and biases, are not in a graph.
TOLERANCE = 0.005


#: The most ranks over which the shared experts of DeepSeek V4 are not rounded up, by the beginning of a model's name.
EVEN_RANKS = {"deepseek-v4-flash": 16, "deepseek-v4-pro": 8}
#: Models whose dense layers every rank holds whole where experts' tokens are split.
WHOLE_WHEN_SPLIT = ("deepseek-v3.2", "glm-5", "kimi-k3", "kimi-linear")
#: Models with a table of n-grams, which the replicas of a node share.
SHARED_TABLE = "deepseek-v4.1"


def said(case: Case) -> bool:
    """Whether a pack says what is held: not in 32 bits, quantized while it is loaded, with a prefill shared, or where
    ranks hold more than their share of some layers or replicas share a table."""
    asked = case.deployment
    shared = asked.get("prefill_context_parallel_size", 1) > 1
    ranks = asked.get("tensor_parallel_size", 1)
    rounded = any(case.model.startswith(name) and ranks > even for name, even in EVEN_RANKS.items())
    split = asked.get("enable_expert_parallel") and ranks > 1 and asked.get("data_parallel_size", 1) > 1
    replicated = case.model.startswith(SHARED_TABLE) and asked.get("data_parallel_size", 1) > 1
    if rounded or replicated or (split and case.model.startswith(WHOLE_WHEN_SPLIT)):
        return False
    return asked.get("dtype") not in ("float32", "float") and "quantization" not in asked and not shared


WEIGHED = [case for case in recorded() if case.plan is not None and "weights" in case.plan and said(case)]
PLAIN = [case for case in WEIGHED if case.plan and not case.plan["weights"]["model"].get("packed")]
PACKED = [case for case in WEIGHED if case not in PLAIN]


@cache
def graph(name: str) -> ModelGraph:
    return rulespack.load_model(name)


def asked(case: Case) -> Deployment:
    """The case's deployment without its drafter, whose weights are its own."""
    return Deployment.of({key: value for key, value in case.deployment.items() if key != "speculative_config"})


def held(case: Case) -> Parameters:
    weights = rulespack.engine(case.release).weights(asked_graph(case), asked(case))
    assert weights is not None
    return weights


def within(ours: int, theirs: int) -> bool:
    return abs(ours - theirs) <= TOLERANCE * theirs


def sort_indices(case: Case) -> int:
    """Bytes of the indices 0.29.0 builds for 4-bit integer experts and frees once the weights are loaded.

    Two 32-bit integers for each input of each multiply (compressed_tensors_moe_wna16_marlin.py, create_weights).
    """
    if case.release != "0.29.0":
        return 0
    deployment, whole = asked(case), graph(case.model)
    ranks = deployment.tensor_parallel_size * deployment.data_parallel_size
    total = 0
    for kind in layers(whole)[: len(layers(whole)) // deployment.pipeline_parallel_size]:
        for node in kind.nodes:
            if isinstance(node, GroupedGEMM) and (node.weight_dtype or whole.globals_.weight_dtype) == "int4":
                inside = node.role == "experts_down" and not deployment.enable_expert_parallel
                inputs = node.k // ranks if inside else node.k
                experts = node.experts // ranks if deployment.enable_expert_parallel else node.experts
                total += 2 * 4 * inputs * experts
    return total


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in PLAIN])
def test_elements_are_the_releases(case: Case) -> None:
    assert case.plan is not None
    assert within(held(case).target.elements, case.plan["weights"]["model"]["elements"])


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in PACKED])
def test_bytes_of_packed_weights_are_the_releases(case: Case) -> None:
    """A release's count takes tables in host memory for the rank's, too."""
    assert case.plan is not None
    ours = held(case).of(lambda weight: weight.part == "target").bytes + sort_indices(case)
    assert within(ours, case.plan["weights"]["model"]["bytes"])


def test_every_way_to_share_weights_is_among_the_cases() -> None:
    said = {
        (key, value)
        for case in WEIGHED
        for key, value in case.deployment.items()
        if key.endswith("parallel_size") or key == "enable_expert_parallel"
    }
    assert said >= {
        *(("tensor_parallel_size", ranks) for ranks in (2, 4, 8, 16)),
        ("pipeline_parallel_size", 2),
        ("data_parallel_size", 8),
        ("enable_expert_parallel", True),
    }


@pytest.mark.parametrize(
    "arguments",
    [{"dtype": "float32"}, {"moe_backend": "triton"}, {"env": {"VLLM_USE_DEEP_GEMM": "0"}}],
    ids=lambda arguments: next(iter(arguments)),
)
@pytest.mark.parametrize("release", rulespack.releases())
def test_what_changes_weights_in_ways_not_modelled_leaves_them_unsaid(
    release: str, arguments: dict[str, object]
) -> None:
    engine = rulespack.engine(release)
    assert engine.weights(graph("qwen3-30b-a3b"), Deployment.of(arguments)) is None
    assert engine.weights(graph("qwen3-30b-a3b"), Deployment()) is not None


def test_the_kernel_of_16_bit_experts_is_known_for_some_classes_alone() -> None:
    """Mixtral's experts divide by 128 on 16 ranks and not on 256, where the kernel would decide."""
    mixtral, engine = graph("mixtral-8x7b-v0.1"), rulespack.engine("0.31.0")
    for ranks, data, known in ((8, 1, True), (8, 32, False)):
        deployment = Deployment(gpu="B200", tensor_parallel_size=ranks, data_parallel_size=data)
        assert (engine.weights(mixtral, deployment) is not None) is known
    older = rulespack.engine("0.29.0")
    assert older.weights(mixtral, Deployment(gpu="B200", tensor_parallel_size=8, data_parallel_size=32)) is not None
