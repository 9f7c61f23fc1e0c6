"""Recurrent layers as several families have them: Mamba-1, Mamba-2, gated delta net, short convolution.

Source: 0.31.0, model_executor/layers/mamba/{mamba_mixer,mamba_mixer2,short_conv}.py, gdn/qwen_gdn_linear_attn.py. The
causal convolution and the recurrence are one node; its filter, the decay and the skip parameters, which are a few
numbers for each channel, are not counted as weights. The gate after it, with its norm, reads and writes its own width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from rulespack.derive.blocks import all_reduce, gate, gemm, norm_of
from rulespack.derive.config import Config
from rulespack.derive.layers import Layer
from rulespack.graph.model import AllReduce, RecurrentUpdate
from rulespack.graph.vocabulary import DTYPE_BITS

#: The formats a configuration or a class states for a state, and ours.
STATE_DTYPES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class Mamba2(msgspec.Struct, frozen=True, kw_only=True):
    """A Mamba-2 mixer: ``heads`` share ``inner`` channels, ``groups`` share the ``state`` inputs and outputs.

    ``state_dtype`` is the recurrent state's format where it does not follow the model's own.
    """

    inner: int
    heads: int
    groups: int
    state: int
    kernel: int
    chunk: int | None = None
    state_dtype: str | None = None


class Mamba1(msgspec.Struct, frozen=True, kw_only=True):
    """A Mamba-1 mixer: ``inner`` channels of ``state`` states each, their time steps from ``rank`` values."""

    inner: int
    state: int
    kernel: int
    rank: int


class DeltaNet(msgspec.Struct, frozen=True, kw_only=True):
    """A gated delta net: value heads of ``value`` channels over ``key_heads`` keys of ``key`` channels."""

    key_heads: int
    value_heads: int
    key: int
    value: int
    kernel: int
    state_dtype: str | None = None


def read_delta_net(config: Config, state_dtype: str | None) -> DeltaNet:
    """A gated delta net as Qwen's configurations state it, with the defaults of their classes."""
    text = config.text
    return DeltaNet(
        key_heads=text.integer("linear_num_key_heads", default=16),
        value_heads=text.integer("linear_num_value_heads", default=32),
        key=text.integer("linear_key_head_dim", default=128),
        value=text.integer("linear_value_head_dim", default=128),
        kernel=text.integer("linear_conv_kernel_dim", default=4),
        state_dtype=state_dtype,
    )


def mamba2(layer: Layer, config: Config, module: str, shape: Mamba2, after: Sequence[int] | None = None) -> None:
    """Fused input projection, convolution and scan, gate, output projection and its reduction."""
    form, hidden = config.weights.of_linear, config.hidden_size
    width = 2 * shape.inner + 2 * shape.groups * shape.state + shape.heads
    layer.add(gemm(config, "in_proj", width, hidden, "column", form(f"{module}.in_proj")), after)
    update = RecurrentUpdate(
        recurrent_kind="mamba2",
        n_heads=shape.heads,
        state_size=shape.state,
        n_groups=shape.groups,
        conv_kernel=shape.kernel,
        intermediate_size=shape.inner,
        state_dtype=shape.state_dtype,
        chunk_size=shape.chunk,
    )
    layer.add(update)
    layer.add(gate("gated_norm", shape.inner, config))
    layer.add(gemm(config, "out_proj", hidden, shape.inner, "row", form(f"{module}.out_proj")))
    layer.add(all_reduce("mixer_out"))


def mamba1(layer: Layer, config: Config, shape: Mamba1, *, normed: bool) -> None:
    """Input projection, convolution, the scan's own inputs, scan, output projection. None of it is ever quantized.

    ``normed``: time steps and both state projections pass a norm each.
    """
    plain, hidden = config.weights.plain, config.hidden_size
    projected = shape.rank + 2 * shape.state
    layer.add(gemm(config, "in_proj", 2 * shape.inner, hidden, "column", plain))
    layer.add(gemm(config, "x_proj", projected, shape.inner, "row", plain))
    summed = projected * DTYPE_BITS[config.dtype] // 8
    layer.add(AllReduce(role="x_proj_out", emit="tensor_parallel", bytes_per_token=summed))
    if normed:
        layer.add(norm_of("dt_norm", shape.rank, config))
        layer.add(norm_of("b_norm", shape.state, config))
        layer.add(norm_of("c_norm", shape.state, config))
    layer.add(gemm(config, "dt_proj", shape.inner, shape.rank, "column", plain))
    update = RecurrentUpdate(
        recurrent_kind="mamba1",
        n_heads=shape.inner,
        state_size=shape.state,
        conv_kernel=shape.kernel,
        intermediate_size=shape.inner,
    )
    layer.add(update)
    layer.add(gemm(config, "out_proj", hidden, shape.inner, "row", plain))
    layer.add(all_reduce("mixer_out"))


def delta_net(layer: Layer, config: Config, module: str, shape: DeltaNet) -> None:
    """Projections of queries, keys, values and gate, those of the decay, the update, gated norm, output projection."""
    form, hidden = config.weights.of_linear, config.hidden_size
    keys, values = shape.key_heads * shape.key, shape.value_heads * shape.value
    entry = layer.last
    name = "in_proj_qkvz"
    wide = layer.add(gemm(config, name, 2 * keys + 2 * values, hidden, "column", form(f"{module}.{name}")))
    name = "in_proj_ba"
    narrow = gemm(config, name, 2 * shape.value_heads, hidden, "column", form(f"{module}.{name}"))
    decay = layer.add(narrow, [entry])
    update = RecurrentUpdate(
        recurrent_kind="gdn",
        n_heads=shape.value_heads,
        state_size=shape.key,
        conv_kernel=shape.kernel,
        state_dtype=shape.state_dtype,
        n_key_heads=shape.key_heads,
        head_dim=shape.value,
    )
    layer.add(update, [wide, decay])
    layer.add(gate("gated_norm", values, config))
    layer.add(gemm(config, "out_proj", hidden, values, "row", form(f"{module}.out_proj")))
    layer.add(all_reduce("mixer_out"))


def short_conv(layer: Layer, config: Config, module: str, channels: int, kernel: int) -> None:
    """Input projection to two gates and a value, the gated convolution, output projection."""
    form = config.weights.of_linear
    layer.add(gemm(config, "in_proj", 3 * channels, channels, "column", form(f"{module}.in_proj")))
    update = RecurrentUpdate(
        recurrent_kind="short_conv",
        n_heads=channels,
        state_size=kernel - 1,
        conv_kernel=kernel,
        intermediate_size=channels,
    )
    layer.add(update)
    layer.add(gemm(config, "out_proj", channels, channels, "row", form(f"{module}.out_proj")))
    layer.add(all_reduce("mixer_out"))


def state_dtype(config: Config, key: str, default: str | None) -> str | None:
    """The format ``key`` or the class gives the recurrent state; None where neither does: it follows the model's."""
    stated = config.text.optional_string(key) or default
    if stated is None:
        return None
    if stated not in STATE_DTYPES:
        config.text.refuse(key, f"{stated!r} is not a dtype of a state; known are {', '.join(STATE_DTYPES)}")
    return STATE_DTYPES[stated]


def time_step_rank(config: Config, key: str) -> int:
    """The low rank of Mamba-1's time steps: as stated, else a sixteenth of the width (``auto``), rounded up."""
    text = config.text
    if not text.states(key) or text.is_text(key):
        if text.string(key, default="auto") != "auto":
            text.refuse(key, "is a word other than auto; state a number or auto")
        return -(-config.hidden_size // 16)
    return text.integer(key)
