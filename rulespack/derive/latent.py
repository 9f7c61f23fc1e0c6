"""Latent attention as several families have it: projections, one latent vector for each token, sparse selection.

Source: 0.31.0, model_executor/models/deepseek_v2.py (dense and the indexer's cache), models/deepseek_v32/attention.py
(sparse), model_executor/layers/attention/mla_attention.py (the records of a sparse cache).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from rulespack.derive.blocks import all_reduce, gemm, norm_of
from rulespack.derive.config import Config
from rulespack.derive.layers import Layer
from rulespack.graph.model import GEMM, Attention, Cache, Context, Elementwise
from rulespack.graph.vocabulary import DTYPE_BITS

FP32: Final = 4
#: Values of an index key that share one FP32 scale (deepseek_v2.py, the indexer).
INDEX_BLOCK: Final = 128
#: The packed records of a latent of 512: FP8 values, a scale for each 128, room for a BF16 rotary part of 64; and the
#: NVFP4 one of 0.31.0 (mla_attention.py, MLAAttention.get_kv_cache_spec).
PACKED_RANK: Final = 512
PACKED_RECORDS: Final[Mapping[str, int]] = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}


class Gate(msgspec.Struct, frozen=True):
    """A projection of the layer's input that the heads' outputs are multiplied with before the output projection.

    ``width`` is one value for each head, or one for each of its values; ``tp`` how the projection divides.
    """

    module: str
    width: int
    tp: str


class Latent(msgspec.Struct, frozen=True, kw_only=True):
    """The widths of one latent attention: ``rank`` and ``rope`` are cached; ``query_rank`` None projects at once.

    ``sinks``: each head has a learned sink logit.
    """

    heads: int
    rank: int
    rope: int
    nope: int
    value: int
    query_rank: int | None
    sinks: bool = False
    gate: Gate | None = None


class Indexer(msgspec.Struct, frozen=True, kw_only=True):
    """What scores the context for a sparse layer: its query heads, their width, and how many tokens it selects."""

    heads: int
    width: int
    topk: int


#: What adds an indexer to a layer and returns where its selection is: layer, configuration, module, indexer, latent,
#: and the indices of the layer's normed input and of its normed low-rank query.
Scores: TypeAlias = Callable[[Layer, Config, str, Indexer, Latent, int, int], int]


def read_latent(config: Config, prefix: str = "", heads: int | None = None) -> Latent:
    """The widths as DeepSeek names them, ``prefix`` before each key; ``heads`` where they are not the model's."""
    text = config.text
    return Latent(
        heads=heads or config.heads,
        rank=text.integer(f"{prefix}kv_lora_rank"),
        rope=text.integer(f"{prefix}qk_rope_head_dim", minimum=0),
        nope=text.integer(f"{prefix}qk_nope_head_dim"),
        value=text.integer(f"{prefix}v_head_dim"),
        query_rank=text.optional_integer(f"{prefix}q_lora_rank"),
    )


def read_indexer(config: Config) -> Indexer:
    """The indexer as DeepSeek V3.2 names it. Raises InvalidConfig for a width its cache record is not known for."""
    text = config.text
    width = text.integer("index_head_dim")
    if width % INDEX_BLOCK:
        text.refuse("index_head_dim", f"is {width}; an index key holds whole blocks of {INDEX_BLOCK} values")
    return Indexer(heads=text.integer("index_n_heads"), width=width, topk=text.integer("index_topk"))


def latent_attention(layer: Layer, config: Config, module: str, shape: Latent, node: Attention | None = None) -> None:
    """Latent projections, attention over one latent vector for each token, output projection and its reduction.

    ``node`` is the attention where it is not the plain one over the whole context.
    """
    entry = layer.last
    query, latent, _ = latent_projections(layer, config, module, shape)
    layer.add(norm_of("kv_a_norm", shape.rank, config), [latent])
    expanded = layer.add(_kv_b_proj(config, module, shape))
    layer.add(node or latent_node(shape, "mla"), [query, expanded])
    output_projection(layer, config, module, shape, entry)


def sparse_attention(
    layer: Layer,
    config: Config,
    module: str,
    shape: Latent,
    topk: int,
    indexer: Indexer | None,
    cache: Cache | None = None,
    scores: Scores | None = None,
) -> None:
    """Latent attention over the ``topk`` tokens an indexer selected: this layer's own, or an earlier layer's.

    ``scores`` adds the indexer where it is not DeepSeek's, ``cache`` is the latent cache where it is not the plain one.
    The key and value halves of ``kv_b_proj`` are folded into the queries and the output, so it runs once for each
    query and never over the context.
    """
    entry = layer.last
    query, latent, low = latent_projections(layer, config, module, shape)
    width = shape.rank + shape.rope
    # Normed, rotated and written in one launch, which reads and writes the latent once.
    store = Elementwise(
        role="kv_norm_rope_store", tp="replicated", bytes_per_token=2 * width * _element(config), writes_cache="kv"
    )
    before = [layer.add(store, [latent])]
    if indexer is not None:
        add = scores or index_scores
        before.append(add(layer, config, f"{module}.indexer", indexer, shape, entry, low))
    before.append(layer.add(_kv_b_proj(config, module, shape), [query]))
    kept = cache or Cache(
        name="kv",
        kind="kv",
        owned=True,
        bytes_per_entry=width * _element(config),
        bytes_by_cache_dtype=latent_records(shape),
    )
    layer.add(latent_node(shape, "sparse_mla", index_topk=topk, caches=(kept,)), before)
    output_projection(layer, config, module, shape, entry)


def latent_projections(layer: Layer, config: Config, module: str, shape: Latent) -> tuple[int, int, int]:
    """Query and latent projections: the indices of the queries, of the latent, and of what the queries come from."""
    hidden, form = config.hidden_size, config.weights.of_linear
    entry = layer.last
    queries = shape.heads * (shape.nope + shape.rope)
    width = shape.rank + shape.rope
    if shape.query_rank is None:
        query = layer.add(gemm(config, "q_proj", queries, hidden, "column", form(f"{module}.q_proj")))
        name = "kv_a_proj_with_mqa"
        latent = layer.add(gemm(config, name, width, hidden, "replicated", form(f"{module}.{name}")), [entry])
        return query, latent, entry
    name = "fused_qkv_a_proj"
    fused = gemm(config, name, shape.query_rank + width, hidden, "replicated", form(f"{module}.{name}"))
    latent = layer.add(fused)
    low = layer.add(norm_of("q_a_norm", shape.query_rank, config))
    query = layer.add(gemm(config, "q_b_proj", queries, shape.query_rank, "column", form(f"{module}.q_b_proj")))
    return query, latent, low


def latent_node(
    shape: Latent,
    kind: str,
    window: int | None = None,
    index_topk: int | None = None,
    caches: tuple[Cache, ...] | None = None,
) -> Attention:
    """The attention itself, in the engine's terms: all heads read one latent and its rotary part."""
    return Attention(
        kind=kind,
        n_q=shape.heads,
        n_kv=1,
        d_h=shape.rank + shape.rope,
        kv_lora_rank=shape.rank,
        qk_rope_head_dim=shape.rope,
        qk_nope_head_dim=shape.nope,
        window=window,
        index_topk=index_topk,
        caches=caches,
        sinks=shape.sinks,
    )


def latent_records(shape: Latent) -> dict[str, int]:
    """Bytes of one cached latent under the cache dtypes whose record is not the model's own dtype."""
    width = shape.rank + shape.rope
    plain = {"fp8": width, "fp8_e4m3": width}
    return {**PACKED_RECORDS, **plain} if shape.rank == PACKED_RANK else plain


def output_projection(layer: Layer, config: Config, module: str, shape: Latent, entry: int) -> None:
    """The gate where there is one, the output projection and the sum after it. ``entry``: the layer's normed input."""
    form = config.weights.of_linear
    width = shape.heads * shape.value
    gate = shape.gate
    if gate is not None:
        attended, stored = layer.last, form(f"{module}.{gate.module}")
        projected = layer.add(gemm(config, "attn_gate_proj", gate.width, config.hidden_size, gate.tp, stored), [entry])
        moved = (2 * width + gate.width) * _element(config)
        layer.add(Elementwise(role="attn_gate", bytes_per_token=moved), [attended, projected])
    layer.add(gemm(config, "o_proj", config.hidden_size, width, "row", form(f"{module}.o_proj")))
    layer.add(all_reduce("attn_out"))


def index_record(width: int) -> int:
    """Bytes of one index key: FP8 values and an FP32 scale for each block of them."""
    return width + width // INDEX_BLOCK * FP32


def index_scores(
    layer: Layer, config: Config, module: str, indexer: Indexer, shape: Latent, entry: int, low: int
) -> int:
    """Keys of the new tokens, scores of this layer's index queries over the context, and the selection.

    ``entry`` is the layer's normed input and ``low`` the normed low-rank query. Keys and the heads' weights come from
    one multiply in the model's own dtype, whatever the checkpoint's format.
    """
    heads, width = indexer.heads, indexer.width
    plain, element = config.weights.plain, _element(config)
    role = "index_wk_weights_proj"
    keys = layer.add(gemm(config, role, width + heads, config.hidden_size, "replicated", plain), [entry])
    store = Elementwise(
        role="index_k_norm_rope_store", tp="replicated", bytes_per_token=width * element, writes_cache="index"
    )
    stored = layer.add(store, [keys])
    form = config.weights.of_linear(f"{module}.wq_b")
    rank = shape.query_rank or config.hidden_size
    queries = layer.add(gemm(config, "index_wq_b", heads * width, rank, "replicated", form), [low])
    # Queries in the model's dtype in, FP8 queries and one FP32 weight a head out.
    quantized = heads * width * (element + 1) + heads * FP32
    rotated = Elementwise(role="index_q_rope_quant", tp="replicated", bytes_per_token=quantized)
    rotated_at = layer.add(rotated, [keys, queries])
    cache = Cache(name="index", kind="index", owned=True, bytes_per_entry=index_record(width))
    scores = Attention(
        role="block_index_scores",
        kind="sparse_mla",
        n_q=heads,
        n_kv=1,
        d_h=width,
        index_topk=indexer.topk,
        tp="replicated",
        caches=(cache,),
    )
    layer.add(scores, [stored, rotated_at])
    scored = Context(bytes_per_entry=FP32, per="query_token")
    return layer.add(Elementwise(role="index_topk", tp="replicated", context=scored))


def _kv_b_proj(config: Config, module: str, shape: Latent) -> GEMM:
    width = shape.heads * (shape.nope + shape.value)
    return gemm(config, "kv_b_proj", width, shape.rank, "column", config.weights.of_linear(f"{module}.kv_b_proj"))


def _element(config: Config) -> int:
    return DTYPE_BITS[config.dtype] // 8
