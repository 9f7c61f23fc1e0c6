"""Layers left out of the cache dtype: what their pages, kernels and backends then cannot do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from small_graphs import RELEASES, chunked, full, graph_of, plan, sliding

import rulespack
from rulespack import ModelGraph, Refused
from rulespack.graph.model import Multimodal


def refused(release: str, graph: ModelGraph, **deployment: Any) -> Refused:
    with pytest.raises(Refused) as error:
        plan(release, graph, **deployment)
    assert error.value.by == "engine"
    return error.value


@pytest.mark.parametrize("release", RELEASES)
def test_a_window_padded_for_skipped_layers_cannot_be_made_larger(release: str) -> None:
    """In fp8 with a block of 64 a window is padded to the others' page; a full layer that is skipped has twice that."""
    graph = graph_of([sliding(1024), full()] * 2)
    asked = {"kv_cache_dtype": "fp8", "block_size": 64}
    answer = refused(release, graph, **asked, kv_cache_dtype_skip_layers=["1"])
    assert (answer.rule, answer.type, answer.stage) == ("padded-pages-kept", "AssertionError", "groups")
    assert answer.plan is None
    kept = plan(release, graph, **asked, kv_cache_dtype_skip_layers=["sliding_window"])
    assert {spec.page_size_bytes for spec in kept.specs} == {64 * 8 * 256}


@pytest.mark.parametrize("release", RELEASES)
def test_a_chunked_layer_selects_by_the_engines_cache_dtype_even_where_it_is_skipped(release: str) -> None:
    graph = graph_of([chunked(1024), chunked(1024), chunked(1024), full()] * 2)
    answer = refused(release, graph, kv_cache_dtype="turboquant_k8v4")
    assert (answer.rule, answer.type, answer.stage) == ("backend-constructed", "ValueError", "construct")
    asked = {"kv_cache_dtype": "int8_per_token_head", "block_size": 16}
    served = plan(release, graph, **asked, kv_cache_dtype_skip_layers=["0", "3"])
    assert served.backends == {"TRITON_ATTN": 7, "FLASH_ATTN": 1}


@pytest.mark.parametrize("release", RELEASES)
def test_full_layers_are_skipped_under_turboquant(release: str) -> None:
    answer = plan(release, graph_of([full()] * 8), kv_cache_dtype="turboquant_k8v4")
    assert answer.backends == {"FLASH_ATTN": 4, "TURBOQUANT": 4}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("soft_cap", [None, 50.0])
def test_flex_attention_takes_no_soft_cap(release: str, soft_cap: float | None) -> None:
    graph = graph_of([msgspec.structs.replace(full(), logits_soft_cap=soft_cap)] * 2)
    if soft_cap is None:
        assert plan(release, graph, attention_backend="FLEX_ATTENTION").backends == {"FLEX_ATTENTION": 2}
    else:
        answer = refused(release, graph, attention_backend="FLEX_ATTENTION")
        assert (answer.rule, answer.type, answer.stage) == ("backend-constructed", "NotImplementedError", "construct")


@pytest.mark.parametrize(("release", "block"), [("0.29.0", 16), ("0.31.0", 128)])
@pytest.mark.parametrize("version", [None, 2, 4])
def test_a_window_of_heads_of_256_asks_its_kernel_outside_the_configuration(
    release: str, block: int, version: int | None
) -> None:
    """On family 10 the later release answers with the special kernel's block, whatever version is forced."""
    graph = graph_of([msgspec.structs.replace(sliding(1024, d_h=256), logits_soft_cap=50.0)] * 2)
    asked = {"gpu": "B200", "attention_backend": "FLASH_ATTN", "attention_config": {"flash_attn_version": version}}
    assert {spec.block_size for spec in plan(release, graph, **asked).specs} == {block}


@pytest.mark.parametrize("gpu", ["H200", "B200"])
def test_the_parts_of_a_composite_must_lay_the_cache_out_alike(gpu: str) -> None:
    graph = graph_of([sliding(1024, d_h=256), full(d_h=256)] * 2, multimodal=Multimodal(prefix_lm=True))
    asked = {"gpu": gpu, "kv_cache_dtype_skip_layers": ["sliding_window"]}
    answer = refused("0.31.0", graph, **asked, kv_cache_dtype="int8_per_token_head")
    assert (answer.rule, answer.type, answer.stage) == ("composite-packing", "ValueError", "construct")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("model", "skipped", "kept"),
    [
        ("qwen3-8b", ["3"], {"model.layers.3.self_attn.attn"}),
        ("qwen3-next-80b-a3b-instruct", ["3", "4"], {"model.layers.3.self_attn.attn"}),
        ("zamba2-2.7b", ["2", "9"], {"model.attn.2"}),
        ("kimi-linear-48b-a3b-instruct", ["3"], set()),
        ("deepseek-v3", ["3"], {"model.layers.3.self_attn.attn"}),
        ("hy4-preview", ["3"], {"model.layers.3.self_attn.attn"}),
    ],
)
def test_a_layer_is_skipped_by_the_number_in_its_own_name(
    release: str, model: str, skipped: list[str], kept: set[str]
) -> None:
    stated = {"gpu": "B200", "kv_cache_dtype": "fp8", "max_model_len": 4096}
    answer = plan(release, rulespack.load_model(model), kv_cache_dtype_skip_layers=skipped, **stated)
    attending = [(name, answer.specs[spec]) for name, spec in answer.caches if answer.specs[spec].type != "MambaSpec"]
    assert {name for name, spec in attending if spec.dtype == "bfloat16"} == kept


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("dtype", ["fp8", "int8_per_token_head", "turboquant_k8v4"])
def test_a_sparse_layer_that_is_skipped_keeps_the_one_record_its_backend_has(release: str, dtype: str) -> None:
    """On family 12 that is the packed one, which the first layer makes everybody's."""
    graph = rulespack.load_model("glm-5")
    stated = {"gpu": "RTXPRO6000", "kv_cache_dtype": dtype, "max_model_len": 4096}
    answer = plan(release, graph, kv_cache_dtype_skip_layers=["0"], **stated)
    assert answer.resolved.cache_dtype == "fp8_ds_mla"
    assert {spec.cache_dtype for spec in answer.specs if spec.head_size == 576} == {"fp8_ds_mla"}
    if dtype == "int8_per_token_head":
        assert refused(release, graph, **stated).stage == "construct"


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("model", "cost"), [("deepseek-v3.2", 6_216_192), ("glm-5", 7_930_880), ("hy4-preview", 3_087_360)]
)
def test_a_first_sparse_layer_that_is_skipped_leaves_the_others_their_record(
    release: str, model: str, cost: int
) -> None:
    stated = {"kv_cache_dtype": "fp8", "kv_cache_dtype_skip_layers": ["0"], "max_model_len": 4096}
    answer = plan(release, rulespack.load_model(model), **stated)
    assert answer.resolved.cache_dtype == "fp8_ds_mla"
    assert answer.bytes_per_block == cost
