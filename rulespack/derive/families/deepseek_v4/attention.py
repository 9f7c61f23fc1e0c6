"""The attention half of a DeepSeek V4 layer: projections, compressors, index scores, sparse attention, output."""

from __future__ import annotations

from rulespack.derive.blocks import gemm
from rulespack.derive.config import Config
from rulespack.derive.families.deepseek_v4.shape import (
    ALIGNMENT,
    COMPRESSIONS,
    INDEXED,
    PLAIN_ROWS,
    RECORD,
    WINDOW_BLOCK,
    Compression,
    Shape,
)
from rulespack.derive.grouped_latent import BF16, FP32, grouped_latent_entry, grouped_output
from rulespack.derive.latent import index_record
from rulespack.derive.layers import Layer
from rulespack.graph.model import Attention, Cache, Context, Elementwise


def attention_half(layer: Layer, config: Config, shape: Shape, ratio: int, module: str, window: int) -> None:
    """From the gathered stream to the reduced output of a layer that compresses ``ratio`` to one (0: windows only).

    ``window`` is how many tokens a query reads, its own among them.
    """
    width = shape.width
    entry, queries, stored = grouped_latent_entry(layer, config, shape, module)
    before = [stored]
    compression = COMPRESSIONS.get(ratio)
    if compression is not None:
        before.append(_compressor(layer, config, compression, width, "", "compressed", entry))
        if ratio == INDEXED:
            before.append(_indexer(layer, config, shape, compression, module, entry, queries))
        # Prefill reads the whole compressed stream back as BF16 once a step.
        gather = Context(reads_cache="compressed", bytes_per_entry=width * BF16, per="request", phase="prefill")
        before.append(layer.add(Elementwise(role="prefill_dequant_gather", context=gather), before[1:2]))
    layer.add(_sparse_attention(config, shape, compression, window), before)
    # BF16 in, FP8 out for the grouped multiply.
    unrotated = Elementwise(role="o_inverse_rope_quant", bytes_per_token=config.heads * width * (BF16 + 1))
    grouped_output(layer, config, shape, module, unrotated, config.weights.of_linear(f"{module}.wo_a"))


def _sparse_attention(config: Config, shape: Shape, compression: Compression | None, window: int) -> Attention:
    caches = [
        Cache(
            name="swa",
            kind="window",
            owned=True,
            bytes_per_entry=RECORD,
            bytes_by_cache_dtype=dict(PLAIN_ROWS),
            window=shape.window,
            block_size=WINDOW_BLOCK,
            page_alignment=ALIGNMENT,
        )
    ]
    if compression is not None:
        compressed = Cache(
            name="compressed",
            kind="kv",
            owned=True,
            bytes_per_entry=RECORD,
            bytes_by_cache_dtype=dict(PLAIN_ROWS),
            tokens_per_entry=compression.ratio,
            page_alignment=ALIGNMENT,
        )
        caches += [compressed, _state("compressor_state", compression, shape.width)]
    return Attention(
        kind="sparse_mla",
        n_q=config.heads,
        n_kv=1,
        d_h=shape.width,
        qk_rope_head_dim=shape.rope,
        window=window,
        index_topk=shape.index_topk if compression is not None and compression.ratio == INDEXED else None,
        compress_ratio=None if compression is None else compression.ratio,
        caches=tuple(caches),
        qk_nope_head_dim=shape.width - shape.rope,
        sinks=True,
    )


def _state(name: str, compression: Compression, width: int) -> Cache:
    """FP32 keys and gate scores of the tokens not pooled yet, for each of the overlapping groups."""
    return Cache(
        name=name,
        kind="state",
        owned=True,
        bytes_per_entry=_state_values(compression, width) * FP32,
        entries=compression.window,
        block_size=compression.block,
    )


def _state_values(compression: Compression, width: int) -> int:
    return 2 * compression.overlap * width


def _compressor(
    layer: Layer, config: Config, compression: Compression, width: int, prefix: str, cache: str, entry: int
) -> int:
    """Key and gate projection in FP32, kept a token at a time and pooled into one entry of ``cache`` each group."""
    values = _state_values(compression, width)
    role = f"{prefix}compressor_fused_wkv_wgate"
    layer.add(gemm(config, role, values, config.hidden_size, "replicated", config.weights.plain), [entry])
    layer.add(
        Elementwise(
            role=f"{prefix}compressor_state_store",
            tp="replicated",
            bytes_per_token=values * FP32,
            writes_cache=f"{prefix}compressor_state",
        )
    )
    return layer.add(
        Elementwise(
            role=f"{prefix}compressor_pool_store",
            tp="replicated",
            bytes_per_token=compression.window * values * FP32,
            per_tokens=compression.ratio,
            writes_cache=cache,
        )
    )


def _indexer(
    layer: Layer, config: Config, shape: Shape, compression: Compression, module: str, entry: int, queries: int
) -> int:
    """Keys pooled by a compressor of their own, scores of this layer's index queries over them, and the selection."""
    heads, width = shape.index_heads, shape.index_width
    plain = config.weights.plain
    weighed = layer.add(gemm(config, "index_weights_proj", heads, config.hidden_size, "replicated", plain), [entry])
    stored = _compressor(layer, config, compression, width, "index_", "index", entry)
    form = config.weights.of_linear(f"{module}.indexer.wq_b")
    projected = layer.add(gemm(config, "index_wq_b", heads * width, shape.query_rank, "replicated", form), [queries])
    # BF16 queries in, FP8 queries and one FP32 weight a head out.
    quantized = heads * width * (BF16 + 1) + heads * FP32
    rotated = Elementwise(role="index_q_rope_quant", tp="replicated", bytes_per_token=quantized)
    before = [stored, layer.add(rotated, [weighed, projected])]
    cache = Cache(
        name="index",
        kind="index",
        owned=True,
        bytes_per_entry=index_record(width),
        tokens_per_entry=compression.ratio,
        page_alignment=ALIGNMENT,
    )
    scores = Attention(
        role="block_index_scores",
        kind="sparse_mla",
        n_q=heads,
        n_kv=1,
        d_h=width,
        index_topk=shape.index_topk,
        compress_ratio=compression.ratio,
        tp="replicated",
        caches=(cache, _state("index_compressor_state", compression, width)),
    )
    layer.add(scores, before)
    scored = Context(bytes_per_entry=FP32, per="query_token", tokens_per_entry=compression.ratio)
    return layer.add(Elementwise(role="index_topk", tp="replicated", context=scored))
