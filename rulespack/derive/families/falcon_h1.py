"""Falcon-H1: attention and Mamba-2 side by side in every layer, then a gated MLP.

Source: 0.31.0, model_executor/models/falcon_h1.py; class defaults from transformers' FalconH1Config.
"""

from __future__ import annotations

from rulespack.derive.blocks import dense_mlp, embedding, head, norm, projected_attention
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.derive.recurrent import Mamba2, mamba2
from rulespack.graph.model import Attention


def build(config: Config) -> Parts:
    """Both branches read the same norm, and each is summed over the ranks before the two are added."""
    width = config.text.integer("intermediate_size")
    shape = _mixer(config)
    node = Attention(kind="gqa", n_q=config.heads, n_kv=config.kv_heads, d_h=config.head_dim())
    layers = []
    for index in range(config.layers):
        layer = Layer("hybrid")
        entry = layer.add(norm("input_norm"))
        projected_attention(layer, config, f"layers.{index}.self_attn", node)
        attended = layer.last
        mamba2(layer, config, f"layers.{index}.mamba", shape, [entry])
        layer.add(norm("pre_ff_norm"), [attended, layer.last])
        dense_mlp(layer, config, f"layers.{index}.feed_forward", width)
        layers.append(layer)
    return Parts(layers=layers, embedding=embedding(config), head=head(config))


def _mixer(config: Config) -> Mamba2:
    """The inner width is stated, or a multiple of the model's where it is null."""
    text = config.text
    inner = text.optional_integer("mamba_d_ssm") if text.states("mamba_d_ssm") else 1024
    return Mamba2(
        inner=text.integer("mamba_expand", default=2) * config.hidden_size if inner is None else inner,
        heads=text.integer("mamba_n_heads", default=128),
        groups=text.integer("mamba_n_groups", default=1),
        state=text.integer("mamba_d_state", default=256),
        kernel=text.integer("mamba_d_conv", default=4),
        chunk=text.integer("mamba_chunk_size", default=256),
    )


FAMILY = Family(serves={"FalconH1ForCausalLM": Served(kv_heads=8, max_positions=8192)}, build=build)
