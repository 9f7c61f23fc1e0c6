"""Attention over one packed latent vector a token, its output projected group by group: DeepSeek V4 and V4.1.

Source: 0.31.0, models/deepseek_v4/nvidia/model.py, models/deepseek_v41.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rulespack.derive.blocks import all_reduce, gemm
from rulespack.derive.config import Config
from rulespack.derive.layers import Layer
from rulespack.derive.weights import Format
from rulespack.graph.model import AllGather, Elementwise, ReduceScatter

SP: Final = "sequence_parallel"
UNLESS_SP: Final = "tensor_parallel_unless_sequence_parallel"
BF16: Final = 2
FP32: Final = 4

#: The head width the packed records and the compressors are made for.
HEAD_WIDTH: Final = 512
#: The key that lists how each layer compresses.
RATIOS: Final = "compress_ratios"


class GroupedLatent(msgspec.Struct, frozen=True, kw_only=True):
    """The widths both have: of a head, of its rotated part, of the low ranks queries and outputs go through.

    ``groups`` share the heads between them on the way out. ``window`` is the tokens of the window cache. ``streams`` is
    the number of residual streams the hyper-connections keep.
    """

    width: int
    rope: int
    query_rank: int
    output_rank: int
    groups: int
    window: int
    index_heads: int
    index_width: int
    index_topk: int
    streams: int


def read_grouped_latent(config: Config) -> GroupedLatent:
    """Read the configuration. Raises InvalidConfig, naming the key, where it does not hang together."""
    text = config.text
    width = config.head_dim()
    if width != HEAD_WIDTH:
        text.refuse("head_dim", f"is {width}; the cache records are known for a width of {HEAD_WIDTH}")
    if text.integer("num_key_value_heads") != 1:
        text.refuse("num_key_value_heads", "is not 1; a latent cache has one head")
    groups = text.integer("o_groups")
    if config.heads % groups:
        text.refuse("o_groups", f"{groups} groups do not divide {config.heads} heads")
    return GroupedLatent(
        width=width,
        rope=text.integer("qk_rope_head_dim"),
        query_rank=text.integer("q_lora_rank"),
        output_rank=text.integer("o_lora_rank"),
        groups=groups,
        window=text.integer("sliding_window"),
        index_heads=text.integer("index_n_heads"),
        index_width=text.integer("index_head_dim"),
        index_topk=text.integer("index_topk"),
        streams=text.integer("hc_mult"),
    )


def read_ratios(config: Config) -> tuple[int, ...]:
    """What is listed as compression ratios: one for each target layer, then those of draft layers."""
    stated = config.text.integers(RATIOS)
    if len(stated) < config.layers:
        missing = f"lists {len(stated)} layers and num_hidden_layers is {config.layers}; list each layer"
        config.text.refuse(RATIOS, missing)
    return stated


def grouped_latent_entry(layer: Layer, config: Config, shape: GroupedLatent, module: str) -> tuple[int, int, int]:
    """The gathered stream, the normed low-rank queries, and the rotated queries beside the stored window record."""
    width, hidden = shape.width, config.hidden_size
    form = config.weights.of_linear
    low = shape.query_rank + width
    entry = layer.add(AllGather(role="attn_in", emit=SP))
    layer.add(gemm(config, "fused_wqa_wkv", low, hidden, "replicated", form(f"{module}.fused_wqa_wkv")))
    queries = layer.add(Elementwise(role="q_kv_norm", tp="replicated", bytes_per_token=2 * low * BF16))
    layer.add(gemm(config, "wq_b", config.heads * width, shape.query_rank, "column", form(f"{module}.wq_b")))
    # Rotates the queries in place and writes the token's record of the window cache.
    rotated = (2 * config.heads * width + width) * BF16
    stored = layer.add(Elementwise(role="q_rope_kv_store", bytes_per_token=rotated, writes_cache="swa"))
    return entry, queries, stored


def grouped_output(
    layer: Layer, config: Config, shape: GroupedLatent, module: str, unrotated: Elementwise, grouped: Format
) -> None:
    """Inverse rotation, the grouped low-rank projection in the format it is kept in, the output projection, its sum."""
    rank = shape.groups * shape.output_rank
    layer.add(unrotated)
    layer.add(gemm(config, "wo_a", rank, config.heads * shape.width // shape.groups, "column", grouped))
    form = config.weights.of_linear(f"{module}.wo_b")
    projected = layer.add(gemm(config, "wo_b", config.hidden_size, rank, "row", form))
    layer.add(all_reduce("attn_out", UNLESS_SP), [projected])
    layer.add(ReduceScatter(role="attn_out", emit=SP), [projected])
