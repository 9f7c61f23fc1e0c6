"""Draft checkpoints of their own: EAGLE-3 on a Llama layer, and the block drafters DFlash and DSpark.

The graph holds the layers a draft runs, and what brings the target's hidden states to its width. What a block drafter
writes into its caches for the tokens the target ran uses the same projections and is not stated again.

Source: 0.31.0, model_executor/models/llama_eagle3.py, qwen3_dflash.py, qwen3_dspark.py, models/kimi_k3/nvidia/
dspark_mla.py, config/speculative.py.
"""

from __future__ import annotations

from rulespack.derive.blocks import (
    dense_mlp,
    embedding,
    gemm,
    norm,
    padded_vocab,
    per_layer,
    projected_attention,
)
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.latent import latent_attention, read_latent
from rulespack.derive.layers import Layer
from rulespack.derive.section import Section
from rulespack.derive.weights import Format
from rulespack.derive.windows import FULL, SLIDING
from rulespack.graph.model import AnyNode, Attention, DraftFacts, Gather
from rulespack.graph.vocabulary import DTYPE_BITS

EAGLE3 = "LlamaForCausalLMEagle3"
DFLASH = "DFlashDraftModel"
DSPARK = "DSparkDraftModel"
DSPARK_LATENT = "K3DSparkModel"

#: Hidden states of the target an EAGLE-3 draft reads where its configuration does not list them.
EAGLE3_STATES = 3


def build(config: Config) -> Parts:
    """The draft's layers behind the projection of the target's hidden states, and its own head."""
    if config.architecture == EAGLE3:
        return _eagle3(config)
    if config.architecture == DSPARK_LATENT:
        return _latent(config)
    return _block(config)


def _eagle3(config: Config) -> Parts:
    text = config.text
    if set(text.optional_strings("layer_types") or ()) - {FULL}:
        text.untranslated("layer_types", "holds more than full_attention, which is not translated for this class")
    width = text.integer("intermediate_size")
    layers = []
    for index in range(config.layers):
        layer = Layer("draft")
        layer.add(norm("input_norm"))
        if not index:  # the first layer reads the token's embedding beside the hidden state, both normed
            layer.add(norm("hidden_norm"))
        _attention(layer, config, index, None, doubled=not index)
        layer.add(norm("post_attn_norm"))
        dense_mlp(layer, config, f"layers.{index}.mlp", width)
        layers.append(layer)
    eagle = text.optional_section("eagle_config")
    projection: tuple[AnyNode, ...] = ()
    if eagle is None or eagle.boolean("use_aux_hidden_state", default=True):
        stated = text.optional_integer("num_aux_hidden_states")
        listed = None if eagle is None else eagle.optional_integers("eagle_aux_hidden_state_layer_ids")
        projection = _projection(config, stated or len(listed or ()) or EAGLE3_STATES)
    return Parts(layers=layers, embedding=(*embedding(config), *projection), head=_head(config), draft=DraftFacts())


def _block(config: Config) -> Parts:
    text = config.text
    width = text.integer("intermediate_size")
    own = text.optional_section("dflash_config")
    windows = _windows(config, own)
    layers = []
    for index, window in enumerate(windows):
        layer = Layer("draft" if window is None else "sliding_draft")
        layer.add(norm("input_norm"))
        _attention(layer, config, index, window)
        layer.add(norm("post_attn_norm"))
        dense_mlp(layer, config, f"layers.{index}.mlp", width)
        layers.append(layer)
    targets = None if own is None else own.optional_integers("target_layer_ids")
    dspark = config.architecture == DSPARK
    return Parts(
        layers=layers,
        embedding=(*embedding(config), *_projection(config, len(targets or ()) or config.layers)),
        head=_head(config) + (_markov(config) if dspark else ()),
        draft=DraftFacts(
            num_spec_tokens=text.optional_integer("block_size") if dspark else None,
            non_causal=_non_causal(config, own),
            markov_head=dspark and text.has("markov_rank"),
        ),
    )


def _latent(config: Config) -> Parts:
    text = config.text
    shape = read_latent(config)
    width = text.integer("intermediate_size")
    if text.boolean("mla_use_output_gate", default=False):
        text.untranslated("mla_use_output_gate", "is true; a gated output is not translated for this class")
    layers = []
    for index in range(config.layers):
        layer = Layer("draft")
        layer.add(norm("input_norm"))
        latent_attention(layer, config, f"layers.{index}.self_attn", shape)
        layer.add(norm("post_attn_norm"))
        dense_mlp(layer, config, f"layers.{index}.mlp", width)
        layers.append(layer)
    targets = text.optional_integers("target_layer_ids") or ()
    if not targets:
        text.refuse("target_layer_ids", "lists no layers of the target; list those the draft reads")
    return Parts(
        layers=layers,
        embedding=(*embedding(config), *_projection(config, len(targets))),
        head=_head(config) + _markov(config),
        draft=DraftFacts(
            num_spec_tokens=text.optional_integer("block_size"),
            non_causal=True,
            markov_head=text.has("markov_rank"),
        ),
    )


def _attention(layer: Layer, config: Config, index: int, window: int | None, *, doubled: bool = False) -> None:
    kind = "gqa" if window is None else "swa"
    node = Attention(kind=kind, n_q=config.heads, n_kv=config.kv_heads, d_h=config.head_dim(), window=window)
    projected_attention(layer, config, f"layers.{index}.self_attn", node, inputs=2 if doubled else 1)


def _projection(config: Config, states: int) -> tuple[AnyNode, ...]:
    """What brings ``states`` hidden states of the target, side by side, to the draft's width."""
    target = config.text.optional_integer("target_hidden_size") or config.hidden_size
    return (gemm(config, "fc", config.hidden_size, states * target, "replicated", config.weights.plain),)


def _head(config: Config) -> tuple[AnyNode, ...]:
    """The final norm and the head over the tokens the draft may propose, which is the draft's own."""
    vocab = config.text.optional_integer("draft_vocab_size") or config.vocab_size
    lm_head = gemm(config, "lm_head", padded_vocab(config, vocab), config.hidden_size, "column", config.weights.plain)
    return (norm("final_norm"), lm_head)


def _markov(config: Config) -> tuple[AnyNode, ...]:
    """DSpark's low-rank correction by the last token, and its confidence, where the configuration states them."""
    text = config.text
    rank = text.optional_integer("markov_rank")
    if rank is None:
        return ()
    row = rank * DTYPE_BITS[config.dtype] // 8
    vocab = text.optional_integer("draft_vocab_size") or config.vocab_size
    nodes: list[AnyNode] = [
        Gather(role="markov_w1", rows=config.vocab_size, row_bytes=row, rows_per_token=1, out_bytes_per_token=row),
        gemm(config, "markov_w2", padded_vocab(config, vocab), rank, "replicated", config.weights.plain),
    ]
    if text.boolean("enable_confidence_head", default=False):
        beside = rank if text.boolean("confidence_head_with_markov", default=False) else 0
        nodes.append(gemm(config, "confidence_head", 1, config.hidden_size + beside, "replicated", Format("fp32")))
    return tuple(nodes)


def _windows(config: Config, own: Section | None) -> tuple[int | None, ...]:
    """Each layer's window: by its type, or every layer's where the draft says so and no type does."""
    text = config.text
    everywhere = own is not None and own.boolean("use_swa", default=False)
    stated = text.optional_strings("layer_types")
    if stated is not None:
        sliding = [kind == SLIDING for kind in per_layer(config, "layer_types", stated, (SLIDING, FULL))]
    if stated is None or (everywhere and not any(sliding)):
        sliding = [everywhere] * config.layers
    window = None if own is None else own.optional_integer("swa_window_size")
    window = window or text.optional_integer("sliding_window")
    if any(sliding) and window is None:
        text.refuse("sliding_window", "is not stated, and layers are sliding; state the window")
    return tuple(window if slides else None for slides in sliding)


def _non_causal(config: Config, own: Section | None) -> bool:
    """Whether some layer attends to its whole block (qwen3_dflash.py: dflash_has_any_non_causal)."""
    for section, key in ((config.text, "is_causal"), (own, "causal")):
        if section is not None and section.has(key):
            return not section.boolean(key)
    return set(config.text.optional_strings("layer_types") or (FULL,)) != {SLIDING}


FAMILY = Family(
    serves={
        EAGLE3: Served(),
        DFLASH: Served(kv_heads=32, head_dim=128),
        DSPARK: Served(kv_heads=32, head_dim=128),
        DSPARK_LATENT: Served(),
    },
    build=build,
)
