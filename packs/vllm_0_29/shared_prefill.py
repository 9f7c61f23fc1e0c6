"""Prefill context parallelism: one prefill shared over ranks.

Source: ``vllm/config/parallel.py: ParallelConfig._validate_parallel_config``,
``vllm/v1/worker/gpu/pcp_manager.py: PCPManager.validate_config``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulespack.errors import engine_refuses, not_modelled
from vllm_0_29.scheduler import text_only

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import Model


def check_dcp(deployment: Deployment) -> None:
    """Refused by the engine: a decode context over a part of the ranks that share a prefill; whole parts of them are
    not modelled."""
    tp, pcp = deployment.tensor_parallel_size, deployment.prefill_context_parallel_size
    dcp = deployment.decode_context_parallel_size
    if pcp == 1 or dcp == 1:
        return
    if dcp not in (pcp, tp * pcp):
        raise engine_refuses(
            "dcp-spans-pcp",
            "ValidationError",
            "config",
            f"decode_context_parallel_size {dcp} beside prefill_context_parallel_size {pcp} is 1, {pcp} or {tp * pcp}",
            "vllm/config/parallel.py: ParallelConfig._validate_parallel_config",
        )
    raise not_modelled("pcp-modelled", "prefill and decode context parallelism together are not modelled")


def check_shared_ranks(deployment: Deployment) -> None:
    """As :func:`check_dcp`, and refused by the engine beside data parallelism."""
    if deployment.prefill_context_parallel_size > 1 and deployment.data_parallel_size > 1:
        raise engine_refuses(
            "pcp-without-data-parallelism",
            "ValidationError",
            "config",
            "prefill context parallelism does not go with data parallelism",
            "vllm/config/parallel.py: ParallelConfig._validate_parallel_config",
        )
    check_dcp(deployment)


def settled(model: Model, deployment: Deployment) -> bool:
    """Whether the workers are sure to share a prefill: a latent cache on one stage, no images and no draft."""
    return (
        model.mla
        and deployment.pipeline_parallel_size == 1
        and model.draft is None
        and (model.multimodal is None or text_only(model, deployment) is True)
    )


def check_shared_prefill(model: Model, deployment: Deployment) -> None:
    """Not modelled where the workers may refuse to share a prefill once they set up: also with CUDA graphs."""
    if deployment.prefill_context_parallel_size == 1:
        return
    if not settled(model, deployment) or not deployment.enforce_eager:
        raise not_modelled(
            "pcp-modelled",
            "prefill context parallelism is modelled for a latent cache alone, on one stage, with enforce_eager",
        )
