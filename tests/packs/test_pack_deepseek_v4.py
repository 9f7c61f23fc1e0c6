"""DeepSeek V4: windows, compressed caches and compressor states, as both releases keep them."""

from __future__ import annotations

from typing import Any

import pytest
from small_graphs import RELEASES

import rulespack
from rulespack import Deployment, Plan, Refused

FLASH = "deepseek-v4-flash"


def plan(release: str, **asked: Any) -> Plan:
    return rulespack.engine(release).plan(rulespack.load_model(FLASH), Deployment(**asked))


def refusal(release: str, **asked: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        plan(release, **asked)
    assert refused.value.by == "engine"
    return refused.value


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_five_groups_of_flash(release: str) -> None:
    """Published for vLLM 0.31.0 on an H200; 0.29.0 makes the same of an fp8 cache."""
    answer = plan(release, kv_cache_dtype="fp8")
    assert [len(group.caches) for group in answer.groups] == [22, 21, 62, 42, 20]
    assert [group.page_size_bytes for group in answer.groups] == [823_680, 786_240, 1_002_240, 870_912, 656_640]
    assert answer.bytes_per_block == 1_002_240
    assert answer.resolved.kv_cache_layout == "BLHNC"
    assert answer.resolved.cache_dtype == "fp8_ds_mla"


def test_auto_is_no_fp8_dtype_for_0_29_0() -> None:
    stopped = refusal("0.29.0")
    assert (stopped.type, stopped.stage) == ("AssertionError", "construct")
    assert plan("0.31.0").groups == plan("0.31.0", kv_cache_dtype="fp8").groups


def test_a_dtype_that_is_no_fp8_one_is_turned_down(release: str) -> None:
    stopped = refusal(release, kv_cache_dtype="bfloat16")
    assert (stopped.type, stopped.stage) == ({"0.29.0": "AssertionError"}.get(release, "ValueError"), "construct")


def test_a_length_the_model_does_not_admit_is_turned_down_first() -> None:
    """The arguments are read before a layer is built."""
    assert refusal("0.29.0", max_model_len=2_000_000).stage == "config"


def test_without_the_hybrid_manager_0_29_0_makes_one_group_and_0_31_0_crashes() -> None:
    asked = {"kv_cache_dtype": "fp8", "disable_hybrid_kv_cache_manager": True}
    answer = plan("0.29.0", **asked)
    assert [len(group.caches) for group in answer.groups] == [167]
    assert answer.bytes_per_block == 83_480_832
    assert refusal("0.31.0", **asked).type == "TypeError"


def test_a_block_that_is_no_kernel_block_stops_the_worker(release: str) -> None:
    stopped = refusal(release, kv_cache_dtype="fp8", block_size=128)
    assert (stopped.type, stopped.stage) == ("ValueError", "worker_kv_cache")
    assert stopped.plan is not None
    assert stopped.plan.bytes_per_block == 870_912


def test_a_block_without_a_compressed_entry_crashes_the_count(release: str) -> None:
    """128 tokens make one entry of the second compressed cache: its page in a block of 64 is empty."""
    stopped = refusal(release, kv_cache_dtype="fp8", block_size=64)
    assert (stopped.type, stopped.stage) == ("ZeroDivisionError", "groups")
    assert stopped.plan is not None
    assert [group.pages.error is None for group in stopped.plan.groups] == [True, True, False, True, True]
    bare = refusal(release, kv_cache_dtype="fp8", block_size=64, num_gpu_blocks_override=1)
    assert (bare.type, bare.rule) == ("ValueError", "memory-for-blocks")  # no block at hand is noticed before the count


def test_windows_cannot_be_counted_under_decode_context_parallelism(release: str) -> None:
    stopped = refusal(release, kv_cache_dtype="fp8", tensor_parallel_size=8, decode_context_parallel_size=2)
    assert (stopped.type, stopped.stage) == ("AssertionError", "groups")
    assert stopped.plan is not None
    counted = [group.blocks_per_request for group in stopped.plan.groups if group.pages.error is None]
    assert counted == [1_048_576 // 2 // 256]


@pytest.mark.parametrize(
    ("asked", "backend"),
    [
        ({}, "FLASHMLA_SPARSE_DSV4"),
        ({"gpu": "B200"}, "FLASHMLA_SPARSE_DSV4"),
        ({"gpu": "RTXPRO6000"}, "FLASHINFER_MLA_SPARSE_DSV4"),
        ({"gpu": "B200", "attention_backend": "FLASHINFER_MLA_SPARSE_DSV4"}, "FLASHINFER_MLA_SPARSE_DSV4"),
        ({"attention_backend": "FLASH_ATTN"}, "FLASHMLA_SPARSE_DSV4"),  # passed over: the model hands its own
    ],
)
def test_the_model_hands_its_layers_their_backend(release: str, asked: dict[str, Any], backend: str) -> None:
    assert plan(release, kv_cache_dtype="fp8", **asked).backends[backend] == 41


def test_flashinfer_keeps_plain_rows_on_family_10(release: str) -> None:
    """Rows of 512 values as they are, and no page rounded up to a packed stride."""
    answer = plan(release, gpu="B200", attention_backend="FLASHINFER_MLA_SPARSE_DSV4")
    windows = {spec.page_size_bytes for spec in answer.specs if spec.sliding_window == 128 and spec.head_size == 512}
    assert windows == {64 * 512 * 2}
    assert answer.resolved.cache_dtype == "auto"


def test_the_sparse_kernel_of_another_model_is_turned_down(release: str) -> None:
    stopped = refusal(release, kv_cache_dtype="fp8", attention_backend="FLASHINFER_MLA_SPARSE")
    assert (stopped.type, stopped.stage) == ("ValueError", "construct")
