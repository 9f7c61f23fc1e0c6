"""The numbers a DeepSeek V4.1 is made from, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from rulespack.derive.config import Config
from rulespack.derive.grouped_latent import RATIOS, GroupedLatent, read_grouped_latent, read_ratios

#: One stored entry in bytes: the V4 record (448 FP8 and 64 BF16 values, 7 scales, 1 of padding), the V4.1 MXFP8 one
#: (512 FP8 values, 16 scales) and the NVFP4 one of a compressed cache.
RECORD: Final = 584
RECORD_10: Final = 528
NVFP4_RECORD: Final = 288
#: What a page is padded to: the decode kernel's stride.
ALIGNMENT: Final = 576
ALIGNMENT_10: Final = 512
#: Tokens in a page of a window cache, whatever the engine's block size.
WINDOW_BLOCK: Final = 32
#: Rows of the compressor's ring for up to six drafted tokens.
RING_ROWS: Final = 8
#: Values of an Engram row that share one scale byte.
ENGRAM_BLOCK: Final = 32


class Shape(GroupedLatent, frozen=True, kw_only=True):
    """Widths and counts, and which layer owns what.

    ``ratios`` has one compression ratio for each layer, 0 for windows only. ``engrams`` maps a layer to the rows of its
    table.
    """

    ratios: tuple[int, ...]
    kv_sources: frozenset[int]
    index_sources: frozenset[int]
    candidate_source: int
    engrams: Mapping[int, int]
    engram_heads: int
    engram_width: int
    draft_layers: int
    draft_tokens: int
    draft_targets: int
    draft_experts: int
    draft_top_k: int
    markov_rank: int


def read_shape(config: Config) -> Shape:
    """Read the text configuration. Raises InvalidConfig, naming the key, where it does not hang together."""
    text = config.text
    index_sources = frozenset(text.integers("index_source_layer_ids"))
    kv_sources = frozenset(text.integers("kv_source_layer_ids"))
    engram_grams = text.integer("engram_max_ngram_size", minimum=2) - 1
    return Shape(
        **msgspec.structs.asdict(read_grouped_latent(config)),
        ratios=_ratios(config, kv_sources, index_sources),
        kv_sources=kv_sources,
        index_sources=index_sources,
        candidate_source=text.integer("candidate_source_layer_id", minimum=-1, default=-1),
        engrams=_engrams(config),
        engram_heads=engram_grams * text.integer("engram_n_heads"),
        engram_width=text.integer("engram_head_dim"),
        draft_layers=text.integer("num_nextn_predict_layers"),
        draft_tokens=text.integer("dspark_block_size"),
        draft_targets=len(text.integers("dspark_target_layer_ids")),
        draft_experts=text.integer("dspark_n_routed_experts"),
        draft_top_k=text.integer("dspark_num_experts_per_tok"),
        markov_rank=text.integer("dspark_markov_rank"),
    )


def _ratios(config: Config, kv_sources: frozenset[int], index_sources: frozenset[int]) -> tuple[int, ...]:
    """One ratio for each target layer; the drafter's layers, listed after them, have windows only."""
    text, key = config.text, RATIOS
    stated = read_ratios(config)
    if any(stated[config.layers :]):
        text.refuse(key, "compresses a layer after the last; the drafter's layers have windows only")
    ratios = stated[: config.layers]
    owner: int | None = None
    for layer, ratio in enumerate(ratios):
        if ratio not in (0, 1, 2):
            text.refuse(key, f"entry {layer} is {ratio}; the engine knows 0, 1 and 2")
        if layer in kv_sources:
            owner = layer
            if layer not in index_sources:
                text.refuse("index_source_layer_ids", f"leaves out {layer}, which owns a compressed cache")
        if layer in kv_sources | index_sources and not ratio:
            text.refuse(key, f"entry {layer} is 0, and the layer is listed as a source")
        if ratio and owner is None:
            text.refuse("kv_source_layer_ids", f"has no layer at or before {layer}, which reads a compressed cache")
        if ratio and owner is not None and ratios[owner] != ratio:
            text.refuse(key, f"entry {layer} is {ratio}, and layer {owner}, whose cache it reads, has {ratios[owner]}")
    for key, sources in (("kv_source_layer_ids", kv_sources), ("index_source_layer_ids", index_sources)):
        if sources and not 0 <= min(sources) <= max(sources) < config.layers:
            text.refuse(key, f"names a layer that is not one of the {config.layers}")
    return ratios


def _engrams(config: Config) -> dict[int, int]:
    text = config.text
    layers = text.integers("engram_layer_ids")
    rows = text.integers("engram_num_embeddings")
    if len(layers) != len(rows):
        text.refuse("engram_num_embeddings", f"lists {len(rows)} tables for {len(layers)} layers; list one for each")
    if any(not 0 <= layer < config.layers for layer in layers):
        text.refuse("engram_layer_ids", f"names a layer that is not one of the {config.layers}")
    return dict(zip(layers, rows, strict=True))
