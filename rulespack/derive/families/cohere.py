"""Cohere's Command R and Command A: attention and MLP side by side behind one norm, and one sum after both.

Source: 0.31.0, model_executor/models/commandr.py; class defaults from transformers' CohereConfig and Cohere2Config.
"""

from __future__ import annotations

import msgspec

from rulespack.derive.blocks import all_reduce, embedding, gemm, head, norm
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.derive.windows import layer_windows, periodic_types
from rulespack.graph.model import Attention

COMMAND_R = "CohereForCausalLM"
COMMAND_A = "Cohere2ForCausalLM"
#: Of Cohere2Config: the window, and the layers in one period of windows and one full layer.
WINDOW = 4096
PERIOD = 4


def build(config: Config) -> Parts:
    """The head is the vocabulary table whatever the file says: the class has no other."""
    config = msgspec.structs.replace(config, tie_word_embeddings=True)
    width = config.text.integer("intermediate_size")
    head_dim = config.head_dim()
    layers = []
    for index, window in enumerate(_windows(config)):
        node = Attention(
            kind="gqa" if window is None else "swa",
            n_q=config.heads,
            n_kv=config.kv_heads,
            d_h=head_dim,
            window=window,
        )
        layers.append(_layer(config, index, node, width))
    return Parts(layers=layers, embedding=embedding(config), head=head(config))


def _windows(config: Config) -> tuple[int | None, ...]:
    """Command A counts the query's own token beside its window, so the engine keeps one token more."""
    if config.architecture == COMMAND_R:
        return layer_windows(config)
    period = config.text.integer("sliding_window_pattern", default=PERIOD)
    windows = layer_windows(config, WINDOW, periodic_types(config.layers, period))
    return tuple(None if window is None else window + 1 for window in windows)


def _layer(config: Config, index: int, node: Attention, width: int) -> Layer:
    hidden, form = config.hidden_size, config.weights.of_linear
    attention, mlp = f"layers.{index}.self_attn", f"layers.{index}.mlp"
    layer = Layer("full" if node.window is None else "sliding")
    normed = layer.add(norm("input_norm"))
    fused = (node.n_q + 2 * node.n_kv) * node.d_h
    layer.add(gemm(config, "qkv_proj", fused, hidden, "column", form(f"{attention}.qkv_proj")))
    layer.add(node)
    mixed = layer.add(gemm(config, "o_proj", hidden, node.n_q * node.d_h, "row", form(f"{attention}.o_proj")))
    layer.add(gemm(config, "gate_up_proj", 2 * width, hidden, "column", form(f"{mlp}.gate_up_proj")), [normed])
    expanded = layer.add(gemm(config, "down_proj", hidden, width, "row", form(f"{mlp}.down_proj")))
    layer.add(all_reduce("layer_out"), [mixed, expanded])
    return layer


FAMILY = Family(
    serves={
        COMMAND_R: Served(tie_word_embeddings=True),
        COMMAND_A: Served(tie_word_embeddings=True),
    },
    build=build,
)
