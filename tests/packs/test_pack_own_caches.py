"""Models with caches of their own: what each keeps, and what stops it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from small_graphs import RELEASES, full, graph_of, with_caches

import rulespack
from rulespack import Deployment, Plan, Refused
from rulespack.graph.model import Cache, Positions
from rulespack.kv.specs import Spec
from rulespack.report.json import plan_document


def plan(release: str, model: str, **asked: Any) -> Plan:
    return rulespack.engine(release).plan(rulespack.load_model(model), Deployment(**asked))


def refusal(release: str, model: str, **asked: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        plan(release, model, **asked)
    assert refused.value.by == "engine"
    return refused.value


def specs(answer: Plan, suffix: str) -> Counter[Spec]:
    """The specs of the caches whose names end so, counted."""
    return Counter(answer.specs[index] for name, index in answer.caches if name.endswith(suffix))


def shapes(answer: Plan, suffix: str) -> set[object]:
    """The shapes of the states whose names end so."""
    return {spec.shapes for spec in specs(answer, suffix)}


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# MiniMax M3


def test_minimax_m3_starts_with_its_own_block_in_0_31_0_alone() -> None:
    """0.29.0 asks the first layer, which is an ordinary one, and the sparse layers' kernel then cannot have 16."""
    stopped = refusal("0.29.0", "minimax-m3", max_model_len=8192)
    assert (stopped.type, stopped.stage) == ("ValueError", "worker_kv_cache")
    assert stopped.plan is not None
    assert stopped.plan.resolved.block_size == 16
    assert plan("0.29.0", "minimax-m3", max_model_len=8192, block_size=128).resolved.block_size == 128
    assert plan("0.31.0", "minimax-m3", max_model_len=8192).resolved.block_size == 128


def test_minimax_m3_keeps_keys_of_blocks_beside_the_sparse_layers(release: str) -> None:
    answer = plan(release, "minimax-m3", max_model_len=8192, block_size=128, kv_cache_dtype="fp8")
    assert answer.backends == {"FLASH_ATTN": 3, "MINIMAX_M3_SPARSE_INDEXER": 57, "MINIMAX_M3_SPARSE": 57}
    (keys,) = specs(answer, ".index_cache")
    assert (keys.dtype, keys.page_size_bytes) == ("bfloat16", 128 * 256)  # whatever the cache dtype
    assert len(answer.groups) == 1


def test_minimax_m3_counts_as_grouped_attention(release: str) -> None:
    """Its latent-like index makes it no latent model: context parallelism asks after the KV heads."""
    stopped = refusal(release, "minimax-m3", tensor_parallel_size=8, decode_context_parallel_size=8)
    assert stopped.rule == "dcp-within-replicas"


# Inkling


def test_inkling_keeps_the_state_of_its_convolutions_as_a_window_of_four(release: str) -> None:
    answer = plan(release, "inkling")
    assert sum(specs(answer, ".conv_state").values()) == 66
    assert {(spec.block_size, spec.sliding_window) for spec in specs(answer, ".conv_state")} == {(4, 4)}
    assert [len(group.caches) for group in answer.groups] == [11] * 12
    fp8 = plan(release, "inkling", kv_cache_dtype="fp8")
    assert {spec.dtype for spec in specs(fp8, ".conv_state")} == {"bfloat16"}
    assert {spec.dtype for spec in specs(fp8, ".attn")} == {"uint8"}


def test_inkling_wants_a_kv_head_a_rank_and_bfloat16(release: str) -> None:
    for asked in ({"tensor_parallel_size": 16}, {"dtype": "float16"}):
        stopped = refusal(release, "inkling", **asked)
        assert (stopped.type, stopped.stage) == ("AssertionError", "construct")


# MiMo V2


def test_mimo_v2_keeps_its_own_dtype_whatever_was_asked(release: str) -> None:
    asked = plan(release, "mimo-v2-flash", kv_cache_dtype="fp8")
    assert asked.resolved.cache_dtype == "fp8"
    assert asked.specs == plan(release, "mimo-v2-flash").specs
    assert {spec.dtype for spec in asked.specs} == {"bfloat16"}
    skipped = refusal(release, "mimo-v2-flash", kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=["sliding_window"])
    assert (skipped.type, skipped.stage, skipped.rule) == ("AssertionError", "groups", "padded-page-holds-block")


@pytest.mark.parametrize(
    ("asked", "backend"),
    [
        ({}, "FLASH_ATTN_DIFFKV"),
        ({"gpu": "B200"}, "FLASH_ATTN_DIFFKV"),
        ({"gpu": "A100"}, "TRITON_ATTN_DIFFKV"),
        ({"gpu": "RTXPRO6000"}, "TRITON_ATTN_DIFFKV"),
        ({"attention_backend": "TRITON_ATTN_DIFFKV"}, "TRITON_ATTN_DIFFKV"),
        ({"attention_backend": "FLASHINFER"}, "FLASH_ATTN_DIFFKV"),
    ],
)
def test_mimo_v2_takes_flash_attention_where_it_runs_narrow_values(
    release: str, asked: dict[str, Any], backend: str
) -> None:
    assert plan(release, "mimo-v2-flash", **asked).backends == {backend: 48}


def test_the_configuration_counts_the_heads_of_full_layers(release: str) -> None:
    """MiMo V2's windows have 8 KV heads and its full layers 4: eight ranks are more than those it counts."""
    stopped = refusal(release, "mimo-v2-flash", tensor_parallel_size=8, decode_context_parallel_size=8)
    assert stopped.rule == "dcp-within-replicas"


# Qwen 4 (experimental)


def test_qwen4_exp_packs_states_raw_keys_and_compressed_keys(release: str) -> None:
    answer = plan(release, "qwen3.8-flash-next")
    assert answer.resolved.kv_cache_layout == "BLNHC"
    assert [len(group.caches) for group in answer.groups] == [12, 12, 12, 1, 12, 24]
    assert answer.bytes_per_block == 39_739_392
    (raw,) = specs(answer, ".raw_key_cache")
    assert (raw.type, raw.block_size, raw.head_size) == ("CircularBufferSpec", 4, 140)


def test_qwen4_exp_keeps_no_positions_without_images(release: str) -> None:
    (raw,) = specs(plan(release, "qwen3.8-flash-next", language_model_only=True), ".raw_key_cache")
    assert raw.head_size == 128


def test_every_rank_keeps_the_n_gram_state_whole(release: str) -> None:
    one, eight = (plan(release, "qwen3.8-flash-next", tensor_parallel_size=size) for size in (1, 8))
    assert shapes(one, ".ple") == shapes(eight, ".ple")
    assert shapes(one, ".linear_attn") != shapes(eight, ".linear_attn")


def test_qwen4_exp_stores_fp8_since_0_31_0() -> None:
    assert refusal("0.29.0", "qwen3.8-flash-next", kv_cache_dtype="fp8").type == "NotImplementedError"
    assert plan("0.31.0", "qwen3.8-flash-next", kv_cache_dtype="fp8").resolved.block_size == 3136
    for release in RELEASES:
        assert refusal(release, "qwen3.8-flash-next", kv_cache_dtype="fp8_e5m2").type == "NotImplementedError"
        assert refusal(release, "qwen3.8-flash-next", pipeline_parallel_size=2).stage == "config"
        assert refusal(release, "qwen3.8-flash-next", block_size=30).rule == "qsa-block-holds-keys"


# dots3.note


def test_dots3_note_pads_its_latents_to_its_windows(release: str) -> None:
    answer = plan(release, "dots3-note")
    assert answer.resolved.kv_cache_layout == "BLHNC"
    assert {spec.head_size for spec in specs(answer, ".self_attn.attn")} == {1088}
    assert answer.bytes_per_block == 2_367_488
    assert [len(group.caches) for group in answer.groups] == [26, 17, 16]


def test_dots3_note_keeps_rows_in_its_own_dtype_alone(release: str) -> None:
    stopped = refusal(release, "dots3-note", kv_cache_dtype="fp8")
    assert (stopped.type, stopped.stage) == ("NotImplementedError", "construct")


# Whisper and BERT


def encoded() -> Cache:
    """What a layer keeps of the encoder's 1500 outputs."""
    return Cache(name="cross", kind="state", owned=True, bytes_per_entry=5120, entries=1500)


def test_whisper_keeps_an_encoders_output_for_a_whole_batch(release: str) -> None:
    cross_attention = with_caches(full(20, 64, n_q=20), encoded())
    graph = graph_of(
        [full(20, 64, n_q=20)],
        extra=[cross_attention],
        architecture="WhisperForConditionalGeneration",
        dtype="fp16",
        positions=Positions(max_position_embeddings=448),
    )
    answer = rulespack.engine(release).plan(graph)
    own, cross = answer.groups
    assert (own.type, own.blocks_per_request) == ("FullAttentionSpec", 448 // 16)
    assert (cross.type, cross.blocks_per_request) == ("CrossAttentionSpec", 8192 // 16)
    assert answer.request(1).blocks == 1 + 512
    assert answer.backends == {"FLASH_ATTN": 2}
    on_b200 = rulespack.engine(release).plan(graph, Deployment(gpu="B200"))
    assert on_b200.backends == {"FLASHINFER": 1, "FLASH_ATTN": 1}  # FlashInfer attends no encoder's output
    assert not answer.resolved.enable_prefix_caching


def test_an_encoder_keeps_no_cache(release: str) -> None:
    answer = plan(release, "all-minilm-l6-v2", kv_cache_memory_bytes=1 << 30)
    assert (answer.groups, answer.caches, answer.bytes_per_block) == ((), (), 0)
    assert answer.capacity is not None
    assert answer.capacity.num_blocks == 1
    assert not answer.resolved.enable_prefix_caching
    assert not answer.resolved.async_scheduling
    assert plan(release, "all-minilm-l6-v2", async_scheduling=True).resolved.async_scheduling
    document = plan_document(answer)  # the engine counts no tokens
    assert document["bytes_per_block"] is None
    assert document["capacity"] == {"num_blocks": 1, "tokens": None, "max_concurrency": None}


# Gemma 3n and Step 3.7


def test_gemma_3n_layers_that_share_a_cache_keep_none(release: str) -> None:
    answer = plan(release, "gemma-3n-e4b-it")
    assert [len(group.caches) for group in answer.groups] == [4] * 5
    assert {spec.sliding_window for spec in answer.specs} == {None, 512}


def test_step_3_7_counts_64_heads_though_its_windows_have_96(release: str) -> None:
    answer = plan(release, "step-3.7-flash-hf-shape")
    assert [len(group.caches) for group in answer.groups] == [12, 11, 11, 11]
    assert answer.bytes_per_block == 786_432
    assert refusal(release, "step-3.7-flash-hf-shape", tensor_parallel_size=3).rule == "heads-divide"
