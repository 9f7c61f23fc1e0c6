"""What each family makes of the catalog's configurations."""

from __future__ import annotations

from collections import Counter

import pytest

from rulespack.catalog import load_model, names
from rulespack.graph.capability import for_capability
from rulespack.graph.model import GEMM, Attention, Gather, GroupedGEMM, ModelGraph, WeightScale
from rulespack.graph.stack import expand, layers, owned_caches


def attention(graph: ModelGraph) -> list[Attention]:
    """The layers' main attention, in the order they run."""
    return [node for layer in layers(graph) for node in layer.nodes if isinstance(node, Attention) and not node.role]


def gemms(graph: ModelGraph, kind: str) -> dict[str | None, GEMM]:
    nodes = next(layer.nodes for layer in graph.layer_kinds if layer.id == kind)
    return {node.role: node for node in nodes if isinstance(node, GEMM)}


def experts(graph: ModelGraph, kind: str) -> list[GroupedGEMM]:
    nodes = next(layer.nodes for layer in graph.layer_kinds if layer.id == kind)
    return [node for node in nodes if isinstance(node, GroupedGEMM)]


def test_a_dense_layer_is_what_the_engine_launches() -> None:
    graph = load_model("qwen3-14b")
    assert graph.globals_.architecture == "Qwen3ForCausalLM"
    assert [node.role or node.op for node in graph.layer_kinds[0].nodes] == [
        "input_norm",
        "qkv_proj",
        "Attention",
        "o_proj",
        "attn_out",
        "post_attn_norm",
        "gate_up_proj",
        "down_proj",
        "mlp_out",
    ]
    fused = gemms(graph, "dense")
    assert (fused["qkv_proj"].n, fused["qkv_proj"].k, fused["qkv_proj"].tp) == ((40 + 2 * 8) * 128, 5120, "column")
    assert (fused["gate_up_proj"].n, fused["down_proj"].tp) == (2 * 17408, "row")
    assert expand(graph.stack) == ("dense",) * 40


def test_mistral_7b_has_its_window_on_every_layer() -> None:
    assert {(node.kind, node.window) for node in attention(load_model("mistral-7b-v0.1"))} == {("swa", 4096)}


def test_mistral_nemo_states_null_and_has_none() -> None:
    assert {(node.kind, node.window) for node in attention(load_model("mistral-nemo-instruct-2407"))} == {("gqa", None)}


def test_qwen_states_a_window_and_does_not_use_it() -> None:
    assert {node.kind for node in attention(load_model("qwen2.5-7b-instruct"))} == {"gqa"}


@pytest.mark.parametrize(
    ("model", "windows", "full"), [("gemma-2-9b", 21, 21), ("gemma-3-4b-it", 29, 5), ("gemma-4-26b-a4b", 25, 5)]
)
def test_gemma_mixes_windows_and_full_layers(model: str, windows: int, full: int) -> None:
    assert Counter(node.kind for node in attention(load_model(model))) == {"swa": windows, "gqa": full}


def test_gemma_2_caps_its_logits_and_computes_a_float32_checkpoint_in_bf16() -> None:
    graph = load_model("gemma-2-9b")
    assert graph.globals_.dtype == "bf16"
    assert {node.logits_soft_cap for node in attention(graph)} == {50.0}


def test_gemma_3_keeps_its_length_whatever_factor_its_rope_states() -> None:
    assert load_model("gemma-3-4b-it").globals_.context_window == 131072


def test_gemma_4_gives_full_layers_their_own_heads() -> None:
    graph = load_model("gemma-4-26b-a4b")
    shapes = {(node.kind, node.n_kv, node.d_h, node.window) for node in attention(graph)}
    assert shapes == {("swa", 8, 256, 1024), ("gqa", 2, 512, None)}
    assert graph.globals_.multimodal is not None
    assert graph.globals_.multimodal.prefix_lm


def test_gemma_4_runs_a_dense_mlp_and_experts_side_by_side() -> None:
    graph = load_model("gemma-4-26b-a4b")
    assert gemms(graph, "full")["gate_up_proj"].n == 2 * 2112
    gate_up, down = experts(graph, "full")
    assert (gate_up.n, gate_up.k, gate_up.experts, gate_up.top_k) == (2 * 704, 2816, 128, 8)
    assert (down.n, down.k) == (2816, 704)


def test_gpt_oss_has_sinks_everywhere_and_windows_on_even_layers() -> None:
    nodes = attention(load_model("gpt-oss-20b"))
    assert all(node.sinks for node in nodes)
    assert [node.window for node in nodes[:4]] == [128, None, 128, None]


def test_gpt_oss_stores_experts_in_mxfp4_and_the_rest_in_bf16() -> None:
    graph = load_model("gpt-oss-120b")
    assert graph.globals_.weight_dtype == "mxfp4"
    assert {node.weight_dtype for node in experts(graph, "full")} == {None}
    assert {node.weight_dtype for node in gemms(graph, "full").values()} == {"bf16"}


def test_llama_4_attends_in_chunks_but_for_the_layers_without_rope() -> None:
    nodes = attention(load_model("llama-4-scout-17b-16e-instruct"))
    assert [node.kind for node in nodes[:4]] == ["chunked", "chunked", "chunked", "gqa"]
    assert {node.attention_chunk_size for node in nodes} == {8192, None}


def test_llama_4_maverick_has_experts_in_every_other_layer() -> None:
    graph = load_model("llama-4-maverick-17b-128e-instruct")
    assert expand(graph.stack)[:4] == ("chunked_dense", "chunked_moe", "chunked_dense", "full_moe")
    assert gemms(graph, "chunked_dense")["down_proj"].k == 16384
    assert gemms(graph, "chunked_moe")["shared_down_proj"].k == 8192


@pytest.mark.parametrize(
    ("model", "router"), [("minimax-m2.5", "fp32"), ("glm-4.7-flash", "fp32"), ("deepseek-v3", "bf16")]
)
def test_a_router_is_stored_as_its_class_keeps_it(model: str, router: str) -> None:
    assert gemms(load_model(model), "moe")["router"].weight_dtype == router


@pytest.mark.parametrize(
    ("model", "latent", "rope", "nope"),
    [("deepseek-v3", 512, 64, 128), ("glm-4.7-flash", 512, 64, 192), ("mistral-small-4-119b-2603", 256, 64, 64)],
)
def test_latent_attention_caches_one_latent_and_its_rope(model: str, latent: int, rope: int, nope: int) -> None:
    for node in attention(load_model(model)):
        assert (node.kind, node.n_kv, node.d_h) == ("mla", 1, latent + rope)
        assert (node.kv_lora_rank, node.qk_rope_head_dim, node.qk_nope_head_dim) == (latent, rope, nope)


def test_deepseek_v2_lite_projects_its_queries_at_once() -> None:
    graph = load_model("deepseek-v2-lite")
    assert {"q_proj", "kv_a_proj_with_mqa"} <= gemms(graph, "moe").keys()
    assert gemms(load_model("deepseek-v3"), "moe")["fused_qkv_a_proj"].n == 1536 + 512 + 64


def test_fp8_blocks_carry_one_scale_each() -> None:
    graph = load_model("deepseek-v3")
    assert graph.globals_.weight_scale == WeightScale(elements=128 * 128, bytes=4)
    assert [node.weight_dtype for node in graph.head if isinstance(node, GEMM)] == ["bf16"]


def test_kimi_packs_its_experts_in_int4_and_ignores_what_its_lists_say() -> None:
    graph = load_model("kimi-k2.5")
    assert (graph.globals_.weight_dtype, graph.globals_.weight_scale) == ("int4", WeightScale(elements=32, bytes=2))
    assert {node.weight_dtype for node in experts(graph, "moe")} == {None}
    assert {node.weight_dtype for kind in ("moe", "dense") for node in gemms(graph, kind).values()} == {"bf16"}


def test_mistral_small_4_is_served_as_the_class_the_engine_picks_for_its_format() -> None:
    graph = load_model("mistral-small-4-119b-2603")
    assert graph.globals_.architecture == "MistralLarge3ForCausalLM"
    assert graph.derived_from.format == "mistral_params_json"
    assert graph.globals_.context_window == 1048576


@pytest.mark.parametrize(
    ("model", "kind", "emit"),
    [
        ("mixtral-8x7b-v0.1", "moe", "tensor_parallel"),
        ("glm-4.7-flash", "moe", "tensor_parallel"),
        ("qwen3-30b-a3b", "moe", "tensor_parallel_unless_sp_moe"),
        ("gpt-oss-20b", "full", "tensor_parallel_unless_sp_moe"),
        ("deepseek-v3", "dense", "tensor_parallel"),
        ("deepseek-v4.1-flash", "swa", "tensor_parallel_unless_sequence_parallel"),
    ],
)
def test_the_sum_after_a_layer_is_left_out_as_its_class_leaves_it_out(model: str, kind: str, emit: str) -> None:
    nodes = next(layer.nodes for layer in load_model(model).layer_kinds if layer.id == kind)
    assert [node.emit for node in nodes if node.role == "mlp_out"] == [emit]


def test_a_tied_head_reads_the_embedding_and_adds_nothing() -> None:
    graph = load_model("gemma-2-9b")
    lm_head = next(node for node in graph.head if isinstance(node, GEMM))
    assert lm_head.aliases == "embedding.embed_tokens"


@pytest.mark.parametrize("model", names())
def test_every_graph_starts_with_a_lookup_and_ends_with_a_head(model: str) -> None:
    graph = load_model(model)
    table = graph.embedding[0]
    assert isinstance(table, Gather)
    assert table.row_bytes == graph.globals_.hidden_size * 2
    if graph.globals_.architecture == "BertModel":
        assert graph.head == ()  # an encoder is pooled, not decoded
        return
    if graph.globals_.draft is not None:  # a draft's vocabulary may be its own
        assert any(isinstance(node, GEMM) and node.role == "lm_head" for node in graph.head)
        return
    assert isinstance(graph.head[-1], GEMM)
    assert graph.head[-1].n == table.rows


def test_deepseek_v41_owns_caches_where_its_sources_are() -> None:
    graph = load_model("deepseek-v4.1-flash")
    owners: dict[str, list[int]] = {}
    for use in owned_caches(graph):
        owners.setdefault(use.cache.name, []).append(use.layer)
    assert owners == {
        "swa": list(range(40)),
        "compressed": [2, 8, 14, 20],
        "index": [2, 8, 14, 20],
        "compressor_ring": [2, 8, 14],
    }


def test_deepseek_v41_stacks_as_its_sharing_repeats() -> None:
    stack = load_model("deepseek-v4.1-flash").stack
    assert stack.pattern == ("csa1_reader", "csa1_reader", "csa1_reader", "csa1_index")
    assert (len(stack.prologue), stack.repeat, len(stack.epilogue)) == (21, 4, 3)


def test_deepseek_v41_drafts_a_block_with_its_own_layers() -> None:
    graph = load_model("deepseek-v4.1-flash")
    draft = graph.speculator
    assert draft is not None
    assert (draft.method, draft.num_spec_tokens, draft.drafting) == ("dspark", 5, "parallel_block")
    kinds = layers(graph, draft.stack)
    assert [kind.id for kind in kinds] == ["dspark_0", "dspark_1", "dspark_2"]
    for kind in kinds:
        node = next(node for node in kind.nodes if isinstance(node, Attention))
        assert node.window == 128 + 5
    assert {node.experts for node in experts(graph, "dspark_0")} == {128}


def test_deepseek_v41_stores_other_records_on_family_10() -> None:
    graph = load_model("deepseek-v4.1-flash")
    records = {}
    for family in (9, 10):
        caches = {use.cache.name: use.cache for use in owned_caches(for_capability(graph, family))}
        records[family] = {
            name: (caches[name].bytes_per_entry, caches[name].page_alignment) for name in ("swa", "index")
        }
    assert records == {9: {"swa": (584, 576), "index": (132, 576)}, 10: {"swa": (528, 512), "index": (132, 512)}}


def test_deepseek_v41_looks_n_grams_up_in_host_memory() -> None:
    graph = load_model("deepseek-v4.1-flash")
    tables = {
        position: node
        for position, layer in enumerate(layers(graph))
        for node in layer.nodes
        if isinstance(node, Gather)
    }
    assert {position: table.rows for position, table in tables.items()} == {1: 384006168, 14: 384016682}
    assert {table.residency for table in tables.values()} == {"host"}
