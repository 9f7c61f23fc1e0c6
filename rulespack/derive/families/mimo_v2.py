"""MiMo V2: windows with sinks and full layers, heads whose values are narrower than their keys, experts.

Source: 0.31.0, model_executor/models/{mimo_v2,mimo_v2_mtp,mimo_v2_omni}.py,
transformers_utils/model_arch_config_convertor.py (the class of a file with encoders; ``attention_chunk_size`` is
dropped, no layer attends in chunks).
"""

from __future__ import annotations

from typing import Final

import msgspec

from rulespack.derive.blocks import MoE, dense_mlp, embedding, experts, head, norm, projected_attention, read_top_k
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.derive.predictor import predictor, predictor_layer
from rulespack.derive.weights import Format
from rulespack.graph.model import Attention

OMNI = "MiMoV2OmniForCausalLM"
DRAFT: Final = "mtp.layers.0"
ROUTER_DTYPES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def build(config: Config) -> Parts:
    """Each layer by two lists: 1 for a window in one, 1 for experts in the other."""
    text = config.text
    count = text.integer("n_routed_experts")
    top_k = read_top_k(config, "num_experts_per_tok", count)
    width = text.integer("moe_intermediate_size")
    router = text.string("moe_router_dtype", default="float32")
    if router not in ROUTER_DTYPES:
        text.untranslated("moe_router_dtype", f"{router!r} is not translated; known are {', '.join(ROUTER_DTYPES)}")

    def add_layer(config: Config, layer: Layer, module: str, slides: bool, sparse: bool) -> Layer:
        layer.add(norm("input_norm"))
        projected_attention(layer, config, f"{module}.self_attn", _attention(config, slides))
        layer.add(norm("post_attn_norm"))
        if sparse:
            form = Format(ROUTER_DTYPES[router])
            moe = MoE(module=f"{module}.mlp", count=count, top_k=top_k, width=width, router=form)
            experts(layer, config, moe)
        else:
            dense_mlp(layer, config, f"{module}.mlp", text.integer("intermediate_size"))
        return layer

    def label(slides: bool, sparse: bool) -> str:
        return f"{'sliding' if slides else 'full'}_{'moe' if sparse else 'dense'}"

    layers = [
        add_layer(config, Layer(label(slides, sparse)), f"layers.{index}", slides, sparse)
        for index, (slides, sparse) in enumerate(zip(_flags(config, "hybrid_layer_pattern"), _moe(config), strict=True))
    ]
    # A window layer without experts; of the modules a checkpoint holds the engine runs the first.
    drafting = _drafting(config)
    layer = add_layer(drafting, predictor_layer(config, label(True, False)), DRAFT, True, False)
    draft = predictor(config, [layer])
    return Parts(
        layers=layers,
        embedding=embedding(config),
        head=head(config),
        draft_kinds=draft.kinds,
        speculator=draft.speculator,
    )


def _drafting(config: Config) -> Config:
    """The draft module's output projection keeps the model's dtype, whatever the checkpoint's quantization."""
    weights = config.weights
    ignored = (*weights.ignored, f"{DRAFT}.self_attn.o_proj")
    return msgspec.structs.replace(config, weights=msgspec.structs.replace(weights, ignored=ignored))


def _flags(config: Config, key: str) -> tuple[bool, ...]:
    stated = config.text.integers(key)
    if len(stated) < config.layers:
        problem = f"lists {len(stated)} layers and num_hidden_layers is {config.layers}; list each layer"
        config.text.refuse(key, problem)
    return tuple(flag == 1 for flag in stated[: config.layers])


def _moe(config: Config) -> tuple[bool, ...]:
    """The engine reads a list; a plain number, or nothing, means that no layer has experts."""
    key = "moe_layer_freq"
    listed = config.text.is_list(key)
    return _flags(config, key) if listed else (False,) * config.layers


def _attention(config: Config, slides: bool) -> Attention:
    """Sinks stand in windows alone, whatever the file says of full layers."""
    text = config.text
    if not slides:
        return _node(config, "gqa", config.heads, config.kv_heads, text.integer("head_dim"), "v_head_dim")
    return _node(
        config,
        "swa",
        text.integer("swa_num_attention_heads"),
        text.integer("swa_num_key_value_heads"),
        text.integer("swa_head_dim"),
        "swa_v_head_dim",
        window=text.integer("sliding_window_size"),
        sinks=text.boolean("add_swa_attention_sink_bias", default=False),
    )


def _node(
    config: Config,
    kind: str,
    heads: int,
    kv_heads: int,
    width: int,
    value_key: str,
    window: int | None = None,
    sinks: bool = False,
) -> Attention:
    value = config.text.optional_integer(value_key) or width
    return Attention(
        kind=kind,
        n_q=heads,
        n_kv=kv_heads,
        d_h=width,
        d_v=value if value != width else None,
        window=window,
        sinks=sinks,
    )


FAMILY = Family(
    serves={
        "MiMoV2FlashForCausalLM": Served(with_vision=OMNI),
        "MiMoV2ForCausalLM": Served(with_vision=OMNI),
        OMNI: Served(multimodal=True),
    },
    build=build,
)
