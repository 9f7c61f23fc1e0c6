"""Gemma 4: sliding and full layers of different head shapes, a dense MLP and experts side by side in every layer.

Source: 0.31.0, model_executor/models/gemma4.py, gemma4_mm.py, transformers_utils/configs/gemma4.py; class defaults
from transformers' Gemma4TextConfig.
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
    per_layer,
    read_top_k,
)
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layer_inputs import layer_input, layer_input_embedding
from rulespack.derive.layers import Layer
from rulespack.derive.shared_kv import first_reader, reading, shared_attention
from rulespack.graph.model import AnyNode, Attention

SLIDING, FULL = "sliding_attention", "full_attention"
PERIOD = 6
GLOBAL_HEAD_DIM = 512
INPUT_WIDTH, INPUT_VOCABULARY = 256, 262144
#: The largest video: frames, and tokens of one with its markers and time stamp (gemma4_mm.py).
VIDEO_FRAMES = 32
FRAME_TOKENS = 70 + 2 + 6


def build(config: Config) -> Parts:
    """Windows by layer type; a full layer has its own head width and, where keys serve as values, its own KV heads."""
    text = config.text
    direction = text.optional_string("use_bidirectional_attention")
    if direction not in (None, "vision"):
        text.untranslated("use_bidirectional_attention", f"{direction!r} is not translated; known is vision")
    types = _types(config)
    first = first_reader(config, types, 0)
    inputs = text.integer("hidden_size_per_layer_input", minimum=0, default=INPUT_WIDTH)
    own_inputs: tuple[AnyNode, ...] = ()
    if inputs:
        vocabulary = text.integer("vocab_size_per_layer_input", default=INPUT_VOCABULARY)
        own_inputs = layer_input_embedding(config, inputs, vocabulary)
    return Parts(
        layers=[_layer(config, index, kind, first, inputs) for index, kind in enumerate(types)],
        embedding=(*embedding(config), *own_inputs),
        head=head(config),
        prefix_lm=direction == "vision",
        max_item_tokens=_largest_item(config) if config.served.multimodal else None,
    )


def _largest_item(config: Config) -> int:
    """Tokens of the largest image or video. How long a clip of audio may be stands in no model configuration."""
    if config.root.has("audio_config"):
        config.root.untranslated("audio_config", "is stated; Gemma 4 with an audio encoder is not translated")
    vision = config.root.section("vision_config")
    return max(vision.integer("default_output_length"), VIDEO_FRAMES * FRAME_TOKENS)


def _types(config: Config) -> tuple[str, ...]:
    """The class makes the last layer full whatever the file says."""
    stated = config.text.optional_strings("layer_types")
    if stated is None:
        types = [FULL if (index + 1) % PERIOD == 0 else SLIDING for index in range(config.layers)]
    else:
        types = list(per_layer(config, "layer_types", stated, (SLIDING, FULL)))
    types[-1] = FULL
    return tuple(types)


def _attention(config: Config, layer_type: str) -> Attention:
    text = config.text
    soft_cap = text.optional_number("attn_logit_softcapping")
    if layer_type == SLIDING:
        return Attention(
            kind="swa",
            n_q=config.heads,
            n_kv=config.kv_heads,
            d_h=config.head_dim(),
            window=text.integer("sliding_window"),
            logits_soft_cap=soft_cap,
        )
    kv_heads = config.kv_heads
    if text.boolean("attention_k_eq_v", default=False):
        kv_heads = text.optional_integer("num_global_key_value_heads") or kv_heads
    width = text.optional_integer("global_head_dim") or GLOBAL_HEAD_DIM
    return Attention(kind="gqa", n_q=config.heads, n_kv=kv_heads, d_h=width, logits_soft_cap=soft_cap)


def _layer(config: Config, index: int, layer_type: str, first: int, inputs: int) -> Layer:
    """One layer. From ``first`` on they read the caches of others, and may have MLPs twice as wide."""
    text = config.text
    reads = index >= first
    label, node = "sliding" if layer_type == SLIDING else "full", _attention(config, layer_type)
    if first < config.layers:
        node = reading(config, node, owned=not reads)
    layer = Layer(f"{label}_shared_kv" if reads else label)
    layer.add(norm("input_norm"))
    shared_attention(layer, config, f"layers.{index}.self_attn", node)
    entry = layer.add(norm("post_attn_norm"))
    layer.add(norm("pre_mlp_norm"))
    wider = 2 if text.boolean("use_double_wide_mlp", default=False) and reads else 1
    dense_mlp(layer, config, f"layers.{index}.mlp", wider * text.integer("intermediate_size"))
    if text.boolean("enable_moe_block", default=False):
        dense = layer.add(norm("post_mlp_norm_1"))
        layer.add(norm("pre_moe_norm"), [entry])
        count = text.integer("num_experts")
        moe = MoE(
            module=f"layers.{index}",
            count=count,
            top_k=read_top_k(config, "top_k_experts", count),
            width=text.integer("moe_intermediate_size"),
            reduce=TENSOR_PARALLEL,
            reduce_role="moe_out",
        )
        experts(layer, config, moe)
        routed = layer.add(norm("post_mlp_norm_2"))
        layer.add(norm("post_mlp_norm"), [dense, routed])
    else:
        layer.add(norm("post_mlp_norm"))
    if inputs:
        layer_input(layer, config, f"layers.{index}", inputs)
    return layer


FAMILY = Family(
    serves={
        "Gemma4ForCausalLM": Served(kv_heads=4, head_dim=256, tie_word_embeddings=True),
        "Gemma4ForConditionalGeneration": Served(kv_heads=4, head_dim=256, tie_word_embeddings=True, multimodal=True),
    },
    build=build,
)
