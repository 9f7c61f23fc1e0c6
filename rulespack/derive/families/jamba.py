"""Jamba: Mamba-1 layers and a few of attention, an MLP or experts after either.

Source: 0.31.0, model_executor/models/jamba.py; class defaults from transformers' JambaConfig.
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
from rulespack.derive.recurrent import Mamba1, mamba1, time_step_rank
from rulespack.graph.model import Attention


def build(config: Config) -> Parts:
    """Attention and experts each come once in a period, at an offset. The head has weights of its own."""
    text = config.text
    if config.tie_word_embeddings:
        text.refuse("tie_word_embeddings", "is true, and this class gives its head weights of its own; state false")
    width = text.integer("intermediate_size")
    attending = _once_in(config, "attn_layer", 8, 4)
    sparse = _once_in(config, "expert_layer", 2, 1)
    count = text.integer("num_experts", default=16)
    layers = []
    for index in range(config.layers):
        kind, moe = "attention" if index in attending else "mamba", index in sparse and count > 1
        layer = Layer(f"{kind}_{'moe' if moe else 'dense'}")
        layer.add(norm("input_norm"))
        if kind == "attention":
            node = Attention(kind="gqa", n_q=config.heads, n_kv=config.kv_heads, d_h=config.head_dim())
            projected_attention(layer, config, f"layers.{index}.self_attn", node)
        else:
            mamba1(layer, config, _mixer(config), normed=True)
        layer.add(norm("pre_ff_norm"))
        module = f"layers.{index}.feed_forward"
        if moe:
            top_k = read_top_k(config, "num_experts_per_tok", count)
            experts(layer, config, MoE(module=module, count=count, top_k=top_k, width=width, reduce=TENSOR_PARALLEL))
        else:
            dense_mlp(layer, config, module, width)
        layers.append(layer)
    return Parts(layers=layers, embedding=embedding(config), head=head(config))


def _once_in(config: Config, what: str, period: int, offset: int) -> frozenset[int]:
    """The layers of one kind: every ``period``-th from ``offset`` on, as stated or as the class supplies them."""
    text = config.text
    every = text.integer(f"{what}_period", default=period)
    first = text.integer(f"{what}_offset", minimum=0, default=offset)
    if first >= every:
        text.refuse(f"{what}_offset", f"is {first}, and must be smaller than the period, {every}")
    return frozenset(range(first, config.layers, every))


def _mixer(config: Config) -> Mamba1:
    text = config.text
    return Mamba1(
        inner=text.integer("mamba_expand", default=2) * config.hidden_size,
        state=text.integer("mamba_d_state", default=16),
        kernel=text.integer("mamba_d_conv", default=4),
        rank=time_step_rank(config, "mamba_dt_rank"),
    )


FAMILY = Family(serves={"JambaForCausalLM": Served(kv_heads=8, divides_width=True, max_positions=262144)}, build=build)
