"""Zamba2: Mamba-2 in every layer, and before some a transformer block whose weights they take turns to share.

Source: 0.31.0, model_executor/models/zamba2.py; class defaults from transformers' Zamba2Config.
"""

from __future__ import annotations

import msgspec

from rulespack.derive.blocks import all_reduce, embedding, gemm, head, norm, norm_of, per_layer
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.derive.recurrent import Mamba2, mamba2
from rulespack.graph.model import GEMM, AllGather, Attention
from rulespack.graph.vocabulary import DTYPE_BITS

KINDS = {"mamba": "mamba", "linear_attention": "mamba", "hybrid": "hybrid"}


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """One use of a shared block: which block it is, and the layer kind that holds its weights (None: this one)."""

    block: int
    holder: str | None

    def weights(self, node: GEMM) -> GEMM:
        """``node`` with the block's own role, reading the holder's weights."""
        role = f"shared_{self.block}_{node.role}"
        if self.holder is None:
            return msgspec.structs.replace(node, role=role)
        alias = f"{self.holder}.{role}"
        return msgspec.structs.replace(node, role=role, aliases=alias, weight_dtype=None, weight_scale=None)


def build(config: Config) -> Parts:
    """The first use of each block holds its weights; a cache belongs to each use."""
    text = config.text
    if text.boolean("use_long_context", default=False):
        text.untranslated("use_long_context", "is true, which changes the position limit and is not translated")
    listed = text.optional_strings("layers_block_type")
    if listed is None:
        text.refuse("layers_block_type", "is missing; list each layer")
    blocks = text.integer("num_mem_blocks", default=1)
    shape = _mixer(config)
    layers: list[Layer] = []
    uses = 0
    for kind in (KINDS[name] for name in per_layer(config, "layers_block_type", listed, tuple(KINDS))):
        if kind == "hybrid":
            block = uses % blocks
            holder = f"hybrid_source_{block}"
            layer = Layer(holder if uses < blocks else "hybrid")
            _transformer(layer, config, Shared(block=block, holder=None if uses < blocks else holder))
            uses += 1
        else:
            layer = Layer("mamba")
        layer.add(norm("input_norm"))
        mamba2(layer, config, f"layers.{len(layers)}.mamba", shape)
        layers.append(layer)
    return Parts(layers=layers, embedding=embedding(config), head=head(config))


def _transformer(layer: Layer, config: Config, shared: Shared) -> None:
    """Attention over the stream beside the model's input, an MLP, and this layer's own projection after it."""
    text, hidden, plain = config.text, config.hidden_size, config.weights.plain
    wide = 2 * hidden
    width = text.optional_integer("intermediate_size") or 4 * hidden
    rank = text.integer("adapter_rank", default=128)
    head_dim = wide // config.heads
    if config.kv_heads != config.heads or wide % config.heads:
        text.refuse("num_attention_heads", f"is {config.heads}; the shared attention has one key for each, {wide} wide")
    entry = layer.add(norm_of("shared_input_norm", wide, config))
    before = [layer.add(shared.weights(gemm(config, "qkv_proj", 3 * wide, wide, "column", plain)))]
    if text.boolean("use_shared_attention_adapter", default=False):
        before += [_adapter(layer, config, name, wide, rank, wide, entry) for name in ("q", "k", "v")]
    layer.add(Attention(kind="gqa", n_q=config.heads, n_kv=config.kv_heads, d_h=head_dim), before)
    layer.add(shared.weights(gemm(config, "o_proj", hidden, wide, "row", plain)))
    layer.add(all_reduce("attn_out"))
    entry = layer.add(norm("pre_ff_norm"))
    up = layer.add(shared.weights(gemm(config, "gate_up_proj", 2 * width, hidden, "column", plain)))
    adapted = _adapter(layer, config, "gate_up", hidden, rank, 2 * width, entry)
    layer.add(shared.weights(gemm(config, "down_proj", hidden, width, "row", plain)), [up, adapted])
    layer.add(all_reduce("mlp_out"))
    layer.add(gemm(config, "linear", hidden, hidden, "replicated", plain))


def _adapter(layer: Layer, config: Config, name: str, width: int, rank: int, out: int, entry: int) -> int:
    """A low-rank correction of a shared projection, with weights of this layer; its middle is gathered."""
    plain = config.weights.plain
    layer.add(gemm(config, f"{name}_adapter_a", rank, width, "column", plain), [entry])
    size = rank * DTYPE_BITS[config.dtype] // 8
    layer.add(AllGather(role=f"{name}_adapter_rank", emit="tensor_parallel", bytes_per_token=size))
    return layer.add(gemm(config, f"{name}_adapter_b", out, rank, "column", plain))


def _mixer(config: Config) -> Mamba2:
    text = config.text
    return Mamba2(
        inner=text.integer("mamba_expand", default=2) * config.hidden_size,
        heads=text.integer("n_mamba_heads", default=8),
        groups=text.integer("mamba_ngroups", default=1),
        state=text.integer("mamba_d_state", default=64),
        kernel=text.integer("mamba_d_conv", default=4),
        chunk=text.integer("chunk_size", default=256),
    )


FAMILY = Family(serves={"Zamba2ForCausalLM": Served(tie_word_embeddings=True, max_positions=4096)}, build=build)
