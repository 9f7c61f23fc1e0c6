"""What the state-space and linear-attention families refuse: the key that stopped them, and never a guess."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rulespack.derive import InvalidConfig, derive_file

Write = Callable[..., Path]


def stopped_at(folder: Path) -> str:
    with pytest.raises(InvalidConfig) as caught:
        derive_file(folder)
    return caught.value.path


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hybrid_override_pattern", "MEX-"),
        ("hybrid_override_pattern", "ME*"),
        ("hybrid_override_pattern", None),
        ("layers_block_type", ["mamba", "moe", "attention", "conv"]),
        ("layers_block_type", ["mamba", "moe", "attention"]),
        ("tie_word_embeddings", True),
        ("sliding_window", 4096),
        ("mamba_ssm_cache_dtype", "float8"),
        ("num_experts_per_tok", 9),
        ("ssm_state_size", 0),
    ],
)
def test_nemotron(write: Write, nemotron: dict[str, Any], key: str, value: object) -> None:
    assert stopped_at(write({**nemotron, key: value})) == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layer_types", ["mamba", "mamba", "sliding_attention", "mamba"]),
        ("layer_types", ["mamba"]),
        ("num_experts_per_tok", 9),
        ("mamba_n_heads", 0),
    ],
)
def test_granite(write: Write, granite: dict[str, Any], key: str, value: object) -> None:
    assert stopped_at(write({**granite, key: value})) == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_long_context", True),
        ("layers_block_type", None),
        ("layers_block_type", ["mamba", "hybrid"]),
        ("num_key_value_heads", 4),
    ],
)
def test_zamba2(write: Write, zamba: dict[str, Any], key: str, value: object) -> None:
    path = stopped_at(write({**zamba, key: value}))
    assert path == ("num_attention_heads" if key == "num_key_value_heads" else key)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layer_types", ["linear_attention"] * 3 + ["sliding_attention"]),
        ("mamba_ssm_dtype", "int8"),
        ("layer_scale", True),
        ("full_attention_interval", 0),
    ],
)
def test_qwen(write: Write, qwen: dict[str, Any], key: str, value: object) -> None:
    qwen["text_config"][key] = value
    assert stopped_at(write(qwen)) == f"text_config.{key}"


def test_qwen3_next_has_one_interval_alone(write: Write, qwen: dict[str, Any]) -> None:
    config = {**qwen["text_config"], "architectures": ["Qwen3NextForCausalLM"], "full_attention_interval": 3}
    assert stopped_at(write(config)) == "full_attention_interval"


@pytest.mark.parametrize("listed", [[1, 2], [1, 2, 3, 4], [0, 1, 2], [1, 1, 3]])
def test_kimi_lists_each_layer_once(write: Write, kimi: dict[str, Any], listed: list[int]) -> None:
    kimi["linear_attn_config"]["kda_layers"] = listed
    assert stopped_at(write(kimi)) == "linear_attn_config.kda_layers"


@pytest.mark.parametrize(
    ("key", "value"),
    [("mla_use_nope", False), ("linear_attn_config", None), ("kv_lora_rank", None), ("num_experts_per_token", 9)],
)
def test_kimi(write: Write, kimi: dict[str, Any], key: str, value: object) -> None:
    assert stopped_at(write({**kimi, key: value})) == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layer_types", ["conv", "conv", "sliding_attention", "conv"]),
        ("conv_dim", 1024),
        ("block_dim", 1024),
        ("conv_L_cache", 0),
    ],
)
def test_lfm2(write: Write, lfm2: dict[str, Any], key: str, value: object) -> None:
    assert stopped_at(write({**lfm2, key: value})) == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attn_layer_offset", 8),
        ("expert_layer_offset", 2),
        ("mamba_dt_rank", "half"),
        ("tie_word_embeddings", True),
        ("num_experts_per_tok", 17),
    ],
)
def test_jamba(write: Write, key: str, value: object) -> None:
    config = {
        "architectures": ["JambaForCausalLM"],
        "model_type": "jamba",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
        "torch_dtype": "bfloat16",
    }
    derive_file(write(config, folder="as-it-is"))
    assert stopped_at(write({**config, key: value})) == key
