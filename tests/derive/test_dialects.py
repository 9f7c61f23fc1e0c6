"""One vocabulary over the ways vendors write the same fact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rulespack.catalog import root
from rulespack.derive import derive_file
from rulespack.graph.model import GEMM, Attention, Rope, WeightScale

Write = Callable[..., Path]


def attention_of(graph: Any) -> Attention:
    return next(node for node in graph.layer_kinds[0].nodes if isinstance(node, Attention))


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize(("stated", "computed"), [("float16", "fp16"), ("bfloat16", "bf16"), ("float32", "bf16")])
def test_a_dtype_goes_by_two_names(write: Write, llama: dict[str, Any], key: str, stated: str, computed: str) -> None:
    del llama["torch_dtype"]
    assert derive_file(write({**llama, key: stated})).globals_.dtype == computed


def test_a_dtype_left_out_is_bf16(write: Write, llama: dict[str, Any]) -> None:
    del llama["torch_dtype"]
    assert derive_file(write(llama)).globals_.dtype == "bf16"


def test_a_head_width_left_out_is_the_share_of_a_head(write: Write, llama: dict[str, Any]) -> None:
    assert attention_of(derive_file(write(llama))).d_h == 2048 // 32
    assert attention_of(derive_file(write({**llama, "head_dim": 128}))).d_h == 128


def test_kv_heads_left_out_are_as_many_as_query_heads(write: Write, llama: dict[str, Any]) -> None:
    del llama["num_key_value_heads"]
    assert attention_of(derive_file(write(llama))).n_kv == 32


def test_what_is_null_is_not_left_out_to_the_class(write: Write, llama: dict[str, Any]) -> None:
    ernie = {**llama, "architectures": ["Ernie4_5ForCausalLM"], "hidden_size": 1024, "num_key_value_heads": None}
    assert (attention_of(derive_file(write(ernie))).n_kv, attention_of(derive_file(write(ernie))).d_h) == (32, 128)
    assert attention_of(derive_file(write({**ernie, "head_dim": None}))).d_h == 1024 // 32
    del ernie["num_key_value_heads"]
    assert attention_of(derive_file(write(ernie))).n_kv == 2


def test_a_vocabulary_is_padded_as_the_engine_pads_it(write: Write, llama: dict[str, Any]) -> None:
    graph = derive_file(write({**llama, "vocab_size": 32001}))
    assert graph.globals_.vocab_size == 32001
    head = graph.head[-1]
    assert isinstance(head, GEMM)
    assert head.n == 32064


@pytest.mark.parametrize(
    ("keys", "ropes", "window"),
    [
        ({"rope_scaling": None}, (), 8192),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, (Rope(type="linear", factor=4.0),), 32768),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, (Rope(type="dynamic", factor=2.0),), 16384),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, (Rope(type="default"),), 8192),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}},
            (Rope(type="yarn", factor=4.0, original_max_position_embeddings=2048),),
            8192,
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}, "sliding_attention": None}},
            (Rope(type="linear", factor=2.0, layer_type="full_attention"),),
            16384,
        ),
    ],
)
def test_rope_is_told_in_old_and_new_words(
    write: Write, llama: dict[str, Any], keys: dict[str, Any], ropes: tuple[Rope, ...], window: int
) -> None:
    facts = derive_file(write({**llama, **keys})).globals_
    assert facts.positions is not None
    assert facts.positions.rope == ropes
    assert facts.context_window == window


def test_longrope_starts_from_the_length_it_was_trained_at(write: Write, llama: dict[str, Any]) -> None:
    keys = {
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "longrope", "factor": 32.0},
    }
    facts = derive_file(write({**llama, **keys})).globals_
    assert (facts.context_window, facts.default_context_window) == (131072, 4096)


def test_the_smallest_length_stated_is_the_models(write: Write, llama: dict[str, Any]) -> None:
    facts = derive_file(write({**llama, "seq_length": 16384, "max_seq_len": 4096})).globals_
    assert facts.positions is not None
    assert facts.positions.max_position_embeddings == facts.context_window == 4096


@pytest.mark.parametrize("length", [1024, 131072])
def test_a_model_max_length_goes_before_any_other(write: Write, llama: dict[str, Any], length: int) -> None:
    facts = derive_file(write({**llama, "model_max_length": length})).globals_
    assert facts.context_window == length
    assert facts.positions is not None
    assert facts.positions.model_max_length == length


def test_a_text_configuration_is_read_where_there_is_one(write: Write, llama: dict[str, Any]) -> None:
    flat = derive_file(write({**llama, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}))
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": llama}
    nested = derive_file(write(outer))
    assert nested.layer_kinds == flat.layer_kinds
    assert (flat.modality, nested.modality) == ("text_only", "text_decoder_of_multimodal")


def test_modelopt_may_state_its_quantization_beside_the_configuration(write: Write, llama: dict[str, Any]) -> None:
    write(llama)
    beside = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    }
    facts = derive_file(write(beside, "hf_quant_config.json")).globals_
    assert facts.weight_dtype == "fp8"
    assert facts.quantization is not None
    assert (facts.quantization.method, facts.quantization.kv_cache_algorithm) == ("modelopt", "FP8")


@pytest.mark.parametrize(
    ("scheme", "algorithm"),
    [
        ({"dynamic": False, "num_bits": 8, "type": "float"}, "FP8"),
        ({"dynamic": False, "num_bits": 4, "type": "float"}, "NVFP4"),
        ({"dynamic": True, "num_bits": 8, "type": "float"}, None),
        ("fp8", "FP8"),
        (None, None),
    ],
)
def test_modelopt_names_the_cache_by_word_or_by_bits(
    write: Write, llama: dict[str, Any], scheme: object, algorithm: str | None
) -> None:
    quantization = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": scheme}
    facts = derive_file(write({**llama, "quantization_config": quantization})).globals_
    assert facts.weight_dtype == "nvfp4"
    assert facts.quantization is not None
    assert facts.quantization.kv_cache_algorithm == algorithm


def test_modules_that_are_not_quantized_keep_the_models_dtype(write: Write, llama: dict[str, Any]) -> None:
    quantization = {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["model.layers.0.self_attn.q_proj", "model.layers.0.mlp"],
    }
    graph = derive_file(write({**llama, "quantization_config": quantization}))
    formats = [
        {node.role: node.weight_dtype for node in kind.nodes if isinstance(node, GEMM)} for kind in graph.layer_kinds
    ]
    assert formats[0] == {"qkv_proj": "bf16", "o_proj": None, "gate_up_proj": "bf16", "down_proj": "bf16"}
    assert set(formats[1].values()) == {None}
    assert graph.stack.prologue == ("dense",)


def test_compressed_tensors_ignores_by_pattern(write: Write, llama: dict[str, Any]) -> None:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
    quantization = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head", "re:.*self_attn.*"],
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    }
    graph = derive_file(write({**llama, "quantization_config": quantization}))
    formats = {node.role: node.weight_dtype for node in graph.layer_kinds[0].nodes if isinstance(node, GEMM)}
    assert formats == {"qkv_proj": "bf16", "o_proj": "bf16", "gate_up_proj": None, "down_proj": None}
    assert graph.globals_.weight_scale == WeightScale(elements=128, bytes=2)
    assert graph.globals_.quantization is not None
    assert graph.globals_.quantization.kv_cache_scheme


def test_a_llama_with_a_window_has_it_on_every_layer(write: Write, llama: dict[str, Any]) -> None:
    assert attention_of(derive_file(write({**llama, "sliding_window": 4096}))).window == 4096


def test_a_llama_4_whose_chunk_is_null_is_full_everywhere() -> None:
    file = root() / "llama-4-scout-17b-16e-instruct" / "config.json"
    graph = derive_file(file, overrides={"text_config": {"attention_chunk_size": None}})
    assert [kind.id for kind in graph.layer_kinds] == ["full_moe"]


def test_a_window_of_zero_means_none(write: Write, llama: dict[str, Any]) -> None:
    assert attention_of(derive_file(write({**llama, "sliding_window": 0}))).kind == "gqa"


def test_layer_types_say_which_layers_have_the_window(write: Write, llama: dict[str, Any]) -> None:
    types = ["sliding_attention", "full_attention"] * 2
    graph = derive_file(write({**llama, "sliding_window": 4096, "layer_types": types}))
    assert graph.stack.pattern == ("sliding", "full")


@pytest.mark.parametrize(
    ("keys", "window"), [({}, 4096), ({"sliding_window": None}, None), ({"sliding_window": 64}, 64)]
)
def test_mistral_has_a_window_unless_it_says_null(
    write: Write, llama: dict[str, Any], keys: dict[str, Any], window: int | None
) -> None:
    mistral = {**llama, "architectures": ["MistralForCausalLM"], "model_type": "mistral", **keys}
    assert attention_of(derive_file(write(mistral))).window == window


def test_mistrals_own_format_is_read_by_its_own_keys(write: Write) -> None:
    params = {
        "dim": 4096,
        "n_layers": 2,
        "n_heads": 32,
        "n_kv_heads": 8,
        "hidden_dim": 14336,
        "head_dim": 128,
        "vocab_size": 32768,
        "max_position_embeddings": 32768,
    }
    graph = derive_file(write(params, "params.json"))
    assert graph.globals_.architecture == "MistralForCausalLM"
    assert (graph.globals_.hidden_size, attention_of(graph).n_kv) == (4096, 8)
    assert graph.derived_from.path == "params.json"


def test_overrides_are_laid_over_the_file_first(write: Write, llama: dict[str, Any]) -> None:
    home = write({**llama, "rope_scaling": {"rope_type": "linear", "factor": 2.0}})
    graph = derive_file(home, overrides={"rope_scaling": {"factor": 8.0}, "num_hidden_layers": 2})
    assert graph.globals_.context_window == 8 * 8192
    assert graph.stack.repeat == 2


def test_a_graph_is_called_after_its_folder_unless_it_is_named(write: Write, llama: dict[str, Any]) -> None:
    home = write(llama, folder="my-llama")
    assert derive_file(home / "config.json").name == "my-llama"
    assert derive_file(home, "other").name == "other"
