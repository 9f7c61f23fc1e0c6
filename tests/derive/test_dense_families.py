"""The dense-like families: what each class does otherwise than a Llama, on small configurations and on the catalog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rulespack.catalog import load_model
from rulespack.derive import InvalidConfig, derive_file
from rulespack.graph.model import GEMM, AllReduce, Attention, Elementwise, GroupedGEMM, LayerKind, ModelGraph
from rulespack.graph.stack import expand, layers

Write = Callable[..., Path]

SLIDING, FULL = "sliding_attention", "full_attention"


def attention(graph: ModelGraph) -> list[Attention]:
    return [node for layer in layers(graph) for node in layer.nodes if isinstance(node, Attention)]


def windows(graph: ModelGraph) -> list[int | None]:
    return [node.window for node in attention(graph)]


def roles(kind: LayerKind) -> list[str]:
    return [node.role or node.op for node in kind.nodes]


def gemms(kind: LayerKind) -> dict[str | None, GEMM]:
    return {node.role: node for node in kind.nodes if isinstance(node, GEMM)}


def kind_of(graph: ModelGraph, label: str) -> LayerKind:
    return next(kind for kind in graph.layer_kinds if kind.id == label)


def as_class(llama: dict[str, Any], architecture: str, **keys: Any) -> dict[str, Any]:
    return {**llama, "architectures": [architecture], **keys}


# Cohere


def test_cohere_runs_attention_and_mlp_side_by_side_and_sums_once(write: Write, llama: dict[str, Any]) -> None:
    kind = derive_file(write(as_class(llama, "CohereForCausalLM"))).layer_kinds[0]
    assert roles(kind) == ["input_norm", "qkv_proj", "Attention", "o_proj", "gate_up_proj", "down_proj", "layer_out"]
    assert {(0, 1), (0, 4), (3, 6), (5, 6)} <= set(kind.edges)
    assert sum(isinstance(node, AllReduce) for node in kind.nodes) == 1


def test_cohere_has_no_head_but_its_vocabulary_table(write: Write, llama: dict[str, Any]) -> None:
    graph = derive_file(write(as_class(llama, "CohereForCausalLM", tie_word_embeddings=False)))
    assert [node.aliases for node in graph.head if isinstance(node, GEMM)] == ["embedding.embed_tokens"]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"layer_types": [SLIDING, FULL, FULL, FULL], "sliding_window": 1024}, [1025, None, None, None]),
        ({"sliding_window": 1024}, [1025, 1025, 1025, None]),
        ({"sliding_window_pattern": 2}, [4097, None, 4097, None]),
    ],
)
def test_command_a_keeps_one_token_more_than_its_window(
    write: Write, llama: dict[str, Any], keys: dict[str, Any], expected: list[int | None]
) -> None:
    assert windows(derive_file(write(as_class(llama, "Cohere2ForCausalLM", **keys)))) == expected


# norms after each half


@pytest.mark.parametrize("architecture", ["Exaone4ForCausalLM", "Olmo3ForCausalLM"])
def test_exaone_and_olmo_norm_what_a_half_gives(write: Write, llama: dict[str, Any], architecture: str) -> None:
    graph = derive_file(write(as_class(llama, architecture)))
    assert windows(graph) == [4096, 4096, 4096, None]
    for kind in graph.layer_kinds:
        norms = [index for index, node in enumerate(kind.nodes) if isinstance(node, Elementwise)]
        assert [roles(kind)[index - 1] for index in norms] == ["attn_out", "mlp_out"]


def test_exaone_32b_has_a_full_layer_after_three_windows() -> None:
    graph = load_model("exaone-4.0-32b")
    assert expand(graph.stack)[:8] == ("sliding", "sliding", "sliding", "full") * 2
    assert Counter(windows(graph)) == {4096: 48, None: 16}


def test_an_exaone_without_windows_is_full_everywhere(write: Write, llama: dict[str, Any]) -> None:
    keys = {"sliding_window": None, "layer_types": [FULL] * 4}
    assert set(windows(derive_file(write(as_class(llama, "Exaone4ForCausalLM", **keys))))) == {None}


@pytest.mark.parametrize(
    ("keys", "path"),
    [({"sliding_window": None}, "sliding_window"), ({"sliding_window_pattern": "LLLG"}, "sliding_window_pattern")],
)
def test_exaone_layers_that_no_pattern_tells_are_refused(
    write: Write, llama: dict[str, Any], keys: dict[str, Any], path: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        derive_file(write(as_class(llama, "Exaone4ForCausalLM", **keys)))
    assert caught.value.path == path


# experts after dense layers


def test_glm_45_has_dense_layers_first_and_a_shared_expert_after(write: Write, deepseek: dict[str, Any]) -> None:
    keys = {"quantization_config": None, "num_key_value_heads": 4, "head_dim": 128}
    graph = derive_file(write(as_class(deepseek, "Glm4MoeForCausalLM", **keys)))
    assert expand(graph.stack) == ("dense", "moe", "moe")
    assert {(node.kind, node.n_kv, node.d_h) for node in attention(graph)} == {("gqa", 4, 128)}
    moe = kind_of(graph, "moe")
    assert gemms(moe)["router"].weight_dtype == "fp32"
    assert gemms(moe)["shared_down_proj"].k == 512
    assert [node.emit for node in moe.nodes if node.role == "mlp_out"] == ["tensor_parallel"]


def test_ernie_names_its_sparse_layers_by_first_last_and_interval(write: Write, llama: dict[str, Any]) -> None:
    keys = {
        "num_hidden_layers": 8,
        "moe_num_experts": 16,
        "moe_k": 2,
        "moe_intermediate_size": 256,
        "moe_layer_start_index": 2,
        "moe_layer_end_index": 6,
        "moe_layer_interval": 2,
    }
    graph = derive_file(write(as_class(llama, "Ernie4_5_MoeForCausalLM", **keys)))
    assert [index for index, kind in enumerate(expand(graph.stack)) if kind == "moe"] == [3, 5]
    assert gemms(kind_of(graph, "moe"))["shared_down_proj"].k == 2 * 256


def test_ernie_21b_is_sparse_but_for_its_first_layer() -> None:
    graph = load_model("ernie-4.5-21b-a3b-pt")
    assert Counter(expand(graph.stack)) == {"dense": 1, "moe": 27}
    experts = next(node for node in kind_of(graph, "moe").nodes if isinstance(node, GroupedGEMM))
    assert (experts.experts, experts.top_k) == (64, 6)


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"moe_intermediate_size": 768}, "moe_intermediate_size"),
        ({"mlp_layer_types": ["dense", "dense", "sparse", "sparse"]}, "mlp_layer_types"),
    ],
)
def test_hunyuan_3_states_twice_what_the_engine_reads_once(
    write: Write, llama: dict[str, Any], keys: dict[str, Any], path: str
) -> None:
    model = as_class(llama, "HYV3ForCausalLM", num_experts=8, num_experts_per_tok=2)
    assert expand(derive_file(write(model)).stack) == ("dense", "moe", "moe", "moe")
    with pytest.raises(InvalidConfig) as caught:
        derive_file(write({**model, **keys}))
    assert caught.value.path == path


# layers unlike each other


def test_a_nemotron_layer_may_lack_attention() -> None:
    graph = load_model("llama-3_3-nemotron-super-49b-v1")
    held = [any(isinstance(node, Attention) for node in layer.nodes) for layer in layers(graph)]
    assert (len(held), sum(held)) == (80, 49)
    assert roles(kind_of(graph, "mlp_only")) == ["post_attn_norm", "gate_up_proj", "down_proj", "mlp_out"]
    widths = {gemms(layer)["down_proj"].k for layer in layers(graph)}
    assert {28672, 14336} <= widths
    assert all(width % 256 == 0 for width in widths)


@pytest.mark.parametrize(
    ("block", "path"),
    [
        ({"attention": {"no_op": True}, "ffn": {"no_op": True}}, "block_configs[1].ffn.no_op"),
        ({"attention": {"no_op": False, "n_heads_in_group": 5}, "ffn": {"no_op": True}}, "block_configs[1].attention"),
        ({"attention": {"no_op": True}, "ffn": {"no_op": False}}, "block_configs[1].ffn.intermediate_size"),
        ({"attention": {"no_op": True}, "ffn": {"no_op": False, "ffn_mult": 0}}, "block_configs[1].ffn.ffn_mult"),
    ],
)
def test_a_nemotron_block_that_makes_no_layer_is_named_by_its_place(
    write: Write, llama: dict[str, Any], block: dict[str, Any], path: str
) -> None:
    good = {"attention": {"no_op": False, "n_heads_in_group": 4}, "ffn": {"no_op": False, "intermediate_size": 512}}
    model = as_class(llama, "DeciLMForCausalLM", num_key_value_heads=None, num_hidden_layers=2)
    assert {node.n_kv for node in attention(derive_file(write({**model, "block_configs": [good, good]})))} == {8}
    with pytest.raises(InvalidConfig) as caught:
        derive_file(write({**model, "block_configs": [good, block]}))
    assert caught.value.path.startswith(path)


# plain attention where the file says otherwise


def test_minicpm_3_caches_whole_heads_however_latent_its_projections() -> None:
    graph = load_model("minicpm3-4b")
    assert {(node.kind, node.n_q, node.n_kv, node.d_h) for node in attention(graph)} == {("gqa", 40, 40, 96)}
    projections = gemms(graph.layer_kinds[0])
    assert (projections["q_a_proj"].tp, projections["q_b_proj"].tp) == ("replicated", "column")
    assert projections["o_proj"].k == 40 * 64


@pytest.mark.parametrize("architecture", ["SmolLM3ForCausalLM", "MiMoForCausalLM", "Qwen3VLForConditionalGeneration"])
def test_a_window_that_is_stated_and_not_used_is_none(write: Write, llama: dict[str, Any], architecture: str) -> None:
    keys = {"sliding_window": 4096, "use_sliding_window": False}
    assert set(windows(derive_file(write(as_class(llama, architecture, **keys))))) == {None}
    with pytest.raises(InvalidConfig, match="use_sliding_window"):
        derive_file(write(as_class(llama, architecture, **{**keys, "use_sliding_window": True})))


def test_phi_3_has_its_window_on_every_layer(write: Write, llama: dict[str, Any]) -> None:
    assert windows(derive_file(write(as_class(llama, "Phi3ForCausalLM", sliding_window=2047)))) == [2047] * 4


def test_mistral_3_is_the_decoder_of_a_multimodal_model(write: Write, llama: dict[str, Any]) -> None:
    outer = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": llama}
    graph = derive_file(write(outer))
    assert graph.modality == "text_decoder_of_multimodal"
    assert windows(graph) == [4096] * 4
    stated = derive_file(write({**outer, "text_config": {**llama, "sliding_window": None}}))
    assert set(windows(stated)) == {None}


@pytest.mark.parametrize(
    ("plain", "quantized", "dtype"),
    [
        ("qwen3-30b-a3b", "qwen3-30b-a3b-fp8", "fp8"),
        ("qwen3-235b-a22b", "qwen3-235b-a22b-nvfp4", "nvfp4"),
        ("llama-3.1-70b-instruct", "llama-3.1-70b-instruct-fp8", "fp8"),
        ("llama-4-scout-17b-16e-instruct", "llama-4-scout-17b-16e-instruct-fp8-dynamic", "fp8"),
        ("gemma-4-26b-a4b", "gemma-4-26b-a4b-nvfp4", "nvfp4"),
        ("deepseek-v3.1", "deepseek-v3.1-nvfp4", "nvfp4"),
    ],
)
def test_a_quantized_checkpoint_is_the_same_model_stored_otherwise(plain: str, quantized: str, dtype: str) -> None:
    first, second = load_model(plain), load_model(quantized)
    assert second.globals_.weight_dtype == dtype
    shapes = [
        [
            [(node.role, node.n, node.k) for node in layer.nodes if isinstance(node, (GEMM, GroupedGEMM))]
            for layer in layers(graph)
        ]
        for graph in (first, second)
    ]
    assert shapes[0] == shapes[1]
    assert attention(first) == attention(second)
