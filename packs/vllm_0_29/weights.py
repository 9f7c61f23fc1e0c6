"""How the weights are laid out over the ranks, where the graph alone does not say.

What counts is what the first rank holds as the model is constructed; kernels repack some of it later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rulespack.graph.model import GEMM, GroupedGEMM, ModelGraph
from rulespack.hooks import WeightLayout
from vllm_0_29.quantization import quantizes_anew
from vllm_0_29.shards import rounds_up, splits_tokens
from vllm_0_29.stages import layers_of_stages

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Rules

#: Arguments that change what a rank holds in a way that is not modelled, whatever their value.
ARGUMENTS: Final = frozenset(
    """
    all2all_backend cpu_offload_gb cpu_offload_params enable_eplb eplb_config kernel_config linear_backend
    moe_backend offload_backend offload_group_size offload_num_in_group offload_params
    """.split()
)

#: Words in the name of an environment variable that selects a kernel, and with it what is added to weights.
KERNEL_WORDS: Final = ("MOE", "FP4", "FP8", "MARLIN", "DEEP_GEMM")

#: Formats of the same width as the ones models are trained in.
SIXTEEN_BITS: Final = ("auto", "half", "float16", "bfloat16")

#: Classes that build the head on every stage, not on the last alone (``lm_head`` in each class's ``__init__``).
HEAD_ON_EVERY_STAGE: Final = frozenset(
    """
    FalconMambaForCausalLM Gemma3ForCausalLM Gemma3ForConditionalGeneration Gemma4ForConditionalGeneration
    GptOssForCausalLM GraniteMoeForCausalLM GraniteMoeHybridForCausalLM HYV3ForCausalLM InklingForConditionalGeneration
    JambaForCausalLM MixtralForCausalLM NemotronHForCausalLM Qwen3MoeForCausalLM Qwen3NextForCausalLM
    Qwen3VLMoeForConditionalGeneration
    """.split()
)

#: Classes whose parameters nobody has held against the release's own: nothing is said about them.
UNCHECKED: Final = frozenset(
    """
    BertModel Dots3NoteForCausalLM Gemma3nForConditionalGeneration Step3p7ForConditionalGeneration
    WhisperForConditionalGeneration
    """.split()
)

#: Classes whose dense layers every rank holds whole where the experts' tokens are split: nothing is said about them
#: there (``is_sequence_parallel`` of the dense layers in ``vllm/models/{deepseek_v32,kimi_k3}/nvidia/model.py``).
WHOLE_WHEN_SPLIT: Final = frozenset(
    """
    DeepseekV32ForCausalLM Glm5NextForConditionalGeneration GlmMoeDsaForCausalLM KimiK3ForConditionalGeneration
    KimiLinearForCausalLM
    """.split()
)

#: The least inner dimension of an expert on each of the tensor-parallel ranks that share it
#: (``vllm/models/kimi_k3/nvidia/model.py: KimiMoE``).
LEAST_EXPERT_INNER: Final = {"KimiLinearForCausalLM": 256, "KimiK3ForConditionalGeneration": 256}


def weight_layout(rules: Rules, model: Model, graph: ModelGraph, deployment: Deployment) -> WeightLayout | None:
    """Stages, heads and the padding of experts; None where a class, an argument or a kernel is not modelled."""
    if model.architecture_name in UNCHECKED:
        return None
    if quantizes_anew(model, deployment):
        return None
    if deployment.dtype not in SIXTEEN_BITS or not ARGUMENTS.isdisjoint(deployment.stated):
        return None
    if model.architecture_name in WHOLE_WHEN_SPLIT and splits_tokens(deployment) and _has_dense_layers(graph):
        return None
    if rounds_up(model.shards, deployment.tensor_parallel_size):
        return None
    # Replicas of one node share a table of n-grams; how many there are on a node is not in a deployment.
    if model.hash_heads and deployment.data_parallel_size > 1:
        return None
    least, inner, outer = 0, 1, 1
    if model.experts:
        padding = _padding(rules, model, graph, deployment)
        if padding is None:
            return None
        least, inner, outer = padding
    stages = deployment.pipeline_parallel_size
    return WeightLayout(
        layers_of_stage=layers_of_stages(model.num_layers, stages, deployment.env.get("VLLM_PP_LAYER_PARTITION")),
        head_on_every_stage=model.architecture_name in HEAD_ON_EVERY_STAGE,
        least_expert_inner=least,
        expert_inner_multiple=inner,
        expert_outer_multiple=outer,
    )


def _has_dense_layers(graph: ModelGraph) -> bool:
    """Whether some layer has a dense MLP where others have experts."""
    return any(
        any(isinstance(node, GEMM) and node.role == "down_proj" for node in kind.nodes)
        and not any(isinstance(node, GroupedGEMM) for node in kind.nodes)
        for kind in graph.layer_kinds
    )


def _padding(rules: Rules, model: Model, graph: ModelGraph, deployment: Deployment) -> tuple[int, int, int] | None:
    """The least inner dimension of an expert on a rank, and the multiples of the inner and the outer one."""
    if deployment.prefill_context_parallel_size > 1:
        return None
    if any(word in name for name in deployment.env for word in KERNEL_WORDS):
        return None
    name = model.architecture_name
    ranks = 1 if deployment.enable_expert_parallel else deployment.tensor_parallel_size * deployment.data_parallel_size
    sizes = {
        (node.weight_dtype or graph.globals_.weight_dtype, node.k // ranks)
        for kind in graph.layer_kinds
        for node in kind.nodes
        if isinstance(node, GroupedGEMM) and (node.role or "").endswith("_down")
    }
    least = LEAST_EXPERT_INNER.get(name, 0)
    if least and ranks > deployment.tensor_parallel_size:
        return None  # the model pads for the ranks of one replica, and all replicas share the result
    multiples = {rules.expert_multiples(name, dtype, max(inner, least), deployment) for dtype, inner in sizes}
    if len(multiples) != 1:
        return None
    found = multiples.pop()
    return None if found is None else (least, *found)


def expert_multiples(architecture: str, dtype: str, inner: int, deployment: Deployment) -> tuple[int, int] | None:
    """What a rank's inner and outer dimension of an expert is rounded up to, by the kernel that runs it.

    MXFP4 alone is padded: Triton's kernels, which run GPT-OSS on Hopper, want multiples of 64 inside; Marlin's and
    TensorRT-LLM's 128 inside and 256 outside (``vllm/model_executor/layers/fused_moe/oracle/mxfp4.py:
    mxfp4_round_up_hidden_size_and_intermediate_size``).
    """
    if dtype != "mxfp4":
        return 1, 1
    if architecture == "GptOssForCausalLM" and deployment.gpu.family == 9:
        return 64, 1
    return 128, 256
