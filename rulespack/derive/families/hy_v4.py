"""Hunyuan 4: latent attention with sinks and an output gate, shared indexers, experts, independent hyper-connections.

Source: 0.31.0, models/hy_v4/nvidia/{attention,hc,model,moe,mtp}.py; class defaults from
transformers_utils/configs/hy_v4.py.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rulespack.derive.blocks import (
    TENSOR_PARALLEL,
    MoE,
    dense_mlp,
    embedding,
    experts,
    gemm,
    head,
    norm,
    per_layer,
    read_top_k,
)
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.hyper import streams_folded
from rulespack.derive.latent import (
    Gate,
    Latent,
    latent_attention,
    read_indexer,
    read_latent,
    sparse_attention,
)
from rulespack.derive.layers import Layer
from rulespack.derive.predictor import module_count, predictor, predictor_layer
from rulespack.derive.weights import Format
from rulespack.graph.model import AnyNode, Elementwise
from rulespack.graph.vocabulary import DTYPE_BITS

SPARSE: Final = ("sparse_attention", "sparse", "deepseek_sparse_attention")
FULL: Final = "full_attention"
#: The period of the class's own indexer pattern, after the first layer.
INDEX_PERIOD: Final = 4
STREAMS: Final = 4


def build(config: Config) -> Parts:
    """Each layer by three lists: whether it selects what it attends to, whether by itself, and whether it has experts.

    Without hyper-connections, and in the draft modules, a layer has one residual stream.
    """
    text = config.text
    shape, indexer = _gated(config, read_latent(config)), read_indexer(config)
    streams = text.integer("hc_mult", default=STREAMS) if text.boolean("enable_ihc", default=True) else 0
    attention, own, mlp = _attention_types(config), _indexer_types(config), _mlp_types(config)

    def add_layer(layer: Layer, part: Config, index: int, streams: int) -> Layer:
        """A layer past the last has the last one's types, and an indexer of its own."""
        last = min(index, config.layers - 1)
        _half(layer, part, streams, "attn", "input_norm")
        module = f"layers.{index}.self_attn"
        if attention[last] in SPARSE:
            selector = indexer if index != last or own[last] else None
            sparse_attention(layer, part, module, shape, indexer.topk, selector)
        else:
            latent_attention(layer, part, module, shape)
        _half_done(layer, part, streams, "attn")
        _half(layer, part, streams, "mlp", "post_attn_norm")
        _mlp(layer, part, f"layers.{index}.mlp", mlp[last] == "sparse")
        _half_done(layer, part, streams, "mlp")
        return layer

    def label(index: int) -> str:
        selects = attention[index] in SPARSE
        name = mlp[index] if selects else f"{mlp[index]}_full"
        return name if own[index] or not selects else f"{name}_shared_index"

    last = config.layers - 1
    past = range(config.layers, config.layers + module_count(config, default=1))
    drafting = _drafting(config)
    name = mlp[last] if attention[last] in SPARSE else f"{mlp[last]}_full"
    draft = predictor(config, [add_layer(predictor_layer(config, name), drafting, index, 0) for index in past])
    return Parts(
        layers=[add_layer(Layer(label(index)), config, index, streams) for index in range(config.layers)],
        embedding=embedding(config),
        head=_head(config, streams),
        draft_kinds=draft.kinds,
        speculator=draft.speculator,
    )


def _drafting(config: Config) -> Config:
    """How the draft's modules are stored: as the model's, unless the file says otherwise for them."""
    stated = (config.text.optional_string("mtp_quant_algo") or "NONE").upper()
    weights = config.weights
    if stated in ("BF16", "FP16"):
        weights = msgspec.structs.replace(weights, linear=weights.plain, experts=weights.plain, listed=None)
    elif stated == "FP8" and weights.linear.dtype != "fp8":
        config.text.untranslated("mtp_quant_algo", "is FP8 in a checkpoint of another format, which is not translated")
    return msgspec.structs.replace(config, weights=weights)


def _gated(config: Config, shape: Latent) -> Latent:
    text = config.text
    gate = None
    if text.boolean("gated_mla", default=True):
        kind = text.string("gating_type", default="elementwise")
        widths = {"elementwise": shape.heads * shape.value, "headwise": shape.heads}
        if kind not in widths:
            text.refuse("gating_type", f"{kind!r} is not one the engine knows; it knows {', '.join(widths)}")
        gate = Gate("linear_gate", widths[kind], "column")
    return msgspec.structs.replace(shape, gate=gate, sinks=text.boolean("learnable_sink", default=True))


def _attention_types(config: Config) -> tuple[str, ...]:
    stated = config.text.optional_strings("layer_types")
    if stated is None:
        return (FULL,) * config.layers
    return per_layer(config, "layer_types", stated, (*SPARSE, FULL))


def _indexer_types(config: Config) -> tuple[bool, ...]:
    """Whether each layer has an indexer of its own; the class's own pattern where the file lists none."""
    text = config.text
    stated = text.optional_strings("indexer_types")
    if stated is None:
        own = tuple(index == 0 or (index - 1) % INDEX_PERIOD == 0 for index in range(config.layers))
    else:
        own = tuple(kind == "full" for kind in per_layer(config, "indexer_types", stated, ("full", "shared")))
    if not own[0]:
        text.refuse("indexer_types", "lets the first layer share a selection, and there is none before it")
    return own


def _mlp_types(config: Config) -> tuple[str, ...]:
    stated = config.text.optional_strings("mlp_layer_types")
    if stated is None:
        return tuple("dense" if index == 0 else "sparse" for index in range(config.layers))
    return per_layer(config, "mlp_layer_types", stated, ("dense", "sparse"))


def _mlp(layer: Layer, config: Config, module: str, sparse: bool) -> None:
    text = config.text
    if not sparse:
        dense_mlp(layer, config, module, text.integer("intermediate_size"))
        return
    count, width = text.integer("n_routed_experts"), text.integer("moe_intermediate_size")
    moe = MoE(
        module=module,
        count=count,
        top_k=read_top_k(config, "num_experts_per_tok", count),
        width=width,
        shared_width=text.integer("n_shared_experts", minimum=0) * width,
        router=Format("fp32"),
        reduce=TENSOR_PARALLEL,
    )
    experts(layer, config, moe)


def _half(layer: Layer, config: Config, streams: int, half: str, normed: str) -> None:
    """Before a half: gates from all streams in FP32, the streams made one by them, and the norm."""
    if streams:
        width = streams * config.hidden_size
        fn = gemm(config, f"hc_{half}_fn", 2 * streams, width, "replicated", Format("fp32"))
        layer.add(fn)
        layer.add(streams_folded(config, streams, f"{half}_"))
    layer.add(norm(normed))


def _half_done(layer: Layer, config: Config, streams: int, half: str) -> None:
    """After a half: its output weighed and added to every stream."""
    if streams:
        moved = (1 + 2 * streams) * config.hidden_size * DTYPE_BITS[config.dtype] // 8
        layer.add(Elementwise(role=f"hc_{half}_add", bytes_per_token=moved))


def _head(config: Config, streams: int) -> tuple[AnyNode, ...]:
    if not streams:
        return head(config)
    fn = gemm(config, "hc_head_fn", streams, streams * config.hidden_size, "replicated", Format("fp32"))
    return (fn, streams_folded(config, streams), *head(config))


FAMILY = Family(serves={"HYV4ForCausalLM": Served()}, build=build)
