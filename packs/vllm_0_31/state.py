"""Recurrent state in vLLM 0.31.0: the flag for its dtype reaches delta attention (KDA)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulespack.errors import engine_refuses
from rulespack.graph.state import state_tensors
from vllm_0_29 import state as earlier
from vllm_0_29.backends import model_dtype

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Rules

DTYPE_SOURCE = "vllm/model_executor/layers/mamba/mamba_utils.py: MambaStateDtypeCalculator.kda_state_dtype"

#: What a KDA state may be stored in.
KDA_DTYPES = ("auto", "float32", "bfloat16")


def state_dtypes(model: Model, deployment: Deployment, cls: CacheClass) -> tuple[str, str]:
    """As before; a KDA model refuses any other dtype than float32 and bfloat16, whether or not its layers heed it."""
    asked = deployment.mamba_ssm_cache_dtype
    if cls.recurrent.recurrent_kind == "kda" and asked not in KDA_DTYPES and model.architecture.state_size_heeds_flag:
        raise engine_refuses(
            "kda-state-dtype",
            "ValueError",
            "construct",
            f"a KDA state is stored in float32 or bfloat16, and mamba_ssm_cache_dtype {asked} was asked",
            DTYPE_SOURCE,
        )
    return earlier.state_dtypes(model, deployment, cls)


def page_bytes(rules: Rules, model: Model, deployment: Deployment, cls: CacheClass) -> int:
    """One state as the block-size rule counts it: Kimi Linear's model class counts the dtype the flag asks for, though
    its layers keep float32, so that the page can come out too small."""
    asked = deployment.mamba_ssm_cache_dtype
    if asked == "auto" or not model.architecture.state_size_heeds_flag:
        return earlier.page_bytes(rules, model, deployment, cls)
    conv, _ = rules.state_dtypes(model, deployment, cls)
    counted = state_tensors(
        cls.recurrent,
        conv_dtype=earlier.FORMAT[conv],
        state_dtype=earlier.FORMAT[asked],
        tensor_parallel_size=deployment.tensor_parallel_size,
        extra_rows=earlier.counted_rows(model, deployment),
    )
    return sum(tensor.bytes for tensor in counted)


def checkpoint_blocks(rules: Rules, model: Model, deployment: Deployment, cls: CacheClass) -> int:
    """As before, and only for a state the kernel can read."""
    recurrent = rules.state_dtypes(model, deployment, cls)[1]
    if recurrent not in ("bfloat16", "float32") or model_dtype(model, deployment) != "bfloat16":
        return 0
    return earlier.checkpoint_blocks(rules, model, deployment, cls)
