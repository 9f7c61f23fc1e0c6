"""Attention backends chosen by hand that no layer is given otherwise, and DeepSeek V4.1's own."""

from __future__ import annotations

from typing import Any

import pytest
from small_graphs import RELEASES, full, graph_of, latent, plan, sliding

import rulespack
from rulespack import Deployment, ModelGraph, Plan, Refused

DENSE = graph_of([full()] * 4)
V41 = "deepseek-v4.1-flash"


def refused(release: str, graph: ModelGraph, **deployment: Any) -> Refused:
    with pytest.raises(Refused) as error:
        plan(release, graph, **deployment)
    return error.value


def newest(**deployment: Any) -> Plan:
    return rulespack.engine("0.31.0").plan(rulespack.load_model(V41), Deployment(max_model_len=8192, **deployment))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", ["FLASH_ATTN_DIFFKV", "TRITON_ATTN_DIFFKV"])
def test_backends_of_other_widths_serve_equal_widths_alike(release: str, name: str) -> None:
    forced = plan(release, DENSE, attention_backend=name)
    assert forced.backends == {name: 4}
    assert forced.bytes_per_block == plan(release, DENSE).bytes_per_block
    assert refused(release, graph_of([latent()]), attention_backend=name).rule == "forced-backend-valid"


@pytest.mark.parametrize("release", RELEASES)
def test_triton_of_other_widths_stores_no_fp8(release: str) -> None:
    fp8: dict[str, Any] = {"kv_cache_dtype": "fp8"}
    assert plan(release, DENSE, attention_backend="FLASH_ATTN_DIFFKV", **fp8).backends == {"FLASH_ATTN_DIFFKV": 4}
    answer = refused(release, DENSE, attention_backend="TRITON_ATTN_DIFFKV", **fp8)
    assert (answer.by, answer.rule, answer.stage) == ("engine", "forced-backend-valid", "construct")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("graph", "deployment"),
    [
        (DENSE, {"gpu": "B200"}),
        (graph_of([full(d_h=256)]), {}),
        (graph_of([sliding(1024)]), {}),
        (DENSE, {"kv_cache_dtype": "fp8_e5m2"}),
        (DENSE, {"block_size": 32}),
    ],
    ids=["gpu", "head", "window", "dtype", "block"],
)
def test_a_backend_of_another_package_still_says_what_it_does_not_serve(
    release: str, graph: ModelGraph, deployment: dict[str, Any]
) -> None:
    answer = refused(release, graph, attention_backend="HPC_ATTN", **deployment)
    assert (answer.by, answer.rule, answer.type) == ("engine", "forced-backend-valid", "ValueError")
    taken = refused(release, DENSE, attention_backend="HPC_ATTN")
    assert (taken.by, taken.rule) == ("pack", "backend-modelled")


def test_deepseek_v41_passes_over_backends_of_others_and_turns_down_two() -> None:
    assert newest(attention_backend="FLASH_ATTN").groups == newest().groups
    for name in ("FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM120"):
        answer = refused("0.31.0", rulespack.load_model(V41), attention_backend=name)
        assert (answer.by, answer.rule, answer.stage) == ("engine", "deepseek-v41-backend", "construct")


def test_deepseek_v41_keeps_plain_rows_under_flashinfer() -> None:
    flashinfer: dict[str, Any] = {"gpu": "B200", "attention_backend": "FLASHINFER_MLA_SPARSE_DSV41"}
    plain, narrow = newest(**flashinfer), newest(**flashinfer, kv_cache_dtype="fp8")
    assert (plain.bytes_per_block, narrow.bytes_per_block) == (370_688, 206_848)
    assert (plain.resolved.cache_dtype, narrow.resolved.cache_dtype) == ("auto", "fp8")
    packed = refused("0.31.0", rulespack.load_model(V41), **flashinfer, kv_cache_dtype="fp8_ds_mla")
    assert (packed.by, packed.rule, packed.type) == ("engine", "deepseek-v41-record", "ValueError")
    # On Hopper its blocks of 128 do not go with the indexer's of 64, which the worker finds out.
    hopper = refused("0.31.0", rulespack.load_model(V41), gpu="H200", attention_backend=flashinfer["attention_backend"])
    assert (hopper.rule, hopper.stage) == ("kernel-block-divides", "worker_kv_cache")


def test_deepseek_v41_does_not_share_its_window_over_ranks() -> None:
    answer = refused(
        "0.31.0", rulespack.load_model(V41), gpu="B200", tensor_parallel_size=8, decode_context_parallel_size=2
    )
    assert (answer.by, answer.type, answer.stage) == ("engine", "AssertionError", "groups")


@pytest.mark.parametrize("release", RELEASES)
def test_more_stages_than_layers_leave_some_without(release: str) -> None:
    answer = refused(release, DENSE, pipeline_parallel_size=6)
    assert (answer.by, answer.rule, answer.stage) == ("engine", "stage-holds-caches", "groups")


@pytest.mark.parametrize("release", RELEASES)
def test_backends_of_other_platforms_refuse_layers_of_another_kind(release: str) -> None:
    dense = graph_of([latent()] * 2, architecture="DeepseekV2ForCausalLM")
    sparse = rulespack.load_model("deepseek-v3.2")
    for name, graph in (
        ("ROCM_AITER_MLA", DENSE),
        ("XPU_MLA_SPARSE", dense),
        ("CPU_MLA", sparse),
        ("ROCM_AITER_UNIFIED_ATTN", dense),
        ("ROCM_AITER_FA", DENSE),
    ):
        answer = refused(release, graph, attention_backend=name)
        assert (answer.by, answer.rule, answer.type) == ("engine", "forced-backend-valid", "ValueError"), name
    taken = refused(release, dense, attention_backend="CPU_MLA")
    assert (taken.by, taken.rule) == ("pack", "backend-modelled")


def test_deepseek_v41_leaves_no_rank_without_an_output_group() -> None:
    graph = rulespack.load_model(V41)
    answer = refused("0.31.0", graph, gpu="B200", tensor_parallel_size=16)
    assert (answer.by, answer.type, answer.stage) == ("engine", "ZeroDivisionError", "construct")
    elsewhere = refused("0.31.0", graph, gpu="H200", tensor_parallel_size=16)
    assert (elsewhere.type, elsewhere.stage, elsewhere.rule) == (
        "AssertionError",
        "construct",
        "deepseek-v41-hash-heads",
    )
    replicas = refused("0.31.0", graph, tensor_parallel_size=8, data_parallel_size=2)
    assert (replicas.by, replicas.rule) == ("pack", "deepseek-v41-hash-heads-modelled")
