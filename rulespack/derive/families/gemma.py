"""Dense decoders that mix sliding and full layers: Gemma 2 and Gemma 3.

Source: 0.31.0, model_executor/models/gemma2.py, gemma3.py, gemma3_mm.py; class defaults from transformers'
Gemma2Config and Gemma3TextConfig.
"""

from __future__ import annotations

from rulespack.derive.blocks import dense_mlp, embedding, head, norm, per_layer, projected_attention
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.graph.model import Attention

SLIDING, FULL = "sliding_attention", "full_attention"
#: Layers in one period of windows and one full layer, where neither types nor a pattern are stated.
PERIODS = {"Gemma2ForCausalLM": 2, "Gemma3ForCausalLM": 6, "Gemma3ForConditionalGeneration": 6}
WINDOW = 4096


def build(config: Config) -> Parts:
    """Norms before and after both halves of a layer; windows by layer type."""
    text = config.text
    if text.boolean("use_bidirectional_attention", default=False):
        text.untranslated("use_bidirectional_attention", "is true; an encoder made of this decoder is not translated")
    width = text.integer("intermediate_size")
    window = text.integer("sliding_window", default=WINDOW)
    soft_cap = text.optional_number("attn_logit_softcapping") if config.architecture == "Gemma2ForCausalLM" else None
    head_dim = config.head_dim()
    layers = []
    for index, layer_type in enumerate(_types(config)):
        sliding = layer_type == SLIDING
        node = Attention(
            kind="swa" if sliding else "gqa",
            n_q=config.heads,
            n_kv=config.kv_heads,
            d_h=head_dim,
            window=window if sliding else None,
            logits_soft_cap=soft_cap,
        )
        layer = Layer("sliding" if sliding else "full")
        layer.add(norm("input_norm"))
        projected_attention(layer, config, f"layers.{index}.self_attn", node)
        layer.add(norm("post_attn_norm"))
        layer.add(norm("pre_mlp_norm"))
        dense_mlp(layer, config, f"layers.{index}.mlp", width)
        layer.add(norm("post_mlp_norm"))
        layers.append(layer)
    prefix_lm = config.architecture == "Gemma3ForConditionalGeneration"
    return Parts(layers=layers, embedding=embedding(config), head=head(config), prefix_lm=prefix_lm)


def _types(config: Config) -> tuple[str, ...]:
    stated = config.text.optional_strings("layer_types")
    if stated is not None:
        return per_layer(config, "layer_types", stated, (SLIDING, FULL))
    period = config.text.integer("sliding_window_pattern", default=PERIODS[config.architecture])
    return tuple(FULL if (index + 1) % period == 0 else SLIDING for index in range(config.layers))


FAMILY = Family(
    serves={
        "Gemma2ForCausalLM": Served(kv_heads=4, head_dim=256, tie_word_embeddings=True),
        "Gemma3ForCausalLM": Served(kv_heads=4, head_dim=256, tie_word_embeddings=True),
        "Gemma3ForConditionalGeneration": Served(kv_heads=4, head_dim=256, tie_word_embeddings=True, multimodal=True),
    },
    build=build,
)
