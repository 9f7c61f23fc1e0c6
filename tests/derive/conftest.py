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


@pytest.fixture
def nemotron() -> dict[str, Any]:
    """A small Nemotron-H with one layer of each kind."""
    return {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 4,
        "hybrid_override_pattern": "ME*-",
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "max_position_embeddings": 8192,
        "mamba_num_heads": 32,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 512,
        "moe_shared_expert_intermediate_size": 1024,
        "torch_dtype": "bfloat16",
    }


@pytest.fixture
def granite() -> dict[str, Any]:
    """A small Granite 4 hybrid."""
    return {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "hidden_size": 1536,
        "intermediate_size": 512,
        "shared_intermediate_size": 1024,
        "num_hidden_layers": 4,
        "layer_types": ["mamba", "mamba", "attention", "mamba"],
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "mamba_n_heads": 48,
        "mamba_d_state": 128,
        "mamba_expand": 2,
        "vocab_size": 32000,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
    }


@pytest.fixture
def zamba() -> dict[str, Any]:
    """A small Zamba2."""
    return {
        "architectures": ["Zamba2ForCausalLM"],
        "model_type": "zamba2",
        "hidden_size": 1024,
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid", "hybrid", "hybrid"],
        "num_attention_heads": 16,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
    }


@pytest.fixture
def qwen() -> dict[str, Any]:
    """A small Qwen 3.5 with its decoder nested."""
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": {
            "model_type": "qwen3_5_text",
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "vocab_size": 32000,
            "max_position_embeddings": 8192,
            "mamba_ssm_dtype": "float32",
            "dtype": "bfloat16",
        },
    }


@pytest.fixture
def kimi() -> dict[str, Any]:
    """A small Kimi Linear."""
    return {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "vocab_size": 32000,
        "model_max_length": 8192,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "mla_use_nope": True,
        "num_experts": 8,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "moe_intermediate_size": 512,
        "first_k_dense_replace": 1,
        "linear_attn_config": {
            "kda_layers": [1, 2, 3],
            "full_attn_layers": [4],
            "num_heads": 8,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
        },
        "dtype": "bfloat16",
    }


@pytest.fixture
def lfm2() -> dict[str, Any]:
    """A small LFM2."""
    return {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "hidden_size": 2048,
        "intermediate_size": 12288,
        "num_hidden_layers": 4,
        "layer_types": ["conv", "conv", "full_attention", "conv"],
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "conv_L_cache": 3,
        "vocab_size": 65536,
        "max_position_embeddings": 128000,
        "tie_embedding": True,
        "torch_dtype": "bfloat16",
    }
