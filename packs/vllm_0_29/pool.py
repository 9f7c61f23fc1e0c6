"""The memory check, the number of blocks, the capacity the engine logs, and the scheduler's block sizes."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, lcm
from typing import TYPE_CHECKING

import msgspec

from rulespack.errors import engine_refuses, not_modelled
from rulespack.hooks import CacheGroup, Grouping, OwnedCaches, Pool, Resolution
from rulespack.kv.plan import Capacity, Reason
from vllm_0_29.connectors import stated as transfer_stated
from vllm_0_29.kernels import shared_context_check
from vllm_0_29.scheduler import mm_prefix

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.kv.pages import PageCount
    from rulespack.kv.specs import Spec
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Rules

#: Caches of one block, whatever the request's length.
RINGS = frozenset({"CircularBufferSpec", "KpoolTailSpec"})

CHECK_SOURCE = "vllm/v1/core/kv_cache_utils.py: get_kv_cache_configs"
BLOCK_SOURCE = "vllm/config/vllm.py: VllmConfig.validate_block_size"
SIZES_SOURCE = "vllm/v1/core/kv_cache_utils.py: resolve_kv_cache_block_sizes"
CAPACITY_SOURCE = "vllm/v1/core/kv_cache_utils.py: get_kv_cache_capacity"


def pool(
    rules: Rules,
    model: Model,
    deployment: Deployment,
    resolution: Resolution,
    owned: OwnedCaches,
    grouping: Grouping,
    pages: Sequence[PageCount],
) -> Pool:
    """What the scheduler runs on.

    Refused by the engine where the stated memory does not hold one request of ``max_model_len`` beside the null block,
    where no kernel block divides a group's, or where ``prefix_match_unit`` does not divide the groups'.
    """
    length = resolution.resolved.max_model_len
    check_stages_hold(grouping)
    check_block_at_hand(deployment, grouping, pages, length)
    check_counted(pages)
    blocks = [count.at(length) for count in pages]
    reasons: list[Reason] = []
    num_blocks = check_memory(deployment, grouping, pages, sum(blocks), length)
    shared = deployment.decode_context_parallel_size > 1 or deployment.prefill_context_parallel_size > 1
    if shared or resolution.resolved.mamba_cache_mode == "align":
        rules.check_block_size(model, deployment, resolution, grouping.groups)
    rules.kernel_block_check(rules, model, deployment, resolution, owned, grouping.groups)
    if shared:
        shared_context_check(rules, deployment, resolution)
        rules.check_shared_prefill(model, deployment)
    scheduler, hashed = scheduler_sizes(rules, deployment, resolution, owned, grouping)
    reasons.append(
        Reason(
            "scheduler-block-size",
            scheduler,
            {"hash_block_size": hashed, "groups": len(grouping.groups)},
            "the block size" if len(grouping.groups) <= 1 else "the least common multiple of the groups' block sizes",
            SIZES_SOURCE,
        )
    )
    capacity = None
    if num_blocks is not None:
        concurrency = num_blocks / sum(blocks) if blocks else 0.0
        capacity = Capacity(num_blocks, int(concurrency * length), concurrency)
        reasons.append(
            Reason(
                "capacity",
                capacity.tokens,
                {"num_blocks": num_blocks, "blocks_per_request": sum(blocks)},
                f"{num_blocks} blocks hold {concurrency:.2f} requests of {length} tokens",
                CAPACITY_SOURCE,
            )
        )
    return Pool(
        scheduler_block_size=scheduler,
        hash_block_size=hashed,
        max_model_len=length,
        capacity=capacity,
        reasons=tuple(reasons),
    )


def check_block_size(
    model: Model, deployment: Deployment, resolution: Resolution, groups: Sequence[CacheGroup]
) -> None:
    """Refused by the engine: a smallest block that is not whole interleaved runs of a shared cache, unless a connector
    aligns them; and states aligned to blocks where images are not scheduled in pieces."""
    if not transfer_stated(deployment):
        check_interleave(deployment, groups)
    check_aligned_states(model, deployment, resolution)


def check_interleave(deployment: Deployment, groups: Sequence[CacheGroup]) -> None:
    """Refused by the engine: a smallest block that is not whole interleaved runs of a cache shared over ranks."""
    run = deployment.cp_kv_cache_interleave_size
    if run in (None, 1) or deployment.decode_context_parallel_size == 1:
        return
    sizes = [group.spec.block_size for group in groups if prefix_cacheable(group.spec)]
    block = min(sizes or [group.spec.block_size for group in groups])
    if block % run:
        raise engine_refuses(
            "block-holds-interleaved-runs",
            "AssertionError",
            "engine",
            f"a block of {block} tokens is not whole runs of cp_kv_cache_interleave_size {run}",
            BLOCK_SOURCE,
        )


def check_aligned_states(model: Model, deployment: Deployment, resolution: Resolution) -> None:
    """Refused by the engine: the mode that aligns states to blocks, whether or not the model has any, where images are
    not scheduled in pieces."""
    if resolution.resolved.mamba_cache_mode != "align":
        return
    if deployment.stated.get("disable_chunked_mm_input") or mm_prefix(model, deployment):
        raise engine_refuses(
            "align-needs-image-chunks",
            "AssertionError",
            "engine",
            "the mamba cache mode align needs images to be scheduled in pieces, which disable_chunked_mm_input and "
            "images that attend in both directions forbid",
            BLOCK_SOURCE,
        )


def check_stages_hold(grouping: Grouping) -> None:
    """Refused by the engine, which crashes, where a pipeline stage holds no cache of a model that has some."""
    for number, stage in enumerate(grouping.stages or ()):
        if grouping.groups and stage.bytes_per_block == 0:
            raise engine_refuses(
                "stage-holds-caches",
                "AssertionError",
                "groups",
                f"pipeline stage {number} holds no layer with a cache, and its blocks would cost nothing",
                "vllm/v1/core/kv_cache_utils.py: _pool_bytes_per_block",
            )


def check_counted(pages: Sequence[PageCount]) -> None:
    """Refused by the engine, which crashes, where it cannot count the blocks of a group."""
    for count in pages:
        if count.error is not None:
            kind, _, said = count.error.partition(": ")
            raise engine_refuses(
                "blocks-counted",
                kind,
                "groups",
                f"the release crashes while it counts what a request pins: {said}",
                "vllm/v1/kv_cache_interface.py: max_memory_usage_bytes of a spec",
            )


def check_block_at_hand(deployment: Deployment, grouping: Grouping, pages: Sequence[PageCount], length: int) -> None:
    """Refused by the engine where the memory of a stage holds no block beside the null block; asked before it counts
    what a request needs."""
    if not memory_stated(deployment):
        return
    for cost in costs(grouping):
        available = at_hand(deployment, cost)
        if available <= cost:
            counted = all(count.error is None for count in pages)
            told = remedy(deployment, grouping, pages, length) if counted else "state more memory"
            raise engine_refuses(
                "memory-for-blocks",
                "ValueError",
                "groups",
                f"{available} bytes hold no block beside the null block; {told}",
                CHECK_SOURCE,
            )


def check_memory(
    deployment: Deployment, grouping: Grouping, pages: Sequence[PageCount], needed: int, length: int
) -> int | None:
    """The number of blocks of the pool, None where no memory was stated; ``needed`` are those of one request.

    The smallest stage decides; ``num_gpu_blocks_override`` stands instead of what the memory would hold.
    """
    if not memory_stated(deployment):
        return None
    counts = []
    for cost in costs(grouping):
        available = at_hand(deployment, cost)
        usable = available - cost
        if needed * cost > usable:
            raise engine_refuses(
                "memory-for-one-request",
                "ValueError",
                "groups",
                f"one request of {length} tokens needs {needed * cost} bytes of KV cache, and {usable} are at hand; "
                f"{remedy(deployment, grouping, pages, length)}",
                CHECK_SOURCE,
            )
        counts.append(available // cost)
    return min(counts, default=1)


def memory_stated(deployment: Deployment) -> bool:
    """Whether the deployment says how large the pool is."""
    return deployment.kv_cache_memory_bytes is not None or deployment.num_gpu_blocks_override is not None


def costs(grouping: Grouping) -> list[int]:
    """What a block costs on each pipeline stage that holds caches, in bytes."""
    every = [stage.bytes_per_block for stage in grouping.stages or ()] or [grouping.bytes_per_block]
    return [cost for cost in every if cost]


def at_hand(deployment: Deployment, cost: int) -> int:
    """The bytes of the pool of a stage whose blocks cost ``cost``."""
    override = deployment.num_gpu_blocks_override
    return override * cost if override is not None else deployment.kv_cache_memory_bytes or 0


def longest_held(deployment: Deployment, grouping: Grouping, pages: Sequence[PageCount], longest: int) -> int:
    """The longest request the stated memory holds on every stage, at most ``longest`` tokens; 0 where it holds none."""
    for cost in costs(grouping):
        usable = at_hand(deployment, cost) - cost
        low, high = 0, longest
        while low < high:
            middle = (low + high + 1) // 2
            held = sum(count.at(middle) for count in pages) * cost <= usable
            low, high = (middle, high) if held else (low, middle - 1)
        longest = low
    return longest


def remedy(deployment: Deployment, grouping: Grouping, pages: Sequence[PageCount], length: int) -> str:
    """What to state so that the memory holds one request: more of it, or a shorter request where one fits."""
    blocks = sum(count.at(length) for count in pages) + 1  # and the null block
    if deployment.num_gpu_blocks_override is not None:
        more = f"raise num_gpu_blocks_override to {blocks} or more"
    else:
        more = f"raise kv_cache_memory_bytes to {blocks * max(costs(grouping))} or more"
    held = longest_held(deployment, grouping, pages, length)
    return f"{more}, or lower max_model_len to {held} or less" if held else more


def scheduler_sizes(
    rules: Rules, deployment: Deployment, resolution: Resolution, owned: OwnedCaches, grouping: Grouping
) -> tuple[int, int]:
    """The scheduler's block size and the prefix cache's hash block size, in tokens."""
    dcp = deployment.decode_context_parallel_size
    groups = grouping.groups
    smallest = min(
        (group.spec.block_size for group in groups if rules.prefix_cacheable(group.spec)),
        default=min((group.spec.block_size for group in groups), default=resolution.resolved.block_size),
    )
    if len(groups) <= 1:
        return smallest * dcp, smallest * dcp
    shared = [rules.over_ranks(group.spec) for group in groups]
    states = [(group.spec.members or group.spec.type) == "MambaSpec" for group in groups]
    sizes = [group.spec.block_size * (dcp if over else 1) for group, over in zip(groups, shared, strict=True)]
    scheduler = lcm(*sizes)
    if not resolution.resolved.enable_prefix_caching and not transfer_stated(deployment):
        return scheduler, scheduler
    if any(states) and resolution.resolved.mamba_cache_mode != "align":
        return scheduler, scheduler
    hashing = [size for size, group in zip(sizes, groups, strict=True) if rules.prefix_cacheable(group.spec)] or sizes
    unit = deployment.prefix_match_unit
    hashed = gcd(*hashing) if unit is None else unit
    if any(size % hashed for size in hashing):
        raise engine_refuses(
            "prefix-match-unit",
            "ValueError",
            "scheduler",
            f"prefix_match_unit {hashed} does not divide every group's block size: {hashing}",
            SIZES_SOURCE,
        )
    ratios = {
        owned.specs[owned.spec_of[i]].tokens_per_state
        for group in groups
        if rules.prefix_cacheable(group.spec)
        for i in group.caches
    }
    if any(scheduler % ratio for ratio in ratios):
        raise engine_refuses(
            "prefix-boundary-aligned",
            "ValueError",
            "scheduler",
            f"the scheduler's block of {scheduler} tokens is no multiple of every compression: {sorted(ratios)}",
            SIZES_SOURCE,
        )
    return scheduler, hashed


def over_ranks(spec: Spec) -> bool:
    """Whether decode context parallelism shares a group's caches over ranks: all but recurrent state."""
    return (spec.members or spec.type) != "MambaSpec"


def prefix_cacheable(spec: Spec) -> bool:
    """Whether a group's blocks can be reused for a common prefix: every spec of this release but rings."""
    return (spec.members or spec.type) not in RINGS


def auto_fitted(
    resolution: Resolution, deployment: Deployment, grouping: Grouping, pages: Sequence[PageCount]
) -> Resolution:
    """``max_model_len`` -1: the longest request the stated memory holds, at most what the model admits.

    Refused by the pack without a stated memory, by the engine where not one token fits.
    """
    check_stages_hold(grouping)
    check_counted(pages)
    if not memory_stated(deployment):
        raise not_modelled("auto-fit-memory", "max_model_len auto depends on memory: state kv_cache_memory_bytes")
    longest = longest_held(deployment, grouping, pages, resolution.resolved.max_model_len)
    if longest == 0:
        raise engine_refuses(
            "auto-fit-one-token",
            "ValueError",
            "groups",
            f"the stated memory does not hold a request of one token; {remedy(deployment, grouping, pages, 1)}",
            CHECK_SOURCE,
        )
    return msgspec.structs.replace(
        resolution, resolved=msgspec.structs.replace(resolution.resolved, max_model_len=longest)
    )
