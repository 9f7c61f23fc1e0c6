"""What one rank holds of a graph's weights, and in which format each weight is stored."""

from __future__ import annotations

import msgspec
import pytest

from rulespack.graph.capability import for_capability
from rulespack.graph.load import load_graph
from rulespack.graph.model import ModelGraph
from rulespack.graph.resident import AmbiguousRole, precision_schedule, resident_weights
from rulespack.graph.shares import ExpertPadding, Undivided
from rulespack.graph.state import Uneven
from rulespack.graph.weights import Amount, parameters, weight_format

HEADER = """\
kind: ModelGraph
name: tiny
derived_from: {format: hf_config_json, path: config.json, sha256: %s, deriver_version: 1}
""" % ("ab" * 32)

TABLE = (
    "{op: Gather, role: tokens, rows: 128, row_bytes: 128, rows_per_token: 1, out_bytes_per_token: 128, shard: rows}"
)
HEAD = "{op: GEMM, role: lm_head, n: 128, k: 64, tp: column}"
TIED = "{op: GEMM, role: lm_head, n: 128, k: 64, tp: column, aliases: embedding.tokens}"
#: Eight query heads and two KV heads of 16, keys and values.
ATTENTION = """\
{op: GEMM, role: qkv_proj, n: 192, k: 64, tp: column},
{op: Attention, kind: gqa, n_q: 8, n_kv: 2, d_h: 16},
{op: GEMM, role: o_proj, n: 64, k: 128, tp: row}"""
#: Eight experts of inner width 32 behind a router, and a shared expert of width 16.
EXPERTS = """\
{op: GEMM, role: router, n: 8, k: 64, tp: replicated},
{op: GroupedGEMM, role: experts_gate_up, n: 64, k: 64, experts: 8, top_k: 2},
{op: GroupedGEMM, role: experts_down, n: 64, k: 32, experts: 8, top_k: 2},
{op: GEMM, role: shared_gate_up_proj, n: 32, k: 64, tp: column},
{op: GEMM, role: shared_down_proj, n: 64, k: 16, tp: row},
{op: AllReduce, role: mlp_out, emit: tensor_parallel_unless_sp_moe}"""


def graph(
    nodes: str = ATTENTION,
    *,
    repeat: int = 1,
    embedding: str = TABLE,
    head: str = HEAD,
    shapes: str = "weight_dtype: bf16",
    rest: str = "",
) -> ModelGraph:
    return load_graph(
        f"{HEADER}global: {{architecture: Tiny, hidden_size: 64, vocab_size: 128, {shapes}}}\n"
        f"embedding: [{embedding}]\n"
        f"layer_kinds:\n- {{id: layer, nodes: [{nodes}]}}\n"
        "- {id: draft, nodes: [{op: GEMM, role: up, n: 16, k: 8, tp: column}]}\n"
        f"stack: {{pattern: [layer], repeat: {repeat}}}\nhead: [{head}]\n"
        + (rest or "speculator: {method: mtp, num_spec_tokens: 1, stack: {pattern: [draft], repeat: 1}}\n")
    )


def with_vocabulary(whole: ModelGraph, size: int) -> ModelGraph:
    return msgspec.structs.replace(whole, globals_=msgspec.structs.replace(whole.globals_, vocab_size=size))


def elements(found: dict[str, Amount]) -> dict[str, int]:
    return {role: amount.elements for role, amount in found.items()}


def test_one_rank_alone_holds_everything() -> None:
    whole = graph(f"{ATTENTION}, {EXPERTS}", repeat=3)
    assert resident_weights(whole) == parameters(whole)


def test_columns_are_shared_by_outputs_rows_by_inputs_and_the_vocabulary_by_rows() -> None:
    assert elements(resident_weights(graph(), tensor_parallel_size=2).by_role()) == {
        "tokens": 64 * 64,
        "qkv_proj": 96 * 64,
        "o_proj": 64 * 64,
        "lm_head": 64 * 64,
    }


def test_with_more_ranks_than_kv_heads_each_rank_holds_one() -> None:
    held = resident_weights(graph(), tensor_parallel_size=8).by_role()
    assert held["qkv_proj"].elements == (1 * 16 + 2 * 16) * 64


def test_values_narrower_than_keys_and_a_gate_beside_the_queries() -> None:
    narrow = ATTENTION.replace("192", "176").replace("d_h: 16", "d_h: 16, d_v: 8")
    assert resident_weights(graph(narrow), tensor_parallel_size=4).by_role()["qkv_proj"].elements == (32 + 16 + 8) * 64
    gated = ATTENTION.replace("192", "320")
    assert resident_weights(graph(gated), tensor_parallel_size=4).by_role()["qkv_proj"].elements == (64 + 32) * 64


def test_an_indexers_query_heads_go_with_the_kv_heads_and_its_key_is_whole() -> None:
    nodes = (
        "{op: GEMM, role: qkv_index_proj, n: 240, k: 64, tp: column}, "
        "{op: Attention, role: scores, kind: sparse_mla, n_q: 2, n_kv: 1, d_h: 16, index_topk: 4}, "
        "{op: Attention, kind: gqa, n_q: 8, n_kv: 2, d_h: 16, caches: "
        "[{name: main, kind: kv, owned: true, bytes_per_entry: 128}]}"
    )
    held = resident_weights(graph(nodes), tensor_parallel_size=4).by_role()
    assert held["qkv_index_proj"].elements == (2 * 16 + 3 * 16 + 16) * 64


def test_a_vocabulary_is_padded_before_it_is_shared() -> None:
    odd = with_vocabulary(graph(embedding=TABLE.replace("128,", "100,", 1), head=HEAD.replace("128", "100")), 100)
    held = resident_weights(odd, tensor_parallel_size=2).by_role()
    assert held["tokens"].elements == held["lm_head"].elements == 64 * 64


def test_an_embedding_that_is_left_out_is_padded_and_shared_too() -> None:
    odd = with_vocabulary(graph(embedding="", head=""), 100)
    assert resident_weights(odd, tensor_parallel_size=4).by_role()["embedding"] == Amount(32 * 64, 32 * 64 * 2)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_experts_are_shared_inside_or_one_by_one(ranks: int) -> None:
    whole = graph(EXPERTS)
    inside = resident_weights(whole, tensor_parallel_size=ranks).by_role()
    apart = resident_weights(whole, tensor_parallel_size=ranks, enable_expert_parallel=True).by_role()
    assert inside == apart
    assert inside["experts_gate_up"].elements == 8 * 64 * 64 // ranks
    assert inside["experts_down"].elements == 8 * 64 * 32 // ranks
    assert inside["router"].elements == 8 * 64
    assert inside["shared_gate_up_proj"].elements == 32 * 64 // ranks


def test_data_parallel_replicas_share_routed_experts_and_nothing_else() -> None:
    whole = graph(f"{ATTENTION}, {EXPERTS}")
    alone = resident_weights(whole, tensor_parallel_size=2).by_role()
    for expert_parallel in (False, True):
        held = resident_weights(
            whole, tensor_parallel_size=2, data_parallel_size=2, enable_expert_parallel=expert_parallel
        ).by_role()
        assert held["experts_down"].elements == alone["experts_down"].elements // 2
        assert held["qkv_proj"] == alone["qkv_proj"]
    assert resident_weights(graph(), data_parallel_size=8) == resident_weights(graph())


def test_ranks_that_split_tokens_hold_shared_experts_whole() -> None:
    whole = graph(EXPERTS)
    held = resident_weights(whole, tensor_parallel_size=2, data_parallel_size=2, enable_expert_parallel=True).by_role()
    assert held["shared_gate_up_proj"].elements == 32 * 64
    assert held["shared_down_proj"].elements == 64 * 16
    never = graph(EXPERTS.replace("tensor_parallel_unless_sp_moe", "tensor_parallel"))
    held = resident_weights(never, tensor_parallel_size=2, data_parallel_size=2, enable_expert_parallel=True).by_role()
    assert held["shared_gate_up_proj"].elements == 16 * 64


def test_a_model_that_splits_its_own_tokens_holds_whole_what_runs_on_them() -> None:
    nodes = (
        "{op: GEMM, role: up, n: 64, k: 64, tp: column, under_sequence_parallel: token_sharded}, "
        "{op: GEMM, role: other, n: 64, k: 64, tp: column}"
    )
    whole = graph(nodes, repeat=2)
    split = {"tensor_parallel_size": 2, "data_parallel_size": 2, "enable_expert_parallel": True}
    for more, up in (({}, 2 * 64), ({"pipeline_parallel_size": 2, "layers_of_stage": (1, 1)}, 32)):
        held = resident_weights(whole, **split, **more).by_role()  # type: ignore[arg-type]
        assert held["up"].elements == up * 64
    assert held["other"].elements == 32 * 64


def test_the_first_ranks_take_the_experts_that_are_left_over() -> None:
    whole = graph("{op: GroupedGEMM, role: experts_down, n: 64, k: 32, experts: 8, top_k: 2}")
    held = resident_weights(whole, data_parallel_size=3, enable_expert_parallel=True)
    assert held.by_role()["experts_down"].elements == 3 * 64 * 32


def test_what_a_kernel_adds_to_experts() -> None:
    whole = graph(EXPERTS)
    padded = ExpertPadding(inner_multiple=24, outer_multiple=40)
    held = resident_weights(whole, tensor_parallel_size=2, padding=padded).by_role()
    assert held["experts_gate_up"].elements == 8 * 2 * 24 * 80
    assert held["experts_down"].elements == 8 * 80 * 24
    least = ExpertPadding(least_inner=20)
    assert (
        resident_weights(whole, tensor_parallel_size=2, padding=least).by_role()["experts_down"].elements == 8 * 64 * 20
    )
    assert resident_weights(whole, padding=least) == resident_weights(whole)
    by_expert = resident_weights(whole, tensor_parallel_size=2, enable_expert_parallel=True, padding=least)
    assert by_expert.by_role()["experts_down"].elements == 4 * 64 * 32


def test_experts_of_a_grouped_node_with_shared_ones_inside() -> None:
    node = (
        "{op: GroupedGEMM, role: experts, n: 32, k: 64, experts: 8, top_k: 2, "
        "shared_experts: 2, shared_intermediate_size: 16, latent_size: 24}"
    )
    held = resident_weights(graph(node), tensor_parallel_size=2).by_role()
    assert held["experts"].elements == 8 * 16 * 24 + 16 * 64
    held = resident_weights(graph(node), tensor_parallel_size=2, enable_expert_parallel=True).by_role()
    assert held["experts"].elements == 4 * 32 * 24 + 16 * 64


MAMBA = (
    "{op: GEMM, role: in_proj, n: 328, k: 64, tp: column}, {op: RecurrentUpdate, recurrent_kind: mamba2, n_heads: 8, "
    "state_size: 16, n_groups: 2, conv_kernel: 4, intermediate_size: 128}"
)
KDA = (
    "{op: GEMM, role: in_proj_qkvgfab, n: %d, k: 64, tp: column}, "
    "{op: RecurrentUpdate, recurrent_kind: kda, n_heads: 8, state_size: 16, conv_kernel: 4}"
)


@pytest.mark.parametrize(
    ("nodes", "ranks", "rows"),
    [
        (MAMBA, 2, 164),  # a gate and a value of 64, a group's two parts of 16, four heads
        (MAMBA, 8, 2 * 16 + 2 * 16 + 1),  # more ranks than groups: each holds one
        (KDA % 408, 8, 3 * 16 + 1 + 16),  # the rank of the decay, as wide as a head, is whole
        (KDA % 544, 8, 96),  # 4 * 16 + 1 + 16, in rows of 16
    ],
)
def test_parts_of_a_recurrent_projection_that_ranks_cannot_share(nodes: str, ranks: int, rows: int) -> None:
    held = resident_weights(graph(nodes), tensor_parallel_size=ranks).by_role()
    assert sum(amount.elements for role, amount in held.items() if role.startswith("in_proj")) == rows * 64


def test_a_table_of_several_heads_goes_by_whole_heads() -> None:
    table = (
        "{op: Gather, role: grams, rows: 600, row_bytes: 66, rows_per_token: 6, out_bytes_per_token: 768, "
        "residency: host, shard: heads}"
    )
    whole = graph(table)
    assert resident_weights(whole, tensor_parallel_size=2).host.bytes == 300 * 66
    assert resident_weights(whole, tensor_parallel_size=4).host.bytes == 200 * 66
    assert resident_weights(whole, tensor_parallel_size=2).by_role().keys() == {"tokens", "lm_head"}


def test_stages_hold_their_layers_and_the_ends_what_is_outside_them() -> None:
    whole = graph(repeat=3)
    first, last = (
        resident_weights(whole, pipeline_parallel_size=2, pipeline_stage=stage, layers_of_stage=(2, 1))
        for stage in (0, 1)
    )
    layer = 192 * 64 + 64 * 128
    assert first.target.elements == 128 * 64 + 2 * layer
    assert last.target.elements == layer + 128 * 64
    assert (first.speculator.elements, last.speculator.elements) == (0, 128)
    assert first.total + last.total == parameters(whole).total
    kept = resident_weights(whole, pipeline_parallel_size=2, layers_of_stage=(2, 1), head_on_every_stage=True)
    assert kept.target.elements == first.target.elements + 128 * 64


def test_a_stage_holds_a_copy_of_what_it_reads_from_another() -> None:
    whole = graph(head=TIED, repeat=2)
    last = resident_weights(whole, pipeline_parallel_size=2, pipeline_stage=1, layers_of_stage=(1, 1))
    assert last.by_role()["tokens"].elements == 128 * 64
    assert "lm_head" not in last.by_role()
    implied = graph(embedding="", head=HEAD, repeat=2, shapes="weight_dtype: bf16, tie_word_embeddings: true")
    last = resident_weights(implied, pipeline_parallel_size=2, pipeline_stage=1, layers_of_stage=(1, 1))
    assert last.by_role()["embedding"].elements == 128 * 64


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size is 0"),
        ({"data_parallel_size": -1}, "data_parallel_size is -1"),
        ({"pipeline_parallel_size": 2}, "layers_of_stage: state how many of 2 layers each of 2 stages holds"),
        ({"pipeline_parallel_size": 2, "layers_of_stage": (1, 2)}, r"\[1, 2\] does not part 2 layers over 2 stages"),
        ({"pipeline_stage": 1}, "pipeline_stage 1 is none of 1"),
    ],
)
def test_a_layout_that_cannot_be(layout: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        resident_weights(graph(repeat=2), **layout)  # type: ignore[arg-type]


def test_a_dimension_that_ranks_cannot_share_is_named() -> None:
    with pytest.raises(Uneven, match="o_proj 128 is not divisible by tensor_parallel_size 3"):
        resident_weights(graph(ATTENTION.split(",\n", 2)[2]), tensor_parallel_size=3)


def test_a_layer_that_does_not_say_how_it_is_shared_is_no_guess() -> None:
    silent = graph("{op: GEMM, role: up, n: 64, k: 64}")
    assert resident_weights(silent).by_role()["up"].elements == 64 * 64
    with pytest.raises(Undivided, match="layer kind layer: up does not say how .* state its tp"):
        resident_weights(silent, tensor_parallel_size=2)


FP8 = "weight_dtype: fp8, weight_scale: {elements: 32, bytes: 1}"


def test_bytes_by_format_of_one_rank() -> None:
    experts = "{op: GroupedGEMM, role: experts_down, n: 64, k: 64, experts: 8, top_k: 2, weight_dtype: mxfp4}"
    nodes = f"{ATTENTION}, {experts}"
    held = resident_weights(graph(nodes, shapes=FP8), tensor_parallel_size=2).by_format()
    fp8, mxfp4 = (stored for stored in held if stored.dtype != "bf16")
    assert held[fp8].bytes == held[fp8].elements * 33 // 32
    assert held[mxfp4] == Amount(8 * 64 * 32, 8 * 64 * 32 * 17 // 32)


def test_the_format_of_each_weight_by_layer_and_role() -> None:
    nodes = f"{ATTENTION}, {{op: GEMM, role: gate, n: 8, k: 64, tp: replicated, weight_dtype: fp32}}"
    schedule = precision_schedule(graph(nodes, repeat=2, shapes=FP8, head=TIED))
    fp8 = next(stored for key, stored in schedule.items() if key == (1, "o_proj"))
    assert (fp8.dtype, fp8.scale and fp8.scale.elements) == ("fp8", 32)
    assert schedule == {
        (None, "tokens"): weight_format("bf16"),
        (0, "qkv_proj"): fp8,
        (0, "o_proj"): fp8,
        (0, "gate"): weight_format("fp32"),
        (1, "qkv_proj"): fp8,
        (1, "o_proj"): fp8,
        (1, "gate"): weight_format("fp32"),
        (None, "lm_head"): weight_format("bf16"),
    }
    assert precision_schedule(graph(shapes=FP8), "speculator") == {(0, "up"): fp8}


def test_the_schedule_follows_the_gpu() -> None:
    rest = (
        "base_capability_families: [9]\n"
        "arch_overrides: [{capability_family: 10, nodes: [{role: o_proj, weight_dtype: fp8}]}]\n"
    )
    both = graph(rest=rest)
    assert precision_schedule(for_capability(both, 9))[0, "o_proj"].dtype == "bf16"
    assert precision_schedule(for_capability(both, 10))[0, "o_proj"].dtype == "fp8"
    halved = resident_weights(for_capability(both, 10)).by_role()["o_proj"]
    assert halved.bytes == halved.elements


def test_two_formats_under_one_role_are_refused() -> None:
    nodes = "{op: GEMM, role: up, n: 8, k: 8}, {op: GEMM, role: up, n: 8, k: 8, weight_dtype: fp8}"
    with pytest.raises(AmbiguousRole, match="layer kind layer: two nodes of role up are stored as bf16 and fp8"):
        precision_schedule(graph(nodes))
