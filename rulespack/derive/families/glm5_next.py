"""GLM 5.3 Flash: Kimi delta attention, sparse latent attention with a pooled indexer, hyper-connections, experts.

Source: 0.31.0, models/glm5next/common/{model,mtp,attention,kda}.py; class defaults from
transformers_utils/configs/glm5_next.py. Attention of both kinds is kept in the model's own dtype whatever the
checkpoint's format.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from rulespack.derive.blocks import (
    MoE,
    all_reduce,
    dense_mlp,
    embedding,
    experts,
    gate,
    gemm,
    head,
    norm,
    per_layer,
    read_top_k,
)
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.hyper import hyper_connection, streams_added, streams_folded
from rulespack.derive.latent import FP32, Indexer, Latent, index_record, read_indexer, read_latent, sparse_attention
from rulespack.derive.layers import Layer
from rulespack.derive.predictor import module_count, predictor, predictor_layer
from rulespack.graph.model import AnyNode, Attention, Cache, Context, Elementwise, RecurrentUpdate
from rulespack.graph.vocabulary import DTYPE_BITS

LINEAR: Final = "linear_attention"
SPARSE: Final = "deepseek_sparse_attention"
#: What the class supplies: tokens of a pool, residual streams, and the delta attention's shape.
POOL: Final = 4
STREAMS: Final = 4
HEADS, HEAD_WIDTH, KERNEL = 64, 128, 4


def build(config: Config) -> Parts:
    """Each layer by two lists: whether it is recurrent, and whether it has experts."""
    text = config.text
    shape, indexer = read_latent(config), read_indexer(config)
    pool = text.integer("index_kpool", minimum=2, default=POOL)
    streams = _streams(config)
    plain = msgspec.structs.replace(config.weights, linear=config.weights.plain)
    unquantized = msgspec.structs.replace(config, weights=plain)
    mlps = _mlp_types(config)

    def add_layer(layer: Layer, index: int, kind: str, mlp: str, streams: int) -> Layer:
        _before(layer, config, streams, "attn")
        if kind == LINEAR:
            _delta_attention(layer, unquantized)
        else:
            scores = partial(_pooled_scores, pool)
            module = f"layers.{index}.self_attn"
            sparse_attention(layer, unquantized, module, shape, indexer.topk, indexer, scores=scores)
        _before(layer, config, streams, "ffn")
        _mlp(layer, config, f"layers.{index}.mlp", sparse=mlp == "sparse")
        return layer

    def label(kind: str, mlp: str) -> str:
        return f"{'kda' if kind == LINEAR else 'sparse'}_{'moe' if mlp == 'sparse' else 'dense'}"

    # A draft layer selects, has the last layer's kind of MLP, and keeps one residual stream.
    past = range(config.layers, config.layers + module_count(config, default=1))
    start = partial(predictor_layer, config, label(SPARSE, mlps[-1]))
    draft = predictor(config, [add_layer(start(), index, SPARSE, mlps[-1], 0) for index in past])
    return Parts(
        layers=[
            add_layer(Layer(label(kind, mlp)), index, kind, mlp, streams)
            for index, (kind, mlp) in enumerate(zip(_attention_types(config), mlps, strict=True))
        ],
        embedding=embedding(config),
        head=_head(config, streams),
        draft_kinds=draft.kinds,
        speculator=draft.speculator,
    )


def _streams(config: Config) -> int:
    """Residual streams, 0 for a plain residual."""
    text = config.text
    if not text.boolean("mhc", default=True):
        return 0
    return text.integer("hc_mult", default=text.integer("mhc_num_residual_streams", default=STREAMS))


def _attention_types(config: Config) -> tuple[str, ...]:
    """Every type that is not linear attention is the sparse one."""
    stated = config.text.optional_strings("layer_types")
    if stated is None:
        return (SPARSE,) * config.layers
    return per_layer(config, "layer_types", stated, (LINEAR, SPARSE))


def _mlp_types(config: Config) -> tuple[str, ...]:
    text = config.text
    stated = text.optional_strings("mlp_layer_types")
    if stated is None:
        first = text.optional_integer("first_k_dense_replace", minimum=0) or 0
        return tuple("dense" if index < first else "sparse" for index in range(config.layers))
    return per_layer(config, "mlp_layer_types", stated, ("dense", "sparse"))


def _before(layer: Layer, config: Config, streams: int, half: str) -> None:
    if streams:
        hyper_connection(layer, config, streams, half)
    else:
        layer.add(norm("input_norm" if half == "attn" else "post_attn_norm"))


def _delta_attention(layer: Layer, config: Config) -> None:
    """One projection of queries, keys, values, rates and both low ranks, the update, a gated norm, the output."""
    section = config.text.optional_section("linear_attn_config")
    heads, width, kernel = HEADS, HEAD_WIDTH, KERNEL
    if section is not None:
        heads = section.integer("num_heads", default=heads)
        width = section.integer("head_dim", default=width)
        kernel = section.integer("short_conv_kernel_size", default=kernel)
    plain, hidden, inner = config.weights.plain, config.hidden_size, heads * width
    fused = layer.add(gemm(config, "in_proj_qkvbfg_a", 3 * inner + heads + 2 * width, hidden, "column", plain))
    decay = layer.add(gemm(config, "f_b_proj", inner, width, "column", plain))
    node = RecurrentUpdate(
        recurrent_kind="kda",
        n_heads=heads,
        state_size=width,
        conv_kernel=kernel,
        state_dtype="fp32",
        bounded_gate=True,
    )
    updated = layer.add(node, [fused, decay])
    gated = layer.add(gemm(config, "g_b_proj", inner, width, "column", plain), [fused])
    layer.add(gate("gated_norm", inner, config), [updated, gated])
    layer.add(gemm(config, "o_proj", hidden, inner, "row", plain))
    layer.add(all_reduce("attn_out"))


def _pooled_scores(
    pool: int, layer: Layer, config: Config, module: str, indexer: Indexer, shape: Latent, entry: int, low: int
) -> int:
    """An indexer whose keys are pooled, ``pool`` tokens to an entry; the pool begun is kept whole beside them.

    Each token's key is weighed by a score of its own; a pool's entry is written when its last token is there.
    """
    heads, width = indexer.heads, indexer.width
    plain, element, hidden = config.weights.plain, DTYPE_BITS[config.dtype] // 8, config.hidden_size
    keys = layer.add(gemm(config, "index_wk_weights_proj", width + heads, hidden, "replicated", plain), [entry])
    weighed = layer.add(gemm(config, "index_pool_gate", width, hidden, "replicated", plain), [entry])
    row = 2 * width * element
    stash = Elementwise(role="index_k_norm_stash", tp="replicated", bytes_per_token=row, writes_cache="tail")
    layer.add(stash, [keys, weighed])
    pooled = Elementwise(
        role="index_pool_store", tp="replicated", bytes_per_token=pool * row, per_tokens=pool, writes_cache="index"
    )
    stored = layer.add(pooled)
    rank = shape.query_rank or hidden
    queries = layer.add(gemm(config, "index_wq_b", heads * width, rank, "replicated", plain), [low])
    # Queries in the model's dtype in, FP8 queries and one FP32 weight a head out.
    quantized = heads * width * (element + 1) + heads * FP32
    rotated = layer.add(Elementwise(role="index_q_quant", tp="replicated", bytes_per_token=quantized), [keys, queries])
    index = Cache(name="index", kind="index", owned=True, bytes_per_entry=index_record(width), tokens_per_entry=pool)
    tail = Cache(name="tail", kind="state", owned=True, bytes_per_entry=row, entries=pool)
    scores = Attention(
        role="block_index_scores",
        kind="sparse_mla",
        n_q=heads,
        n_kv=1,
        d_h=width,
        index_topk=indexer.topk // pool,
        compress_ratio=pool,
        tp="replicated",
        caches=(index, tail),
    )
    layer.add(scores, [stored, rotated])
    scored = Context(bytes_per_entry=FP32, per="query_token", tokens_per_entry=pool)
    return layer.add(Elementwise(role="index_topk", tp="replicated", context=scored))


def _mlp(layer: Layer, config: Config, module: str, *, sparse: bool) -> None:
    text = config.text
    if not sparse:
        dense_mlp(layer, config, module, text.integer("intermediate_size"))
        return
    count, width = text.integer("n_routed_experts"), text.integer("moe_intermediate_size")
    shared = text.optional_integer("n_shared_experts", minimum=0) or 0
    top_k = read_top_k(config, "num_experts_per_tok", count)
    experts(layer, config, MoE(module=module, count=count, top_k=top_k, width=width, shared_width=shared * width))


def _head(config: Config, streams: int) -> tuple[AnyNode, ...]:
    if not streams:
        return head(config)
    return (streams_added(config, streams), streams_folded(config, streams), *head(config))


FAMILY = Family(
    serves={"Glm5NextForCausalLM": Served(), "Glm5NextForConditionalGeneration": Served(multimodal=True)}, build=build
)
