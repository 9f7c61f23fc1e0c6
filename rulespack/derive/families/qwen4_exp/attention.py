"""Full attention of Qwen4-exp: over the tokens whose compressed keys score best, where the file has an indexer."""

from __future__ import annotations

import msgspec

from rulespack.derive.blocks import all_reduce, gate, gemm, projected_attention
from rulespack.derive.config import Config
from rulespack.derive.layers import Layer
from rulespack.graph.model import Attention, Cache, Context, Elementwise
from rulespack.graph.vocabulary import DTYPE_BITS

FP32 = 4
#: Three positions of 64 bits kept beside a raw key where positions have several axes.
POSITION_BYTES = 3 * 8


class Indexer(msgspec.Struct, frozen=True, kw_only=True):
    """What selects tokens: query heads and their width, tokens selected, and how many share a compressed key."""

    heads: int
    width: int
    budget: int
    ratio: int


def read_indexer(config: Config) -> Indexer | None:
    """The indexer, None where the file states none. Raises InvalidConfig where it does not hang together."""
    text = config.text
    if not text.has("indexer_n_heads"):
        return None
    if text.integer("indexer_kv_heads") != 1:
        text.refuse("indexer_kv_heads", "is not 1; the engine scores one key for each token")
    budget, ratio = text.integer("indexer_budget"), text.integer("indexer_compress_ratio")
    if budget % ratio:
        text.refuse("indexer_budget", f"is {budget}, which entries of {ratio} tokens do not divide")
    return Indexer(
        heads=text.integer("indexer_n_heads"), width=text.integer("indexer_head_dim"), budget=budget, ratio=ratio
    )


def full_attention(layer: Layer, config: Config, module: str, indexer: Indexer | None) -> None:
    """Projections, the indexer's beside them, attention, its gate, output projection and its reduction."""
    node = Attention(kind="gqa", n_q=config.heads, n_kv=config.kv_heads, d_h=config.head_dim())
    if indexer is None:
        projected_attention(layer, config, module, node, gated=True)
        return
    entry, form, hidden = layer.last, config.weights.of_linear, config.hidden_size
    width = (2 * node.n_q + 2 * node.n_kv) * node.d_h
    projected = layer.add(gemm(config, "qkv_proj", width, hidden, "column", form(f"{module}.qkv_proj")))
    selected = _scores(layer, config, f"{module}.indexer", indexer, entry)
    layer.add(node, [projected, selected])
    layer.add(gate("attn_gate", node.n_q * node.d_h, config))
    layer.add(gemm(config, "o_proj", hidden, node.n_q * node.d_h, "row", form(f"{module}.o_proj")))
    layer.add(all_reduce("attn_out"))


def _scores(layer: Layer, config: Config, module: str, indexer: Indexer, entry: int) -> int:
    """Keys kept raw until ``ratio`` tokens make one entry, queries scored against the entries, and the selection."""
    heads, width, ratio = indexer.heads, indexer.width, indexer.ratio
    element = DTYPE_BITS[config.dtype] // 8
    form = config.weights.of_linear(f"{module}.index_qk_proj")
    projected = gemm(config, "index_qk_proj", (heads + 1) * width, config.hidden_size, "replicated", form)
    layer.add(projected, [entry])
    moved = (2 * heads + 1) * width * element
    store = Elementwise(role="index_qk_norm_rope_store", tp="replicated", bytes_per_token=moved, writes_cache="raw_key")
    layer.add(store)
    raw = width * element + (POSITION_BYTES if _several_axes(config) else 0)
    pooled = Elementwise(
        role="index_pool_store", tp="replicated", bytes_per_token=ratio * raw, per_tokens=ratio, writes_cache="index"
    )
    layer.add(pooled)
    caches = (
        Cache(name="raw_key", kind="state", owned=True, bytes_per_entry=raw, entries=ratio),
        Cache(name="index", kind="index", owned=True, bytes_per_entry=width * element, tokens_per_entry=ratio),
    )
    scores = Attention(
        role="block_index_scores",
        kind="sparse_mla",
        n_q=heads,
        n_kv=1,
        d_h=width,
        index_topk=indexer.budget // ratio,
        compress_ratio=ratio,
        tp="replicated",
        caches=caches,
    )
    layer.add(scores)
    scored = Context(bytes_per_entry=FP32, per="query_token", tokens_per_entry=ratio)
    return layer.add(Elementwise(role="index_topk", tp="replicated", context=scored))


def _several_axes(config: Config) -> bool:
    """Whether positions have several axes: the rotary entry splits its width into sections."""
    for key in ("rope_parameters", "rope_scaling"):
        section = config.text.optional_section(key)
        if section is not None:
            return section.has("mrope_section")
    return False
