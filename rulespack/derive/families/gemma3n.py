"""Gemma 3n: several residual streams, a low-rank residual beside attention, inputs for each layer, shared caches.

Source: 0.31.0, model_executor/models/gemma3n.py, gemma3n_mm.py; class defaults from transformers' Gemma3nTextConfig.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rulespack.derive.blocks import TENSOR_PARALLEL, all_reduce, dense_mlp, embedding, gemm, head, norm, per_layer
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layer_inputs import layer_input, layer_input_embedding
from rulespack.derive.layers import Layer
from rulespack.derive.shared_kv import first_reader, reading, shared_attention
from rulespack.graph.model import AllGather, AnyNode, Attention, Elementwise
from rulespack.graph.vocabulary import DTYPE_BITS

SLIDING, FULL = "sliding_attention", "full_attention"
PERIOD: Final = 5
WINDOW, SHARED, WIDTH = 512, 15, 16384
INPUT_WIDTH, INPUT_VOCABULARY = 256, 262144


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Residual ``streams``, the ``rank`` of the residual beside attention, values of a layer's own ``inputs``."""

    streams: int
    rank: int
    inputs: int


def build(config: Config) -> Parts:
    """Windows by layer type; the last layers read the caches of the last ones before them."""
    text = config.text
    shape = Shape(
        streams=text.integer("altup_num_inputs", default=4),
        rank=text.integer("laurel_rank", default=64),
        inputs=text.integer("hidden_size_per_layer_input", default=INPUT_WIDTH),
    )
    types = _types(config)
    first = first_reader(config, types, SHARED)
    window = text.integer("sliding_window", default=WINDOW)
    widths = _widths(config)
    layers = []
    for index, kind in enumerate(types):
        sliding = kind == SLIDING
        node = Attention(
            kind="swa" if sliding else "gqa",
            n_q=config.heads,
            n_kv=config.kv_heads,
            d_h=config.head_dim(),
            window=window if sliding else None,
        )
        owned = index < first
        label = "sliding" if sliding else "full"
        layer = Layer(label if owned else f"{label}_shared_kv")
        _layer(layer, config, shape, f"layers.{index}", reading(config, node, owned=owned), widths[index])
        layers.append(layer)
    return Parts(layers=layers, embedding=_embedding(config, shape), head=_head(config, shape))


def _types(config: Config) -> tuple[str, ...]:
    stated = config.text.optional_strings("layer_types")
    if stated is not None:
        return per_layer(config, "layer_types", stated, (SLIDING, FULL))
    return tuple(FULL if (index + 1) % PERIOD == 0 else SLIDING for index in range(config.layers))


def _widths(config: Config) -> tuple[int, ...]:
    """The inner width of each layer's MLP: one number for all, or one for each."""
    text, key = config.text, "intermediate_size"
    if not text.is_list(key):
        return (text.integer(key, default=WIDTH),) * config.layers
    stated = text.integers(key)
    if len(stated) != config.layers or min(stated) < 1:
        text.refuse(key, f"is a list that does not give each of {config.layers} layers a positive width")
    return stated


def _layer(layer: Layer, config: Config, shape: Shape, module: str, node: Attention, width: int) -> None:
    """Streams predicted from one another, attention and a low-rank residual on the first, MLP, streams corrected."""
    hidden = config.hidden_size
    form = config.weights.of_linear
    router = form(f"{module}.altup.modality_router")
    layer.add(norm("altup_router_norm"))
    layer.add(gemm(config, "altup_router", shape.streams, hidden, "replicated", router))
    _mixed(layer, config, shape, "prediction", shape.streams**2, module)
    normed = layer.add(norm("input_norm"))
    shared_attention(layer, config, f"{module}.self_attn", node)
    attended = layer.add(norm("post_attn_norm"))
    left, right = form(f"{module}.laurel.linear_left"), form(f"{module}.laurel.linear_right")
    layer.add(gemm(config, "laurel_left", shape.rank, hidden, "column", left), [normed])
    layer.add(gemm(config, "laurel_right", hidden, shape.rank, "row", right))
    layer.add(all_reduce("laurel_out"))
    beside = layer.add(norm("laurel_norm"))
    layer.add(norm("pre_mlp_norm"), [attended, beside])
    dense_mlp(layer, config, f"{module}.mlp", width)
    layer.add(norm("post_mlp_norm"))
    # The router runs again, with the weights above: a layer that repeats cannot state a second reading of them.
    layer.add(norm("altup_second_router_norm"))
    _mixed(layer, config, shape, "correction", shape.streams, module)
    layer_input(layer, config, module, shape.inputs)


def _mixed(layer: Layer, config: Config, shape: Shape, what: str, rows: int, module: str) -> None:
    """Coefficients of every stream from the router's few values, and the streams mixed by them."""
    form = config.weights.of_linear(f"{module}.altup.{what}_coefs")
    layer.add(gemm(config, f"altup_{what}_coefs", rows, shape.streams, "replicated", form))
    moved = 2 * shape.streams * config.hidden_size * DTYPE_BITS[config.dtype] // 8
    layer.add(Elementwise(role=f"altup_{what}", bytes_per_token=moved))


def _embedding(config: Config, shape: Shape) -> tuple[AnyNode, ...]:
    """Both tables, and the streams but the first projected from the embedding."""
    vocabulary = config.text.integer("vocab_size_per_layer_input", default=INPUT_VOCABULARY)
    inputs = layer_input_embedding(config, shape.inputs, vocabulary)
    return (*embedding(config), *inputs, *_projections(config, shape, "altup_projection"))


def _head(config: Config, shape: Shape) -> tuple[AnyNode, ...]:
    """The streams but the first projected back, their mean, and the usual head."""
    moved = (shape.streams + 1) * config.hidden_size * DTYPE_BITS[config.dtype] // 8
    mean = Elementwise(role="altup_mean", bytes_per_token=moved)
    return (*_projections(config, shape, "altup_unembed_projection"), mean, *head(config))


def _projections(config: Config, shape: Shape, role: str) -> list[AnyNode]:
    hidden, nodes = config.hidden_size, list[AnyNode]()
    for number in range(1, shape.streams):
        form = config.weights.of_linear(f"{role}s.{number - 1}")
        nodes.append(gemm(config, f"{role}_{number}", hidden, hidden, "column", form))
        nodes.append(AllGather(role=f"{role}_{number}", emit=TENSOR_PARALLEL))
    return nodes


FAMILY = Family(
    serves={
        "Gemma3nForCausalLM": Served(kv_heads=2, head_dim=256, tie_word_embeddings=True, max_positions=32768),
        "Gemma3nForConditionalGeneration": Served(
            kv_heads=2, head_dim=256, tie_word_embeddings=True, multimodal=True, max_positions=32768
        ),
    },
    build=build,
)
