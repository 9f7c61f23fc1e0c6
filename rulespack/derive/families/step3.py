"""Step 3.5 and 3.7: windows and full layers with heads of their own, experts with a shared one beside them.

Source: 0.31.0, model_executor/models/step3p5.py, step3p5_mtp.py, step3p7.py; class defaults from
transformers_utils/configs/step3p5.py and, for the multimodal class, transformers' Step3p7TextConfig.
"""

from __future__ import annotations

from rulespack.derive.blocks import (
    TENSOR_PARALLEL,
    MoE,
    all_reduce,
    dense_mlp,
    embedding,
    experts,
    gate,
    gemm,
    head,
    norm,
    projected_attention,
    read_top_k,
)
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.derive.predictor import module_count, predictor, predictor_layer
from rulespack.derive.weights import Format
from rulespack.graph.model import Attention

SLIDING, FULL = "sliding_attention", "full_attention"
TEXT = "Step3p5ForCausalLM"


def build(config: Config) -> Parts:
    """Layers by type; one type may have heads of its own. Listed layers have experts, by default all but the first."""
    text = config.text
    sparse = _moe_layers(config)

    def add_layer(layer: Layer, index: int, kind: str, module: str) -> Layer:
        layer.add(norm("input_norm"))
        _attention(layer, config, f"{module}.self_attn", _node(config, kind))
        layer.add(norm("post_attn_norm"))
        if index in sparse:
            experts(layer, config, _moe(config, f"{module}.moe"))
        else:
            dense_mlp(layer, config, f"{module}.mlp", text.integer("intermediate_size"))
        return layer

    def label(index: int, kind: str) -> str:
        return f"{'sliding' if kind == SLIDING else 'full'}_{'moe' if index in sparse else 'dense'}"

    layers = [
        add_layer(Layer(label(index, kind)), index, kind, f"layers.{index}")
        for index, kind in enumerate(_types(config))
    ]
    drafts = []
    for index in range(config.layers, config.layers + _modules(config)):
        kind = _alternating(index)
        layer = predictor_layer(config, label(index, kind))
        drafts.append(add_layer(layer, index, kind, f"layers.{index}.mtp_block"))
    draft = predictor(config, drafts)
    return Parts(
        layers=layers,
        embedding=embedding(config),
        head=head(config),
        draft_kinds=draft.kinds,
        speculator=draft.speculator,
    )


def _modules(config: Config) -> int:
    """Draft modules the engine can run.

    Its draft class looks its layers up past the end of ``layer_types``, which the configuration class cuts to the
    target's, and cannot be built where they are stated; the multimodal class fills them in.
    """
    modules = module_count(config)
    return 0 if config.architecture != TEXT or config.text.has("layer_types") else modules


def _alternating(index: int) -> str:
    return FULL if index % 2 else SLIDING


def _types(config: Config) -> tuple[str, ...]:
    """As listed, where entries past the last layer are the drafter's. Without a list: a window on every even layer,
    but for the multimodal class, whose configuration fills in full attention."""
    text = config.text
    stated = text.optional_strings("layer_types")
    if stated is None:
        if config.architecture != TEXT:
            return (FULL,) * config.layers
        return tuple(map(_alternating, range(config.layers)))
    if len(stated) < config.layers:
        problem = f"lists {len(stated)} layers and num_hidden_layers is {config.layers}; list each layer"
        text.refuse("layer_types", problem)
    for position, kind in enumerate(stated[: config.layers]):
        if kind not in (SLIDING, FULL):
            text.refuse("layer_types", f"entry {position} is {kind!r}; known are {SLIDING}, {FULL}")
    return stated[: config.layers]


def _moe_layers(config: Config) -> set[int]:
    text = config.text
    stated = text.optional_string("moe_layers_enum")
    if stated is None:
        return set(range(1, config.layers))
    try:
        return {int(layer) for layer in stated.strip().split(",")}
    except ValueError:
        text.refuse("moe_layers_enum", f"is {stated[:40]!r}; state layer numbers with commas between them")


def _node(config: Config, kind: str) -> Attention:
    """The attention of a layer of that type."""
    text = config.text
    heads, kv_heads = config.heads, text.integer("num_attention_groups", default=8)
    width = text.optional_integer("head_dim")
    other = text.optional_section("attention_other_setting")
    if other is not None and text.has("layer_types") and other.string("attention_type") == kind:
        heads = other.integer("num_attention_heads")
        kv_heads = other.integer("num_attention_groups")
        width = other.optional_integer("head_dim") or width
    if heads % kv_heads:
        text.refuse("num_attention_groups", f"{kv_heads} groups do not divide {heads} heads")
    window = text.optional_integer("sliding_window") if kind == SLIDING else None
    return Attention(
        kind="gqa" if window is None else "swa",
        n_q=heads,
        n_kv=kv_heads,
        d_h=width or config.hidden_size // heads,
        window=window,
    )


def _attention(layer: Layer, config: Config, module: str, node: Attention) -> None:
    """Attention; where the model says so, each head's result is multiplied with a gate of its own."""
    if not config.text.boolean("use_head_wise_attn_gate", default=False):
        projected_attention(layer, config, module, node)
        return
    form, hidden, inner = config.weights.of_linear, config.hidden_size, node.n_q * node.d_h
    entry, width = layer.last, (node.n_q + 2 * node.n_kv) * node.d_h
    layer.add(gemm(config, "qkv_proj", width, hidden, "column", form(f"{module}.qkv_proj")))
    attended = layer.add(node)
    gates = layer.add(gemm(config, "attn_gate_proj", node.n_q, hidden, "column", form(f"{module}.g_proj")), [entry])
    layer.add(gate("attn_gate", inner, config), [attended, gates])
    layer.add(gemm(config, "o_proj", hidden, inner, "row", form(f"{module}.o_proj")))
    layer.add(all_reduce("attn_out"))


def _moe(config: Config, module: str) -> MoE:
    text = config.text
    count, width = text.integer("moe_num_experts"), text.integer("moe_intermediate_size")
    top_k = read_top_k(config, "moe_top_k", count)
    return MoE(
        module=module,
        count=count,
        top_k=top_k,
        width=width,
        shared_width=text.optional_integer("share_expert_dim") or width * top_k,
        shared_module="share_expert",
        router=Format("fp32"),
        reduce=TENSOR_PARALLEL,
    )


FAMILY = Family(
    serves={
        TEXT: Served(max_seq_len=4096),
        "Step3p7ForConditionalGeneration": Served(multimodal=True, max_positions=128000),
    },
    build=build,
)
