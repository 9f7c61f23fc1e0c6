"""The device state one sequence holds whatever its length."""

from __future__ import annotations

import pytest

import rulespack
from rulespack.graph.load import load_graph
from rulespack.graph.model import ModelGraph
from rulespack.graph.sequence import SequenceState, state_bytes_per_sequence
from rulespack.graph.state import Uneven

MAMBA = (
    "{op: RecurrentUpdate, recurrent_kind: mamba2, n_heads: 8, state_size: 16, n_groups: 2, conv_kernel: 4, "
    "intermediate_size: 128, state_dtype: fp32}"
)
#: Three convolution inputs of 128 + 2 * 2 * 16 channels in bf16, and eight 16 x 16 matrices in fp32.
CONVOLUTION, STATE = 3 * 192 * 2, 8 * 16 * 16 * 4


def graph(*layers: str, repeat: int = 1) -> ModelGraph:
    kinds = "".join(f"- {{id: layer{index}, nodes: [{nodes}]}}\n" for index, nodes in enumerate(layers))
    names = ", ".join(f"layer{index}" for index in range(len(layers)))
    return load_graph(
        "kind: ModelGraph\nname: tiny\n"
        f"derived_from: {{format: hf_config_json, path: config.json, sha256: {'ab' * 32}, deriver_version: 1}}\n"
        "global: {hidden_size: 64, vocab_size: 128, weight_dtype: fp8, dtype: bf16}\n"
        f"layer_kinds:\n{kinds}stack: {{pattern: [{names}], repeat: {repeat}}}\n"
    )


def test_a_recurrent_layer_keeps_its_convolution_and_its_state() -> None:
    assert state_bytes_per_sequence(graph(MAMBA, repeat=3)) == SequenceState(recurrent=3 * (CONVOLUTION + STATE))
    assert state_bytes_per_sequence(graph(MAMBA), tensor_parallel_size=2).bytes == (CONVOLUTION + STATE) // 2


def test_speculative_tokens_widen_the_convolution() -> None:
    assert state_bytes_per_sequence(graph(MAMBA), extra_rows=3).bytes == 2 * CONVOLUTION + STATE


def test_formats_that_are_asked_for_stand_for_the_models() -> None:
    whole = graph(MAMBA)
    assert state_bytes_per_sequence(whole, state_dtype="bf16").bytes == CONVOLUTION + STATE // 2
    assert state_bytes_per_sequence(whole, conv_dtype="fp32").bytes == 2 * CONVOLUTION + STATE


def test_a_replicated_state_is_whole_on_every_rank() -> None:
    whole = graph(MAMBA.replace("op: RecurrentUpdate", "op: RecurrentUpdate, tp: replicated"))
    assert state_bytes_per_sequence(whole, tensor_parallel_size=16).bytes == CONVOLUTION + STATE


def test_ranks_that_cannot_share_a_state_are_told() -> None:
    with pytest.raises(Uneven, match="heads 8 is not divisible by tensor_parallel_size 16"):
        state_bytes_per_sequence(graph(MAMBA), tensor_parallel_size=16)


def test_a_window_counts_filled_and_its_heads_are_shared_down_to_one() -> None:
    window = graph("{op: Attention, kind: swa, n_q: 8, n_kv: 2, d_h: 16, window: 100}", repeat=2)
    whole = 2 * 100 * 2 * 2 * 16 * 2
    sizes = [state_bytes_per_sequence(window, tensor_parallel_size=ranks).windows for ranks in (1, 2, 8)]
    assert sizes == [whole, whole // 2, whole // 2]


def test_a_chunk_is_bounded_as_a_window_is_and_a_growing_cache_holds_nothing_fixed() -> None:
    chunked = "{op: Attention, kind: chunked, n_q: 8, n_kv: 2, d_h: 16, attention_chunk_size: 64}"
    growing = "{op: Attention, kind: gqa, n_q: 8, n_kv: 2, d_h: 16}"
    assert state_bytes_per_sequence(graph(chunked, growing)) == SequenceState(windows=64 * 128)


LATENT = """\
{op: Attention, kind: sparse_mla, n_q: 4, n_kv: 1, d_h: 32, window: 16, compress_ratio: 2, caches: [
{name: latent, kind: kv, owned: %s, bytes_per_entry: 64, tokens_per_entry: 2},
{name: recent, kind: window, owned: true, bytes_per_entry: 48, bytes_by_cache_dtype: {fp8: 20}, window: 16}%s]}"""


def test_what_belongs_to_a_latent_is_whole_on_every_rank_and_a_reader_adds_nothing() -> None:
    ring = ", {name: ring, kind: state, owned: true, bytes_per_entry: 256, entries: 8}"
    whole = graph(LATENT % ("true", ring), LATENT % ("false", ""))
    for ranks in (1, 4):
        held = state_bytes_per_sequence(whole, tensor_parallel_size=ranks)
        assert held == SequenceState(rings=8 * 256, windows=2 * 16 * 48)
    assert state_bytes_per_sequence(whole, cache_dtype="fp8").windows == 2 * 16 * 20


def test_a_stage_holds_the_state_of_its_layers() -> None:
    whole = graph(MAMBA, "{op: Attention, kind: gqa, n_q: 8, n_kv: 2, d_h: 16}", repeat=2)
    parts = [
        state_bytes_per_sequence(
            whole, pipeline_parallel_size=2, pipeline_stage=stage, layers_of_stage=(1, 3)
        ).recurrent
        for stage in (0, 1)
    ]
    assert parts == [CONVOLUTION + STATE, CONVOLUTION + STATE]
    with pytest.raises(ValueError, match="layers_of_stage: state how many of 4 layers"):
        state_bytes_per_sequence(whole, pipeline_parallel_size=2)


def test_gpt_oss_reserves_its_windows() -> None:
    held = state_bytes_per_sequence(rulespack.load_model("gpt-oss-120b"))
    assert held == SequenceState(windows=18 * 128 * 2 * 8 * 64 * 2)
