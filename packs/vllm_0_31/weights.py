"""What kernels add to experts' weights: on Blackwell to 16-bit ones, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vllm_0_29 import weights

if TYPE_CHECKING:
    from rulespack.deployment import Deployment

#: What TensorRT-LLM's kernels want the inner dimension of 16-bit experts to be a multiple of.
TENSORRT_LLM: Final = 128

#: Classes whose routing and activation those kernels run.
RUN_BY_TENSORRT_LLM: Final = frozenset(
    """
    Glm4MoeForCausalLM GraniteMoeForCausalLM GraniteMoeHybridForCausalLM HYV3ForCausalLM KimiLinearForCausalLM
    NemotronHForCausalLM Qwen3MoeForCausalLM Qwen3NextForCausalLM Qwen3VLMoeForConditionalGeneration
    Qwen3_5MoeForConditionalGeneration Qwen4ExpForConditionalGeneration
    """.split()
)

#: Classes they do not run: other activations (Gemma 4, MiniMax M3), weights that are not normed (DeepSeek V2).
RUN_BY_OTHERS: Final = frozenset(
    """
    DeepseekV2ForCausalLM Gemma4ForConditionalGeneration MiniMaxM3SparseForCausalLM
    MiniMaxM3SparseForConditionalGeneration
    """.split()
)


def expert_multiples(architecture: str, dtype: str, inner: int, deployment: Deployment) -> tuple[int, int] | None:
    """What a rank's dimensions of an expert are rounded up to; None for a class whose kernel is not known.

    Source: ``vllm/model_executor/layers/fused_moe/oracle/unquantized.py:
    unquantized_round_up_hidden_size_and_intermediate_size``, ``experts/trtllm_bf16_moe.py``.
    """
    if dtype not in ("bf16", "fp16") or deployment.gpu.family != 10 or architecture in RUN_BY_OTHERS:
        return weights.expert_multiples(architecture, dtype, inner, deployment)
    if architecture in RUN_BY_TENSORRT_LLM:
        return TENSORRT_LLM, 1
    return (1, 1) if inner % TENSORRT_LLM == 0 else None
