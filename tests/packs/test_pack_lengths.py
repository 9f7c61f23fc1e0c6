"""``max_model_len`` where the configuration states no length, and which of two refusals comes first."""

from __future__ import annotations

from typing import Any

import pytest
from small_graphs import RELEASES, plan

import rulespack
from rulespack import ModelGraph, Refused

AUTO = {"max_model_len": -1, "kv_cache_memory_bytes": 64 << 30}


def refused(release: str, graph: ModelGraph, **deployment: Any) -> Refused:
    with pytest.raises(Refused) as error:
        plan(release, graph, **deployment)
    return error.value


@pytest.mark.parametrize("release", RELEASES)
def test_a_configuration_without_a_length_takes_any_that_is_stated(release: str) -> None:
    graph = rulespack.load_model("falcon-mamba-7b")
    assert plan(release, graph).resolved.max_model_len == 2048
    for asked in (100, 1_000_000):
        assert plan(release, graph, max_model_len=asked).resolved.max_model_len == asked
    answer = refused(release, graph, **AUTO)
    assert (answer.by, answer.type, answer.stage) == ("engine", "ValidationError", "config")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    "stated", [{"pipeline_parallel_size": 2}, {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}]
)
def test_a_length_that_is_not_admitted_is_refused_before_what_is_read_after_it(
    release: str, stated: dict[str, Any]
) -> None:
    graph = rulespack.load_model("gemma-3n-e4b-it")
    later = refused(release, graph, **stated)
    first = refused(release, graph, max_model_len=1 << 30, **stated)
    assert (later.type, first.type) == ("NotImplementedError", "ValidationError")
    assert first.rule == "max-model-len-admitted"


@pytest.mark.parametrize("release", RELEASES)
def test_a_block_of_states_without_prefix_caching_is_the_longest_request(release: str) -> None:
    graph = rulespack.load_model("qwen3-next-80b-a3b-instruct")
    own = plan(release, graph).resolved.max_model_len
    for stated in ({}, AUTO):
        whole = plan(release, graph, mamba_block_size=own, enable_prefix_caching=False, **stated)
        assert whole.resolved.mamba_block_size == own
    assert refused(release, graph, mamba_block_size=own // 2, enable_prefix_caching=False).type == "ValidationError"


@pytest.mark.parametrize("release", RELEASES)
def test_a_plan_beside_a_later_refusal_has_the_length_that_was_fitted(release: str) -> None:
    graph = rulespack.load_model("gpt-oss-20b")
    stated = {"max_model_len": -1, "kv_cache_memory_bytes": 779_450_588}
    fitted = plan(release, graph, **stated)
    answer = refused(release, graph, prefix_match_unit=48, **stated)
    assert answer.stage == "scheduler"
    assert answer.plan is not None
    assert answer.plan.resolved.max_model_len == fitted.resolved.max_model_len < 131_072
    assert answer.plan.blocks_per_request == fitted.blocks_per_request
