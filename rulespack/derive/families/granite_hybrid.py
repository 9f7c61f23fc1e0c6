"""Granite 4 hybrids: Mamba-2 or attention, then shared and, in some models, routed experts, in every layer.

Source: 0.31.0, model_executor/models/granitemoehybrid.py, granitemoeshared.py; class defaults from transformers'
GraniteMoeHybridConfig.
"""

from __future__ import annotations

from rulespack.derive.blocks import (
    UNLESS_SP_MOE,
    MoE,
    dense_mlp,
    embedding,
    experts,
    head,
    norm,
    per_layer,
    projected_attention,
    read_top_k,
)
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.derive.recurrent import Mamba2, mamba2
from rulespack.graph.model import Attention

#: Both spellings of the two kinds of layer.
KINDS = {"mamba": "mamba", "linear_attention": "mamba", "attention": "attention", "full_attention": "attention"}


def build(config: Config) -> Parts:
    """Routed experts and the shared MLP read the same norm, and each is summed over the ranks by itself."""
    text = config.text
    listed = text.optional_strings("layer_types")
    types = ("mamba",) * config.layers if listed is None else per_layer(config, "layer_types", listed, tuple(KINDS))
    count = text.integer("num_local_experts", minimum=0, default=8)
    shared = text.integer("shared_intermediate_size", minimum=0, default=1024)
    layers = []
    for index, kind in enumerate(KINDS[name] for name in types):
        layer = Layer(kind)
        layer.add(norm("input_norm"))
        if kind == "mamba":
            mamba2(layer, config, f"layers.{index}.mamba", _mixer(config))
        else:
            node = Attention(kind="gqa", n_q=config.heads, n_kv=config.kv_heads, d_h=config.head_dim())
            projected_attention(layer, config, f"layers.{index}.self_attn", node)
        entry = layer.add(norm("post_attn_norm"))
        if count:
            moe = MoE(
                module=f"layers.{index}.block_sparse_moe",
                count=count,
                top_k=read_top_k(config, "num_experts_per_tok", count),
                width=text.integer("intermediate_size"),
                reduce=UNLESS_SP_MOE,
                reduce_role="experts_out",
            )
            experts(layer, config, moe)
        if shared:
            dense_mlp(layer, config, f"layers.{index}.shared_mlp", shared, after=[entry])
        layers.append(layer)
    return Parts(layers=layers, embedding=embedding(config), head=head(config))


def _mixer(config: Config) -> Mamba2:
    text = config.text
    inner = text.integer("mamba_expand", default=2) * config.hidden_size
    heads = text.integer("mamba_n_heads", default=128)
    if text.has("mamba_d_head") and not text.is_text("mamba_d_head"):  # "auto" is what makes them equal
        width = text.integer("mamba_d_head")
        if heads * width != inner:
            text.untranslated("mamba_d_head", f"is {width}; {heads} such heads are not the {inner} inner channels")
    return Mamba2(
        inner=inner,
        heads=heads,
        groups=text.integer("mamba_n_groups", default=1),
        state=text.integer("mamba_d_state", default=256),
        kernel=text.integer("mamba_d_conv", default=4),
        chunk=text.integer("mamba_chunk_size", default=256),
    )


FAMILY = Family(serves={"GraniteMoeHybridForCausalLM": Served(divides_width=True, max_positions=2048)}, build=build)
