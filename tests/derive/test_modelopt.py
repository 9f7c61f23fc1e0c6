"""ModelOpt's checkpoints: one algorithm for all modules or one for each, in the configuration or beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rulespack.derive import InvalidConfig, derive_file, extract
from rulespack.graph.model import GEMM, GroupedGEMM, ModelGraph, Quantization, WeightScale

Write = Callable[..., Path]

PRODUCER = {"name": "modelopt", "version": "0.44.0"}
LAYERS = "model.layers"


def formats(graph: ModelGraph, layer: int = 0) -> dict[str | None, str | None]:
    """The format of each multiply of one layer of a graph that is all prologue."""
    kind = next(kind for kind in graph.layer_kinds if kind.id == graph.stack.prologue[layer])
    return {node.role: node.weight_dtype for node in kind.nodes if isinstance(node, (GEMM, GroupedGEMM))}


def mixed(layers: dict[str, str]) -> dict[str, Any]:
    listed = {name: {"quant_algo": algorithm} for name, algorithm in layers.items()}
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": listed}


def test_a_mixed_checkpoint_states_each_module_and_leaves_the_rest_plain(write: Write, llama: dict[str, Any]) -> None:
    layers = {
        "lm_head": "W4A16_NVFP4",
        f"{LAYERS}.0.self_attn.q_proj": "FP8",
        f"{LAYERS}.0.self_attn.k_proj": "FP8",
        f"{LAYERS}.0.self_attn.v_proj": "FP8",
        f"{LAYERS}.0.mlp.down_proj": "NVFP4",
    }
    graph = derive_file(write({**llama, "num_hidden_layers": 2, "quantization_config": mixed(layers)}))
    assert graph.globals_.quantization == Quantization(method="modelopt_mixed")
    assert graph.globals_.weight_dtype == "bf16"
    assert formats(graph) == {"qkv_proj": "fp8", "o_proj": None, "gate_up_proj": None, "down_proj": "nvfp4"}
    assert set(formats(graph, 1).values()) == {None}
    assert [node.weight_dtype for node in graph.head if isinstance(node, GEMM)] == ["nvfp4"]


@pytest.mark.parametrize(
    "listed", ["mlp.experts", "mlp.experts.7.up_proj", "mlp.gate_proj"], ids=["by name", "one by one", "as neighbours"]
)
def test_experts_are_listed_in_three_ways(write: Write, deepseek: dict[str, Any], listed: str) -> None:
    quantization = mixed({f"{LAYERS}.1.{listed}": "NVFP4"})
    graph = derive_file(write({**deepseek, "quantization_config": quantization}))
    assert formats(graph, 1)["experts_gate_up"] == "nvfp4"
    assert formats(graph, 2)["experts_gate_up"] is None


def test_modules_fused_into_one_must_agree(write: Write, llama: dict[str, Any]) -> None:
    layers = {f"{LAYERS}.0.mlp.gate_proj": "FP8", f"{LAYERS}.0.mlp.up_proj": "NVFP4"}
    with pytest.raises(InvalidConfig, match=r"mlp\.up_proj\.quant_algo: is 'NVFP4', and .*gate_proj, fused with it"):
        derive_file(write({**llama, "quantization_config": mixed(layers)}))


def test_an_algorithm_of_one_module_that_is_not_known_is_named(write: Write, llama: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=r"layers\.0\.mlp\.down_proj\.quant_algo: 'INT3' is not translated"):
        derive_file(write({**llama, "quantization_config": mixed({f"{LAYERS}.0.mlp.down_proj": "INT3"})}))


def test_an_extract_keeps_what_was_read_of_the_list(write: Write, deepseek: dict[str, Any]) -> None:
    experts = {f"{LAYERS}.1.mlp.experts.{expert}.up_proj": "NVFP4" for expert in range(32)}
    home = write({**deepseek, "quantization_config": mixed(experts)})
    kept = extract(home)["quantization_config"]["quantized_layers"]
    assert kept == {f"{LAYERS}.1.mlp.experts.0.up_proj": {"quant_algo": "NVFP4"}}
    whole = derive_file(home)
    (home / "config.json").write_text(json.dumps(extract(home)))
    assert derive_file(home).layer_kinds == whole.layer_kinds


@pytest.mark.parametrize(
    ("algorithm", "method", "dtype", "scale"),
    [
        ("FP8", "modelopt", "fp8", None),
        ("fp8_pb_wo", "modelopt", "fp8", WeightScale(elements=16384, bytes=4)),
        ("NVFP4", "modelopt_fp4", "nvfp4", None),
        ("MXFP8", "modelopt_mxfp8", "fp8", WeightScale(elements=32, bytes=1)),
    ],
)
def test_an_algorithm_is_a_method_and_a_format(
    write: Write, llama: dict[str, Any], algorithm: str, method: str, dtype: str, scale: WeightScale | None
) -> None:
    quantization = {"quant_method": "modelopt", "quant_algo": algorithm}
    facts = derive_file(write({**llama, "quantization_config": quantization})).globals_
    assert facts.quantization == Quantization(method=method)
    assert (facts.weight_dtype, facts.weight_scale) == (dtype, scale)


def test_a_file_of_its_own_is_where_the_algorithm_decides(write: Write, llama: dict[str, Any]) -> None:
    write(llama)
    beside = {"producer": PRODUCER, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    facts = derive_file(write(beside, "hf_quant_config.json")).globals_
    assert facts.quantization == Quantization(method="modelopt_fp4", algorithm="NVFP4", kv_cache_algorithm="FP8")


def test_without_a_method_the_engine_finds_no_quantization(write: Write, llama: dict[str, Any]) -> None:
    quantization = {"producer": PRODUCER, "quant_algo": "FP8", "kv_cache_scheme": "FP8", "ignore": ["lm_head"]}
    facts = derive_file(write({**llama, "quantization_config": quantization})).globals_
    assert (facts.quantization, facts.weight_dtype) == (None, "bf16")
