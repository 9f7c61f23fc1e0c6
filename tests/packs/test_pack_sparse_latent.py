"""Sparse latent attention: which backend serves it, what its records take, and what a block is rounded up to."""

from __future__ import annotations

from typing import Any

import pytest
from small_graphs import RELEASES

import rulespack
from rulespack import Deployment, Plan, Refused

V32 = "deepseek-v3.2"
LAYERS = 61


def plan(release: str, model: str = V32, **asked: Any) -> Plan:
    return rulespack.engine(release).plan(rulespack.load_model(model), Deployment(**asked))


def refusal(release: str, model: str = V32, **asked: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        plan(release, model, **asked)
    return refused.value


def row_bytes(answer: Plan) -> int:
    """Bytes the main cache of the first layer takes for a token."""
    spec = next(spec for spec in answer.specs if spec.head_size in (512, 576))
    return spec.page_size_bytes // spec.block_size


def test_every_layer_keeps_the_keys_of_its_indexer_before_its_latent() -> None:
    for release in RELEASES:
        answer = plan(release)
        assert [name for name, _ in answer.caches[:2]] == [
            "model.layers.0.self_attn.indexer.k_cache",
            "model.layers.0.self_attn.attn",
        ]
        assert answer.backends == {"DEEPSEEK_V32_INDEXER": LAYERS, "FLASH_ATTN_MLA_SPARSE": LAYERS}
        assert [len(group.caches) for group in answer.groups] == [2 * LAYERS]


def test_layers_that_share_a_selection_keep_no_keys() -> None:
    """GLM 5.2 selects in every fourth layer beyond the first three, GLM 5.1 in every layer."""
    for release in RELEASES:
        assert plan(release, "glm-5.1").backends["DEEPSEEK_V32_INDEXER"] == 78
        assert plan(release, "glm-5.2").backends["DEEPSEEK_V32_INDEXER"] == 21


@pytest.mark.parametrize(
    ("asked", "backend", "written", "row"),
    [
        ({"gpu": "H200", "kv_cache_dtype": "fp8"}, "FLASHMLA_SPARSE", "fp8_ds_mla", 656),
        ({"gpu": "B200", "kv_cache_dtype": "fp8"}, "FLASHINFER_MLA_SPARSE", "fp8", 576),
        ({"gpu": "B200"}, "FLASHMLA_SPARSE", "auto", 1152),
        ({"gpu": "B200", "tensor_parallel_size": 8}, "FLASHINFER_MLA_SPARSE", "auto", 1152),
        ({"gpu": "RTXPRO6000"}, "FLASHINFER_MLA_SPARSE_SM120", "fp8_ds_mla", 656),
        ({"gpu": "H200", "kv_cache_dtype": "bfloat16"}, "FLASH_ATTN_MLA_SPARSE", "auto", 1152),
        (
            {"gpu": "B200", "kv_cache_dtype": "fp8", "attention_backend": "FLASHMLA_SPARSE"},
            "FLASHMLA_SPARSE",
            "fp8_ds_mla",
            656,
        ),
    ],
)
def test_the_backend_decides_what_the_engine_writes_for_a_cache_dtype(
    asked: dict[str, Any], backend: str, written: str, row: int
) -> None:
    for release in RELEASES:
        answer = plan(release, **asked)
        assert answer.backends[backend] == LAYERS
        assert answer.resolved.cache_dtype == written
        assert row_bytes(answer) == row


def test_hopper_serves_fp8_e4m3_since_flashinfer_does() -> None:
    """A ModelOpt checkpoint asks for it by itself, so 0.29.0 does not start with one on an H200."""
    assert refusal("0.29.0", "deepseek-v3.2-nvfp4").rule == "backend-found"
    answer = plan("0.31.0", "deepseek-v3.2-nvfp4")
    assert answer.backends["FLASHINFER_MLA_SPARSE_SM90"] == LAYERS
    assert row_bytes(answer) == 576
    assert answer.resolved.kv_cache_layout == "LBHNC"


def test_rows_that_a_kernel_counts_over_blocks_round_a_block_up() -> None:
    """On a B200 a block of 61 latents and keys is no whole number of rows of 1152 bytes."""
    plain = 61 * 64 * (1152 + 132)
    assert plan("0.29.0", gpu="B200").bytes_per_block == plain
    assert plan("0.31.0", gpu="B200").bytes_per_block == -(-plain // 1152) * 1152
    assert plan("0.31.0", gpu="H200").bytes_per_block == plain  # FlashAttention's kernel takes any block


def test_only_packed_records_are_shared_over_ranks() -> None:
    shared = {"tensor_parallel_size": 8, "decode_context_parallel_size": 8}
    for release in RELEASES:
        stopped = refusal(release, **shared)
        assert (stopped.type, stopped.stage) == ("NotImplementedError", "construct")
        answer = plan(release, kv_cache_dtype="fp8", **shared)
        assert answer.groups[0].blocks_per_request == 163840 // 8 // 64


def test_no_sparse_backend_runs_before_hopper() -> None:
    for release in RELEASES:
        assert refusal(release, gpu="A100").type == "ValueError"
        assert refusal(release, "hy4-preview", gpu="A100").type == "RuntimeError"


def test_sinks_keep_hunyuan_4_on_the_backend_that_applies_them() -> None:
    for release in RELEASES:
        for asked in ({}, {"attention_backend": "FLASH_ATTN_MLA_SPARSE"}, {"gpu": "B200", "tensor_parallel_size": 2}):
            assert plan(release, "hy4-preview", **asked).backends == {
                "DEEPSEEK_V32_INDEXER": 10,
                "FLASHMLA_SPARSE": 34,
            }


def test_a_dense_backend_cannot_be_forced_on_a_sparse_layer() -> None:
    for release in RELEASES:
        stopped = refusal(release, attention_backend="FLASHMLA")
        assert (stopped.rule, stopped.stage) == ("forced-backend-valid", "construct")
        assert "sparse attention" in stopped.reason
