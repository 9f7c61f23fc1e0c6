"""What the state-space and linear-attention families make of the catalog's configurations, and of smaller ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rulespack.catalog import load_model, root
from rulespack.derive import derive_file, extract
from rulespack.derive.errors import NotTranslated
from rulespack.graph.model import (
    GEMM,
    AllReduce,
    AnyNode,
    Attention,
    Elementwise,
    GroupedGEMM,
    ModelGraph,
    RecurrentUpdate,
)
from rulespack.graph.stack import expand, layers, owned_caches
from rulespack.graph.weights import parameters

Write = Callable[..., Path]


def mixers(graph: ModelGraph) -> Counter[str]:
    """How many layers attend and how many keep a state, by kind."""
    return Counter(
        node.recurrent_kind if isinstance(node, RecurrentUpdate) else node.kind
        for layer in layers(graph)
        for node in layer.nodes
        if isinstance(node, (Attention, RecurrentUpdate))
    )


def update(graph: ModelGraph) -> RecurrentUpdate:
    """The one recurrent node all recurrent layers of a model share."""
    found = {node for layer in graph.layer_kinds for node in layer.nodes if isinstance(node, RecurrentUpdate)}
    (node,) = found
    return node


def nodes(graph: ModelGraph, kind: str) -> dict[str, AnyNode]:
    """The nodes of a layer kind by role, those without one by their primitive."""
    found = next(layer.nodes for layer in graph.layer_kinds if layer.id == kind)
    return {node.role or node.op: node for node in found}


def gemm(graph: ModelGraph, kind: str, role: str) -> GEMM:
    node = nodes(graph, kind)[role]
    assert isinstance(node, GEMM)
    return node


def follows(graph: ModelGraph, kind: str, role: str) -> set[str]:
    """The roles of what a node of a layer kind follows."""
    layer = next(layer for layer in graph.layer_kinds if layer.id == kind)
    names = [node.role or node.op for node in layer.nodes]
    return {names[before] for before, after in layer.edges if names[after] == role}


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ("nemotron-h-56b-base-8k", {"mamba2": 54, "gqa": 10}),
        ("nvidia-nemotron-3-super-120b-a12b-fp8", {"mamba2": 40, "gqa": 8}),
        ("falcon-h1-7b-instruct", {"mamba2": 44, "gqa": 44}),
        ("zamba2-2.7b", {"mamba2": 54, "gqa": 9}),
        ("jamba-v0.1", {"mamba1": 28, "gqa": 4}),
        ("falcon-mamba-7b", {"mamba1": 64}),
        ("qwen3-next-80b-a3b-instruct", {"gdn": 36, "gqa": 12}),
        ("qwen3.5-35b-a3b", {"gdn": 30, "gqa": 10}),
        ("kimi-linear-48b-a3b-instruct", {"kda": 20, "mla": 7}),
        ("kimi-k3", {"kda": 69, "mla": 24}),
    ],
)
def test_layers_keep_a_state_or_attend_as_the_vendor_says(model: str, wanted: dict[str, int]) -> None:
    assert mixers(load_model(model)) == wanted


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        ("nvidia-nemotron-3-nano-30b-a3b-bf16", "fp32"),
        ("nemotron-h-56b-base-8k", "fp32"),
        ("falcon-h1-7b-instruct", None),
        ("zamba2-2.7b", None),
        ("jamba-v0.1", None),
        ("qwen3-next-80b-a3b-instruct", None),
        ("qwen3.5-27b", "fp32"),
        ("kimi-linear-48b-a3b-instruct", "fp32"),
        ("kimi-k3", "fp32"),
    ],
)
def test_a_state_is_kept_in_float32_where_the_class_or_the_file_says_so(model: str, dtype: str | None) -> None:
    assert update(load_model(model)).state_dtype == dtype


def test_nemotron_says_what_its_layers_are_in_letters_or_in_names(write: Write, nemotron: dict[str, Any]) -> None:
    names = {"M": "mamba", "*": "full_attention", "-": "mlp", "E": "moe"}
    listed = {**nemotron, "layers_block_type": [names[letter] for letter in nemotron["hybrid_override_pattern"]]}
    for key in ("hybrid_override_pattern", "num_hidden_layers"):
        del listed[key]
    letters, words = (derive_file(write(config, folder=f)) for config, f in ((nemotron, "a"), (listed, "b")))
    assert expand(letters.stack) == ("mamba", "moe", "attention", "mlp")
    assert (letters.layer_kinds, letters.stack) == (words.layer_kinds, words.stack)


def test_nemotron_multiplies_without_a_gate() -> None:
    graph = load_model("nvidia-nemotron-3-nano-30b-a3b-bf16")
    up, down = (node for node in nodes(graph, "moe").values() if isinstance(node, GroupedGEMM))
    assert (up.role, up.n, up.k) == ("experts_up", 1856, 2688)
    assert (down.role, down.n, down.k) == ("experts_down", 2688, 1856)
    assert gemm(graph, "moe", "shared_up_proj").n == 3712


def test_nemotron_super_runs_its_experts_on_a_narrower_stream() -> None:
    graph = load_model("nvidia-nemotron-3-super-120b-a12b-fp8")
    up, down = (node for node in nodes(graph, "moe").values() if isinstance(node, GroupedGEMM))
    assert (up.latent_size, down.n) == (1024, 1024)
    into, out = gemm(graph, "moe", "fc1_latent_proj"), gemm(graph, "moe", "fc2_latent_proj")
    assert (into.n, into.k, out.n, out.k) == (1024, 4096, 4096, 1024)
    # The shared experts see the whole stream.
    assert follows(graph, "moe", "shared_up_proj") == {"input_norm"}
    assert follows(graph, "moe", "mlp_out") == {"fc2_latent_proj", "shared_down_proj"}


@pytest.mark.parametrize(
    ("model", "method", "algorithm", "stored"),
    [
        ("nvidia-nemotron-3-nano-30b-a3b-nvfp4", "modelopt_fp4", "NVFP4", "nvfp4"),
        ("nvidia-nemotron-3.5-lightning-30b-a3b-nvfp4", "modelopt_mixed", "MIXED_PRECISION", "nvfp4"),
        ("qwen3.5-122b-a10b-nvfp4", "modelopt_fp4", None, "nvfp4"),
        ("qwen3.6-35b-a3b-nvfp4", "modelopt_mixed", None, "nvfp4"),
        ("kimi-k3", "mxfp4", None, "mxfp4"),
    ],
)
def test_experts_are_stored_as_the_checkpoint_says(model: str, method: str, algorithm: str | None, stored: str) -> None:
    graph = load_model(model)
    facts = graph.globals_.quantization
    assert facts is not None
    assert (facts.method, facts.algorithm) == (method, algorithm)
    target = [weight for weight in parameters(graph).weights if weight.part == "target"]
    assert {weight.dtype for weight in target if weight.op == "GroupedGEMM"} == {stored}


@pytest.mark.parametrize("model", ["nvidia-nemotron-3-super-120b-a12b-fp8", "nvidia-nemotron-3-ultra-550b-a55b-nvfp4"])
def test_a_modelopt_file_that_names_no_producer_quantizes_nothing(model: str) -> None:
    graph = load_model(model)
    assert graph.globals_.quantization is None
    assert parameters(graph).by_dtype().keys() == {"bf16"}
    # What the file says is kept all the same.
    assert extract(root() / model)["quantization_config"]["quantization"]["quant_algo"] in model.upper()


def test_a_mixed_checkpoint_stores_each_module_as_it_lists_it() -> None:
    graph = load_model("qwen3.6-27b-nvfp4")
    roles = {"in_proj_qkvz": "fp8", "in_proj_ba": None, "out_proj": "fp8", "gate_up_proj": "nvfp4"}
    assert {role: gemm(graph, "gdn_dense", role).weight_dtype for role in roles} == roles
    assert [node.weight_dtype for node in graph.head if isinstance(node, GEMM)] == ["nvfp4"]


def test_falcon_h1_attends_and_scans_side_by_side() -> None:
    graph = load_model("falcon-h1-7b-instruct")
    assert follows(graph, "hybrid", "qkv_proj") == follows(graph, "hybrid", "in_proj") == {"input_norm"}
    assert follows(graph, "hybrid", "pre_ff_norm") == {"attn_out", "mixer_out"}
    assert [(use.layer, use.cache.name) for use in owned_caches(graph)][:4] == [
        (0, "kv"),
        (0, "state"),
        (1, "kv"),
        (1, "state"),
    ]


def test_zamba2_shares_the_weights_of_its_attention_and_not_the_caches() -> None:
    graph = load_model("zamba2-2.7b")
    uses = [layer.id for layer in layers(graph) if layer.id != "mamba"]
    assert uses == ["hybrid_source_0"] + ["hybrid"] * 8
    assert gemm(graph, "hybrid", "shared_0_qkv_proj").aliases == "hybrid_source_0.shared_0_qkv_proj"
    once = parameters(graph).by_role()
    assert once["shared_0_qkv_proj"].elements == 3 * 5120 * 5120
    # The adapters and the projection after the block are each layer's own.
    assert once["linear"].elements == 9 * 2560 * 2560
    assert sum(use.cache.name == "kv" for use in owned_caches(graph)) == 9


def test_two_shared_blocks_take_turns(write: Write, zamba: dict[str, Any]) -> None:
    graph = derive_file(write({**zamba, "num_mem_blocks": 2, "use_shared_attention_adapter": True}))
    assert [layer.id for layer in layers(graph)] == ["mamba", "hybrid_source_0", "hybrid_source_1", "hybrid"]
    assert gemm(graph, "hybrid", "shared_0_o_proj").aliases == "hybrid_source_0.shared_0_o_proj"
    assert {"q_adapter_a", "k_adapter_b", "gate_up_adapter_a"} <= nodes(graph, "hybrid").keys()


def test_jamba_attends_once_in_eight_layers_and_has_experts_in_every_other() -> None:
    assert expand(load_model("jamba-v0.1").stack)[:8] == (
        "mamba_dense",
        "mamba_moe",
        "mamba_dense",
        "mamba_moe",
        "attention_dense",
        "mamba_moe",
        "mamba_dense",
        "mamba_moe",
    )


def test_falcon_mamba_has_no_heads_and_no_position_limit() -> None:
    graph = load_model("falcon-mamba-7b")
    assert mixers(graph).keys() == {"mamba1"}
    assert graph.globals_.positions is None
    # What the engine takes where nothing is stated.
    assert graph.globals_.context_window == 2048


def test_a_mamba_rank_may_be_left_to_the_width(write: Write) -> None:
    config = {
        "architectures": ["FalconMambaForCausalLM"],
        "model_type": "falcon_mamba",
        "hidden_size": 1000,
        "num_hidden_layers": 2,
        "vocab_size": 32000,
        "torch_dtype": "float16",
    }
    given = (config, {**config, "time_step_rank": "auto"}, {**config, "time_step_rank": 63})
    graphs = [derive_file(write(one, folder=str(number)), "model") for number, one in enumerate(given)]
    assert [gemm(graph, "mamba", "dt_proj").k for graph in graphs] == [63, 63, 63]
    assert graphs[0].globals_.dtype == "fp16"


def test_qwen_gates_what_its_full_layers_attend_to() -> None:
    graph = load_model("qwen3.5-27b")
    assert gemm(graph, "full_dense", "qkv_proj").n == (2 * 24 + 2 * 4) * 256
    assert gemm(graph, "full_dense", "o_proj").k == 24 * 256
    assert follows(graph, "full_dense", "o_proj") == {"attn_gate"}


def test_qwen_interleaves_three_delta_nets_and_one_full_layer() -> None:
    for model in ("qwen3-next-80b-a3b-instruct", "qwen3.5-397b-a17b"):
        stack = load_model(model).stack
        assert stack.pattern == ("gdn_moe", "gdn_moe", "gdn_moe", "full_moe")


def test_qwen_35_states_another_interval(write: Write, qwen: dict[str, Any]) -> None:
    qwen["text_config"]["full_attention_interval"] = 2
    assert expand(derive_file(write(qwen)).stack) == ("gdn_dense", "full_dense") * 2


def test_qwen_35_is_the_decoder_of_a_multimodal_model_or_a_model_of_its_own(write: Write, qwen: dict[str, Any]) -> None:
    alone = {**qwen["text_config"], "architectures": ["Qwen3_5ForCausalLM"]}
    inside, outside = derive_file(write(qwen, folder="a")), derive_file(write(alone, folder="b"))
    assert (inside.modality, outside.modality) == ("text_decoder_of_multimodal", "text_only")
    assert (inside.layer_kinds, inside.stack) == (outside.layer_kinds, outside.stack)


def test_kimi_linear_counts_its_layers_from_one() -> None:
    kinds = expand(load_model("kimi-linear-48b-a3b-instruct").stack)
    assert [place for place, kind in enumerate(kinds, 1) if kind == "mla_moe"] == [4, 8, 12, 16, 20, 24, 27]


def test_kimi_linear_takes_its_length_from_the_key_it_states() -> None:
    assert load_model("kimi-linear-48b-a3b-instruct").globals_.context_window == 1048576


def test_kimi_k3_bounds_its_decay_and_kimi_linear_does_not() -> None:
    assert update(load_model("kimi-k3")).bounded_gate
    assert not update(load_model("kimi-linear-48b-a3b-instruct")).bounded_gate


def test_kimi_k3_sums_narrow_results_before_it_widens_them() -> None:
    graph = load_model("kimi-k3")
    summed = nodes(graph, "kda_moe")["latent_out"]
    assert isinstance(summed, AllReduce)
    assert summed.bytes_per_token == 3584 * 2
    assert follows(graph, "kda_moe", "latent_norm") == {"latent_out"}
    assert follows(graph, "kda_moe", "mlp_out") == {"routed_expert_up_proj", "shared_down_proj"}


def test_kimi_k3_looks_back_over_one_more_residual_every_twelve_layers() -> None:
    moved = []
    for layer in layers(load_model("kimi-k3")):
        first = layer.nodes[0]
        assert isinstance(first, Elementwise)
        moved.append((first.bytes_per_token or 0) // (7168 * 2))
    # The sum and the result, what is added and the new sum, and what is kept; a layer that stores writes one more.
    assert moved[:14] == [3, *[5] * 11, 6, 6]
    assert moved[24:26] == [7, 7]


def test_kimi_k3_quantizes_its_routed_experts_alone() -> None:
    graph = load_model("kimi-k3")
    assert {role for role, node in nodes(graph, "kda_moe").items() if getattr(node, "weight_dtype", "") is None} == {
        "experts_gate_up",
        "experts_down",
    }


def test_granite_adds_shared_and_routed_experts_that_read_one_norm(write: Write, granite: dict[str, Any]) -> None:
    graph = derive_file(write(granite))
    assert expand(graph.stack) == ("mamba", "mamba", "attention", "mamba")
    assert follows(graph, "mamba", "gate_up_proj") == follows(graph, "mamba", "router") == {"post_attn_norm"}
    node = update(graph)
    assert (node.n_heads, node.intermediate_size, node.state_size, node.chunk_size) == (48, 3072, 128, 256)


@pytest.mark.parametrize(("experts", "shared"), [(0, 4096), (8, 0)])
def test_granite_may_have_the_one_or_the_other_alone(
    write: Write, granite: dict[str, Any], experts: int, shared: int
) -> None:
    graph = derive_file(write({**granite, "num_local_experts": experts, "shared_intermediate_size": shared}))
    found = nodes(graph, "attention").keys()
    assert ("router" in found, "gate_up_proj" in found) == (experts > 0, shared > 0)


def test_granite_heads_make_up_the_inner_width(write: Write, granite: dict[str, Any]) -> None:
    inner = granite.get("mamba_expand", 2) * granite["hidden_size"]
    width = inner // granite["mamba_n_heads"]
    for stated in (width, "auto", None):
        derive_file(write({**granite, "mamba_d_head": stated}, folder=str(stated)))
    with pytest.raises(NotTranslated, match=f"mamba_d_head: is {2 * width}"):
        derive_file(write({**granite, "mamba_d_head": 2 * width}, folder="wide"))


def test_granite_spells_its_layers_either_way(write: Write, granite: dict[str, Any]) -> None:
    new = {"mamba": "linear_attention", "attention": "full_attention"}
    other = {**granite, "layer_types": [new[name] for name in granite["layer_types"]]}
    one, two = derive_file(write(granite, folder="a")), derive_file(write(other, folder="b"))
    assert (one.layer_kinds, one.stack) == (two.layer_kinds, two.stack)


def test_lfm2_keeps_two_inputs_of_each_channel(write: Write, lfm2: dict[str, Any]) -> None:
    graph = derive_file(write(lfm2))
    assert expand(graph.stack) == ("conv", "conv", "attention", "conv")
    node = update(graph)
    assert (node.recurrent_kind, node.intermediate_size, node.conv_kernel) == ("short_conv", 2048, 3)
    states = [use.cache.bytes_per_entry for use in owned_caches(graph) if use.cache.name == "state"]
    assert states == [2 * 2048 * 2] * 3
    assert graph.globals_.tie_word_embeddings


@pytest.mark.parametrize(
    ("stated", "width"),
    [
        ({}, 8192),
        ({"block_auto_adjust_ff_dim": False}, 12288),
        ({"block_ff_dim": 6144}, 4096),
        ({"block_ffn_dim_multiplier": 1.1}, 9216),
        ({"block_ffn_dim_multiplier": None, "block_multiple_of": 1000}, 9000),
    ],
)
def test_lfm2_rounds_the_width_of_its_mlp(
    write: Write, lfm2: dict[str, Any], stated: dict[str, object], width: int
) -> None:
    assert gemm(derive_file(write({**lfm2, **stated})), "conv", "down_proj").k == width


def test_an_extract_of_a_mixed_checkpoint_keeps_what_decides(write: Write, nemotron: dict[str, Any]) -> None:
    """One expert tells the format of all."""
    experts = {f"backbone.layers.1.mixer.experts.{e}.up_proj": {"quant_algo": "NVFP4"} for e in range(4)}
    listed = {"backbone.layers.0.mixer.in_proj": {"quant_algo": "FP8"}, **experts}
    quantization = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": listed}
    vendor = write({**nemotron, "quantization_config": quantization}, folder="vendor")
    kept = extract(vendor)["quantization_config"]["quantized_layers"]
    assert kept == {key: listed[key] for key in list(listed)[:2]}
    again = derive_file(write(extract(vendor), folder="again"))
    assert again.layer_kinds == derive_file(vendor).layer_kinds
    assert gemm(again, "mamba", "in_proj").weight_dtype == "fp8"
