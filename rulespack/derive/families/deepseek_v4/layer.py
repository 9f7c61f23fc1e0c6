"""A whole DeepSeek V4 layer: hyper-connections, attention, experts; and the nodes after the last one."""

from __future__ import annotations

from typing import Final

from rulespack.derive.blocks import MoE, experts, gemm, padded_vocab
from rulespack.derive.config import Config
from rulespack.derive.families.deepseek_v4.attention import attention_half
from rulespack.derive.families.deepseek_v4.shape import Shape
from rulespack.derive.grouped_latent import BF16, SP, UNLESS_SP
from rulespack.derive.hyper import hyper_connection, streams_added, streams_folded
from rulespack.derive.layers import Layer
from rulespack.derive.weights import Format
from rulespack.graph.model import AllGather, AnyNode, Elementwise, Gather

SHARDED: Final = "token_sharded"
INT32: Final = 4


def target_layer(config: Config, shape: Shape, index: int, top_k: int) -> Layer:
    """Layer ``index`` of the target."""
    ratio = shape.ratios[index]
    label = f"c{ratio}" if ratio else "swa"
    layer = Layer(f"{label}_hash" if index < shape.hashed else label)
    whole_layer(layer, config, shape, index, top_k, ratio, shape.window)
    return layer


def whole_layer(layer: Layer, config: Config, shape: Shape, index: int, top_k: int, ratio: int, window: int) -> None:
    """Both halves, each behind its hyper-connection. ``window``: tokens a query reads, its own among them."""
    hyper_connection(layer, config, shape.streams, "attn", split=SHARDED)
    attention_half(layer, config, shape, ratio, f"layers.{index}.attn", window)
    summed, scattered = layer.last - 1, layer.last
    hyper_connection(layer, config, shape.streams, "ffn", [summed, scattered], SHARDED)
    if index < shape.hashed:
        # Which experts a token goes to is looked up; the router still weighs them.
        layer.add(_hash_table(config, top_k))
    width = config.text.integer("moe_intermediate_size")
    moe = MoE(
        module=f"layers.{index}.ffn",
        count=config.text.integer("n_routed_experts"),
        top_k=top_k,
        width=width,
        shared_width=width * (config.text.optional_integer("n_shared_experts", minimum=0) or 0),
        reduce=UNLESS_SP,
        split=SHARDED,
    )
    experts(layer, config, moe)


def _hash_table(config: Config, top_k: int) -> Gather:
    row = top_k * INT32
    return Gather(
        role="hash_expert_ids", rows=config.vocab_size, row_bytes=row, rows_per_token=1, out_bytes_per_token=row
    )


def head(config: Config, shape: Shape) -> tuple[AnyNode, ...]:
    """What runs after the stack: streams weighed in FP32 and made one. Tokens split among ranks are gathered."""
    n, k, streams = padded_vocab(config), config.hidden_size, shape.streams
    return (
        streams_added(config, streams, split=SHARDED),
        gemm(config, "hc_head_fn", streams, streams * k, "replicated", Format("fp32"), SHARDED),
        streams_folded(config, streams, split=SHARDED),
        Elementwise(role="final_norm", under_sequence_parallel=SHARDED),
        AllGather(role="hidden_out", emit=SP),
        gemm(config, "lm_head", n, k, "column", config.weights.plain),
    )


def draft_streams_folded(config: Config, shape: Shape, prefix: str) -> tuple[AnyNode, ...]:
    """A draft's last half added to its streams, which are gathered where ranks split them, weighed and made one."""
    streams, width = shape.streams, shape.streams * config.hidden_size
    return (
        streams_added(config, streams, prefix, SHARDED),
        AllGather(role=f"{prefix}hidden_out", emit=SP, bytes_per_token=width * BF16),
        gemm(config, f"{prefix}hc_head_fn", streams, width, "replicated", Format("fp32")),
        streams_folded(config, streams, prefix),
    )
