"""The worker's check that a kernel block divides every group's block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rulespack.errors import engine_refuses
from vllm_0_29.backends import SELECTING, wants
from vllm_0_29.model import STATE_LAYERS

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import CacheGroup, OwnedCaches, Resolution
    from vllm_0_29.backend_terms import Kernel
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Rules

#: Layer classes whose backends cannot fail the check: selected ones accept the size, recurrent ones take any.
SELF_FITTING = SELECTING | STATE_LAYERS

SOURCE = "vllm/v1/worker/utils.py: select_common_block_size"


def kernel_block_check(
    rules: Rules,
    model: Model,
    deployment: Deployment,
    resolution: Resolution,
    owned: OwnedCaches,
    groups: Sequence[CacheGroup],
) -> None:
    """Refused by the engine where no kernel block that every backend of a group runs divides the group's block.

    One selected backend accepts the block size by then; those a model hands to its layers may not, nor the second of
    two where the release asks the first alone.
    """
    if all(cls.layer_class in SELF_FITTING for cls in model.classes):
        classes, class_of = model.classes, model.class_of
        attending = [
            part for part in resolution.backends if classes[class_of[part.caches[0]]].layer_class not in STATE_LAYERS
        ]
        if len({part.backend for part in attending}) <= 1:
            return
    served: list[tuple[tuple[int, ...], Kernel]] = []
    for part in resolution.backends:
        cls = model.classes[model.class_of[part.caches[0]]]
        if cls.layer_class not in STATE_LAYERS:
            want = wants(rules, model, deployment, cls, part.cache_dtype, resolution.resolved.cache_dtype)
            served.append((part.caches, rules.backends[part.backend].kernel(want)))
    for group in groups:
        held = frozenset(group.caches)
        kernels = [kernel for caches, kernel in served if not held.isdisjoint(caches)]
        size = group.spec.block_size
        if not any(all(_runs(kernel, block) for kernel in kernels) for block in _blocks(kernels, size)):
            raise engine_refuses(
                "kernel-block-divides",
                "ValueError",
                "worker_kv_cache",
                f"no kernel block size divides {size} tokens for every backend of a group",
                SOURCE,
            )


def shared_context_check(rules: Rules, deployment: Deployment, resolution: Resolution) -> None:
    """Refused by the engine where a backend cannot give back what decode context parallelism combines by.

    ``vllm/v1/worker/cp_utils.py: check_attention_cp_compatibility``; a selector that asks for it leaves nothing to
    refuse.
    """
    pcp, dcp = deployment.prefill_context_parallel_size > 1, deployment.decode_context_parallel_size > 1
    if not pcp and not dcp:
        return
    for part in resolution.backends:
        backend = rules.backends[part.backend]
        if pcp and not backend.pcp:
            raise engine_refuses(
                "backend-shares-prefill",
                "AssertionError",
                "worker_kv_cache",
                f"{part.backend} does not share a prefill over ranks",
                "vllm/v1/worker/cp_utils.py: check_attention_cp_compatibility",
            )
        if dcp and not backend.dcp:
            raise engine_refuses(
                "backend-returns-lse",
                "AssertionError",
                "worker_kv_cache",
                f"{part.backend} does not return the softmax sums that decode context parallelism needs",
                "vllm/v1/worker/cp_utils.py: check_attention_cp_compatibility",
            )


def _blocks(kernels: Sequence[Kernel], size: int) -> list[int]:
    """The divisors of a group's block worth asking about: any that all backends run is among these."""
    exact = [block for kernel in kernels if not kernel.multiples for block in kernel.sizes]
    return [block for block in exact if size % block == 0] if exact else [size]


def _runs(kernel: Kernel, block: int) -> bool:
    return kernel.supports(block) if kernel.multiples else block in kernel.sizes
