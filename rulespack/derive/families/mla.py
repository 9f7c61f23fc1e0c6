"""Latent attention with a mixture of experts: DeepSeek V2, V3 and R1, Kimi K2.x, GLM 4.7 Flash, Mistral Small 4.

Source: 0.31.0, model_executor/models/deepseek_v2.py, glm4_moe_lite.py, kimi_k25.py, mistral_large_3.py; the draft
modules deepseek_mtp.py, glm4_moe_lite_mtp.py, and how many there are from config/speculative.py, hf_config_override.
"""

from __future__ import annotations

from rulespack.derive.blocks import (
    TENSOR_PARALLEL,
    UNLESS_SP_MOE,
    MoE,
    dense_mlp,
    embedding,
    experts,
    head,
    norm,
    read_top_k,
)
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.latent import latent_attention, read_latent
from rulespack.derive.layers import Layer
from rulespack.derive.predictor import module_count, predictor, predictor_layer
from rulespack.derive.weights import Format

#: GLM keeps its router in float32 and always sums after its experts (glm4_moe.py, Glm4MoE); the others keep the
#: model's dtype, and gather along tokens instead under the engine-wide sequence-parallel MoE.
GLM = "Glm4MoeLiteForCausalLM"


def build(config: Config) -> Parts:
    """The first layers dense, the others experts with shared ones beside them."""
    text = config.text
    if text.has("index_topk"):
        text.untranslated("index_topk", "sparse latent attention is not translated for this architecture")
    count = text.integer("n_routed_experts")
    top_k = read_top_k(config, "num_experts_per_tok", count)
    width = text.integer("moe_intermediate_size")
    shared = text.optional_integer("n_shared_experts", minimum=0) or 0
    first = text.integer("first_k_dense_replace", minimum=0)
    step = text.integer("moe_layer_freq", default=1)
    glm = config.architecture == GLM
    shape = read_latent(config)

    def add_layer(layer: Layer, index: int) -> Layer:
        layer.add(norm("input_norm"))
        latent_attention(layer, config, f"layers.{index}.self_attn", shape)
        layer.add(norm("post_attn_norm"))
        module = f"layers.{index}.mlp"
        if sparse(index):
            moe = MoE(
                module=module,
                count=count,
                top_k=top_k,
                width=width,
                shared_width=shared * width,
                router=Format("fp32") if glm else None,
                reduce=TENSOR_PARALLEL if glm else UNLESS_SP_MOE,
            )
            experts(layer, config, moe)
        else:
            dense_mlp(layer, config, module, text.integer("intermediate_size"))
        return layer

    def label(index: int) -> str:
        return "moe" if sparse(index) else "dense"

    def sparse(index: int) -> bool:
        return index >= first and index % step == 0

    past = range(config.layers, config.layers + _modules(config))
    draft = predictor(config, [add_layer(predictor_layer(config, label(index)), index) for index in past])
    return Parts(
        layers=[add_layer(Layer(label(index)), index) for index in range(config.layers)],
        embedding=embedding(config),
        head=head(config),
        draft_kinds=draft.kinds,
        speculator=draft.speculator,
    )


def _modules(config: Config) -> int:
    """Prediction modules: the engine takes them by the model type for DeepSeek V3, by the class for GLM."""
    if config.architecture == GLM:
        return module_count(config)
    known = config.architecture == "DeepseekV3ForCausalLM" and config.model_type == "deepseek_v3"
    return module_count(config, default=1) if known else 0


FAMILY = Family(
    serves={
        "DeepseekV2ForCausalLM": Served(),
        "DeepseekV3ForCausalLM": Served(),
        GLM: Served(),
        "KimiK25ForConditionalGeneration": Served(multimodal=True, lifts_quantization=True),
        "MistralLarge3ForCausalLM": Served(),
    },
    build=build,
)
