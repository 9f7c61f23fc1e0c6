"""Nemotron made by architecture search: a Llama some of whose layers lack attention, and whose MLPs differ in width.

Source: 0.31.0, model_executor/models/nemotron_nas.py.
"""

from __future__ import annotations

from rulespack.derive.blocks import dense_mlp, embedding, head, norm, projected_attention
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.derive.section import Section
from rulespack.graph.model import Attention

#: MLP widths are rounded up to a multiple of this.
WIDTH_MULTIPLE = 256


def build(config: Config) -> Parts:
    """One block for each layer says what the layer has. Raises InvalidConfig for a layer that has nothing."""
    blocks = config.text.sections("block_configs")
    if len(blocks) != config.layers:
        problem = f"lists {len(blocks)} layers and num_hidden_layers is {config.layers}; list each layer"
        config.text.refuse("block_configs", problem)
    layers = []
    for index, block in enumerate(blocks):
        attention, mlp = block.section("attention"), block.section("ffn")
        attends, expands = (not part.boolean("no_op") for part in (attention, mlp))
        if not attends and not expands:
            block.untranslated("ffn.no_op", "is true like the attention's; a layer without work is not translated")
        layer = Layer("dense" if attends else "mlp_only")
        if attends:
            layer.add(norm("input_norm"))
            projected_attention(layer, config, f"layers.{index}.self_attn", _attention(config, attention))
        if expands:
            layer.add(norm("post_attn_norm"))
            dense_mlp(layer, config, f"layers.{index}.mlp", _width(config, mlp))
        layers.append(layer)
    return Parts(layers=layers, embedding=embedding(config), head=head(config))


def _attention(config: Config, block: Section) -> Attention:
    group = block.integer("n_heads_in_group")
    if config.heads % group:
        block.refuse("n_heads_in_group", f"is {group}, which does not divide {config.heads} query heads")
    return Attention(kind="gqa", n_q=config.heads, n_kv=config.heads // group, d_h=config.head_dim())


def _width(config: Config, block: Section) -> int:
    """The inner width, two thirds of what the multiplier says, as the engine rounds it; or the width itself."""
    multiplier = block.optional_number("ffn_mult")
    if multiplier is None:
        return block.integer("intermediate_size")
    width = int(2 * multiplier * config.hidden_size / 3)
    if width < 1:
        block.refuse("ffn_mult", f"is {multiplier:g}, which leaves an MLP no width")
    return -(-width // WIDTH_MULTIPLE) * WIDTH_MULTIPLE


FAMILY = Family(serves={"DeciLMForCausalLM": Served()}, build=build)
