"""BERT: an encoder alone, whose attention keeps nothing between calls.

Source: 0.31.0, model_executor/models/bert.py; class defaults from transformers' BertConfig.
"""

from __future__ import annotations

from rulespack.derive.blocks import VOCAB_PADDING, all_reduce, dense_mlp, embedding, norm, projected_attention
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.graph.model import AllReduce, AnyNode, Attention, Gather
from rulespack.graph.vocabulary import DTYPE_BITS

TOKEN_TYPES = 2


def build(config: Config) -> Parts:
    """Norms stand after each half. Nothing follows the last layer but pooling."""
    width = config.text.integer("intermediate_size")
    node = Attention(kind="gqa", n_q=config.heads, n_kv=config.heads, d_h=config.head_dim(), caches=())
    layers = []
    for index in range(config.layers):
        layer = Layer("encoder")
        projected_attention(layer, config, f"encoder.layer.{index}.attention", node)
        layer.add(norm("post_attn_norm"))
        dense_mlp(layer, config, f"encoder.layer.{index}", width, gated=False)
        layer.add(norm("post_mlp_norm"))
        layers.append(layer)
    return Parts(layers=layers, embedding=_embedding(config), head=())


def _embedding(config: Config) -> tuple[AnyNode, ...]:
    """Three tables, each divided by rows: tokens, positions, and which of two texts a token is of."""
    text = config.text
    positions = text.integer("max_position_embeddings")
    kinds = text.integer("type_vocab_size", default=TOKEN_TYPES)
    tables = (("position", positions), ("token_type", kinds))
    others = (node for role, rows in tables for node in _table(config, role, rows))
    return (*embedding(config), *others, norm("embed_norm"))


def _table(config: Config, role: str, rows: int) -> tuple[Gather, AllReduce]:
    row = config.hidden_size * DTYPE_BITS[config.dtype] // 8
    table = Gather(
        role=f"embed_{role}",
        rows=-(-rows // VOCAB_PADDING) * VOCAB_PADDING,
        row_bytes=row,
        rows_per_token=1,
        out_bytes_per_token=row,
        shard="rows",
    )
    return table, all_reduce(f"embed_{role}_out")


FAMILY = Family(serves={"BertModel": Served(divides_width=True, max_positions=512, downcast="fp16")}, build=build)
