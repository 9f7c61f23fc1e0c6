"""The attention half of a DeepSeek V4.1 layer: projections, cache stores, index scores, sparse attention, output."""

from __future__ import annotations

from rulespack.derive.blocks import gemm
from rulespack.derive.config import Config
from rulespack.derive.families.deepseek_v41.shape import ALIGNMENT, RECORD, RING_ROWS, WINDOW_BLOCK, Shape
from rulespack.derive.grouped_latent import BF16, FP32, grouped_latent_entry, grouped_output
from rulespack.derive.layers import Layer
from rulespack.derive.weights import Format
from rulespack.graph.model import Attention, Cache, Context, Elementwise


def attention_half(layer: Layer, config: Config, shape: Shape, index: int, module: str, window: int) -> None:
    """From the gathered stream to the reduced output of layer ``index``; ``window`` is what its queries read."""
    ratio = shape.ratios[index] if index < len(shape.ratios) else 0
    source = index in shape.kv_sources
    width = shape.width
    entry, queries, stored = grouped_latent_entry(layer, config, shape, module)
    before = [stored]
    latent = _compressor(layer, config, shape, ratio, entry) if source else None
    if latent is not None:
        stored = layer.add(
            Elementwise(
                role="compressed_rope_store",
                tp="replicated",
                bytes_per_token=width * BF16,
                per_tokens=_every(ratio),
                writes_cache="compressed",
            ),
            [latent],
        )
        before.append(stored)
    if index in shape.index_sources:
        before.append(_indexer(layer, config, shape, index, module, entry, queries, latent))
    if ratio:
        # Prefill reads the whole compressed stream back as BF16 once a step, whoever owns it.
        gather = Context(reads_cache="compressed", bytes_per_entry=width * BF16, per="request", phase="prefill")
        stores = before[1:2] if source else before[:1]
        before.append(layer.add(Elementwise(role="prefill_dequant_gather", context=gather), stores))
    layer.add(_sparse_attention(config, shape, ratio, source, window), before)
    unrotated = Elementwise(role="o_inverse_rope", bytes_per_token=2 * config.heads * width * BF16)
    # MXFP8 is a Blackwell multiply: on capability 9 the weight is kept in BF16 beside its scales.
    resident = Format("bf16", config.weights.linear.scale)
    grouped_output(layer, config, shape, module, unrotated, resident)


def _every(ratio: int) -> int | None:
    return ratio if ratio > 1 else None


def _sparse_attention(config: Config, shape: Shape, ratio: int, source: bool, window: int) -> Attention:
    caches = [
        Cache(
            name="swa",
            kind="window",
            owned=True,
            bytes_per_entry=RECORD,
            window=shape.window,
            block_size=WINDOW_BLOCK,
            page_alignment=ALIGNMENT,
        )
    ]
    if ratio:
        alignment = ALIGNMENT if source else None
        caches.append(_entry("compressed", "kv", source, RECORD, ratio, alignment))
    if source and ratio > 1:
        row = 2 * shape.width * FP32
        caches.append(Cache(name="compressor_ring", kind="state", owned=True, bytes_per_entry=row, entries=RING_ROWS))
    return Attention(
        kind="sparse_mla",
        n_q=config.heads,
        n_kv=1,
        d_h=shape.width,
        qk_rope_head_dim=shape.rope,
        window=window,
        index_topk=shape.index_topk if ratio else None,
        compress_ratio=ratio or None,
        caches=tuple(caches),
        sinks=True,
    )


def _entry(name: str, kind: str, owned: bool, size: int, ratio: int, alignment: int | None) -> Cache:
    return Cache(
        name=name,
        kind=kind,
        owned=owned,
        bytes_per_entry=size,
        tokens_per_entry=ratio,
        page_alignment=alignment,
    )


def _compressor(layer: Layer, config: Config, shape: Shape, ratio: int, entry: int) -> int:
    """Key-value and gate projection, then pooling over ``ratio`` tokens; ratio 1 has neither gate nor ring."""
    width = shape.width * (2 if ratio > 1 else 1)
    name = "compressor_fused_wkv_wgate"
    layer.add(gemm(config, name, width, config.hidden_size, "replicated", config.weights.plain), [entry])
    # Reads the FP32 projection and, once a group, the group's earlier rows; writes one latent a group.
    earlier = (ratio - 1) * width * FP32 // ratio
    return layer.add(
        Elementwise(
            role="compressor_pool",
            tp="replicated",
            bytes_per_token=width * FP32 + earlier + shape.width * BF16 // ratio,
            writes_cache="compressor_ring" if ratio > 1 else None,
        )
    )


def _indexer(
    layer: Layer,
    config: Config,
    shape: Shape,
    index: int,
    module: str,
    entry: int,
    queries: int,
    latent: int | None,
) -> int:
    """Score the context with this layer's own queries and select entries; a cache owner also writes the keys."""
    ratio = shape.ratios[index]
    heads, width = shape.index_heads, shape.index_width
    plain = config.weights.plain
    before = [layer.add(gemm(config, "index_weights_proj", heads, config.hidden_size, "replicated", plain), [entry])]
    if latent is not None:
        layer.add(gemm(config, "index_wk", width, shape.width, "replicated", plain), [latent])
        before.append(
            layer.add(
                Elementwise(
                    role="index_k_norm_rope_store",
                    tp="replicated",
                    bytes_per_token=width * BF16,
                    per_tokens=_every(ratio),
                    writes_cache="index",
                )
            )
        )
    form = config.weights.of_linear(f"{module}.indexer.wq_b")
    layer.add(gemm(config, "index_wq_b", heads * width, shape.query_rank, "replicated", form), [queries])
    # BF16 queries in, FP8 queries and one FP32 weight a head out.
    quantized = heads * width * (BF16 + 1) + heads * FP32
    rotated = Elementwise(role="index_q_rope_quant", tp="replicated", bytes_per_token=quantized)
    before.append(layer.add(rotated, [before[0], layer.last]))
    # An FP8 key and one FP32 scale for 128 of its values.
    record = width + width // 128 * FP32
    alignment = ALIGNMENT if latent is not None else None
    cache = _entry("index", "index", latent is not None, record, ratio, alignment)
    scores = Attention(
        role="block_index_scores",
        kind="sparse_mla",
        n_q=heads,
        n_kv=1,
        d_h=width,
        compress_ratio=ratio,
        tp="replicated",
        caches=(cache,),
    )
    layer.add(scores, before[1:])
    if 0 <= shape.candidate_source < index:
        # Masks the FP32 scores to the candidate blocks: a row as wide as max_model_len for each decoded token.
        mask = Context(bytes_per_entry=FP32, per="query_token", decode_extent="max_model_len")
        layer.add(Elementwise(role="candidate_mask", tp="replicated", context=mask))
    scored = Context(bytes_per_entry=FP32, per="query_token", tokens_per_entry=_every(ratio))
    if index == shape.candidate_source:
        layer.add(Elementwise(role="candidate_blocks", tp="replicated", context=scored))
    return layer.add(Elementwise(role="index_topk", tp="replicated", context=scored))
