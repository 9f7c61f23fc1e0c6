"""GLM 5.3 Flash, which 0.31.0 serves: states and latents, pooled keys and their tails share pages."""

from __future__ import annotations

from typing import Any

import pytest

import rulespack
from rulespack import Deployment, Plan, Refused

RELEASE = "0.31.0"
LATENTS, STATES = 11, 34


def plan(**asked: Any) -> Plan:
    return rulespack.engine(RELEASE).plan(rulespack.load_model("glm-5.3-flash"), Deployment(**asked))


def refusal(**asked: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        plan(**asked)
    assert refused.value.by == "engine"
    return refused.value


def test_states_lie_in_the_latents_pages_and_tails_in_the_keys() -> None:
    answer = plan()
    assert [len(group.caches) for group in answer.groups] == [2 * LATENTS, LATENTS, 9, 9, 8, 8]
    latents, tails, *states = answer.groups
    assert answer.bytes_per_block == latents.page_size_bytes == 50_600_704
    state = {spec.type: spec for spec in answer.specs}["MambaSpec"]
    assert {group.page_size_bytes for group in states} == {state.page_size_bytes}
    keys = next(spec for spec in answer.specs if spec.head_size == 132)
    assert tails.page_size_bytes == LATENTS * keys.page_size_bytes


def test_a_tail_is_one_block_and_a_state_two() -> None:
    assert [group.blocks_per_request for group in plan().groups[1:]] == [1, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        ({}, 4352),
        ({"kv_cache_dtype": "fp8"}, 8576),
        ({"gpu": "RTXPRO6000"}, 8704),
        ({"tensor_parallel_size": 16}, 384),
        ({"block_size": 64}, 4352),
    ],
)
def test_a_block_holds_a_state_and_whole_pages_of_pooled_keys(asked: dict[str, Any], size: int) -> None:
    """Four tokens make a key, and the indexer's kernel reads 32 keys at once, 64 on family 12."""
    answer = plan(**asked)
    assert answer.resolved.block_size == size
    assert size % (4 * (64 if asked.get("gpu") == "RTXPRO6000" else 32)) == 0


def test_pooled_keys_are_not_counted_in_rows() -> None:
    """FlashInfer's rows on a B200 would round a block up, and this layout takes no part in that."""
    answer = plan(gpu="B200", kv_cache_dtype="fp8", tensor_parallel_size=8)
    assert answer.backends["FLASHINFER_MLA_SPARSE"] == LATENTS
    assert answer.bytes_per_block == sum(
        answer.specs[index].page_size_bytes for name, index in answer.caches if "MLA" in answer.specs[index].type
    )
    assert answer.bytes_per_block % 512 != 0


def test_what_does_not_start() -> None:
    assert refusal(gpu="A100").type == "ValueError"
    assert refusal(disable_hybrid_kv_cache_manager=True).stage == "groups"
    assert refusal(pipeline_parallel_size=2).type == "AttributeError"
    assert refusal(tensor_parallel_size=8, decode_context_parallel_size=2).type == "NotImplementedError"


@pytest.mark.parametrize("gpu", ["H200", "B200"])
def test_latents_of_two_page_sizes_crash_the_grouping(gpu: str) -> None:
    answer = refusal(gpu=gpu, kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=["3"])
    assert (answer.type, answer.stage) == ("AssertionError", "groups")
    assert plan(gpu=gpu, kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=["4"]).groups
