"""Kimi Linear and Kimi K3: Kimi delta attention, latent attention in every few layers, a mixture of experts.

Source: 0.31.0, models/kimi_k3/nvidia/{model,mtp,kda,mla,latent_moe_runner}.py,
model_executor/layers/mamba/gdn/kimi_gdn_linear_attn.py; class defaults from
transformers_utils/configs/{kimi_linear,kimi_k3}.py.
"""

from __future__ import annotations

import msgspec

from rulespack.derive.blocks import (
    UNLESS_SP_MOE,
    LatentExperts,
    MoE,
    all_reduce,
    dense_mlp,
    embedding,
    experts,
    gate,
    gemm,
    head,
    norm,
    read_top_k,
)
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.latent import Gate, Latent, latent_attention, read_latent
from rulespack.derive.layers import Layer
from rulespack.derive.predictor import module_count, predictor, predictor_layer
from rulespack.graph.model import AnyNode, Elementwise, RecurrentUpdate
from rulespack.graph.vocabulary import DTYPE_BITS

#: The class whose checkpoints may carry draft modules.
K3 = "KimiK3ForConditionalGeneration"
#: What the rows of the fused projection are padded to where the gate has its full rank.
ALIGNMENT = 16


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """A delta attention: heads as wide in keys as in values. ``full_gate``: the output gate has its full rank."""

    heads: int
    width: int
    kernel: int
    full_gate: bool
    bounded: bool


def build(config: Config) -> Parts:
    """The first layers dense, the others experts. Where residuals are attended to, that takes the norms' place."""
    text = config.text
    if text.has("mla_use_nope") and not text.boolean("mla_use_nope"):
        text.refuse("mla_use_nope", "is false; the engine serves this class without rotary embedding alone")
    delta, latent = _read_delta(config), _latent(config)
    every = text.optional_integer("attn_res_block_size")
    first = text.integer("first_k_dense_replace", minimum=0, default=0)
    step = text.integer("moe_layer_freq", default=1)

    def add_layer(layer: Layer, index: int, recurrent: bool, every: int | None) -> Layer:
        layer.add(_residual("input_norm", config, every, index, late=False))
        module = f"layers.{index}.self_attn"
        if recurrent:
            _delta_attention(layer, config, module, delta)
        else:
            latent_attention(layer, config, module, latent)
        layer.add(_residual("post_attn_norm", config, every, index, late=True))
        if sparse(index):
            experts(layer, config, _moe(config, f"layers.{index}.block_sparse_moe"))
        else:
            dense_mlp(layer, config, f"layers.{index}.mlp", text.integer("intermediate_size"))
        return layer

    def sparse(index: int) -> bool:
        return text.has("num_experts") and index >= first and index % step == 0

    def label(index: int, recurrent: bool) -> str:
        return f"{'kda' if recurrent else 'mla'}_{'moe' if sparse(index) else 'dense'}"

    layers = [
        add_layer(Layer(label(index, recurrent)), index, recurrent, every)
        for index, recurrent in enumerate(_recurrent(config))
    ]
    # Latent attention with plain residuals.
    past = range(config.layers, config.layers + (module_count(config) if config.architecture == K3 else 0))
    drafts = [add_layer(predictor_layer(config, label(index, False)), index, False, None) for index in past]
    draft = predictor(config, drafts)
    return Parts(
        layers=layers,
        embedding=embedding(config),
        head=_head(config, every),
        draft_kinds=draft.kinds,
        speculator=draft.speculator,
    )


def _read_delta(config: Config) -> Delta:
    section = config.text.section("linear_attn_config")
    return Delta(
        heads=section.integer("num_heads"),
        width=section.integer("head_dim"),
        kernel=section.integer("short_conv_kernel_size"),
        full_gate=section.boolean("use_full_rank_gate", default=False),
        bounded=section.optional_number("gate_lower_bound") is not None,
    )


def _recurrent(config: Config) -> list[bool]:
    """Which layers are recurrent: those listed, counted from 1. The other list must name the rest."""
    section = config.text.section("linear_attn_config")
    listed, full = section.integers("kda_layers"), section.integers("full_attn_layers")
    if sorted((*listed, *full)) != list(range(1, config.layers + 1)):
        section.refuse("kda_layers", f"and full_attn_layers do not name each of {config.layers} layers once, from 1")
    return [index + 1 in listed for index in range(config.layers)]


def _delta_attention(layer: Layer, config: Config, module: str, delta: Delta) -> None:
    """One projection of queries, keys, values, decay rank and mixing rates, the update, a gated norm, the output."""
    form, hidden = config.weights.of_linear, config.hidden_size
    inner = delta.heads * delta.width
    entry = layer.last
    rows = (4 if delta.full_gate else 3) * inner + delta.width + delta.heads
    if delta.full_gate:
        rows = -(-rows // ALIGNMENT) * ALIGNMENT
    name = "in_proj_qkvgfab"
    fused = layer.add(gemm(config, name, rows, hidden, "column", form(f"{module}.{name}")))
    layer.add(gemm(config, "f_b_proj", inner, delta.width, "column", form(f"{module}.f_b_proj")))
    node = RecurrentUpdate(
        recurrent_kind="kda",
        n_heads=delta.heads,
        state_size=delta.width,
        conv_kernel=delta.kernel,
        state_dtype="fp32",
        bounded_gate=delta.bounded,
    )
    before = [layer.add(node, [fused, layer.last])]
    if not delta.full_gate:
        form_a, form_b = form(f"{module}.g_a_proj"), form(f"{module}.g_b_proj")
        layer.add(gemm(config, "g_a_proj", delta.width, hidden, "replicated", form_a), [entry])
        before.append(layer.add(gemm(config, "g_b_proj", inner, delta.width, "column", form_b)))
    layer.add(gate("gated_norm", inner, config), before)
    layer.add(gemm(config, "o_proj", hidden, inner, "row", form(f"{module}.o_proj")))
    layer.add(all_reduce("attn_out"))


def _latent(config: Config) -> Latent:
    """Latent attention; in some models its result passes a gate of its own projection, as wide as itself."""
    shape = read_latent(config)
    gated = config.text.boolean("mla_use_output_gate", default=False)
    wide = Gate(module="g_proj", width=shape.heads * shape.value, tp="column") if gated else None
    return msgspec.structs.replace(shape, gate=wide)


def _moe(config: Config, module: str) -> MoE:
    """Routed experts, on a narrower stream where it is stated, and shared ones beside them."""
    text = config.text
    count = text.integer("num_experts")
    width = text.integer("moe_intermediate_size")
    narrow = text.optional_integer("routed_expert_hidden_size")
    latent = None
    if narrow is not None:
        latent = LatentExperts(
            width=narrow,
            down="routed_expert_down_proj",
            up="routed_expert_up_proj",
            summed_first=True,
            normed=text.boolean("latent_moe_use_norm", default=False),
        )
    return MoE(
        module=module,
        count=count,
        top_k=read_top_k(config, "num_experts_per_token", count),
        width=width,
        shared_width=width * text.integer("num_shared_experts", minimum=0, default=0),
        latent=latent,
        reduce=UNLESS_SP_MOE,
    )


def _residual(role: str, config: Config, every: int | None, index: int, *, late: bool) -> Elementwise:
    """The norm before a half: of the residual stream, or of what attends over the residuals kept so far.

    One residual is kept for each ``every`` layers: the running sum, stored by the first of them before its first half;
    the sum then starts anew. Reading what is kept, bringing the sum up to date and writing the result is one launch.
    """
    if every is None:
        return norm(role)
    stores = index % every == 0
    kept = -(-index // every) + (1 if late and stores else 0)
    # Before the first half of all, and where the sum started anew, there is nothing to add to it.
    adds = not stores if late else index > 0
    return _attention_over_residuals(role, config, kept, adds=adds, stores=stores and not late)


def _attention_over_residuals(role: str, config: Config, kept: int, *, adds: bool, stores: bool) -> Elementwise:
    """The sum read and the result written, the residuals read; what is added read and the sum written; one stored."""
    values = kept + 2 + (2 if adds else 0) + (1 if stores else 0)
    return Elementwise(role=role, bytes_per_token=values * config.hidden_size * DTYPE_BITS[config.dtype] // 8)


def _head(config: Config, every: int | None) -> tuple[AnyNode, ...]:
    """The final norm comes after one more look over all the residuals kept."""
    if every is None:
        return head(config)
    kept = -(-config.layers // every)
    return (_attention_over_residuals("residual_attention", config, kept, adds=True, stores=False), *head(config))


FAMILY = Family(
    serves={
        "KimiLinearForCausalLM": Served(max_positions=4096),
        K3: Served(multimodal=True, lifts_quantization=True, max_positions=4096),
    },
    build=build,
)
