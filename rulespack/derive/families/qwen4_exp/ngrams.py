"""The n-gram embedding of Qwen4-exp: rows of a hashed table, gated into the streams, and a dilated convolution."""

from __future__ import annotations

from typing import Final

import msgspec

from rulespack.derive.blocks import TENSOR_PARALLEL, gemm
from rulespack.derive.config import Config
from rulespack.derive.layers import Layer
from rulespack.graph.model import AllReduce, Elementwise, Gather, RecurrentUpdate
from rulespack.graph.vocabulary import DTYPE_BITS

#: What the class supplies.
GRAMS, HEADS, BASE, DIVISOR, KERNEL = 3, 8, 20_000_000, 128, 4
#: Bases for which the primality test is exact below 2**64.
WITNESSES: Final = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


class Ngrams(msgspec.Struct, frozen=True, kw_only=True):
    """One layer's table: ``rows`` of ``width`` values, ``heads`` of them for each token.

    ``kernel`` counts the inputs the dilated convolution spans, ``channels`` those it runs over.
    """

    rows: int
    width: int
    heads: int
    kernel: int
    channels: int


def read_ngrams(config: Config, streams: int) -> dict[int, Ngrams]:
    """The tables by layer. Layers are listed from 1; each head of each table has a prime number of rows of its own."""
    text = config.text
    listed = sorted(set(text.optional_integers("ple_layer_ids") or ()))
    if any(not 1 <= layer <= config.layers for layer in listed):
        text.refuse("ple_layer_ids", f"names a layer that is not one of 1 to {config.layers}")
    if not listed:
        return {}
    grams = text.integer("ngram_size", minimum=2, default=GRAMS)
    heads = (grams - 1) * text.integer("heads_per_ngram", default=HEADS)
    width = text.optional_integer("ple_embed_dim") or config.hidden_size
    if width % heads:
        text.refuse("ple_embed_dim", f"is {width}, which {heads} heads do not divide")
    divisor = text.integer("make_ngram_vocab_size_divisible_by", default=DIVISOR)
    kernel = (text.integer("ple_conv_kernel_size", default=KERNEL) - 1) * grams + 1
    sizes = _primes_from(text.integer("ngram_vocab_size_base", default=BASE), heads * len(listed))
    tables = {}
    for place, layer in enumerate(listed):
        rows = sum(sizes[place * heads : (place + 1) * heads])
        tables[layer - 1] = Ngrams(
            rows=-(-rows // divisor) * divisor,
            width=width // heads,
            heads=heads,
            kernel=kernel,
            channels=streams * config.hidden_size,
        )
    return tables


def _primes_from(start: int, count: int) -> list[int]:
    """The first ``count`` primes at or after ``start``."""
    found: list[int] = []
    candidate = start
    while len(found) < count:
        if _is_prime(candidate):
            found.append(candidate)
        candidate += 1
    return found


def _is_prime(number: int) -> bool:
    """Miller and Rabin's test with bases enough to be exact for any 64-bit number."""
    if number < 2 or any(number % witness == 0 for witness in WITNESSES):
        return number in WITNESSES
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for witness in WITNESSES:
        power = pow(witness, odd, number)
        squares = [power]
        for _ in range(twos - 1):
            power = power * power % number
            squares.append(power)
        if squares[0] != 1 and number - 1 not in squares:
            return False
    return True


def ngram_embedding(layer: Layer, config: Config, shape: Ngrams, module: str) -> None:
    """Rows looked up and summed over ranks, projected to keys and a value, gated by the streams, convolved, added.

    The table is stated where 0.29.0 keeps it, on the devices. 0.31.0 moves it to host memory unless it is told not to
    (config/engram.py), with a setting the earlier release does not know.
    """
    element, hidden = DTYPE_BITS[config.dtype] // 8, config.hidden_size
    fetched = shape.heads * shape.width * element
    table = Gather(
        role="ngram_lookup",
        rows=shape.rows,
        row_bytes=shape.width * element,
        rows_per_token=shape.heads,
        out_bytes_per_token=fetched,
        shard="rows",
    )
    layer.add(table)
    layer.add(AllReduce(role="ngram_rows", emit=TENSOR_PARALLEL, bytes_per_token=fetched))
    form = config.weights.of_linear(f"{module}.kv_proj")
    keys = shape.channels + hidden
    layer.add(gemm(config, "ngram_kv_proj", keys, shape.heads * shape.width, "replicated", form))
    moved = (2 * shape.channels + hidden + shape.channels) * element
    layer.add(Elementwise(role="ngram_gate", tp="replicated", bytes_per_token=moved))
    update = RecurrentUpdate(
        role="ple",
        tp="replicated",
        recurrent_kind="short_conv",
        n_heads=shape.channels,
        state_size=shape.kernel - 1,
        conv_kernel=shape.kernel,
        intermediate_size=shape.channels,
    )
    layer.add(update)
