"""Prefill context parallelism in vLLM 0.31.0: beside data parallelism, and with CUDA graphs where
attention is dense."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulespack.errors import not_modelled
from vllm_0_29.shared_prefill import check_dcp, settled

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import Model


def check_shared_ranks(deployment: Deployment) -> None:
    """As before, but for data parallelism."""
    check_dcp(deployment)


def check_shared_prefill(model: Model, deployment: Deployment) -> None:
    """As before, but only sparse attention may not run CUDA graphs."""
    if deployment.prefill_context_parallel_size == 1:
        return
    if not settled(model, deployment) or (model.sparse and not deployment.enforce_eager):
        raise not_modelled(
            "pcp-modelled",
            "prefill context parallelism is modelled for a latent cache alone, on one stage, and for a sparse one with "
            "enforce_eager",
        )
