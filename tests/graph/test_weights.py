"""What the weights of a graph are worth in parameters and bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rulespack.graph.load import load_graph
from rulespack.graph.model import GEMM, Gather, GroupedGEMM, ModelGraph, WeightScale
from rulespack.graph.weights import (
    Amount,
    bytes_per_parameter,
    node_format,
    node_parameters,
    parameters,
    table_format,
    weight_bytes,
    weight_format,
)

HEADER = """\
kind: ModelGraph
name: tiny
derived_from: {format: hf_config_json, path: config.json, sha256: %s, deriver_version: 1}
""" % ("ab" * 32)


def graph(
    shapes: str = "weight_dtype: bf16",
    embedding: str = "[]",
    nodes: str = "{op: Elementwise}",
    repeat: int = 1,
    head: str = "[]",
    rest: str = "",
) -> ModelGraph:
    return load_graph(
        f"{HEADER}global: {{hidden_size: 64, vocab_size: 100, {shapes}}}\n"
        f"embedding: {embedding}\n"
        f"layer_kinds: [{{id: layer, nodes: [{nodes}]}}, {{id: draft, nodes: [{{op: GEMM, role: up, n: 4, k: 8}}]}}]\n"
        f"stack: {{pattern: [layer], repeat: {repeat}}}\n"
        f"head: {head}\n"
        + (rest or "speculator: {method: mtp, num_spec_tokens: 1, stack: {pattern: [draft], repeat: 1}}\n")
    )


@pytest.mark.parametrize(
    ("dtype", "scale", "expected"),
    [
        ("bf16", None, 2),
        ("fp32", None, 4),
        ("fp8", None, 1),
        ("fp8", (32, 1), 1 + 1 / 32),
        ("int4", None, 0.5),
        ("int4", (128, 2), 0.5 + 2 / 128),
        ("nvfp4", None, 0.5 + 1 / 16),
        ("mxfp4", None, 0.5 + 1 / 32),
        ("mxfp4", (64, 2), 0.5 + 2 / 64),
    ],
)
def test_bytes_of_one_parameter(dtype: str, scale: tuple[int, int] | None, expected: float) -> None:
    layout = None if scale is None else WeightScale(elements=scale[0], bytes=scale[1])
    stored = weight_format(dtype, layout)
    assert bytes_per_parameter(stored) == expected
    assert weight_bytes(1280, stored) == 1280 * expected


def test_the_last_scale_and_the_last_half_byte_count_whole() -> None:
    assert weight_bytes(17, weight_format("nvfp4")) == 9 + 2


def test_the_graphs_scale_is_for_weights_in_the_graphs_format_only() -> None:
    whole = graph("weight_dtype: fp8, weight_scale: {elements: 32, bytes: 1}")
    plain = GEMM(n=4, k=8)
    assert node_format(whole, plain).scale == WeightScale(elements=32, bytes=1)
    assert node_format(whole, GEMM(n=4, k=8, weight_dtype="fp8")) == node_format(whole, plain)
    assert node_format(whole, GEMM(n=4, k=8, weight_dtype="bf16")).scale is None
    assert node_format(whole, GEMM(n=4, k=8, weight_dtype="mxfp4")).scale == WeightScale(elements=32, bytes=1)
    stated = WeightScale(elements=128, bytes=4)
    assert node_format(whole, GEMM(n=4, k=8, weight_scale=stated)).scale == stated


def test_parameters_of_experts() -> None:
    whole = graph()
    routed = GroupedGEMM(n=10, k=6, experts=8, top_k=2)
    assert node_parameters(whole, routed) == 8 * 10 * 6
    assert node_parameters(whole, GroupedGEMM(n=10, k=6, experts=8, top_k=2, latent_size=3)) == 8 * 10 * 3
    shared = GroupedGEMM(n=10, k=6, experts=8, top_k=2, shared_experts=2)
    assert node_parameters(whole, shared) == 8 * 10 * 6 + 2 * 10 * 6
    sized = GroupedGEMM(n=10, k=6, experts=8, top_k=2, shared_experts=2, shared_intermediate_size=7, latent_size=3)
    assert node_parameters(whole, sized) == 8 * 10 * 3 + 2 * 7 * 6


@pytest.mark.parametrize(
    ("row_bytes", "rows_per_token", "out", "elements", "dtype"),
    [
        (128, 1, 128, 64, "bf16"),
        (66, 1, 128, 64, "fp8"),
        (264, 24, 12288, 256, "fp8"),
        (36, 1, 128, 64, "int4"),
        (256, 1, 128, 64, "fp32"),
        (128, 1, 7, 64, "bf16"),
    ],
)
def test_the_elements_of_a_row_follow_from_what_a_lookup_writes(
    row_bytes: int, rows_per_token: int, out: int, elements: int, dtype: str
) -> None:
    table = Gather(rows=100, row_bytes=row_bytes, rows_per_token=rows_per_token, out_bytes_per_token=out)
    whole = graph()
    assert node_parameters(whole, table) == 100 * elements
    assert table_format(whole, table).dtype == dtype


def test_layers_count_as_often_as_they_run_and_parts_are_kept_apart() -> None:
    found = parameters(
        graph(
            nodes="{op: GEMM, role: up, n: 16, k: 8}, {op: GEMM, n: 2, k: 8, weight_dtype: fp8}",
            repeat=3,
            head="[{op: GEMM, role: lm_head, n: 100, k: 64}]",
        )
    )
    assert found.by_role() == {
        "embedding": Amount(6400, 12800),
        "up": Amount(3 * 128, 3 * 256),
        "GEMM": Amount(3 * 16, 3 * 16),
        "lm_head": Amount(6400, 12800),
    }
    assert found.by_dtype() == {"bf16": Amount(12800 + 384, 2 * (12800 + 384)), "fp8": Amount(48, 48)}
    assert found.target == Amount(12800 + 384 + 48, 2 * (12800 + 384) + 48)
    assert found.speculator == Amount(32, 64)
    assert found.total == found.target + found.speculator


def test_an_embedding_that_is_left_out_is_a_table_at_the_graphs_format() -> None:
    implied = parameters(graph("weight_dtype: fp8, weight_scale: {elements: 64, bytes: 4}"))
    assert implied.by_role()["embedding"] == Amount(6400, 6400 + 400)
    stated = parameters(
        graph(embedding="[{op: Gather, rows: 100, row_bytes: 128, rows_per_token: 1, out_bytes_per_token: 128}]")
    )
    assert stated.target == Amount(6400, 12800)


def test_a_tied_head_adds_nothing_however_it_is_said() -> None:
    table = "[{op: Gather, role: tokens, rows: 100, row_bytes: 128, rows_per_token: 1, out_bytes_per_token: 128}]"
    alias = "[{op: GEMM, role: lm_head, n: 100, k: 64, aliases: embedding.tokens}]"
    plain = "[{op: GEMM, role: lm_head, n: 100, k: 64}]"
    assert parameters(graph(embedding=table, head=alias)).target == Amount(6400, 12800)
    assert parameters(graph("weight_dtype: bf16, tie_word_embeddings: true", head=plain)).target == Amount(6400, 12800)
    assert parameters(graph(head=plain)).target == Amount(12800, 25600)


def test_an_alias_is_read_in_its_targets_format_and_adds_nothing() -> None:
    whole = graph(
        head="[{op: GEMM, role: lm_head, n: 100, k: 64, weight_dtype: fp8}]",
        rest="speculator: {method: mtp, num_spec_tokens: 1, stack: {pattern: [draft], repeat: 1},\n"
        " head: [{op: GEMM, role: draft_head, n: 100, k: 64, aliases: head.lm_head}]}\n",
    )
    assert whole.speculator is not None
    alias = whole.speculator.head[0]
    assert isinstance(alias, GEMM)
    assert node_format(whole, alias).dtype == "fp8"
    assert parameters(whole).speculator == Amount(32, 64)


def test_a_table_in_host_memory_is_counted_apart() -> None:
    rows = "rows: 10, row_bytes: 66, rows_per_token: 2, out_bytes_per_token: 256, residency: host"
    table = f"{{op: Gather, role: rows, {rows}}}"
    found = parameters(graph(nodes=table, repeat=2))
    assert found.host == Amount(2 * 640, 2 * 660)
    assert "rows" not in found.by_role()
    assert found.total.bytes == found.target.bytes + found.speculator.bytes + found.host.bytes


def test_the_worked_example_keeps_its_tables_on_the_host_and_lends_its_vocabulary_to_the_draft() -> None:
    path = Path(__file__).parents[2] / "docs/examples/model-graph-deepseek-v4.1.yaml"
    found = parameters(load_graph(path.read_bytes(), str(path)))
    assert found.host.bytes == (384_006_168 + 384_016_682) * 264
    assert set(found.by_role("speculator")) == {"fused_wqa_wkv", "experts", "main_proj", "markov_w1", "markov_w2"}
    assert found.by_role()["experts"].bytes == 384 * 2304 * 5120 * 17 // 32
