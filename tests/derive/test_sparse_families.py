"""What the families with caches beyond plain keys and values make of the catalog's configurations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rulespack.catalog import load_model, root
from rulespack.derive import InvalidConfig, derive_file
from rulespack.graph.caches import context_bytes_per_token
from rulespack.graph.model import GEMM, Attention, Cache, Gather, GroupedGEMM, LayerKind, ModelGraph, RecurrentUpdate
from rulespack.graph.stack import layers, owned_caches, uses

Write = Callable[..., Path]


def owners(graph: ModelGraph) -> dict[str, list[int]]:
    """The layers that own a cache, by the cache's name."""
    found: dict[str, list[int]] = {}
    for use in owned_caches(graph):
        found.setdefault(use.cache.name, []).append(use.layer)
    return found


def caches(graph: ModelGraph) -> dict[str, Cache]:
    """One cache of each name."""
    return {use.cache.name: use.cache for use in owned_caches(graph)}


def attention(graph: ModelGraph, role: str | None = None) -> list[Attention]:
    """The layers' attention of a role, the main one by default, in the order they run."""
    return [
        node for layer in layers(graph) for node in layer.nodes if isinstance(node, Attention) and node.role == role
    ]


def kind(graph: ModelGraph, name: str) -> LayerKind:
    return next(kind for kind in graph.layer_kinds if kind.id == name)


def roles(graph: ModelGraph, name: str) -> list[str]:
    return [node.role or node.op for node in kind(graph, name).nodes]


def gemm(graph: ModelGraph, name: str, role: str) -> GEMM:
    return next(node for node in kind(graph, name).nodes if isinstance(node, GEMM) and node.role == role)


@pytest.mark.parametrize("model", ["deepseek-v3.2", "glm-5", "glm-5.1-nvfp4"])
def test_every_layer_of_a_first_sparse_model_selects_for_itself(model: str) -> None:
    graph = load_model(model)
    every = list(range(len(layers(graph))))
    assert owners(graph) == {"index": every, "kv": every}


@pytest.mark.parametrize("model", ["glm-5.2", "glm-5.2-fp8", "glm-5.3", "glm-5.3-nvfp4"])
def test_later_glm_shares_a_selection_among_four_layers(model: str) -> None:
    graph = load_model(model)
    assert owners(graph)["index"] == [0, 1, *range(2, 78, 4)]
    assert owners(graph)["kv"] == list(range(78))


def test_a_shared_selection_leaves_the_indexers_work_out() -> None:
    graph = load_model("glm-5.2")
    own, shared = roles(graph, "moe"), roles(graph, "moe_shared_index")
    assert [role for role in own if role not in shared] == [
        "index_wk_weights_proj",
        "index_k_norm_rope_store",
        "index_wq_b",
        "index_q_rope_quant",
        "block_index_scores",
        "index_topk",
    ]


def test_a_sparse_latent_says_its_record_under_each_cache_dtype() -> None:
    kept = caches(load_model("deepseek-v3.2"))
    assert (kept["kv"].bytes_per_entry, kept["index"].bytes_per_entry) == (576 * 2, 128 + 4)
    assert kept["kv"].bytes_by_cache_dtype == {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352, "fp8": 576, "fp8_e4m3": 576}


def test_glm_goes_by_the_pattern_the_engine_reads() -> None:
    file = root() / "glm-5" / "config.json"
    graph = derive_file(file, overrides={"index_topk_pattern": "F" + "S" * 40})
    assert owners(graph)["index"] == [0, *range(41, 78)]


@pytest.mark.parametrize(
    ("overrides", "stopped"),
    [
        ({"index_topk_pattern": "FX"}, "index_topk_pattern"),
        ({"index_topk_pattern": "SF"}, "index_topk_pattern"),
        ({"index_topk_freq": 2}, "indexer_types"),
        ({"index_head_dim": 100}, "index_head_dim"),
        ({"q_lora_rank": None}, "q_lora_rank"),
    ],
)
def test_glms_indexer_must_hang_together(overrides: dict[str, Any], stopped: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        derive_file(root() / "glm-5.2" / "config.json", overrides=overrides)
    assert caught.value.path == stopped


def test_hunyuan_4_gates_its_latent_attention_and_has_sinks() -> None:
    graph = load_model("hy4-preview")
    assert owners(graph)["index"] == [0, *range(1, 34, 4)]
    assert all(node.sinks for node in attention(graph))
    assert gemm(graph, "sparse", "attn_gate_proj").n == 32 * 256
    assert gemm(graph, "sparse", "hc_attn_fn").weight_dtype == "fp32"


def test_dots3_pads_its_full_layers_to_the_width_of_its_windows() -> None:
    graph = load_model("dots3-note")
    kept = caches(graph)
    assert (kept["kv"].bytes_per_entry, kept["swa"].bytes_per_entry) == (1088 * 2, 1088 * 2)
    assert kept["swa"].window == 513
    assert {node.d_h for node in attention(graph) if node.window is None} == {512 + 64}
    assert Counter(name for name, found in owners(graph).items() for _ in found) == {"index": 13, "kv": 13, "swa": 33}


def test_deepseek_v4_flash_has_21_layers_of_one_ratio_and_20_of_the_other() -> None:
    found = {name: len(listed) for name, listed in owners(load_model("deepseek-v4-flash")).items()}
    assert found == {"swa": 43, "compressed": 41, "compressor_state": 41, "index": 21, "index_compressor_state": 21}


def test_deepseek_v4_pro_starts_with_the_higher_ratio() -> None:
    nodes = attention(load_model("deepseek-v4-pro"))
    assert [node.compress_ratio for node in nodes[:4]] == [128, 128, 4, 128]
    assert [node.index_topk for node in nodes[:4]] == [None, None, 1024, None]


def test_deepseek_v4_lists_caches_with_the_records_of_the_packed_layout() -> None:
    graph = load_model("deepseek-v4-flash")
    c4 = {use.cache.name: use.cache for use in owned_caches(graph) if use.kind == "c4"}
    assert (c4["swa"].bytes_per_entry, c4["swa"].block_size, c4["swa"].page_alignment) == (584, 64, 576)
    assert c4["compressed"].bytes_by_cache_dtype == {"bfloat16": 1024, "fp8": 512, "fp8_e4m3": 512}
    assert (c4["index"].tokens_per_entry, c4["index"].bytes_per_entry) == (4, 132)
    states = {name: (cache.entries, cache.bytes_per_entry) for name, cache in c4.items() if cache.kind == "state"}
    assert states == {"compressor_state": (8, 8192), "index_compressor_state": (8, 2048)}
    c128 = {use.cache.name: use.cache for use in owned_caches(graph) if use.kind == "c128"}
    assert (c128["compressor_state"].entries, c128["compressor_state"].bytes_per_entry) == (128, 4096)


@pytest.mark.parametrize(
    ("model", "stored", "experts"),
    [
        ("deepseek-v4-flash", "fp8", "mxfp4"),
        ("deepseek-v4-flash-nvfp4", "fp8", "nvfp4"),
        ("deepseek-v4-pro-nvfp4", "fp8", "nvfp4"),
    ],
)
def test_deepseek_v4_stores_experts_narrower_than_the_rest(model: str, stored: str, experts: str) -> None:
    graph = load_model(model)
    found = {node.weight_dtype for node in kind(graph, "c4").nodes if isinstance(node, GroupedGEMM)}
    assert (graph.globals_.weight_dtype, found) == (stored, {experts})
    assert graph.globals_.weight_scale is not None
    assert graph.globals_.weight_scale.bytes == 1


def test_deepseek_v4_with_fp8_experts_scales_in_fp32() -> None:
    graph = derive_file(root() / "deepseek-v4-flash" / "config.json", overrides={"expert_dtype": "fp8"})
    assert {node.weight_dtype for node in kind(graph, "c4").nodes if isinstance(node, GroupedGEMM)} == {None}
    assert graph.globals_.weight_scale is not None
    assert graph.globals_.weight_scale.bytes == 4


def test_deepseek_v4_routes_its_first_layers_by_token() -> None:
    graph = load_model("deepseek-v4-flash")
    hashed = [any(isinstance(node, Gather) for node in layer.nodes) for layer in layers(graph)]
    assert hashed == [True] * 3 + [False] * 40


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("compress_ratios", [0] * 42),
        ("compress_ratios", [0, 0, 8] + [4] * 40),
        ("head_dim", 256),
        ("index_head_dim", 64),
        ("o_groups", 7),
        ("num_key_value_heads", 2),
        ("expert_dtype", "int4"),
        ("vision_n_layers", 2),
    ],
)
def test_deepseek_v4_that_does_not_hang_together_is_refused(key: str, value: object) -> None:
    with pytest.raises(InvalidConfig) as caught:
        derive_file(root() / "deepseek-v4-flash" / "config.json", overrides={key: value})
    assert caught.value.path == key


def test_glm_5_3_flash_pools_its_index_keys_and_keeps_the_pool_begun() -> None:
    graph = load_model("glm-5.3-flash")
    kept = caches(graph)
    assert (kept["index"].tokens_per_entry, kept["kv"].bytes_per_entry) == (4, 512 * 2)
    assert (kept["tail"].kind, kept["tail"].entries, kept["tail"].bytes_per_entry) == ("state", 4, 2 * 128 * 2)
    assert owners(graph)["index"] == owners(graph)["tail"] == list(range(3, 45, 4))
    (update,) = {node for layer in layers(graph) for node in layer.nodes if isinstance(node, RecurrentUpdate)}
    assert (update.recurrent_kind, update.n_heads, update.state_size, update.state_dtype) == ("kda", 64, 128, "fp32")


def test_glm_5_3_flash_keeps_attention_in_bf16_beside_fp8_experts() -> None:
    graph = load_model("glm-5.3-flash")
    assert gemm(graph, "sparse_moe", "q_b_proj").weight_dtype == "bf16"
    assert gemm(graph, "kda_moe", "in_proj_qkvbfg_a").weight_dtype == "bf16"
    assert gemm(graph, "kda_moe", "shared_down_proj").weight_dtype is None


@pytest.mark.parametrize("model", ["minimax-m3", "minimax-m3-full"])
def test_minimax_m3_indexes_all_but_its_first_layers(model: str) -> None:
    graph = load_model(model)
    assert owners(graph) == {"kv": list(range(60)), "index": list(range(3, 60))}
    assert caches(graph)["index"].bytes_per_entry == 128 * 2
    assert {node.index_topk for node in attention(graph, "block_index_scores")} == {16 * 128}
    assert gemm(graph, "sparse_moe", "qkv_index_proj").n == (64 + 2 * 4) * 128 + (4 + 1) * 128


def test_inkling_keeps_the_inputs_of_its_convolutions_in_rows_of_one_size() -> None:
    graph = load_model("inkling")
    rows = {(node.n_kv, node.window): node.caches[0] for node in attention(graph) if node.caches}
    assert {shape: cache.bytes_per_entry for shape, cache in rows.items()} == {
        (16, 512): 16 * 1024 * 2,
        (8, None): 8 * 2048 * 2,
    }
    assert {cache.entries for cache in rows.values()} == {4}


def test_qwen4_exp_compresses_its_index_keys_and_keeps_raw_ones() -> None:
    graph = load_model("qwen3.8-flash-next")
    kept = caches(graph)
    assert (kept["index"].tokens_per_entry, kept["index"].bytes_per_entry) == (4, 256)
    assert (kept["raw_key"].entries, kept["raw_key"].bytes_per_entry) == (4, 140 * 2)
    assert owners(graph)["kv"] == list(range(3, 48, 4))


def test_qwen4_exp_looks_n_grams_up_in_one_layer() -> None:
    graph = load_model("qwen3.8-flash-next")
    (layer,) = [index for index, layer in enumerate(layers(graph)) if layer.id == "gdn_moe_ngram"]
    assert layer == 1
    table = next(node for node in kind(graph, "gdn_moe_ngram").nodes if isinstance(node, Gather))
    assert (table.rows_per_token, table.row_bytes, table.rows % 128) == (16, 320, 0)
    assert table.rows > 16 * 20_000_000
    (update,) = [node for node in kind(graph, "gdn_moe_ngram").nodes if node.role == "ple"]
    assert isinstance(update, RecurrentUpdate)
    assert (update.recurrent_kind, update.conv_kernel, update.intermediate_size) == ("short_conv", 10, 4 * 2560)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("indexer_kv_heads", 2),
        ("indexer_budget", 2047),
        ("ple_layer_ids", [49]),
        ("ple_embed_dim", 2561),
        ("full_attention_interval", 3),
    ],
)
def test_qwen4_exp_that_does_not_hang_together_is_refused(key: str, value: object) -> None:
    overrides: dict[str, object] = (
        {key: value} if key != "full_attention_interval" else {key: value, "layer_types": None}
    )
    with pytest.raises(InvalidConfig) as caught:
        derive_file(root() / "qwen3.8-flash-next" / "config.json", overrides={"text_config": overrides})
    assert caught.value.path == f"text_config.{key}"


def test_mimo_v2_has_narrower_values_and_sinks_in_its_windows() -> None:
    nodes = attention(load_model("mimo-v2-flash"))
    shapes = {(node.kind, node.n_kv, node.d_h, node.d_v, node.window, node.sinks) for node in nodes}
    assert shapes == {("gqa", 4, 192, 128, None, False), ("swa", 8, 192, 128, 128, True)}
    assert gemm(load_model("mimo-v2-flash"), "full_moe", "o_proj").k == 64 * 128


def test_mimo_v2_with_a_vision_encoder_is_served_by_another_class() -> None:
    flash, omni = load_model("mimo-v2-flash"), load_model("mimo-v2.5")
    assert flash.globals_.architecture == "MiMoV2FlashForCausalLM"
    assert omni.globals_.architecture == "MiMoV2OmniForCausalLM"
    assert omni.modality == "text_decoder_of_multimodal"


def test_step_gives_its_windows_heads_of_their_own() -> None:
    nodes = attention(load_model("step-3.7-flash-hf-shape"))
    assert {(node.kind, node.n_q, node.n_kv) for node in nodes} == {("swa", 96, 8), ("gqa", 64, 8)}
    assert Counter(node.kind for node in nodes) == {"gqa": 12, "swa": 33}


def test_step_3_5_has_the_length_its_class_adds(write: Write, llama: dict[str, Any]) -> None:
    keys = {"moe_num_experts": 8, "moe_top_k": 2, "moe_intermediate_size": 512, "sliding_window": 128}
    graph = derive_file(write({**llama, **keys, "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5"}))
    assert graph.globals_.context_window == 4096
    assert [node.window for node in attention(graph)] == [128, None, 128, None]


@pytest.mark.parametrize(("model", "windows", "full"), [("gemma-3n-e4b-it", 18, 19)])
def test_gemma_3n_reads_the_last_cache_of_its_own_type(model: str, windows: int, full: int) -> None:
    graph = load_model(model)
    read = {
        (use.cache.name, use.owner)
        for use in uses(graph, layers(graph))
        if use.owner is not None and not use.cache.owned
    }
    assert read == {("window", windows), ("kv", full)}
    assert len(owned_caches(graph)) == 20


def test_a_reader_projects_queries_alone() -> None:
    graph = load_model("gemma-3n-e4b-it")
    assert "qkv_proj" in roles(graph, "full")
    assert gemm(graph, "full_shared_kv", "q_proj").n == 8 * 256


def test_gemma_4_may_share_caches_too() -> None:
    text = {"num_kv_shared_layers": 10, "hidden_size_per_layer_input": 256, "use_double_wide_mlp": True}
    graph = derive_file(root() / "gemma-4-26b-a4b" / "config.json", overrides={"text_config": text})
    assert len(owned_caches(graph)) == 20
    assert gemm(graph, "full_shared_kv", "down_proj").k == 2 * gemm(graph, "full", "down_proj").k
    assert gemm(graph, "full", "per_layer_input_gate").n == 256
    assert [node.role for node in graph.embedding if isinstance(node, Gather)] == [
        "embed_tokens",
        "embed_tokens_per_layer",
    ]


def test_layers_that_share_need_one_of_their_type_to_read_from() -> None:
    with pytest.raises(InvalidConfig) as caught:
        derive_file(root() / "gemma-3n-e4b-it" / "config.json", overrides={"text_config": {"num_kv_shared_layers": 33}})
    assert caught.value.path == "text_config.num_kv_shared_layers"


def test_whisper_keeps_the_audio_beside_what_it_wrote(write: Write) -> None:
    whisper = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "d_model": 1280,
        "decoder_layers": 4,
        "decoder_attention_heads": 20,
        "decoder_ffn_dim": 5120,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "vocab_size": 51866,
        "torch_dtype": "float16",
    }
    graph = derive_file(write(whisper))
    assert graph.globals_.context_window == 448
    assert owners(graph) == {"kv": [0, 1, 2, 3], "cross": [0, 1, 2, 3]}
    assert caches(graph)["cross"].entries == 1500
    assert context_bytes_per_token(graph) == 4 * 2 * 1280 * 2
    del whisper["d_model"]
    with pytest.raises(InvalidConfig) as caught:
        derive_file(write(whisper))
    assert caught.value.path == "d_model"


def test_an_encoder_keeps_no_cache_and_computes_a_float32_checkpoint_in_fp16() -> None:
    graph = load_model("all-minilm-l6-v2")
    assert owned_caches(graph) == ()
    assert {node.caches for node in attention(graph)} == {()}
    assert graph.globals_.dtype == "fp16"
