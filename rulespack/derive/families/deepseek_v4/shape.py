"""The numbers a DeepSeek V4 is made from, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from rulespack.derive.config import Config

#: The packed record in bytes: 448 FP8 and 64 BF16 values, 7 scales and 1 of padding.
RECORD: Final = 584
#: Entries under the cache dtypes of backends that keep plain rows.
PLAIN_ROWS: Final[Mapping[str, int]] = {"bfloat16": 1024, "fp8": 512, "fp8_e4m3": 512}
#: What a page of packed records is padded to: the decode kernel's stride.
ALIGNMENT: Final = 576
#: Tokens in a page of a window cache, whatever the engine's block size.
WINDOW_BLOCK: Final = 64
#: The width of a head that records, compressor and indexer are made for (compressor.py, DeepseekCompressor).
HEAD_WIDTH: Final = 512
INDEX_WIDTH: Final = 128


class Compression(msgspec.Struct, frozen=True):
    """How ``ratio`` tokens become one entry (compressor.py, CompressorStateCache).

    ``overlap`` groups are pooled together, so that their partial states, ``window`` tokens of them, are kept;
    ``block`` is the tokens of one page of states.
    """

    ratio: int
    overlap: int
    block: int

    @property
    def window(self) -> int:
        """Tokens whose partial states are kept."""
        return self.overlap * self.ratio


COMPRESSIONS: Final = {4: Compression(4, 2, 4), 128: Compression(128, 1, 8)}
#: Layers of a DSpark drafter where the configuration does not say (nvidia/dspark.py, DSparkDeepseekV4Model).
SPARK_LAYERS: Final = 3
#: The ratio whose layers select entries with an indexer; the others attend to every entry.
INDEXED: Final = 4


class Spark(msgspec.Struct, frozen=True, kw_only=True):
    """The drafter a checkpoint may hold: its layers, the tokens of a block, how many target layers it reads.

    ``markov_rank`` is the width of its sequential head, ``confidence`` whether it has a confidence head.
    """

    layers: int
    tokens: int
    targets: int
    markov_rank: int
    confidence: bool


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Widths and counts. ``ratios`` has one compression ratio for each layer, 0 for windows only.

    ``streams`` is the number of residual streams the hyper-connections keep, ``hashed`` how many of the first layers
    take their experts from a table of tokens. ``spark`` is the drafter, where there is one.
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
    hashed: int
    ratios: tuple[int, ...]
    spark: Spark | None


def read_shape(config: Config) -> Shape:
    """Read the configuration. Raises InvalidConfig, naming the key, where it does not hang together."""
    text = config.text
    width, index_width = config.head_dim(), text.integer("index_head_dim")
    if width != HEAD_WIDTH:
        text.refuse("head_dim", f"is {width}; the cache records are known for a width of {HEAD_WIDTH}")
    if index_width != INDEX_WIDTH:
        text.refuse("index_head_dim", f"is {index_width}; the index record is known for a width of {INDEX_WIDTH}")
    if text.integer("num_key_value_heads") != 1:
        text.refuse("num_key_value_heads", "is not 1; a latent cache has one head")
    if text.integer("vision_n_layers", minimum=0, default=0):
        text.untranslated("vision_n_layers", "is not 0; DeepSeek V4 with vision layers is not translated")
    groups = text.integer("o_groups")
    if config.heads % groups:
        text.refuse("o_groups", f"{groups} groups do not divide {config.heads} heads")
    return Shape(
        width=width,
        rope=text.integer("qk_rope_head_dim"),
        query_rank=text.integer("q_lora_rank"),
        output_rank=text.integer("o_lora_rank"),
        groups=groups,
        window=text.integer("sliding_window"),
        index_heads=text.integer("index_n_heads"),
        index_width=index_width,
        index_topk=text.integer("index_topk"),
        streams=text.integer("hc_mult"),
        hashed=text.integer("num_hash_layers", minimum=0),
        ratios=_ratios(config),
        spark=_spark(config),
    )


def _spark(config: Config) -> Spark | None:
    """The DSpark drafter, where the checkpoint states its block."""
    text = config.text
    if not text.has("dspark_block_size"):
        return None
    vocab = text.optional_integer("draft_vocab_size") or config.vocab_size
    if vocab != config.vocab_size:
        text.untranslated("draft_vocab_size", f"is not {config.vocab_size}; a smaller vocabulary is not translated")
    return Spark(
        layers=text.optional_integer("n_mtp_layers") or SPARK_LAYERS,
        tokens=text.integer("dspark_block_size"),
        targets=len(text.integers("dspark_target_layer_ids")),
        markov_rank=text.integer("dspark_markov_rank"),
        confidence=text.boolean("enable_confidence_head", default=True),
    )


def _ratios(config: Config) -> tuple[int, ...]:
    """One ratio for each target layer; draft layers, listed after them, have windows only."""
    text, key = config.text, "compress_ratios"
    stated = text.integers(key)
    if len(stated) < config.layers:
        text.refuse(key, f"lists {len(stated)} layers and num_hidden_layers is {config.layers}; list each layer")
    ratios = tuple(ratio if ratio > 1 else 0 for ratio in stated[: config.layers])
    for layer, ratio in enumerate(ratios):
        if ratio and ratio not in COMPRESSIONS:
            known = ", ".join(map(str, COMPRESSIONS))
            text.refuse(key, f"entry {layer} is {ratio}; the engine compresses by {known}, or not at all")
    return ratios
