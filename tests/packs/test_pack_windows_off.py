"""Windows turned off, items of a prompt limited, and 16-bit caches in another dtype than the model's."""

from __future__ import annotations

from typing import Any

import pytest
from small_graphs import RELEASES, full, graph_of, latent, plan, sliding

import rulespack
from rulespack import Deployment, ModelGraph, Plan, Refused

WINDOWS = graph_of([sliding(1024), full()] * 2, architecture="MistralForCausalLM")


def refused(release: str, graph: ModelGraph, **deployment: Any) -> Refused:
    with pytest.raises(Refused) as error:
        plan(release, graph, **deployment)
    return error.value


def catalog(release: str, model: str, **deployment: Any) -> Plan:
    return rulespack.engine(release).plan(rulespack.load_model(model), Deployment(**deployment))


@pytest.mark.parametrize("release", RELEASES)
def test_windows_turned_off_are_full_caches_and_bound_the_length(release: str) -> None:
    turned = plan(release, WINDOWS, disable_sliding_window=True)
    assert {spec.type for spec in turned.specs} == {"FullAttentionSpec"}
    assert len(turned.groups) == 1
    assert turned.resolved.max_model_len == 1024
    longer = refused(release, WINDOWS, disable_sliding_window=True, max_model_len=1025)
    assert (longer.by, longer.rule) == ("engine", "max-model-len-admitted")
    insisted = plan(
        release,
        WINDOWS,
        disable_sliding_window=True,
        max_model_len=1025,
        env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"},
    )
    assert insisted.resolved.max_model_len == 1025
    assert {spec.type for spec in plan(release, WINDOWS).specs} == {"FullAttentionSpec", "SlidingWindowSpec"}


@pytest.mark.parametrize("release", RELEASES)
def test_windows_of_another_key_are_not_modelled_without(release: str) -> None:
    other = graph_of([sliding(1024), full()], architecture="Cohere2ForCausalLM")
    assert refused(release, other, disable_sliding_window=True).rule == "disable-sliding-window-modelled"


@pytest.mark.parametrize("release", RELEASES)
def test_without_images_their_attention_is_as_any_other(release: str) -> None:
    """Gemma 3 takes images alone, so that none of them is a model of text."""
    text = catalog(release, "gemma-3-4b-it", max_model_len=4096, language_model_only=True)
    none = catalog(release, "gemma-3-4b-it", max_model_len=4096, limit_mm_per_prompt={"image": 0})
    some = catalog(release, "gemma-3-4b-it", max_model_len=4096, limit_mm_per_prompt={"image": 1, "video": 0})
    kept = catalog(
        release, "gemma-3-4b-it", max_model_len=4096, limit_mm_per_prompt={"image": 0}, enable_mm_embeds=True
    )
    assert none.backends == text.backends != some.backends == kept.backends


@pytest.mark.parametrize("release", RELEASES)
def test_limits_leave_no_doubt(release: str) -> None:
    gemma = rulespack.load_model("gemma-4-26b-a4b")
    silent = {"image": 0, "video": {"count": 0}}
    assert refused(release, gemma, limit_mm_per_prompt=silent).rule == "limit-mm-modelled"
    assert plan(release, gemma, max_model_len=4096, limit_mm_per_prompt={**silent, "audio": 0})
    assert plan(release, gemma, max_model_len=4096, limit_mm_per_prompt={"image": 0})
    for wrong in ({"image": -1}, {"image": {"count": 1, "length": 3}}, {"audio": {"length": 0}}):
        answer = refused(release, gemma, limit_mm_per_prompt=wrong)
        assert (answer.by, answer.rule, answer.type) == ("engine", "item-limit-accepted", "ValidationError")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("graph", [graph_of([full()] * 4), graph_of([latent()] * 4)], ids=["full", "latent"])
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_cache_of_another_sixteen_bits_takes_as_much(release: str, graph: ModelGraph, name: str) -> None:
    for dtype in ("bfloat16", "float16"):
        own, asked = plan(release, graph, dtype=dtype), plan(release, graph, dtype=dtype, kv_cache_dtype=name)
        assert asked.resolved.cache_dtype == name
        assert {spec.dtype for spec in asked.specs} == {name}
        assert (asked.bytes_per_block, asked.backends) == (own.bytes_per_block, own.backends)


@pytest.mark.parametrize("release", RELEASES)
def test_a_float32_model_can_keep_half_as_much_and_skipped_layers_then_grow_the_block(release: str) -> None:
    graph = graph_of([full()] * 4)
    wide, half = (plan(release, graph, dtype="float32", kv_cache_dtype=name) for name in ("auto", "float16"))
    assert half.bytes_per_block * 2 == wide.bytes_per_block
    skipped = plan(release, graph, dtype="float32", kv_cache_dtype="float16", kv_cache_dtype_skip_layers=["0"])
    assert (half.resolved.block_size, skipped.resolved.block_size) == (16, 32)
