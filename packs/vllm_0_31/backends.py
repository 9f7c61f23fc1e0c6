"""The FlashAttention version in vLLM 0.31.0: an fp8 cache on Hopper leaves it to each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_0_29 import backends as earlier

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import Model


def flash_attn_version(model: Model, deployment: Deployment, value: str) -> int | None:
    """As before, but nothing is forced for layers of several head sizes with an fp8 cache on Hopper."""
    asked = (deployment.attention_config or {}).get("flash_attn_version")
    if asked is None and deployment.gpu.family == 9 and value.startswith("fp8"):
        return None
    return earlier.flash_attn_version(model, deployment, value)
