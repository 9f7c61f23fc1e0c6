"""Grouping in vLLM 0.31.0: aligned blocks, split rings and windows, and the manager's crash."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import lcm
from typing import TYPE_CHECKING

import msgspec

from rulespack.errors import engine_refuses
from rulespack.hooks import OwnedCaches
from rulespack.kv.pages import PageCount, cdiv
from rulespack.kv.specs import Spec
from vllm_0_29 import groups as earlier
from vllm_0_29 import layout, manager, pool
from vllm_0_29 import pages as counted
from vllm_0_29.specs import NON_CAUSAL

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import Resolution
    from vllm_0_29.rules import Rules

#: The label of a page stride the block as a whole must keep, in bytes.
BLOCK_STRIDE = "block_stride_alignment"
#: The label of a window that is replayed rather than reused for a common prefix.
BOUNDED_REPLAY = "bounded_replay"

#: The label of a draft's cache that every rank keeps whole under decode context parallelism.
REPLICATED = "dcp_replicated"


def over_ranks(spec: Spec) -> bool:
    """As before, but not a draft's cache that every rank keeps whole."""
    return pool.over_ranks(spec) and not (spec.labels and spec.label(REPLICATED))


def layouts_of_shapes(specs: Sequence[Spec], candidates: Sequence[str]) -> Sequence[str]:
    """As before; where some caches are shared over ranks and some are not, in pages of several sizes, the layouts that
    put the block outermost (``vllm/v1/attention/backends/utils.py: resolve_kv_cache_layout``).

    Refused by the engine where no backend of them has one.
    """
    candidates = layout.layouts_of_shapes(specs, candidates)
    if not any(spec.labels for spec in specs):
        return candidates
    shared = {spec.label(REPLICATED) for spec in specs if spec.type != "MambaSpec"}
    if len(shared) > 1 and len({spec.page_size_bytes for spec in specs}) > 1:
        candidates = [name for name in candidates if name in layout.BLOCK_OUTERMOST]
        if not candidates:
            raise engine_refuses(
                "layout-block-outermost",
                "ValueError",
                "groups",
                "a draft's caches that every rank keeps whole need a layout that puts the block outermost",
                layout.SOURCE,
            )
    return candidates


def pages(deployment: Deployment, resolution: Resolution, spec: Spec) -> PageCount:
    """As before, over one rank where every rank keeps the cache whole."""
    count = counted.pages(deployment, resolution, spec)
    return msgspec.structs.replace(count, shards=1) if spec.labels and spec.label(REPLICATED) else count


def window_pages(deployment: Deployment, resolution: Resolution, spec: Spec) -> PageCount:
    """As before; a window that every rank keeps whole is counted under decode context parallelism, too."""
    count = counted.window_pages(deployment, resolution, spec)
    return msgspec.structs.replace(count, error=None) if spec.labels and spec.label(REPLICATED) else count


def block_alignment(specs: Sequence[Spec]) -> int:
    """A block is rounded up to the least common multiple of the strides its caches ask for."""
    strides = [stride for spec in specs if isinstance(stride := spec.label(BLOCK_STRIDE), int)]
    return lcm(*strides) if strides else 1


def state_bucket(spec: Spec, no_repeats: bool) -> bool:
    """Recurrent state and rings; also windows, where no bucket of mixed pages sets the repeats."""
    if spec.type in ("MambaSpec", "CircularBufferSpec"):
        return True
    return no_repeats and spec.type in ("SlidingWindowSpec", "SlidingWindowMLASpec")


def hidden_states_scale(kept: Spec, page: int) -> int:
    """Pages are made large enough to hold one token of hidden states."""
    return cdiv(kept.head_slots * kept.content_bytes, page)


def merge_key(spec: Spec) -> Hashable:
    """As before, but latent caches merge whether or not a draft decodes some of them non-causally."""
    if spec.type == "MLAAttentionSpec" and spec.label(NON_CAUSAL):
        spec = msgspec.structs.replace(spec, labels=tuple(label for label in spec.labels if label[0] != NON_CAUSAL))
    return earlier.merge_key(spec)


def uniform_key(spec: Spec) -> Hashable:
    """Replayed latent windows are a type of their own, and so are caches that every rank keeps whole."""
    key = earlier.uniform_key(spec)
    apart = (spec.label(BOUNDED_REPLAY), spec.label(REPLICATED)) if spec.labels else ()
    return (key, apart) if any(apart) else key


def promote(rules: Rules, owned: OwnedCaches) -> OwnedCaches:
    """As :func:`promote_alike`, apart for caches shared over ranks and those every rank keeps whole."""
    if all(spec.label(REPLICATED) is None for spec in owned.specs):
        return promote_alike(rules, owned)
    specs = list(owned.specs)
    for mark in (None, True):
        held = [i for i, spec in enumerate(owned.specs) if spec.label(REPLICATED) is mark]
        made = promote_alike(rules, msgspec.structs.replace(owned, specs=tuple(owned.specs[i] for i in held)))
        for i, spec in zip(held, made.specs, strict=True):
            specs[i] = spec
    return msgspec.structs.replace(owned, specs=tuple(specs))


def promote_alike(rules: Rules, owned: OwnedCaches) -> OwnedCaches:
    """As before, but latent windows beside full caches crash: their full counterpart has no place for a field of
    theirs."""
    full = any(spec.type in manager.FULL_CLASSES for spec in owned.specs)
    if full and any(spec.type == "SlidingWindowMLASpec" for spec in owned.specs):
        raise engine_refuses(
            "latent-window-promotion",
            "TypeError",
            "groups",
            "without the hybrid KV cache manager the release crashes on latent windows: MLAAttentionSpec takes no "
            "bounded_replay",
            "vllm/v1/kv_cache_interface.py: replace_as",
        )
    return manager.promote(rules, owned)


def prefix_cacheable(spec: Spec) -> bool:
    """As before, and not a window that is replayed."""
    return pool.prefix_cacheable(spec) and not spec.label(BOUNDED_REPLAY)
