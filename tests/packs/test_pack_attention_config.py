"""The keys of attention_config, and what an indexer stores its keys in."""

from __future__ import annotations

from typing import Any

import pytest
from small_graphs import RELEASES, full, graph_of, plan, sliding

import rulespack
from rulespack import Deployment, ModelGraph, Plan, Refused

DENSE = graph_of([full()] * 4)
WINDOWS = graph_of([sliding(1024), full()] * 2)


def refused(release: str, graph: ModelGraph = DENSE, **deployment: Any) -> Refused:
    with pytest.raises(Refused) as error:
        plan(release, graph, **deployment)
    return error.value


def catalog(release: str, model: str, **deployment: Any) -> Plan:
    return rulespack.engine(release).plan(rulespack.load_model(model), Deployment(max_model_len=4096, **deployment))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({"foo": 1}, "attention-config-known"),
        ({"indexer_kv_dtype": "fp16"}, "attention-config-value"),
        ({"minimax_m3_msa_decode_backend": "flash"}, "attention-config-value"),
        ({"use_trtllm_attention": "x"}, "attention-config-value"),
        ({"flash_attn_max_num_splits_for_cuda_graph": "many"}, "attention-config-value"),
        ({"mla_prefill_backend": "FLASH"}, "attention-config-value"),
        ({"backend_per_kind": {"full": "FLASH_ATTN"}}, "attention-config-value"),
        ({"backend_per_kind": {"full_attention": "FLASH"}}, "attention-config-value"),
    ],
)
def test_a_key_or_value_the_release_does_not_have_is_its_refusal(
    release: str, config: dict[str, Any], rule: str
) -> None:
    answer = refused(release, attention_config=config)
    assert (answer.by, answer.rule, answer.type, answer.stage) == ("engine", rule, "ValidationError", "config")


@pytest.mark.parametrize("release", RELEASES)
def test_keys_for_kernels_change_no_cache(release: str) -> None:
    config = {
        "flash_attn_max_num_splits_for_cuda_graph": 16,
        "tq_max_kv_splits_for_cuda_graph": 8,
        "disable_flashinfer_q_quantization": True,
        "use_prefill_query_quantization": True,
        "sparse_mla_force_mqa": True,
        "flex_attn_block_m": 32,
        "minimax_m3_msa_decode_backend": "cutlass",
        "indexer_kv_dtype": "mxfp4",
        "mla_prefill_backend": "FLASHINFER",
        "backend_per_kind": {},
    }
    asked, own = plan(release, DENSE, attention_config=config), plan(release, DENSE)
    assert (asked.groups, asked.backends) == (own.groups, own.backends)


def test_keys_come_and_go_with_releases() -> None:
    old, new = {"use_fp4_indexer_cache": False}, {"indexer_sparse_logits": True}
    assert plan("0.29.0", DENSE, attention_config=old)
    assert refused("0.31.0", attention_config=old).rule == "attention-config-known"
    assert plan("0.31.0", DENSE, attention_config=new)
    assert refused("0.29.0", attention_config=new).rule == "attention-config-known"


@pytest.mark.parametrize("release", RELEASES)
def test_each_kind_of_layer_can_have_a_backend_of_its_own(release: str) -> None:
    config = {"backend_per_kind": {"sliding_window": "TRITON_ATTN"}}
    assert plan(release, WINDOWS, attention_config=config).backends == {"TRITON_ATTN": 2, "FLASH_ATTN": 2}
    forced = plan(release, WINDOWS, attention_config=config, attention_backend="FLASHINFER")
    assert forced.backends == {"TRITON_ATTN": 2, "FLASHINFER": 2}
    answer = refused(release, attention_config={"backend_per_kind": {"full_attention": "TRITON_MLA"}})
    assert (answer.by, answer.rule, answer.stage) == ("engine", "forced-backend-valid", "construct")


@pytest.mark.parametrize("release", RELEASES)
def test_flashinfer_serves_no_sinks_without_its_downloadable_kernels(release: str) -> None:
    barred = catalog(release, "gpt-oss-20b", gpu="B200", attention_config={"use_trtllm_attention": False})
    allowed = catalog(release, "gpt-oss-20b", gpu="B200", attention_config={"use_trtllm_attention": True})
    assert (barred.backends, allowed.backends) == ({"FLASH_ATTN": 24}, {"FLASHINFER": 24})


@pytest.mark.parametrize("release", RELEASES)
def test_attention_in_both_directions_prefers_flash_attention_on_blackwell(release: str) -> None:
    both = plan(release, DENSE, gpu="B200", attention_config={"use_non_causal": True})
    assert (both.backends, plan(release, DENSE, gpu="B200").backends) == ({"FLASH_ATTN": 4}, {"FLASHINFER": 4})


@pytest.mark.parametrize("release", RELEASES)
def test_a_sparse_decode_kernel_is_no_backend(release: str) -> None:
    assert plan(release, DENSE, attention_config={"backend": "CUTLASS_MSA"}).backends == {"FLASH_ATTN": 4}
    answer = refused(release, attention_backend="CUTLASS_MSA")
    assert (answer.by, answer.rule, answer.stage) == ("engine", "forced-backend-valid", "construct")


@pytest.mark.parametrize("release", RELEASES)
def test_keys_of_deepseek_v4_take_half_in_mxfp4_on_blackwell_alone(release: str) -> None:
    def index(**deployment: Any) -> set[int | None]:
        made = catalog(release, "deepseek-v4-flash", kv_cache_dtype="fp8", gpu="B200", **deployment)
        return {spec.head_size for spec in made.specs if spec.head_size in (68, 132)}

    assert index() == index(attention_config={"indexer_kv_dtype": "fp8"}) == {132}
    assert index(attention_config={"indexer_kv_dtype": "mxfp4"}) == {68}
    graph = rulespack.load_model("deepseek-v4-flash")
    for gpu, asked in (("H200", "mxfp4"), ("B200", "bf16")):
        answer = refused(release, graph, gpu=gpu, kv_cache_dtype="fp8", attention_config={"indexer_kv_dtype": asked})
        assert (answer.by, answer.rule, answer.type) == ("engine", "indexer-dtype-served", "ValueError")


@pytest.mark.parametrize("release", RELEASES)
def test_keys_of_minimax_m3_take_half_in_fp8(release: str) -> None:
    sized: dict[str, Any] = {"gpu": "B200", "block_size": 128}
    narrow = catalog(release, "minimax-m3", **sized, attention_config={"indexer_kv_dtype": "fp8"})
    assert narrow.bytes_per_block < catalog(release, "minimax-m3", **sized).bytes_per_block
    assert "float8_e4m3fn" in {spec.dtype for spec in narrow.specs}
    answer = refused(release, rulespack.load_model("minimax-m3"), attention_config={"indexer_kv_dtype": "nvfp4"})
    assert (answer.by, answer.type, answer.stage) == ("engine", "NotImplementedError", "construct")


@pytest.mark.parametrize("release", RELEASES)
def test_a_prefill_backend_changes_no_cache_and_must_run_on_the_gpu(release: str) -> None:
    def asked(name: str, **deployment: Any) -> Plan:
        return catalog(release, "deepseek-v2-lite", attention_config={"mla_prefill_backend": name}, **deployment)

    assert asked("FLASH_ATTN").groups == catalog(release, "deepseek-v2-lite").groups
    assert asked("TRTLLM_RAGGED", gpu="B200").groups == catalog(release, "deepseek-v2-lite", gpu="B200").groups
    with pytest.raises(Refused) as error:
        asked("TRTLLM_RAGGED", gpu="H200")
    assert (error.value.by, error.value.rule, error.value.type) == ("engine", "prefill-backend-valid", "ValueError")
