"""Connectors in vLLM 0.31.0: NIXL takes prefills shared over ranks and latent hybrids, and is the one that aligns
interleaved runs to blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulespack.errors import engine_refuses
from vllm_0_29.connectors import has_nixl, running, stated
from vllm_0_29.pool import check_aligned_states, check_interleave

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulespack.deployment import Deployment
    from rulespack.hooks import CacheGroup, Resolution
    from vllm_0_29.model import Model


def check_nixl(model: Model, deployment: Deployment) -> None:
    """Refused by the engine: a cache shared over ranks otherwise than over all that transfer, or not latent."""
    dcp = deployment.decode_context_parallel_size
    ranks = max(deployment.tensor_parallel_size, deployment.prefill_context_parallel_size)
    if dcp > 1 and (not model.mla or dcp != ranks):
        raise engine_refuses(
            "nixl-dcp",
            "ValidationError",
            "config",
            f"NIXL takes decode context parallelism only over the {ranks} ranks that transfer, and a latent cache",
            "vllm/config/vllm.py: VllmConfig.__post_init__",
        )


def check_block_size(
    model: Model, deployment: Deployment, resolution: Resolution, groups: Sequence[CacheGroup]
) -> None:
    """As before, but only NIXL aligns interleaved runs."""
    if not (stated(deployment) and has_nixl(running(deployment))):
        check_interleave(deployment, groups)
    check_aligned_states(model, deployment, resolution)
