"""Inkling: short convolutions over keys, values and both halves' outputs in every layer, windows and full attention.

Source: 0.31.0, models/inkling/configs.py, models/inkling/nvidia/{model,mtp,attention,moe,mlp,sconv_swa_attn}.py.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rulespack.derive.blocks import (
    TENSOR_PARALLEL,
    MoE,
    all_reduce,
    dense_mlp,
    experts,
    gemm,
    head,
    norm,
    padded_vocab,
    read_top_k,
)
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.derive.predictor import EMBEDDING, FINAL_NORM, NONE, Predictor, predictor, predictor_layer
from rulespack.graph.model import AnyNode, Attention, Cache, Elementwise, Gather
from rulespack.graph.vocabulary import DTYPE_BITS

#: What the class supplies: the window, the taps of a convolution, and how many position offsets scores are biased by.
WINDOW: Final = 512
TAPS: Final = 4
RELATIVE_WIDTH: Final = 16


def build(config: Config) -> Parts:
    """Listed layers have windows and heads of their own; the first few may be dense."""
    text = config.text
    local = set(text.optional_integers("local_layer_ids") or ())
    taps = text.optional_integer("sconv_kernel_size") or text.optional_integer("conv_kernel_size") or TAPS
    dense = text.integer("dense_mlp_idx", minimum=0, default=0)
    dense_width, width = _widths(config)

    def add_layer(layer: Layer, config: Config, module: str, slides: bool, sparse: bool) -> Layer:
        layer.add(norm("input_norm"))
        _attention(layer, config, f"{module}.attn", _node(config, slides, taps))
        _convolved(layer, config, "attn_sconv")
        layer.add(norm("post_attn_norm"))
        if sparse:
            experts(layer, config, _moe(config, f"{module}.mlp", width))
        else:
            dense_mlp(layer, config, f"{module}.mlp", dense_width)
        _convolved(layer, config, "mlp_sconv")
        return layer

    def label(slides: bool, sparse: bool) -> str:
        return f"{'sliding' if slides else 'full'}_{'moe' if sparse else 'dense'}"

    layers = []
    for index in range(config.layers):
        slides, sparse = index in local, index >= dense
        layers.append(add_layer(Layer(label(slides, sparse)), config, f"layers.{index}", slides, sparse))
    drafting = _drafting(config)
    drafts = [
        add_layer(predictor_layer(config, label(slides, False)), drafting, "mtp", slides, False)
        for slides in _draft_windows(config)
    ]
    draft = _predictor(config, drafts)
    return Parts(
        layers=layers,
        embedding=_embedding(config),
        head=head(config),
        draft_kinds=draft.kinds,
        speculator=draft.speculator,
    )


def _draft_windows(config: Config) -> list[bool]:
    """Whether each draft module has a window. They stand beside the text configuration, whatever it says itself."""
    section = config.root.optional_section("mtp_config")
    if section is None:
        return []
    local = section.optional_integers("local_layer_ids") or ()
    return [index in local for index in range(section.integer("num_nextn_predict_layers", minimum=0, default=0))]


def _drafting(config: Config) -> Config:
    """The draft modules keep the model's own dtype, whatever the checkpoint's quantization."""
    weights = msgspec.structs.replace(config.weights, linear=config.weights.plain, listed=None)
    return msgspec.structs.replace(config, weights=weights)


def _predictor(config: Config, drafts: list[Layer]) -> Predictor:
    """The table is the target's, on every rank whole; a norm after each module where the file asks for one."""
    if not drafts:
        return NONE
    table = _embedding(config)[0]
    lookup = msgspec.structs.replace(table, role="mtp_embed_tokens", aliases=EMBEDDING)
    chained = config.root.section("mtp_config").boolean("chain_hidden_post_norm", default=False)
    return predictor(config, drafts, lookup=(lookup,), after_layers=FINAL_NORM if chained else ())


def _widths(config: Config) -> tuple[int, int]:
    """Inner widths of a dense MLP and of an expert.

    A file in Transformers' words states the dense width as ``intermediate_size`` beside a ``moe_intermediate_size``;
    one that also states ``dense_intermediate_size`` is in the vendor's, where ``intermediate_size`` is an expert's.
    """
    text = config.text
    stated, dense = text.integer("intermediate_size"), text.optional_integer("dense_intermediate_size")
    moe = text.optional_integer("moe_intermediate_size")
    if dense is None:
        return (stated, stated) if moe is None else (stated, moe)
    return dense, stated


def _moe(config: Config, module: str, width: int) -> MoE:
    """Routed experts, and shared ones that the router weighs like the others."""
    text = config.text
    count = text.integer("n_routed_experts")
    return MoE(
        module=module,
        count=count,
        top_k=read_top_k(config, "num_experts_per_tok", count),
        width=width,
        shared_width=text.integer("n_shared_experts") * width,
        reduce=TENSOR_PARALLEL,
    )


def _node(config: Config, slides: bool, taps: int) -> Attention:
    """Attention with its two caches: the inputs of all four convolutions, and keys and values.

    The convolutions' inputs are kept in one row for each KV head, padded to a power of two.
    """
    text, element = config.text, DTYPE_BITS[config.dtype] // 8
    heads, kv_heads, width = config.heads, config.kv_heads, config.head_dim()
    if slides:
        heads = text.optional_integer("swa_num_attention_heads") or heads
        kv_heads = text.optional_integer("swa_num_key_value_heads") or kv_heads
        width = text.optional_integer("swa_head_dim") or width
    if config.hidden_size % kv_heads:
        text.refuse("hidden_size", f"is not divisible by {kv_heads} KV heads, whose rows share it")
    row = 2 * width + 2 * (config.hidden_size // kv_heads)
    padded = 1 << (row - 1).bit_length()
    state = Cache(
        name="conv_state",
        kind="state",
        owned=True,
        bytes_per_entry=kv_heads * padded * element,
        entries=taps,
        block_size=taps,
    )
    window = text.integer("sliding_window_size", default=WINDOW) if slides else None
    kv = Cache(
        name="kv",
        kind="window" if slides else "kv",
        owned=True,
        bytes_per_entry=kv_heads * 2 * width * element,
        window=window,
    )
    return Attention(
        kind="swa" if slides else "gqa",
        n_q=heads,
        n_kv=kv_heads,
        d_h=width,
        window=window,
        caches=(state, kv),
    )


def _attention(layer: Layer, config: Config, module: str, node: Attention) -> None:
    """One projection of queries, keys, values and position biases; attention; output projection and its sum."""
    form = config.weights.of_linear
    relative = node.n_q * config.text.integer("d_rel", default=RELATIVE_WIDTH)
    width = (node.n_q + 2 * node.n_kv) * node.d_h + relative
    layer.add(gemm(config, "qkvr_proj", width, config.hidden_size, "column", form(f"{module}.qkvr")))
    # Keys and values are convolved, both and the queries normed, and all written, in one launch.
    moved = 2 * width * DTYPE_BITS[config.dtype] // 8
    layer.add(Elementwise(role="qkv_sconv_norm_store", bytes_per_token=moved, writes_cache="kv"))
    layer.add(node)
    layer.add(gemm(config, "o_proj", config.hidden_size, node.n_q * node.d_h, "row", form(f"{module}.wo_ud")))
    layer.add(all_reduce("attn_out"))


def _convolved(layer: Layer, config: Config, role: str) -> None:
    """The convolution of a half's output, between the two halves of its sum, where each rank has a share of it."""
    moved = 3 * config.hidden_size * DTYPE_BITS[config.dtype] // 8
    layer.add(Elementwise(role=role, bytes_per_token=moved))


def _embedding(config: Config) -> tuple[AnyNode, ...]:
    """The vocabulary lookup, in a table that every rank has whole."""
    row = config.hidden_size * DTYPE_BITS[config.dtype] // 8
    table = Gather(
        role="embed_tokens", rows=padded_vocab(config), row_bytes=row, rows_per_token=1, out_bytes_per_token=row
    )
    return (table,)


FAMILY = Family(
    serves={"InklingForCausalLM": Served(), "InklingForConditionalGeneration": Served(multimodal=True)}, build=build
)
