"""Gated delta nets with full attention in every few layers: Qwen3-Next, Qwen 3.5, Qwen 3.6.

Source: 0.31.0, model_executor/models/{qwen3_next,qwen3_next_mtp,qwen3_5,qwen3_5_mtp}.py; the state's dtype of Qwen
3.5 in model_executor/models/config.py; class defaults from
transformers_utils/configs/{qwen3_next,qwen3_5,qwen3_5_moe}.py.
"""

from __future__ import annotations

from rulespack.derive.blocks import (
    UNLESS_SP_MOE,
    dense_mlp,
    embedding,
    experts,
    head,
    norm,
    per_layer,
    projected_attention,
    read_gated_moe,
)
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.derive.predictor import COUNT, joined, module_count, predictor
from rulespack.derive.recurrent import delta_net, read_delta_net, state_dtype
from rulespack.derive.weights import Format
from rulespack.graph.model import Attention

LINEAR, FULL = "linear_attention", "full_attention"
NEXT = "Qwen3NextForCausalLM"
INTERVAL = 4


def build(config: Config) -> Parts:
    """Full attention gates its result, which doubles the query projection. Experts share a gated shared one.

    Under the engine's sequence-parallel MoE the sum after the mixer is a reduce-scatter and the gather before it, which
    move what the sum moves, so it is stated as the sum it is otherwise.
    """
    text = config.text
    if text.boolean("layer_scale", default=False):
        text.untranslated("layer_scale", "is true, which is not translated")
    # Qwen 3.5 keeps the recurrent state in the dtype it states, Qwen3-Next in the model's own.
    stored = None if config.architecture == NEXT else state_dtype(config, "mamba_ssm_dtype", None)
    shape = read_delta_net(config, stored)
    node = Attention(kind="gqa", n_q=config.heads, n_kv=config.kv_heads, d_h=config.head_dim())
    gated = text.boolean("attn_output_gate", default=True)

    def add_layer(layer: Layer, index: int, kind: str, module: str) -> Layer:
        layer.add(norm("input_norm"))
        if kind == LINEAR:
            delta_net(layer, config, f"{module}.linear_attn", shape)
        else:
            projected_attention(layer, config, f"{module}.self_attn", node, gated=gated)
        layer.add(norm("post_attn_norm"))
        if _is_sparse(config, index):
            experts(layer, config, read_gated_moe(config, f"{module}.mlp", UNLESS_SP_MOE))
        else:
            dense_mlp(layer, config, f"{module}.mlp", text.integer("intermediate_size"))
        return layer

    def label(index: int, kind: str) -> str:
        return f"{'gdn' if kind == LINEAR else 'full'}_{'moe' if _is_sparse(config, index) else 'dense'}"

    layers = [
        add_layer(Layer(label(index, kind)), index, kind, f"layers.{index}")
        for index, kind in enumerate(_types(config))
    ]
    # The draft's layers count from 0, and what comes before them is one for all.
    drafts = [
        add_layer(Layer(f"mtp_{label(index, FULL)}"), index, FULL, f"mtp.layers.{index}")
        for index in range(_modules(config))
    ]
    draft = predictor(config, drafts, before_layers=joined(config, _fused_format(config), gathered=True))
    return Parts(
        layers=layers,
        embedding=embedding(config),
        head=head(config),
        draft_kinds=draft.kinds,
        speculator=draft.speculator,
    )


def _modules(config: Config) -> int:
    """Full-attention layers of the draft module, each a module of its own; the classes supply one."""
    key = COUNT if config.architecture == NEXT else "mtp_num_hidden_layers"
    return module_count(config, key, default=1)


def _fused_format(config: Config) -> Format:
    """An NVFP4 checkpoint keeps the draft's projection in the model's dtype, whether or not it lists it."""
    weights = config.weights
    if weights.facts is not None and weights.facts.method == "modelopt_fp4":
        return weights.plain
    return weights.of_linear("mtp.fc")


def _types(config: Config) -> tuple[str, ...]:
    """As listed, else full attention in every fourth layer; Qwen 3.5 may state another interval."""
    text = config.text
    listed = text.optional_strings("layer_types")
    if listed is not None:
        return per_layer(config, "layer_types", listed, (LINEAR, FULL))
    interval = text.integer("full_attention_interval", default=INTERVAL)
    if config.architecture == NEXT and interval != INTERVAL:
        text.refuse("full_attention_interval", f"is {interval}, and the engine takes {INTERVAL}; list layer_types")
    return tuple(LINEAR if (index + 1) % interval else FULL for index in range(config.layers))


def _is_sparse(config: Config, index: int) -> bool:
    """Qwen 3.5 is all experts or none, by its model type; Qwen3-Next leaves listed layers and steps dense."""
    text = config.text
    if config.architecture != NEXT:
        return config.model_type == "qwen3_5_moe_text"
    step = text.integer("decoder_sparse_step", default=1)
    return index not in (text.optional_integers("mlp_only_layers") or ()) and (index + 1) % step == 0


FAMILY = Family(
    serves={
        NEXT: Served(kv_heads=2, head_dim=256, max_positions=32768),
        "Qwen3_5ForCausalLM": Served(kv_heads=4, head_dim=256, max_positions=32768),
        "Qwen3_5MoeForCausalLM": Served(kv_heads=2, head_dim=256, max_positions=32768),
        "Qwen3_5ForConditionalGeneration": Served(kv_heads=4, head_dim=256, multimodal=True, max_positions=32768),
        "Qwen3_5MoeForConditionalGeneration": Served(kv_heads=2, head_dim=256, multimodal=True, max_positions=32768),
    },
    build=build,
)
