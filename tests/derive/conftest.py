"""Configurations as vendors write them, on disk for a test to change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a configuration as ``config.json`` (or another name) into a model's folder, and return the folder."""

    def writer(data: dict[str, Any] | str, file: str = "config.json", folder: str = "some-model") -> Path:
        home = tmp_path / folder
        home.mkdir(exist_ok=True)
        (home / file).write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
        return home

    return writer


@pytest.fixture
def llama() -> dict[str, Any]:
    """A small Llama, with the keys a vendor's file has that no graph needs."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 4,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "vocab_size": 32000,
        "torch_dtype": "bfloat16",
        "rope_theta": 500000.0,
        "bos_token_id": 1,
        "initializer_range": 0.02,
        "transformers_version": "4.43.0",
    }


@pytest.fixture
def deepseek() -> dict[str, Any]:
    """A small DeepSeek V3 with its quantization."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 3,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 32000,
        "max_position_embeddings": 163840,
        "q_lora_rank": 256,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 32,
        "n_shared_experts": 1,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 512,
        "first_k_dense_replace": 1,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
