"""Turboquant beside recurrent state: which layers keep the model's dtype, what a token takes, who refuses it."""

from __future__ import annotations

import pytest

import rulespack
from rulespack import Deployment, Refused

RELEASES = ("0.29.0", "0.31.0")
KIND = "turboquant_4bit_nc"


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("model", ["qwen3-next-80b-a3b-instruct", "jamba-v0.1", "nvidia-nemotron-3-nano-30b-a3b-bf16"])
def test_a_hybrid_packs_every_attention_layer_and_a_dense_model_leaves_out_its_ends(release: str, model: str) -> None:
    engine = rulespack.engine(release)
    hybrid = engine.plan(rulespack.load_model(model), Deployment(kv_cache_dtype=KIND))
    stored = {spec.cache_dtype for spec in hybrid.specs if spec.type == "FullAttentionSpec"}
    assert stored == {KIND}
    dense = engine.plan(rulespack.load_model("qwen3-8b"), Deployment(kv_cache_dtype=KIND))
    kept = [position for position, (_, spec) in enumerate(dense.caches) if dense.specs[spec].cache_dtype == "auto"]
    assert kept == [0, 1, 34, 35]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("model", ["falcon-h1-3b-instruct", "zamba2-2.7b", "kimi-linear-48b-a3b-instruct", "kimi-k3"])
def test_a_hybrid_that_does_not_list_what_attends_is_refused(release: str, model: str) -> None:
    with pytest.raises(Refused) as caught:
        rulespack.engine(release).plan(rulespack.load_model(model), Deployment(kv_cache_dtype=KIND))
    answer = caught.value
    assert (answer.by, answer.type, answer.stage) == ("engine", "NotImplementedError", "config")


@pytest.mark.parametrize("release", RELEASES)
def test_pages_of_packed_and_of_skipped_layers_beside_a_state_are_made_equal(release: str) -> None:
    graph = rulespack.load_model("qwen3-next-80b-a3b-instruct")
    plan = rulespack.engine(release).plan(
        graph, Deployment(kv_cache_dtype=KIND, kv_cache_dtype_skip_layers=["3"], max_model_len=4096)
    )
    assert {spec.cache_dtype for spec in plan.specs if spec.type == "FullAttentionSpec"} == {KIND, "auto"}
    assert len({group.page_size_bytes for group in plan.groups}) == 1
