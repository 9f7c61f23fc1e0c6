"""dots3.note: sliding windows over wide latents, sparse full layers over narrower ones, both with gated outputs.

Source: 0.31.0, models/dots3_note/nvidia/{model,mtp,attention,multimodal}.py; the MoE is DeepSeek's.
"""

from __future__ import annotations

import msgspec

from rulespack.derive.blocks import MoE, dense_mlp, embedding, experts, head, norm, per_layer, read_top_k
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.latent import (
    Gate,
    Indexer,
    Latent,
    latent_attention,
    latent_node,
    read_indexer,
    read_latent,
    sparse_attention,
)
from rulespack.derive.layers import Layer
from rulespack.derive.predictor import draft_lookup, module_count, predictor, predictor_layer
from rulespack.graph.model import Cache
from rulespack.graph.vocabulary import DTYPE_BITS

SLIDING, FULL = "sliding_attention", "full_attention"


def build(config: Config) -> Parts:
    """Layers by type; a full layer pads its cache rows to the width of the windows'."""
    text = config.text
    full = _gated(config, read_latent(config), "attention_gate_type")
    heads = text.integer("swa_num_attention_heads")
    sliding = _gated(config, read_latent(config, "swa_", heads), "swa_attention_gate_type")
    window, indexer = text.integer("sliding_window_size"), read_indexer(config)
    stated = text.optional_strings("layer_types")
    if stated is None:
        text.refuse("layer_types", "is missing; list each layer")
    count = text.integer("n_routed_experts")
    top_k = read_top_k(config, "num_experts_per_tok", count)
    width = text.integer("moe_intermediate_size")
    first = text.integer("first_k_dense_replace", minimum=0)
    step = text.integer("moe_layer_freq", default=1)

    def add_layer(layer: Layer, index: int, slides: bool, sparse: bool) -> Layer:
        layer.add(norm("input_norm"))
        _attention(layer, config, f"layers.{index}.self_attn", full, sliding, window if slides else None, indexer)
        layer.add(norm("post_attn_norm"))
        module = f"layers.{index}.mlp"
        if sparse:
            shared = text.integer("n_shared_experts") * width
            experts(layer, config, MoE(module=module, count=count, top_k=top_k, width=width, shared_width=shared))
        else:
            dense_mlp(layer, config, module, text.integer("intermediate_size"))
        return layer

    def label(slides: bool, sparse: bool) -> str:
        return f"{'sliding' if slides else 'full'}_{'moe' if sparse else 'dense'}"

    layers = []
    for index, layer_type in enumerate(per_layer(config, "layer_types", stated, (SLIDING, FULL))):
        slides, sparse = layer_type == SLIDING, index >= first and index % step == 0
        layers.append(add_layer(Layer(label(slides, sparse)), index, slides, sparse))
    drafts = []
    for index, layer_type in enumerate(_draft_types(config), start=config.layers):
        slides = layer_type == SLIDING
        form = config.weights.of_linear(f"layers.{index}.eh_proj")
        # No layer past the last has experts.
        drafts.append(add_layer(predictor_layer(config, label(slides, False), form), index, slides, False))
    # The checkpoint holds a vocabulary table for the draft module alone.
    table, summed = draft_lookup(config, "mtp")
    draft = predictor(config, drafts, lookup=(msgspec.structs.replace(table, aliases=None), summed))
    return Parts(
        layers=layers,
        embedding=embedding(config),
        head=head(config),
        draft_kinds=draft.kinds,
        speculator=draft.speculator,
    )


def _draft_types(config: Config) -> tuple[str, ...]:
    """One type for each draft module: as listed, else windows."""
    text, key = config.text, "mtp_layer_types"
    modules = module_count(config, default=1)
    stated = text.optional_strings(key)
    if stated is None:
        return (SLIDING,) * modules
    if len(stated) != modules:
        text.refuse(key, f"lists {len(stated)} layers and there are {modules} draft modules; list one for each")
    if set(stated) - {SLIDING, FULL}:
        text.refuse(key, f"lists a type that is not known; known are {SLIDING} and {FULL}")
    return stated


def _gated(config: Config, shape: Latent, key: str) -> Latent:
    """One gate for each head is on every rank whole, one for each value is divided."""
    if config.text.string(key) == "headwise":
        gate = Gate("g_proj", shape.heads, "replicated")
    else:
        gate = Gate("g_proj", shape.heads * shape.value, "column")
    return msgspec.structs.replace(shape, gate=gate)


def _attention(
    layer: Layer, config: Config, module: str, full: Latent, sliding: Latent, window: int | None, indexer: Indexer
) -> None:
    width = sliding.rank + sliding.rope
    if window is None:
        cache = _cache(config, "kv", width)
        sparse_attention(layer, config, module, full, indexer.topk, indexer, cache)
    else:
        cache = _cache(config, "swa", width, window)
        node = latent_node(sliding, "sparse_mla", window=window, caches=(cache,))
        latent_attention(layer, config, module, sliding, node)


def _cache(config: Config, name: str, width: int, window: int | None = None) -> Cache:
    return Cache(
        name=name,
        kind="kv" if window is None else "window",
        owned=True,
        bytes_per_entry=width * DTYPE_BITS[config.dtype] // 8,
        bytes_by_cache_dtype={"fp8": width, "fp8_e4m3": width},
        window=window,
    )


FAMILY = Family(serves={"Dots3NoteForCausalLM": Served(multimodal=True)}, build=build)
