"""LFM2: short convolutions and a few layers of attention, a gated MLP after either.

Source: 0.31.0, model_executor/models/lfm2.py, layers/mamba/short_conv.py; class defaults from transformers' Lfm2Config.
"""

from __future__ import annotations

from rulespack.derive.blocks import dense_mlp, embedding, head, norm, per_layer, projected_attention
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.derive.recurrent import short_conv
from rulespack.graph.model import Attention

CONV, FULL = "conv", "full_attention"


def build(config: Config) -> Parts:
    """Convolutions and MLPs are as wide as the model, whatever key says so."""
    text, hidden = config.text, config.hidden_size
    for key in ("conv_dim", "block_dim"):
        stated = text.optional_integer(key)
        if stated is not None and stated != hidden:
            text.untranslated(key, f"is {stated}, and {hidden} is the model's width; other widths are not translated")
    kernel = text.integer("conv_L_cache", default=3)
    width = _mlp_width(config)
    node = Attention(kind="gqa", n_q=config.heads, n_kv=config.kv_heads, d_h=config.head_dim())
    layers = []
    for index, kind in enumerate(_types(config)):
        layer = Layer("attention" if kind == FULL else "conv")
        layer.add(norm("operator_norm"))
        if kind == FULL:
            projected_attention(layer, config, f"layers.{index}.self_attn", node)
        else:
            short_conv(layer, config, f"layers.{index}.short_conv", hidden, kernel)
        layer.add(norm("ffn_norm"))
        dense_mlp(layer, config, f"layers.{index}.feed_forward", width)
        layers.append(layer)
    return Parts(layers=layers, embedding=embedding(config), head=head(config))


def _types(config: Config) -> tuple[str, ...]:
    """As listed by type, else by the indices of the attention layers, else attention everywhere."""
    text = config.text
    listed = text.optional_strings("layer_types")
    if listed is not None:
        return per_layer(config, "layer_types", listed, (CONV, FULL))
    attending = text.optional_integers("full_attn_idxs")
    return tuple(FULL if attending is None or index in attending else CONV for index in range(config.layers))


def _mlp_width(config: Config) -> int:
    """The inner width: as stated, or two thirds of it, scaled and rounded up to a multiple."""
    text = config.text
    width = text.optional_integer("block_ff_dim") or text.integer("intermediate_size", default=12288)
    if not text.boolean("block_auto_adjust_ff_dim", default=True):
        return width
    factor = text.optional_number("block_ffn_dim_multiplier") if text.states("block_ffn_dim_multiplier") else 1.0
    width = 2 * width // 3
    if factor is not None:
        width = int(factor * width)
    multiple = text.integer("block_multiple_of", default=256)
    return -(-width // multiple) * multiple


FAMILY = Family(
    serves={
        "Lfm2ForCausalLM": Served(
            kv_heads=8, divides_width=True, tie_word_embeddings=True, tie_key="tie_embedding", max_positions=128000
        )
    },
    build=build,
)
