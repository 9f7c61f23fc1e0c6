"""Whisper: a decoder whose layers attend to what they wrote and to the encoder's output. The encoder is left out.

Source: 0.31.0, model_executor/models/whisper.py; class defaults from transformers' WhisperConfig.
"""

from __future__ import annotations

from typing import Final

from rulespack.derive.blocks import all_reduce, dense_mlp, gemm, norm, projected_attention
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.graph.model import GEMM, AnyNode, Attention, Cache, Gather
from rulespack.graph.vocabulary import DTYPE_BITS

#: The class's words for what everybody else calls otherwise.
NAMES: Final = {
    "hidden_size": "d_model",
    "num_hidden_layers": "decoder_layers",
    "num_attention_heads": "decoder_attention_heads",
    "intermediate_size": "decoder_ffn_dim",
}
SOURCE_POSITIONS = 1500


def build(config: Config) -> Parts:
    """Three halves a layer: attention to the text so far, attention to the audio, MLP."""
    width = config.text.integer("intermediate_size")
    node = Attention(kind="gqa", n_q=config.heads, n_kv=config.heads, d_h=config.head_dim())
    cross = _cross(config, node)
    layers = []
    for index in range(config.layers):
        layer, module = Layer("decoder"), f"decoder.layers.{index}"
        layer.add(norm("input_norm"))
        projected_attention(layer, config, f"{module}.self_attn", node)
        layer.add(norm("post_attn_norm"))
        _cross_attention(layer, config, f"{module}.encoder_attn", cross)
        layer.add(norm("post_cross_norm"))
        dense_mlp(layer, config, f"{module}.mlp", width, gated=False)
        layers.append(layer)
    return Parts(layers=layers, embedding=_embedding(config), head=_head(config))


def _cross(config: Config, node: Attention) -> Attention:
    """Attention to keys and values of the audio, which a request keeps whole whatever it writes."""
    cache = Cache(
        name="cross",
        kind="state",
        owned=True,
        bytes_per_entry=2 * node.n_kv * node.d_h * DTYPE_BITS[config.dtype] // 8,
        entries=config.text.integer("max_source_positions", default=SOURCE_POSITIONS),
    )
    return Attention(role="cross_attn", kind="gqa", n_q=node.n_q, n_kv=node.n_kv, d_h=node.d_h, caches=(cache,))


def _cross_attention(layer: Layer, config: Config, module: str, node: Attention) -> None:
    """Queries from the text. Keys and values are projected from the audio, once for each of its positions."""
    form, hidden, inner = config.weights.of_linear, config.hidden_size, node.n_q * node.d_h
    entry = layer.last
    queries = layer.add(gemm(config, "cross_q_proj", inner, hidden, "column", form(f"{module}.q_proj")))
    keys = gemm(config, "cross_kv_proj", 2 * inner, hidden, "column", form(f"{module}.kv_proj"))
    layer.add(node, [queries, layer.add(keys, [entry])])
    layer.add(gemm(config, "cross_o_proj", hidden, inner, "row", form(f"{module}.out_proj")))
    layer.add(all_reduce("cross_out"))


def _embedding(config: Config) -> tuple[AnyNode, ...]:
    """Tokens and positions, in tables that every rank has whole."""
    row = config.hidden_size * DTYPE_BITS[config.dtype] // 8
    positions = config.text.integer("max_target_positions")
    return tuple(
        Gather(role=role, rows=rows, row_bytes=row, rows_per_token=1, out_bytes_per_token=row)
        for role, rows in (("embed_tokens", config.vocab_size), ("embed_positions", positions))
    )


def _head(config: Config) -> tuple[AnyNode, ...]:
    """The final norm, and the token table once more."""
    n, k = config.vocab_size, config.hidden_size
    lm_head = GEMM(role="lm_head", n=n, k=k, tp="column", aliases="embedding.embed_tokens")
    return (norm("final_norm"), lm_head)


FAMILY = Family(
    serves={
        "WhisperForConditionalGeneration": Served(
            divides_width=True, tie_word_embeddings=True, multimodal=True, max_positions=448, names=NAMES
        )
    },
    build=build,
)
