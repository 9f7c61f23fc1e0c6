"""The numbers a DeepSeek V4 is made from, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from rulespack.derive.config import Config
from rulespack.derive.grouped_latent import RATIOS, GroupedLatent, read_grouped_latent, read_ratios

#: The packed record in bytes: 448 FP8 and 64 BF16 values, 7 scales and 1 of padding.
RECORD: Final = 584
#: Entries under the cache dtypes of backends that keep plain rows.
PLAIN_ROWS: Final[Mapping[str, int]] = {"bfloat16": 1024, "fp8": 512, "fp8_e4m3": 512}
#: What a page of packed records is padded to: the decode kernel's stride.
ALIGNMENT: Final = 576
#: Tokens in a page of a window cache, whatever the engine's block size.
WINDOW_BLOCK: Final = 64
#: The width of a key the index record is made for (compressor.py, DeepseekCompressor).
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


class Shape(GroupedLatent, frozen=True, kw_only=True):
    """Widths and counts. ``ratios`` has one compression ratio for each layer, 0 for windows only.

    ``hashed`` is how many of the first layers take their experts from a table of tokens. ``spark`` is the drafter,
    where there is one.
    """

    hashed: int
    ratios: tuple[int, ...]
    spark: Spark | None


def read_shape(config: Config) -> Shape:
    """Read the configuration. Raises InvalidConfig, naming the key, where it does not hang together."""
    text = config.text
    latent = read_grouped_latent(config)
    if latent.index_width != INDEX_WIDTH:
        stated = latent.index_width
        text.refuse("index_head_dim", f"is {stated}; the index record is known for a width of {INDEX_WIDTH}")
    if text.integer("vision_n_layers", minimum=0, default=0):
        text.untranslated("vision_n_layers", "is not 0; DeepSeek V4 with vision layers is not translated")
    return Shape(
        **msgspec.structs.asdict(latent),
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
    ratios = tuple(ratio if ratio > 1 else 0 for ratio in read_ratios(config)[: config.layers])
    for layer, ratio in enumerate(ratios):
        if ratio and ratio not in COMPRESSIONS:
            known = ", ".join(map(str, COMPRESSIONS))
            config.text.refuse(RATIOS, f"entry {layer} is {ratio}; the engine compresses by {known}, or not at all")
    return ratios
