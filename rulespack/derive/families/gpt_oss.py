"""GPT-OSS: windows on every other layer, attention sinks everywhere, MXFP4 experts.

Source: 0.31.0, model_executor/models/gpt_oss.py; class defaults from transformers' GptOssConfig.
"""

from __future__ import annotations

from rulespack.derive.blocks import MoE, embedding, experts, head, norm, per_layer, projected_attention, read_top_k
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.graph.model import Attention

SLIDING, FULL = "sliding_attention", "full_attention"
WINDOW = 128


def build(config: Config) -> Parts:
    """The engine gives the window to even layers, whatever the listed types say; a list that differs is refused."""
    text = config.text
    types = tuple(FULL if index % 2 else SLIDING for index in range(config.layers))
    stated = text.optional_strings("layer_types")
    if stated is not None and per_layer(config, "layer_types", stated, (SLIDING, FULL)) != types:
        text.refuse("layer_types", "is not a window on every even layer, which is what the engine runs")
    window = text.integer("sliding_window", default=WINDOW)
    width = text.integer("intermediate_size")
    head_dim = config.head_dim()
    count = text.integer("num_local_experts")
    top_k = read_top_k(config, "num_experts_per_tok", count)
    layers = []
    for index, layer_type in enumerate(types):
        sliding = layer_type == SLIDING
        node = Attention(
            kind="swa" if sliding else "gqa",
            n_q=config.heads,
            n_kv=config.kv_heads,
            d_h=head_dim,
            window=window if sliding else None,
            sinks=True,
        )
        layer = Layer("sliding" if sliding else "full")
        layer.add(norm("input_norm"))
        projected_attention(layer, config, f"layers.{index}.self_attn", node)
        layer.add(norm("post_attn_norm"))
        experts(layer, config, MoE(module=f"layers.{index}.mlp", count=count, top_k=top_k, width=width))
        layers.append(layer)
    return Parts(layers=layers, embedding=embedding(config), head=head(config))


FAMILY = Family(serves={"GptOssForCausalLM": Served(kv_heads=8, head_dim=64)}, build=build)
