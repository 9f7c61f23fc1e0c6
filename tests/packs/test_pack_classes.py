"""What a model class does that its shapes do not show: names of layers, layers that keep nothing, length keys."""

from __future__ import annotations

import pytest
from small_graphs import RELEASES, full, graph_of, latent, plan, sliding

import rulespack
from rulespack import Refused
from rulespack.graph.model import Positions, Rope


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("model", "first"),
    [
        ("smollm3-3b", "0.attn"),
        ("hunyuan-4b-instruct", "0.attn"),
        ("qwen3-vl-4b-instruct", "language_model.model.layers.0.self_attn.attn"),
        ("exaone-4.0-32b", "model.layers.0.self_attn.attn"),
    ],
)
def test_a_cache_is_called_what_its_class_calls_the_layer(release: str, model: str, first: str) -> None:
    assert plan(release, rulespack.load_model(model)).caches[0][0] == first


@pytest.mark.parametrize("release", RELEASES)
def test_a_layer_without_attention_keeps_nothing_and_counts_for_the_stages(release: str) -> None:
    graph = rulespack.load_model("llama-3_3-nemotron-super-49b-v1")
    answer = plan(release, graph, pipeline_parallel_size=2)
    assert len(answer.caches) == 49
    assert answer.stages is not None
    # Three of the first forty layers have no attention, and twenty-eight of the last forty.
    assert [len(stage.groups[0]) for stage in answer.stages] == [37, 12]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("length", [4096, 131072])
def test_model_max_length_goes_before_the_position_limit(release: str, length: int) -> None:
    positions = Positions(max_position_embeddings=8192, model_max_length=length)
    graph = graph_of([full()], architecture="CohereForCausalLM", positions=positions)
    assert plan(release, graph).resolved.max_model_len == length


@pytest.mark.parametrize("release", RELEASES)
def test_model_max_length_is_scaled_as_the_position_limit_is(release: str) -> None:
    positions = Positions(max_position_embeddings=8192, model_max_length=4096, rope=(Rope(type="linear", factor=2.0),))
    assert plan(release, graph_of([full()], positions=positions)).resolved.max_model_len == 8192


@pytest.mark.parametrize("release", RELEASES)
def test_a_class_that_ties_its_head_everywhere_cannot_be_cut_into_stages(release: str) -> None:
    facts = {"architecture": "Ernie4_5_MoeForCausalLM"}
    untied, tied = (graph_of([full()] * 2, **facts, tie_word_embeddings=flag) for flag in (False, True))
    assert plan(release, untied, pipeline_parallel_size=2).stages is not None
    with pytest.raises(Refused) as refused:
        plan(release, tied, pipeline_parallel_size=2)
    assert (refused.value.by, refused.value.type, refused.value.stage) == ("engine", "AttributeError", "construct")


def test_a_window_never_takes_the_large_blocks_of_its_backend() -> None:
    answer = plan("0.31.0", graph_of([sliding(4096, n_q=32), full(n_q=32)]), gpu="B200", block_size=128)
    assert [answer.specs[spec].block_size for _, spec in answer.caches] == [64, 128]


def test_two_backends_must_share_a_block_where_the_first_alone_was_asked() -> None:
    # Layer 0 keeps bf16 and runs in blocks of 16; the fp8 kernel of the others runs in blocks of 64 and no other.
    graph = graph_of([latent()] * 4)
    asked = {"kv_cache_dtype": "fp8", "kv_cache_dtype_skip_layers": ["0"]}
    with pytest.raises(Refused) as refused:
        plan("0.29.0", graph, **asked)
    assert (refused.value.by, refused.value.type, refused.value.stage) == ("engine", "ValueError", "worker_kv_cache")
    assert refused.value.plan is not None
    assert refused.value.plan.resolved.block_size == 32
    assert plan("0.31.0", graph, **asked).resolved.block_size == 64
