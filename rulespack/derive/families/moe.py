"""Grouped-query attention with a mixture of experts in every layer: Mixtral, Qwen 3 MoE, MiniMax M2, Granite MoE.

Source: 0.31.0, model_executor/models/mixtral.py, qwen3_moe.py, qwen3_vl_moe.py, minimax_m2.py, granitemoe.py.
"""

from __future__ import annotations

import msgspec

from rulespack.derive.blocks import (
    TENSOR_PARALLEL,
    UNLESS_SP_MOE,
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
from rulespack.derive.windows import layer_windows, no_windows
from rulespack.graph.model import Attention


class Dialect(msgspec.Struct, frozen=True):
    """Where a model class differs: the keys of the experts, the router's dtype, what the MoE's reduction follows."""

    count: str = "num_local_experts"
    width: str = "intermediate_size"
    module: str = "block_sparse_moe"
    router: str | None = None
    reduce: str = TENSOR_PARALLEL


QWEN = Dialect(count="num_experts", width="moe_intermediate_size", module="mlp", reduce=UNLESS_SP_MOE)
DIALECTS = {
    "MixtralForCausalLM": Dialect(),
    "GraniteMoeForCausalLM": Dialect(reduce=UNLESS_SP_MOE),
    "MiniMaxM2ForCausalLM": Dialect(router="fp32"),
    "Qwen3MoeForCausalLM": QWEN,
    "Qwen3VLMoeForConditionalGeneration": QWEN,
}


def build(config: Config) -> Parts:
    """Every layer an MoE but those Qwen's two keys leave dense."""
    text = config.text
    dialect = DIALECTS[config.architecture]
    count = text.integer(dialect.count)
    top_k = read_top_k(config, "num_experts_per_tok", count)
    width = text.integer(dialect.width)
    window = _window(config)
    node = Attention(
        kind="gqa" if window is None else "swa",
        n_q=config.heads,
        n_kv=config.kv_heads,
        d_h=config.head_dim(),
        window=window,
    )
    layers = []
    for index in range(config.layers):
        dense = dialect is QWEN and _is_dense(config, index)
        layer = Layer("dense" if dense else "moe")
        layer.add(norm("input_norm"))
        projected_attention(layer, config, f"layers.{index}.self_attn", node)
        layer.add(norm("post_attn_norm"))
        if dense:
            dense_mlp(layer, config, f"layers.{index}.mlp", text.integer("intermediate_size"))
        else:
            moe = MoE(
                module=f"layers.{index}.{dialect.module}",
                count=count,
                top_k=top_k,
                width=width,
                router=Format(dialect.router) if dialect.router else None,
                reduce=dialect.reduce,
            )
            experts(layer, config, moe)
        layers.append(layer)
    return Parts(layers=layers, embedding=embedding(config), head=head(config))


def _window(config: Config) -> int | None:
    """The window of every layer; layers of different types are not translated."""
    if DIALECTS[config.architecture] is QWEN:
        no_windows(config)
        return None
    windows = set(layer_windows(config))
    if len(windows) > 1:
        config.text.untranslated("layer_types", "mixes sliding and full layers, which is not translated for this class")
    return windows.pop()


def _is_dense(config: Config, index: int) -> bool:
    """Qwen 3 MoE: a listed layer, or one off the sparse step, has a plain MLP (qwen3_moe.py, the decoder layer)."""
    step = config.text.integer("decoder_sparse_step", default=1)
    listed = config.text.optional_integers("mlp_only_layers") or ()
    return index in listed or (index + 1) % step != 0


FAMILY = Family(
    serves={
        "MixtralForCausalLM": Served(kv_heads=8),
        "Qwen3MoeForCausalLM": Served(kv_heads=4),
        "Qwen3VLMoeForConditionalGeneration": Served(kv_heads=16, multimodal=True),
        "MiniMaxM2ForCausalLM": Served(kv_heads=8, head_dim=128),
        "GraniteMoeForCausalLM": Served(divides_width=True),
    },
    build=build,
)
