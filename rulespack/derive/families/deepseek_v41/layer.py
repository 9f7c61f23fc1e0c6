"""A whole DeepSeek V4.1 layer: Engram, hyper-connections, attention, experts; and the nodes after the last one."""

from __future__ import annotations

from typing import Final

from rulespack.derive.blocks import MoE, experts, gemm, padded_vocab, read_top_k
from rulespack.derive.config import Config
from rulespack.derive.families.deepseek_v41.attention import attention_half
from rulespack.derive.families.deepseek_v41.shape import ENGRAM_BLOCK, Shape
from rulespack.derive.grouped_latent import BF16, SP, UNLESS_SP
from rulespack.derive.hyper import hyper_connection, streams_added, streams_folded
from rulespack.derive.layers import Layer
from rulespack.graph.model import AllGather, AnyNode, Elementwise, Gather

SHARDED: Final = "token_sharded"


def target_layer(config: Config, shape: Shape, index: int) -> Layer:
    """Layer ``index`` of the target."""
    layer = Layer(_label(shape, index))
    if index in shape.engrams:
        _engram(layer, config, shape, shape.engrams[index], f"layers.{index}.engram")
    count = config.text.integer("n_routed_experts")
    whole_layer(layer, config, shape, index, count, read_top_k(config, "num_experts_per_tok", count), shape.window)
    return layer


def _label(shape: Shape, index: int) -> str:
    """``csa2_source`` and the like: the ratio, and whether the layer owns, scores or only reads."""
    ratio = shape.ratios[index]
    label = "swa"
    if ratio:
        own = "index" if index in shape.index_sources else "reader"
        label = f"csa{ratio}_{'source' if index in shape.kv_sources else own}"
    return f"{label}_engram" if index in shape.engrams else label


def whole_layer(layer: Layer, config: Config, shape: Shape, index: int, count: int, top_k: int, window: int) -> None:
    """Both halves, each behind its hyper-connection; ``count`` and ``top_k`` are the experts'."""
    hyper_connection(layer, config, shape.streams, "attn", split=SHARDED)
    attention_half(layer, config, shape, index, f"layers.{index}.attn", window)
    summed, scattered = layer.last - 1, layer.last
    hyper_connection(layer, config, shape.streams, "ffn", [summed, scattered], SHARDED)
    width = config.text.integer("moe_intermediate_size")
    moe = MoE(
        module=f"layers.{index}.ffn",
        count=count,
        top_k=top_k,
        width=width,
        shared_width=width * config.text.integer("n_shared_experts", minimum=0),
        reduce=UNLESS_SP,
        split=SHARDED,
    )
    experts(layer, config, moe)


def _engram(layer: Layer, config: Config, shape: Shape, rows: int, module: str) -> None:
    """The n-gram lookup of every token, its rows gathered, projected to keys and a value, and gated into the streams.

    Without sequence parallelism each rank looks up its heads and the rows are gathered along heads, the projection's
    columns are split and gathered too; with it the rows are gathered along tokens and the projection is whole.
    """
    hidden, streams = config.hidden_size, shape.streams
    fetched = shape.engram_heads * shape.engram_width * BF16
    table = Gather(
        role="engram_lookup",
        rows=rows,
        row_bytes=shape.engram_width + shape.engram_width // ENGRAM_BLOCK,
        rows_per_token=shape.engram_heads,
        out_bytes_per_token=fetched,
        residency="host",
        residency_control="engram_cpu_offload",
        shard="heads",
    )
    lookup = layer.add(table)
    by_heads = layer.add(AllGather(role="engram_rows", emit=UNLESS_SP, bytes_per_token=fetched), [lookup])
    by_tokens = layer.add(AllGather(role="engram_rows", emit=SP, bytes_per_token=fetched), [lookup])
    form = config.weights.of_linear(f"{module}.wkv")
    keys = (streams + 1) * hidden
    width = shape.engram_heads * shape.engram_width
    layer.add(gemm(config, "engram_wkv", keys, width, "column", form, SHARDED), [by_heads, by_tokens])
    layer.add(AllGather(role="engram_kv", emit=UNLESS_SP, bytes_per_token=keys * BF16))
    moved = (streams + streams + 1 + streams) * hidden * BF16
    layer.add(Elementwise(role="engram_gate", bytes_per_token=moved, under_sequence_parallel=SHARDED))


def collapsed(config: Config, shape: Shape, prefix: str = "") -> tuple[AnyNode, ...]:
    """The last half added to the streams, and the streams collapsed to one."""
    streams = shape.streams
    return streams_added(config, streams, prefix, SHARDED), streams_folded(config, streams, prefix, SHARDED)


def head(config: Config, shape: Shape) -> tuple[AnyNode, ...]:
    """What runs after the stack. Tokens that are split among ranks are gathered once they are normed."""
    n, k = padded_vocab(config), config.hidden_size
    return (
        *collapsed(config, shape),
        Elementwise(role="final_norm", under_sequence_parallel=SHARDED),
        AllGather(role="hidden_out", emit=SP),
        gemm(config, "lm_head", n, k, "column", config.weights.plain),
    )
