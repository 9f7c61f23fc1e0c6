"""Contexts and prefills shared over ranks, and modes of recurrent state asked of models without any."""

from __future__ import annotations

from typing import Any

import pytest
from small_graphs import RELEASES, full, graph_of, latent, plan

from rulespack import ModelGraph, Refused

DENSE = graph_of([full()] * 4)
LATENT = graph_of([latent()] * 4, architecture="DeepseekV2ForCausalLM")


def refused(release: str, graph: ModelGraph, **deployment: Any) -> Refused:
    with pytest.raises(Refused) as error:
        plan(release, graph, **deployment)
    return error.value


def said(answer: Refused) -> tuple[str, str, str | None, str | None]:
    return answer.by, answer.rule, answer.type, answer.stage


@pytest.mark.parametrize("release", RELEASES)
def test_a_block_holds_whole_interleaved_runs(release: str) -> None:
    shared: dict[str, Any] = {"tensor_parallel_size": 8, "decode_context_parallel_size": 8}
    whole = plan(release, LATENT, **shared, cp_kv_cache_interleave_size=8)
    assert whole.groups == plan(release, LATENT, **shared).groups
    for run in (3, 32):
        answer = refused(release, LATENT, **shared, cp_kv_cache_interleave_size=run)
        assert said(answer) == ("engine", "block-holds-interleaved-runs", "AssertionError", "engine")
        assert answer.plan is not None
    assert plan(release, LATENT, cp_kv_cache_interleave_size=3).groups == plan(release, LATENT).groups


def test_connectors_align_interleaved_runs_to_blocks_and_later_only_nixl_does() -> None:
    shared: dict[str, Any] = {
        "tensor_parallel_size": 8,
        "decode_context_parallel_size": 8,
        "cp_kv_cache_interleave_size": 3,
    }
    for name, releases in (("NixlConnector", RELEASES), ("OffloadingConnector", ("0.29.0",))):
        for release in releases:
            assert plan(release, LATENT, **shared, kv_transfer_config={"kv_connector": name, "kv_role": "kv_both"})
    offloading = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    assert refused("0.31.0", LATENT, **shared, kv_transfer_config=offloading).rule == "block-holds-interleaved-runs"


@pytest.mark.parametrize("release", RELEASES)
def test_only_latent_caches_share_a_prefill(release: str) -> None:
    shared = plan(release, LATENT, prefill_context_parallel_size=2, enforce_eager=True)
    assert shared.groups == plan(release, LATENT, enforce_eager=True).groups
    answer = refused(release, DENSE, prefill_context_parallel_size=2)
    assert said(answer) == ("engine", "backend-found", "ValueError", "construct")


@pytest.mark.parametrize("release", RELEASES)
def test_a_shared_prefill_needs_the_second_runner_and_a_context_over_its_ranks(release: str) -> None:
    first = refused(release, LATENT, prefill_context_parallel_size=2, env={"VLLM_USE_V2_MODEL_RUNNER": "0"})
    assert said(first) == ("engine", "model-runner-shares-prefill", "ValidationError", "config")
    parted = refused(
        release,
        LATENT,
        prefill_context_parallel_size=2,
        decode_context_parallel_size=4,
        tensor_parallel_size=8,
    )
    assert said(parted) == ("engine", "dcp-spans-pcp", "ValidationError", "config")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("mode", ["align", "all", "none"])
def test_modes_of_recurrent_state_change_no_cache_of_a_model_without_any(release: str, mode: str) -> None:
    asked = plan(release, DENSE, mamba_cache_mode=mode, mamba_block_size=64)
    assert (asked.resolved.mamba_cache_mode, asked.resolved.mamba_block_size) == (mode, 64)
    assert asked.groups == plan(release, DENSE).groups


def test_the_second_runner_keeps_no_state_for_every_block_in_the_later_release() -> None:
    staged: dict[str, Any] = {"mamba_cache_mode": "all", "pipeline_parallel_size": 2}
    assert plan("0.29.0", DENSE, **staged).resolved.async_scheduling
    assert not plan("0.31.0", DENSE, **staged).resolved.async_scheduling
    second = {"VLLM_USE_V2_MODEL_RUNNER": "1"}
    assert plan("0.29.0", DENSE, **staged, env=second)
    answer = refused("0.31.0", DENSE, **staged, env=second)
    assert said(answer) == ("engine", "model-runner-keeps-all-states", "ValidationError", "config")


@pytest.mark.parametrize("release", RELEASES)
def test_states_are_not_aligned_where_images_are_not_scheduled_in_pieces(release: str) -> None:
    answer = refused(release, DENSE, mamba_cache_mode="align", disable_chunked_mm_input=True)
    assert said(answer) == ("engine", "align-needs-image-chunks", "AssertionError", "engine")
    assert plan(release, DENSE, disable_chunked_mm_input=True)
