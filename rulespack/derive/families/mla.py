"""Latent attention with a mixture of experts: DeepSeek V2, V3 and R1, Kimi K2.x, GLM 4.7 Flash, Mistral Small 4.

Source: 0.31.0, model_executor/models/deepseek_v2.py, glm4_moe_lite.py, kimi_k25.py, mistral_large_3.py.
"""

from __future__ import annotations

from rulespack.derive.blocks import (
    TENSOR_PARALLEL,
    UNLESS_SP_MOE,
    MoE,
    all_reduce,
    dense_mlp,
    embedding,
    experts,
    gemm,
    head,
    norm,
    norm_of,
    read_top_k,
)
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.derive.weights import Format
from rulespack.graph.model import Attention

#: GLM keeps its router in float32 and always sums after its experts (glm4_moe.py, Glm4MoE); the others keep the
#: model's dtype, and gather along tokens instead under the engine-wide sequence-parallel MoE.
GLM = "Glm4MoeLiteForCausalLM"


def build(config: Config) -> Parts:
    """The first layers dense, the others experts with shared ones beside them."""
    text = config.text
    if text.has("index_topk"):
        text.refuse("index_topk", "sparse latent attention is not translated for this architecture")
    count = text.integer("n_routed_experts")
    top_k = read_top_k(config, "num_experts_per_tok", count)
    width = text.integer("moe_intermediate_size")
    shared = text.optional_integer("n_shared_experts", minimum=0) or 0
    first = text.integer("first_k_dense_replace", minimum=0)
    step = text.integer("moe_layer_freq", default=1)
    glm = config.architecture == GLM
    layers = []
    for index in range(config.layers):
        sparse = index >= first and index % step == 0
        layer = Layer("moe" if sparse else "dense")
        layer.add(norm("input_norm"))
        latent_attention(layer, config, f"layers.{index}.self_attn")
        layer.add(norm("post_attn_norm"))
        module = f"layers.{index}.mlp"
        if sparse:
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
        layers.append(layer)
    return Parts(layers=layers, embedding=embedding(config), head=head(config))


def latent_attention(layer: Layer, config: Config, module: str) -> None:
    """Latent projections, attention over one latent vector for each token, output projection and its reduction."""
    text, hidden = config.text, config.hidden_size
    form = config.weights.of_linear
    rank = text.integer("kv_lora_rank")
    rope = text.integer("qk_rope_head_dim")
    nope = text.integer("qk_nope_head_dim")
    value = text.integer("v_head_dim")
    query_rank = text.optional_integer("q_lora_rank")
    entry = layer.last
    queries = config.heads * (nope + rope)
    if query_rank is None:
        query = layer.add(gemm(config, "q_proj", queries, hidden, "column", form(f"{module}.q_proj")))
        name = "kv_a_proj_with_mqa"
        latent = layer.add(gemm(config, name, rank + rope, hidden, "replicated", form(f"{module}.{name}")), [entry])
    else:
        name = "fused_qkv_a_proj"
        fused = gemm(config, name, query_rank + rank + rope, hidden, "replicated", form(f"{module}.{name}"))
        latent = layer.add(fused)
        layer.add(norm_of("q_a_norm", query_rank, config))
        query = layer.add(gemm(config, "q_b_proj", queries, query_rank, "column", form(f"{module}.q_b_proj")))
    layer.add(norm_of("kv_a_norm", rank, config), [latent])
    keys = gemm(config, "kv_b_proj", config.heads * (nope + value), rank, "column", form(f"{module}.kv_b_proj"))
    expanded = layer.add(keys)
    node = Attention(
        kind="mla",
        n_q=config.heads,
        n_kv=1,
        d_h=rank + rope,
        kv_lora_rank=rank,
        qk_rope_head_dim=rope,
        qk_nope_head_dim=nope,
    )
    layer.add(node, [query, expanded])
    layer.add(gemm(config, "o_proj", hidden, config.heads * value, "row", form(f"{module}.o_proj")))
    layer.add(all_reduce("attn_out"))


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
