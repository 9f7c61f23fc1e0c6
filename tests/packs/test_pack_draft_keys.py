"""The keys of ``speculative_config`` beside method, model and tokens: what each changes and what a release refuses."""

from __future__ import annotations

from typing import Any

import pytest
from small_graphs import RELEASES

import rulespack
from rulespack import Deployment, Plan, Refused

EAGLE3 = {"method": "eagle3", "model": "qwen3-8b-eagle3-specforge", "num_speculative_tokens": 3}
DFLASH = {"method": "dflash", "model": "qwen3-8b-dflash-specforge", "num_speculative_tokens": 7}
WINDOWED = {"method": "dflash", "model": "qwen3.5-4b-dflash", "num_speculative_tokens": 7}
DRAFT_MODEL = {"method": "draft_model", "model": "qwen3-0.6b", "num_speculative_tokens": 5}
GPT_OSS = {"method": "eagle3", "model": "gpt-oss-120b-eagle3-specforge", "num_speculative_tokens": 3}
MTP = {"method": "mtp", "num_speculative_tokens": 3}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
FIRST_RUNNER = {"VLLM_USE_V2_MODEL_RUNNER": "0"}


def planned(release: str, model: str, drafter: dict[str, Any], **arguments: Any) -> Plan:
    deployment = Deployment(speculative_config=drafter, **arguments)
    return rulespack.engine(release).plan(rulespack.load_model(model), deployment)


def refused(release: str, model: str, drafter: dict[str, Any], **arguments: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        planned(release, model, drafter, **arguments)
    return caught.value


def layers(plan: Plan) -> dict[str, int]:
    return dict(plan.backends)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("model", "drafter", "arguments"),
    [
        ("qwen3-8b", EAGLE3, {}),
        ("qwen3-8b", DFLASH, {}),
        ("qwen3.5-27b", MTP, {}),
        ("deepseek-v3", MTP, {"tensor_parallel_size": 8}),
    ],
)
def test_a_draft_may_store_its_own_cache_in_fp8(
    release: str, model: str, drafter: dict[str, Any], arguments: dict[str, Any]
) -> None:
    plan = planned(release, model, {**drafter, "kv_cache_dtype": "fp8"}, **arguments)
    own = {plan.specs[plan.caches[i][1]].dtype for i in plan.draft_caches}
    others = {plan.specs[spec].dtype for i, (_, spec) in enumerate(plan.caches) if i not in plan.draft_caches}
    assert own == {"uint8"}
    assert "uint8" not in others
    assert plan.resolved.cache_dtype == "auto"


@pytest.mark.parametrize("release", RELEASES)
def test_a_draft_keeps_bfloat16_beside_a_target_in_fp8(release: str) -> None:
    plan = planned(release, "gpt-oss-120b", {**GPT_OSS, "kv_cache_dtype": "auto"}, kv_cache_dtype="fp8")
    assert plan.specs[plan.caches[-1][1]].dtype == "bfloat16"
    assert plan.specs[plan.caches[0][1]].dtype == "uint8"


@pytest.mark.parametrize("release", RELEASES)
def test_bfloat16_of_its_own_is_the_targets_spec_still(release: str) -> None:
    """The engine tells specs apart by how they are quantized, not by what the cache dtype was called."""
    plan = planned(release, "qwen3-8b", {**EAGLE3, "kv_cache_dtype": "bfloat16"})
    assert [group.type for group in plan.groups] == ["FullAttentionSpec"]


@pytest.mark.parametrize("release", RELEASES)
def test_a_cache_dtype_of_its_own_makes_a_draft_ask_for_the_default_block(release: str) -> None:
    """Its configuration is a copy that takes the default block for a stated one, and FlashMLA runs blocks of 64."""
    plan = planned(release, "deepseek-v3", {**MTP, "kv_cache_dtype": "fp8"}, tensor_parallel_size=8)
    assert layers(plan) == {"FLASH_ATTN_MLA": 61, "TRITON_MLA": 1}
    stated = planned(release, "deepseek-v3", {**MTP, "kv_cache_dtype": "fp8"}, tensor_parallel_size=8, block_size=64)
    assert layers(stated) == {"FLASH_ATTN_MLA": 61, "FLASHMLA": 1}


def test_an_eagle_draft_takes_a_backend_of_its_own_from_0_31_on() -> None:
    asked = {**EAGLE3, "attention_backend": "FLASHINFER"}
    assert layers(planned("0.29.0", "qwen3-8b", asked)) == {"FLASH_ATTN": 37}
    assert layers(planned("0.31.0", "qwen3-8b", asked)) == {"FLASH_ATTN": 36, "FLASHINFER": 1}


@pytest.mark.parametrize("release", RELEASES)
def test_a_block_draft_takes_a_backend_of_its_own(release: str) -> None:
    asked = {**DFLASH, "attention_backend": "triton_attn"}
    assert layers(planned(release, "qwen3-8b", asked)) == {"FLASH_ATTN": 36, "TRITON_ATTN": 5}
    beside = planned(release, "qwen3-8b", DFLASH, attention_backend="TRITON_ATTN")
    assert layers(beside) == {"TRITON_ATTN": 36, "FLASH_ATTN": 5}


@pytest.mark.parametrize("release", RELEASES)
def test_under_the_first_runner_every_draft_chooses_apart(release: str) -> None:
    plan = planned(release, "qwen3-8b", EAGLE3, attention_backend="TRITON_ATTN", env=FIRST_RUNNER)
    assert layers(plan) == {"TRITON_ATTN": 36, "FLASH_ATTN": 1}
    second = planned(release, "qwen3-8b", EAGLE3, attention_backend="TRITON_ATTN")
    assert layers(second) == {"TRITON_ATTN": 37}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("drafter", [EAGLE3, DFLASH, NGRAM])
def test_keys_that_change_nothing_are_taken(release: str, drafter: dict[str, Any]) -> None:
    stated = {
        "enforce_eager": True,
        "moe_backend": "triton",
        "draft_tensor_parallel_size": 1,
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
        "num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 1024, 1]],
        "revision": "main",
        "target_model_config": {},
        "draft_load_config": {"load_format": "dummy"},
    }
    plan = planned(release, "qwen3-8b", {**drafter, **stated}, tensor_parallel_size=2)
    assert plan.groups == planned(release, "qwen3-8b", drafter, tensor_parallel_size=2).groups


@pytest.mark.parametrize("release", RELEASES)
def test_batches_without_padding_are_not_scheduled_ahead(release: str) -> None:
    unpadded = {**GPT_OSS, "disable_padded_drafter_batch": True}
    plan, padded = planned(release, "gpt-oss-120b", unpadded), planned(release, "gpt-oss-120b", GPT_OSS)
    assert (padded.resolved.async_scheduling, plan.resolved.async_scheduling) == (True, False)
    assert plan.blocks_per_request < padded.blocks_per_request
    assert refused(release, "gpt-oss-120b", unpadded, async_scheduling=True).type == "ValidationError"


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("model", "drafter", "arguments"),
    [
        ("qwen3-8b", {**EAGLE3, "tensor_parallel_size": 1}, {}),
        ("qwen3-8b", {**EAGLE3, "draft_tensor_parallel_size": 4}, {"tensor_parallel_size": 2}),
        ("qwen3-8b", {**EAGLE3, "max_model_len": 131072}, {}),
        ("qwen3-8b", {**EAGLE3, "max_model_len": 4000}, {"max_model_len": 2000}),
        ("qwen3-8b", {**EAGLE3, "max_model_len": 0}, {}),
        ("qwen3-8b", {**EAGLE3, "kv_cache_dtype": "fp7"}, {}),
        ("qwen3-8b", {**EAGLE3, "attention_backend": "FLASHER"}, {}),
        ("qwen3-8b", {**EAGLE3, "moe_backend": "tritan"}, {}),
        ("qwen3-8b", {**EAGLE3, "quantization": "fp7"}, {}),
        ("qwen3-8b", {**EAGLE3, "enforce_eager": "perhaps"}, {}),
        ("qwen3-8b", {**EAGLE3, "parallel_drafting": None}, {}),
        ("qwen3-8b", {**EAGLE3, "revision": 5}, {}),
        ("qwen3-8b", {**EAGLE3, "draft_load_config": "dummy"}, {}),
        ("qwen3-8b", {**EAGLE3, "index_share_for_mtp_iteration": True}, {}),
        ("qwen3-8b", {**EAGLE3, "use_heterogeneous_vocab": True}, {}),
        ("qwen3-8b", {**EAGLE3, "dspark_draft_topk": 8}, {}),
        ("qwen3-8b", {**EAGLE3, "rejection_sample_method": "synthetic"}, {}),
        ("qwen3-8b", {**EAGLE3, "synthetic_acceptance_length": 2.0}, {}),
        (
            "qwen3-8b",
            {**EAGLE3, "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5, 0.9, 0.1]},
            {},
        ),
        ("qwen3-8b", {**EAGLE3, "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 4.1}, {}),
        ("qwen3-8b", {**EAGLE3, "num_speculative_tokens_per_batch_size": [[1, 8]]}, {}),
        ("qwen3-8b", {**NGRAM, "prompt_lookup_min": 7, "prompt_lookup_max": 3}, {}),
        ("qwen3-8b", {**NGRAM, "prompt_lookup_max": 0}, {}),
        ("qwen3-8b", DFLASH, {"max_num_batched_tokens": 7, "max_num_seqs": 1}),
        ("qwen3-8b", NGRAM, {"env": {"VLLM_USE_V2_MODEL_RUNNER": "1"}}),
        ("qwen3.5-4b", WINDOWED, {"env": FIRST_RUNNER}),
        ("qwen3-14b", DRAFT_MODEL, {"tensor_parallel_size": 5}),
    ],
)
def test_the_release_refuses_a_key_while_it_reads_the_arguments(
    release: str, model: str, drafter: dict[str, Any], arguments: dict[str, Any]
) -> None:
    said = refused(release, model, drafter, **arguments)
    assert (said.by, said.type, said.stage) == ("engine", "ValidationError", "config")


@pytest.mark.parametrize("release", RELEASES)
def test_a_schedule_of_tokens_is_read_when_the_scheduler_is_made(release: str) -> None:
    said = refused(release, "qwen3-8b", {**EAGLE3, "num_speculative_tokens_per_batch_size": [[2, 8, 3]]})
    assert (said.by, said.stage) == ("engine", "scheduler")
    assert said.plan is not None
    passed_over = {**EAGLE3, "num_speculative_tokens_per_batch_size": [[2, 8, 3]]}
    assert planned(release, "qwen3-8b", passed_over, data_parallel_size=2).draft_caches


@pytest.mark.parametrize("release", RELEASES)
def test_a_head_that_cannot_reduce_its_logits_apart(release: str) -> None:
    assert planned(release, "qwen3-8b", {**EAGLE3, "use_local_argmax_reduction": True}).draft_caches
    said = refused(release, "deepseek-v3", {**MTP, "use_local_argmax_reduction": True}, tensor_parallel_size=8)
    assert (said.rule, said.type, said.stage) == ("draft-local-argmax", "ValueError", "construct")


def test_adaptive_verification_came_to_every_method_with_0_31() -> None:
    asked = {**EAGLE3, "enable_adaptive_verification": True}
    assert (refused("0.29.0", "qwen3-8b", asked).by, refused("0.31.0", "qwen3-8b", asked).by) == ("engine", "pack")
    assert refused("0.31.0", "qwen3-8b", asked, enforce_eager=True).by == "engine"


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    "drafter",
    [
        {**EAGLE3, "parallel_drafting": True},
        {**EAGLE3, "max_model_len": "2000"},
        {**EAGLE3, "draft-tensor-parallel-size": 1},
        {**EAGLE3, "quantization": "awq"},
        {"method": "custom_class", "model": "a.Proposer", "num_speculative_tokens": 1},
    ],
)
def test_what_is_not_modelled_is_the_packs_refusal(release: str, drafter: dict[str, Any]) -> None:
    assert refused(release, "qwen3-8b", drafter).by == "pack"


EXTRACTED = {
    "method": "extract_hidden_states",
    "num_speculative_tokens": 1,
    "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [2, 18, 33]}},
}


@pytest.mark.parametrize("release", RELEASES)
def test_extracted_hidden_states_have_a_cache(release: str) -> None:
    """Three layers' states of 4096 values in bfloat16 for every token, beside 36 layers of keys and values."""
    plan = planned(release, "qwen3-8b", EXTRACTED)
    assert plan.caches[-1][0] == "cache_only_layers.36"
    assert plan.specs[plan.caches[-1][1]].type == "HiddenStateCacheSpec"
    assert plan.bytes_per_block == 16 * (36 * 2 * 8 * 128 * 2 + 3 * 4096 * 2)
    narrower = planned(release, "qwen3-8b", EXTRACTED, kv_cache_dtype="fp8")
    assert narrower.specs[narrower.caches[-1][1]].dtype == "bfloat16"


@pytest.mark.parametrize("release", RELEASES)
def test_beside_groups_of_equal_pages_a_block_holds_what_states_fit(release: str) -> None:
    plan = planned(release, "gpt-oss-120b", EXTRACTED, max_model_len=4096)
    held = plan.groups[-1]
    assert (held.type, held.block_size, held.page_size_bytes) == ("HiddenStateCacheSpec", 1, 32768)


def test_pages_grow_to_hold_a_token_of_hidden_states_from_0_31_on() -> None:
    """Eight ranks leave pages of 4 KiB; a token's states take 17,280 bytes, and 0.29.0 crashes over them."""
    arguments = {"tensor_parallel_size": 8, "max_model_len": 4096}
    assert refused("0.29.0", "gpt-oss-120b", EXTRACTED, **arguments).type == "AssertionError"
    plan = planned("0.31.0", "gpt-oss-120b", EXTRACTED, **arguments)
    assert [group.block_size for group in plan.groups] == [80, 80, 1]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    "stated",
    [
        {"num_speculative_tokens": 2},
        {"draft_model_config": None},
        {"draft_sample_method": "probabilistic"},
        {"disable_padded_drafter_batch": True},
    ],
)
def test_what_extraction_does_not_take(release: str, stated: dict[str, Any]) -> None:
    said = refused(release, "qwen3-8b", {**EXTRACTED, **stated})
    assert (said.by, said.type, said.stage) == ("engine", "ValueError", "construct")


@pytest.mark.parametrize("release", RELEASES)
def test_qwen4_drafts_by_its_own_predictor_or_by_ngrams(release: str) -> None:
    assert refused(release, "qwen3.8-flash-next", EXTRACTED).type == "NotImplementedError"
    assert planned(release, "qwen3.8-flash-next", NGRAM).draft_caches == ()


def test_a_block_draft_is_kept_whole_on_every_rank_from_0_31_on() -> None:
    ranks = {"tensor_parallel_size": 8, "decode_context_parallel_size": 2}
    plan = planned("0.31.0", "qwen3.5-4b", WINDOWED, **ranks)
    pinned = [(group.type, group.blocks_per_request, group.draft) for group in plan.groups[-3:]]
    assert [blocks for _, blocks, _ in pinned] == [456, 73, 911]
    assert plan.resolved.kv_cache_layout == "BLNHC"
    earlier = refused("0.29.0", "qwen3.5-4b", WINDOWED, **ranks)
    assert earlier.by == "engine"


def test_a_medusa_head_runs_beside_pipeline_stages_from_0_31_on() -> None:
    head = {"method": "medusa", "model": "somebody/own-head", "num_speculative_tokens": 3}
    assert refused("0.29.0", "qwen3-8b", head, pipeline_parallel_size=2).type == "NotImplementedError"
    assert planned("0.31.0", "qwen3-8b", head, pipeline_parallel_size=2).draft_caches == ()
