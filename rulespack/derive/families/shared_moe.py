"""Grouped-query attention, some dense layers, then experts with shared ones beside them: GLM 4.5 to 4.7, ERNIE 4.5.

Source: 0.31.0, model_executor/models/glm4_moe.py, ernie45_moe.py; class defaults from transformers' Glm4MoeConfig and
Ernie4_5_MoeConfig.
"""

from __future__ import annotations

from rulespack.derive.blocks import (
    TENSOR_PARALLEL,
    MoE,
    dense_mlp,
    embedding,
    experts,
    head,
    norm,
    projected_attention,
    read_top_k,
)
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.derive.weights import Format
from rulespack.derive.windows import layer_windows
from rulespack.graph.model import Attention

GLM = "Glm4MoeForCausalLM"
ERNIE = "Ernie4_5_MoeForCausalLM"


def build(config: Config) -> Parts:
    """Routers are float32, and the classes sum after their experts whatever the MoE's parallelism."""
    text = config.text
    ernie = config.architecture == ERNIE
    count = text.integer("moe_num_experts" if ernie else "n_routed_experts")
    top_k = read_top_k(config, "moe_k" if ernie else "num_experts_per_tok", count)
    width = text.integer("moe_intermediate_size")
    shared = (_ernie_shared if ernie else _glm_shared)(config)
    sparse_layers = (_ernie_sparse if ernie else _glm_sparse)(config)
    head_dim = config.head_dim()
    layers = []
    for index, window in enumerate(layer_windows(config)):
        sparse = index in sparse_layers
        node = Attention(
            kind="gqa" if window is None else "swa",
            n_q=config.heads,
            n_kv=config.kv_heads,
            d_h=head_dim,
            window=window,
        )
        layer = Layer("moe" if sparse else "dense")
        layer.add(norm("input_norm"))
        projected_attention(layer, config, f"layers.{index}.self_attn", node)
        layer.add(norm("post_attn_norm"))
        module = f"layers.{index}.mlp"
        if sparse:
            moe = MoE(
                module=module,
                count=count,
                top_k=top_k,
                width=width,
                shared_width=shared * width,
                router=Format("fp32"),
                reduce=TENSOR_PARALLEL,
            )
            experts(layer, config, moe)
        else:
            dense_mlp(layer, config, module, text.integer("intermediate_size"))
        layers.append(layer)
    return Parts(layers=layers, embedding=embedding(config), head=head(config))


def _glm_shared(config: Config) -> int:
    return config.text.optional_integer("n_shared_experts", minimum=0) or 0


def _glm_sparse(config: Config) -> range:
    """Every layer but the first ones."""
    return range(config.text.integer("first_k_dense_replace", minimum=0, default=1), config.layers)


def _ernie_shared(config: Config) -> int:
    return config.text.integer("moe_num_shared_experts", minimum=0, default=2)


def _ernie_sparse(config: Config) -> frozenset[int]:
    """Every so many layers from the first to the last one named; -1 names the model's last."""
    text = config.text
    if not text.boolean("use_moe", default=True):
        return frozenset()
    start = text.integer("moe_layer_start_index", minimum=0, default=1)
    end = text.integer("moe_layer_end_index", minimum=-1, default=-1)
    interval = text.integer("moe_layer_interval", default=1)
    last = config.layers - 1 if end == -1 else end
    return frozenset(index for index in range(start, last + 1) if (index + 1) % interval == 0)


FAMILY = Family(
    serves={
        GLM: Served(kv_heads=8),
        ERNIE: Served(kv_heads=4, tie_word_embeddings=True),
    },
    build=build,
)
