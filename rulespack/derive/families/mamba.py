"""Mamba-1 alone: Falcon-Mamba. No attention, no position limit, no MLP.

Source: 0.31.0, model_executor/models/mamba.py; class defaults from transformers' FalconMambaConfig.
"""

from __future__ import annotations

from rulespack.derive.blocks import embedding, head, norm
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.derive.recurrent import Mamba1, mamba1, time_step_rank


def build(config: Config) -> Parts:
    """One mixer for each layer. The inner width is stated, or a multiple of the model's."""
    text = config.text
    inner = text.optional_integer("intermediate_size")
    shape = Mamba1(
        inner=text.integer("expand", default=2) * config.hidden_size if inner is None else inner,
        state=text.integer("state_size", default=16),
        kernel=text.integer("conv_kernel", default=4),
        rank=time_step_rank(config, "time_step_rank"),
    )
    layers = []
    for _ in range(config.layers):
        layer = Layer("mamba")
        layer.add(norm("input_norm"))
        mamba1(layer, config, shape, normed=True)
        layers.append(layer)
    return Parts(layers=layers, embedding=embedding(config), head=head(config))


FAMILY = Family(serves={"FalconMambaForCausalLM": Served(tie_word_embeddings=True, attention_free=True)}, build=build)
