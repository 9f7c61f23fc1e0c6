"""Llama 4: chunked-local attention with rotary embedding, full attention without, experts in some or all layers.

Source: 0.31.0, model_executor/models/llama4.py, mllama4.py; class defaults from transformers' Llama4TextConfig.
"""

from __future__ import annotations

from rulespack.derive.blocks import MoE, dense_mlp, embedding, experts, head, norm, projected_attention, read_top_k
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.graph.model import Attention

CHUNK = 8192
NO_ROPE_INTERVAL = 4


def build(config: Config) -> Parts:
    """A layer without rotary embedding is full; the others attend in chunks, unless the size of one is null.

    A dense layer has its own MLP width.
    """
    text = config.text
    chunk = text.optional_integer("attention_chunk_size") if text.states("attention_chunk_size") else CHUNK
    head_dim = config.head_dim()
    count = text.integer("num_local_experts")
    top_k = read_top_k(config, "num_experts_per_tok", count)
    width = text.integer("intermediate_size")
    sparse_layers = _moe_layers(config)
    layers = []
    for index, rotary in enumerate(_rotary(config)):
        sparse = index in sparse_layers
        chunked = rotary and chunk is not None
        node = Attention(
            kind="chunked" if chunked else "gqa",
            n_q=config.heads,
            n_kv=config.kv_heads,
            d_h=head_dim,
            attention_chunk_size=chunk if chunked else None,
        )
        layer = Layer(f"{'chunked' if chunked else 'full'}_{'moe' if sparse else 'dense'}")
        layer.add(norm("input_norm"))
        projected_attention(layer, config, f"layers.{index}.self_attn", node)
        layer.add(norm("post_attn_norm"))
        module = f"layers.{index}.feed_forward"
        if sparse:
            moe = MoE(
                module=module,
                count=count,
                top_k=top_k,
                width=width,
                shared_width=width,
                shared_module="shared_expert",
            )
            experts(layer, config, moe)
        else:
            dense_mlp(layer, config, module, text.integer("intermediate_size_mlp"))
        layers.append(layer)
    return Parts(layers=layers, embedding=embedding(config), head=head(config))


def _rotary(config: Config) -> tuple[bool, ...]:
    """Which layers have rotary embedding: as listed, else all but every fourth. An empty list reads as none."""
    listed = config.text.optional_integers("no_rope_layers")
    if not listed:
        interval = config.text.integer("no_rope_layer_interval", default=NO_ROPE_INTERVAL)
        return tuple((index + 1) % interval != 0 for index in range(config.layers))
    if len(listed) != config.layers or not set(listed) <= {0, 1}:
        config.text.refuse("no_rope_layers", f"is not one 0 or 1 for each of {config.layers} layers; list each layer")
    return tuple(flag == 1 for flag in listed)


def _moe_layers(config: Config) -> frozenset[int]:
    listed = config.text.optional_integers("moe_layers")
    if listed is not None:
        return frozenset(listed)
    step = config.text.integer("interleave_moe_layer_step", default=1)
    return frozenset(range(step - 1, config.layers, step))


FAMILY = Family(
    serves={
        "Llama4ForConditionalGeneration": Served(kv_heads=8, head_dim=128, multimodal=True),
        "Llama4ForCausalLM": Served(kv_heads=8, head_dim=128),
    },
    build=build,
)
