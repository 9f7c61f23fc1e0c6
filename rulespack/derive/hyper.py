"""Hyper-connections: a layer keeps several residual streams and mixes them before and after each half.

Source: 0.31.0, model_executor/kernels/mhc/tilelang.py, models/deepseek_v4/nvidia/model.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from rulespack.derive.blocks import gemm
from rulespack.derive.config import Config
from rulespack.derive.layers import Layer
from rulespack.derive.weights import Format
from rulespack.graph.model import Elementwise
from rulespack.graph.vocabulary import DTYPE_BITS


def hyper_connection(
    layer: Layer, config: Config, streams: int, half: str, after: Sequence[int] | None = None, split: str | None = None
) -> None:
    """Mixing coefficients from all streams in FP32, then the previous half added and this one's input collapsed.

    The norm before the half runs in the same launch. The first layer projects one broadcast stream instead.
    """
    hidden = config.hidden_size
    mixes = (2 + streams) * streams
    fn = gemm(config, f"hc_{half}_fn", mixes, streams * hidden, "replicated", Format("fp32"), split)
    layer.add(fn, after)
    moved = (1 + streams + streams + 1) * hidden * DTYPE_BITS[config.dtype] // 8
    layer.add(Elementwise(role=f"hc_{half}_mix", bytes_per_token=moved, under_sequence_parallel=split))


def streams_added(config: Config, streams: int, prefix: str = "", split: str | None = None) -> Elementwise:
    """After the last layer: its last half added to every stream."""
    moved = (1 + 2 * streams) * config.hidden_size * DTYPE_BITS[config.dtype] // 8
    return Elementwise(role=f"{prefix}hc_post", bytes_per_token=moved, under_sequence_parallel=split)


def streams_folded(config: Config, streams: int, prefix: str = "", split: str | None = None) -> Elementwise:
    """The streams made one."""
    moved = (streams + 1) * config.hidden_size * DTYPE_BITS[config.dtype] // 8
    return Elementwise(role=f"{prefix}hc_collapse", bytes_per_token=moved, under_sequence_parallel=split)
