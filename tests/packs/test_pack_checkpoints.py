"""What a release makes of a checkpoint's own quantization."""

from __future__ import annotations

import pytest
from small_graphs import RELEASES, full, graph_of, plan

from rulespack import Refused
from rulespack.graph.model import Quantization


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("algorithm", ["MIXED_PRECISION", "W4A16_NVFP4"])
def test_an_algorithm_no_method_follows_from_is_refused_before_anything_else(release: str, algorithm: str) -> None:
    quantization = Quantization(method="modelopt_mixed", algorithm=algorithm, kv_cache_algorithm="FP8")
    with pytest.raises(Refused) as refused:
        plan(release, graph_of([full()], quantization=quantization), tensor_parallel_size=3)
    answer = refused.value
    assert (answer.by, answer.rule, answer.type) == ("engine", "modelopt-algorithm-known", "ValidationError")
    assert answer.stage == "config"
    assert algorithm in answer.reason


@pytest.mark.parametrize("release", RELEASES)
def test_the_same_checkpoint_with_its_method_stated_is_served(release: str) -> None:
    quantization = Quantization(method="modelopt_mixed", kv_cache_algorithm="FP8")
    assert plan(release, graph_of([full()], quantization=quantization)).resolved.cache_dtype == "fp8_e4m3"


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    "quantization",
    [
        Quantization(method="fp8"),
        Quantization(method="modelopt_fp4"),
        Quantization(method="compressed-tensors", kv_cache_scheme=True),
        Quantization(method="modelopt_mixed", kv_cache_algorithm="FP8"),
    ],
)
def test_an_e5m2_cache_beside_a_checkpoints_scales_is_refused(release: str, quantization: Quantization) -> None:
    graph = graph_of([full()], quantization=quantization)
    with pytest.raises(Refused) as refused:
        plan(release, graph, kv_cache_dtype="fp8_e5m2")
    answer = refused.value
    assert (answer.by, answer.type, answer.stage) == ("engine", "ValueError", "construct")
    assert plan(release, graph, kv_cache_dtype="fp8").resolved.cache_dtype == "fp8"


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    "quantization", [None, Quantization(method="compressed-tensors"), Quantization(method="modelopt_mixed")]
)
def test_a_checkpoint_without_scales_for_the_cache_takes_e5m2(release: str, quantization: Quantization | None) -> None:
    graph = graph_of([full()], quantization=quantization)
    assert plan(release, graph, kv_cache_dtype="fp8_e5m2").resolved.cache_dtype == "fp8_e5m2"
