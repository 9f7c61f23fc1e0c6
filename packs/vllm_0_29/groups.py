"""How the caches form groups, and what one block of the shared pool costs.

Source: ``vllm/v1/core/kv_cache_utils.py: get_kv_cache_groups``. The branches are tried in the release's order: no
cache; one spec; one type; packed pages; pages made equal.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import msgspec

from rulespack.errors import Refused, engine_refuses, not_modelled
from rulespack.hooks import CacheGroup, Grouping, OwnedCaches
from rulespack.kv.pages import cdiv
from rulespack.kv.plan import Reason, Stage
from rulespack.kv.specs import Spec, with_block_size, with_padded_page
from vllm_0_29.hidden_groups import HIDDEN_STATES_SPEC, apart, fitted, uneven
from vllm_0_29.layout import BLOCK_OUTERMOST
from vllm_0_29.words import many

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import Resolution
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Rules

SOURCE = "vllm/v1/core/kv_cache_utils.py: get_kv_cache_groups"
PACKED_SOURCE = "vllm/v1/core/kv_cache_utils.py: _get_packed_kv_cache_groups"
FALLBACK_SOURCE = "vllm/v1/core/kv_cache_utils.py: _try_get_full_allocation_fallback_groups"
PAGE_SOURCE = "vllm/v1/core/kv_cache_utils.py: _get_kv_cache_groups_uniform_page_size"
COST_SOURCE = "vllm/v1/core/kv_cache_utils.py: _get_kv_cache_bytes_per_block"

#: The label of a group that holds a page of no bytes.
EMPTY_PAGE = "empty_page"

UNIFORM_TYPE = "UniformTypeKVCacheSpecs"

#: Classes whose pages may not be padded to a larger one.
UNPADDABLE = frozenset({"MLAAttentionSpec"})
#: Classes that keep windows from being allocated in full for the sake of equal pages.
NEVER_PROMOTED_HERE = frozenset({"SlidingWindowMLASpec", "ChunkedLocalAttentionSpec"})


class Part(msgspec.Struct, frozen=True):
    """A group on the way: its caches, and the spec the engine gives it."""

    caches: tuple[int, ...]
    spec: Spec


class Aliased(msgspec.Struct, frozen=True):
    """Groups whose caches lie in each other's pages: the groups, every spec with the page it lies in, and why."""

    parts: list[Part]
    specs: tuple[Spec, ...]
    because: str


def groups(rules: Rules, model: Model, deployment: Deployment, resolution: Resolution, owned: OwnedCaches) -> Grouping:
    """The groups in the engine's order and the bytes of a block.

    Refused by the engine where pages of several sizes can be neither divided nor padded.
    """
    hybrid = resolution.resolved.hybrid_kv_cache_manager
    if not hybrid:
        owned = rules.promote(rules, owned)
    specs, spec_of = owned.specs, owned.spec_of
    if not specs:
        return Grouping(groups=(), pages=(), bytes_per_block=0)
    everything = tuple(range(len(spec_of)))
    pages = [specs[index].page_size_bytes for index in spec_of]
    alignment = rules.block_alignment(specs)
    if mergeable(rules, specs):
        parts = [Part(everything, merged(specs))]
        rule, because, source = "one-group", "every cache has the same spec", SOURCE
    elif len({rules.uniform_key(spec) for spec in specs}) == 1:
        parts = [Part(everything, uniform_type(specs[spec_of[0]], pages))]
        rule, because, source = "one-type-group", "the caches differ in page size alone, and grow alike", SOURCE
    elif (aliased := rules.aliased_groups(owned)) is not None:
        parts, rule, because, source = aliased.parts, "aliased-groups", aliased.because, SOURCE
        pages, alignment = [aliased.specs[index].page_size_bytes for index in spec_of], 1
    elif resolution.resolved.kv_cache_layout in BLOCK_OUTERMOST and uneven(owned):
        kept, rest = apart(owned)
        parts = packed(rules, rest.specs, rest.spec_of, pages)
        if kept is not None:
            parts.append(Part((len(rest.spec_of),), kept))
        rule, because, source = (
            "packed-groups",
            "the layout puts the block outermost, so pages of any size pack",
            PACKED_SOURCE,
        )
    else:
        kept, rest = (None, owned) if model.draft is None or model.draft.separate else apart(owned)
        equal, promoted = equal_pages(rules, rest)
        pages = [equal[index].page_size_bytes for index in rest.spec_of]
        if kept is not None:
            parts, pages, because = beside_hidden_states(rules, equal, rest.spec_of, kept, promoted=promoted)
            rule, source = "equal-page-groups", PAGE_SOURCE
        elif promoted:
            parts = [Part(everything, uniform_type(equal[spec_of[0]], pages))]
            because = "latent pages cannot be made equal to the windows', so windows are allocated in full"
            rule, source = "one-type-group", FALLBACK_SOURCE
        else:
            parts, because = uniform_page(rules, equal, spec_of)
            rule, source = "equal-page-groups", PAGE_SOURCE
    widths = group_bytes([part.caches for part in parts], pages)
    whole = block_cost(widths, alignment)
    stages = staged(rules, owned, parts, pages, alignment, deployment.pipeline_parallel_size)
    cost = stages[0].bytes_per_block if stages else whole
    marked = rules.draft_groups(model, deployment, rule, [part.caches for part in parts])
    shown = tuple(CacheGroup(caches=part.caches, spec=part.spec, draft=i in marked) for i, part in enumerate(parts))
    reasons = (
        Reason(rule, len(parts), {"hybrid_manager": hybrid, "specs": len(specs)}, because, source),
        Reason(
            "bytes-per-block",
            cost,
            {"whole_bytes_per_block": whole},
            _cost_because(stages[0].groups, group_bytes(stages[0].groups, pages), alignment)
            if stages
            else _cost_because([part.caches for part in parts], widths, alignment),
            COST_SOURCE,
        ),
    )
    return Grouping(
        groups=shown,
        pages=tuple(pages),
        bytes_per_block=cost,
        whole_bytes_per_block=whole if stages else None,
        stages=stages,
        reasons=reasons,
    )


def beside_hidden_states(
    rules: Rules, equal: Sequence[Spec], spec_of: Sequence[int], kept: Spec, *, promoted: bool
) -> tuple[list[Part], list[int], str]:
    """Groups of one page size, a last one for hidden states, and every page.

    Refused by the engine where windows would have to be allocated in full for want of one page size.
    """
    if promoted:
        raise engine_refuses(
            "pages-made-equal",
            "NotImplementedError",
            "groups",
            "latent pages cannot be made equal to the windows', and not beside hidden states either",
            FALLBACK_SOURCE,
        )
    parts, because = uniform_page(rules, equal, spec_of)
    scale = rules.hidden_states_scale(kept, parts[0].spec.page_size_bytes)
    if scale > 1:
        because += f"; every page {scale} times as large, to hold a token of hidden states"
    specs, held = fitted([part.spec for part in parts], kept, scale)
    parts = [Part(part.caches, spec) for part, spec in zip(parts, specs, strict=True)]
    return [*parts, Part((len(spec_of),), held)], [held.page_size_bytes] * (len(spec_of) + 1), because


def group_bytes(groups: Sequence[Sequence[int]], pages: Sequence[int]) -> list[int]:
    """Bytes of each group's caches in one block."""
    return [sum(map(pages.__getitem__, caches)) for caches in groups]


def block_cost(widths: Sequence[int], alignment: int) -> int:
    """Bytes of a block: what the widest group needs, rounded up to ``alignment``."""
    return cdiv(max(widths), alignment) * alignment


def _cost_because(groups: Sequence[Sequence[int]], widths: Sequence[int], alignment: int) -> str:
    """Which group sets what a block costs, and whether its pages alone do."""
    widest = widths.index(max(widths))
    because = f"a block costs what the widest group needs: {many(len(groups[widest]), 'cache')} of group {widest}"
    return f"{because}, rounded up to a multiple of {alignment} bytes" if widths[widest] % alignment else because


def staged(
    rules: Rules, owned: OwnedCaches, parts: Sequence[Part], pages: Sequence[int], alignment: int, count: int
) -> tuple[Stage, ...] | None:
    """Each pipeline stage's part of every group and its own block, rounded up where its own caches ask for it; None
    where there is one stage."""
    if not owned.stage_of:
        return None
    stages = []
    for stage in range(count):
        held = tuple(tuple(i for i in part.caches if owned.stage_of[i] == stage) for part in parts)
        own = alignment
        if own > 1:
            own = rules.block_alignment([owned.specs[owned.spec_of[i]] for caches in held for i in caches])
        stages.append(Stage(held, block_cost(group_bytes(held, pages), own)))
    return tuple(stages)


def uniform_key(spec: Spec) -> Hashable:
    """Specs with one key are of one type (``UniformTypeKVCacheSpecs``): they grow alike, whatever their pages."""
    if spec.type in ("FullAttentionSpec", "MLAAttentionSpec", HIDDEN_STATES_SPEC):
        return ("full", spec.block_size)
    if spec.type == "MambaSpec":
        return (spec.type, spec.block_size, spec.page_size_bytes, spec.labels)
    return (spec.type, spec.block_size, spec.sliding_window, spec.attention_chunk_size)


def merge_key(spec: Spec) -> Hashable:
    """Specs with one key merge to one: every field of a local cache; of a full one all but its former window."""
    if spec.type == "FullAttentionSpec":
        return msgspec.structs.replace(spec, sliding_window=None, attention_chunk_size=None)
    return spec


def mergeable(rules: Rules, specs: Sequence[Spec]) -> bool:
    """Whether the specs merge to one: alike but for what was a window or a chunk before, and not some of each."""
    if any(spec.sliding_window for spec in specs) and any(spec.attention_chunk_size for spec in specs):
        return False
    return len({rules.merge_key(spec) for spec in specs}) == 1


def merged(specs: Sequence[Spec]) -> Spec:
    """What mergeable specs merge to: the first, with the window or chunk any of them kept."""
    first = specs[0]
    for spec in specs[1:]:
        if spec.sliding_window is not None or spec.attention_chunk_size is not None:
            return spec
    return first


def uniform_type(first: Spec, pages: Sequence[int]) -> Spec:
    """The spec of a group of one type, by its first cache's spec and every cache's page: its own page is the sum of
    them; it says where one has none."""
    return msgspec.structs.replace(
        first,
        type=UNIFORM_TYPE,
        members=first.type,
        page_size_bytes=sum(pages),
        dtype=None,
        num_kv_heads=None,
        head_size=None,
        labels=(*first.labels, (EMPTY_PAGE, True)) if 0 in pages else first.labels,
    )


def equal_pages(rules: Rules, owned: OwnedCaches) -> tuple[tuple[Spec, ...], bool]:
    """The specs with pages made equal: more tokens in a block where the largest page is a multiple, else padding.

    Where a latent page can have neither, beside ordinary windows, every window is allocated in full instead and the
    pages stay as they are (True). Refused by the engine where that does not make one type of them either, and, in a
    crash, where a page that was padded before is to hold more tokens.
    """
    largest = max(spec.page_size_bytes for spec in owned.specs)
    equal = []
    for spec in owned.specs:
        page = spec.page_size_bytes
        if page == largest:
            equal.append(spec)
        elif spec.type == "MambaSpec":
            equal.append(with_padded_page(spec, largest))
        elif largest % page == 0 and spec.padded_page is not None:
            raise engine_refuses(
                "padded-pages-kept",
                "AssertionError",
                "groups",
                f"a {spec.type} page padded to {page} bytes would have to be {largest}, which a larger block does "
                "not change",
                "vllm/v1/core/kv_cache_utils.py: unify_kv_cache_spec_page_size",
            )
        elif largest % page == 0:
            equal.append(with_block_size(spec, spec.block_size * (largest // page)))
        elif spec.type not in UNPADDABLE:
            equal.append(with_padded_page(spec, largest))
        else:
            promoted = _full_allocation(rules, owned)
            if promoted is not None:
                return promoted, True
            raise engine_refuses(
                "pages-made-equal",
                "NotImplementedError",
                "groups",
                f"the page of {page} bytes of {spec.type} neither divides {largest} nor can be padded to it",
                "vllm/v1/core/kv_cache_utils.py: unify_kv_cache_spec_page_size",
            )
    return tuple(equal), False


def _full_allocation(rules: Rules, owned: OwnedCaches) -> tuple[Spec, ...] | None:
    """Latent caches and ordinary windows alone, the windows made full; None where that is not one type."""
    types = {spec.type for spec in owned.specs}
    if not {"MLAAttentionSpec", "SlidingWindowSpec"} <= types or types & NEVER_PROMOTED_HERE:
        return None
    try:
        specs = rules.promote(rules, owned).specs
    except Refused:
        return None
    return specs if len({rules.uniform_key(spec) for spec in specs}) == 1 else None


def uniform_page(rules: Rules, specs: Sequence[Spec], spec_of: Sequence[int]) -> tuple[list[Part], str]:
    """Groups of one size over caches of one page size; what does not divide is padding nobody lists.

    The size is the smallest bucket's count, or the largest's where that is less than half as large again.
    """
    buckets: dict[Hashable, tuple[list[Spec], list[int]]] = {}
    bucket_of = {}
    for index in dict.fromkeys(spec_of):
        members, bucket_of[index] = buckets.setdefault(rules.merge_key(specs[index]), ([], []))
        members.append(specs[index])
    for position, index in enumerate(spec_of):
        bucket_of[index].append(position)
    counts = [len(caches) for _, caches in buckets.values()]
    fewest, most = min(counts), max(counts)
    size = most if most < 1.5 * fewest else fewest
    parts: list[Part] = []
    for members, caches in buckets.values():
        number = -(-len(caches) // size)
        spec = merged(members)
        parts.extend(Part(tuple(caches[i::number]), spec) for i in range(number))
    because = f"{' and '.join(map(str, counts))} caches of {len(counts)} kinds in groups of {size}"
    if any(len(part.caches) < size for part in parts):
        because += "; a group that is not full is padded"
    return parts, because


def packed(rules: Rules, specs: Sequence[Spec], spec_of: Sequence[int], pages: Sequence[int]) -> list[Part]:
    """Groups whose caches lie side by side in a block, pages of several sizes together.

    Caches of one type form a bucket. A bucket that has as many caches of every page size is balanced and may be cut
    into groups of so many repeats; the number of repeats is the one that pads least over the balanced buckets. Buckets
    of fixed-size state take as many groups as keep each within the widest of the others.

    Refused by the engine, which crashes, where a bucket of uneven pages is cut into more groups than it can fill; by
    the pack where the release would leave caches without a group.
    """
    buckets: dict[Hashable, tuple[list[int], dict[int, list[int]]]] = {}
    lists_of: dict[int, tuple[list[int], list[int]]] = {}
    for index in dict.fromkeys(spec_of):
        caches, shape = buckets.setdefault(rules.uniform_key(specs[index]), ([], {}))
        lists_of[index] = caches, shape.setdefault(specs[index].page_size_bytes, [])
    for position, index in enumerate(spec_of):
        of_bucket, of_page = lists_of[index]
        of_bucket.append(position)
        of_page.append(position)
    shapes = [shape for _, shape in buckets.values()]
    repeats = _repeats(shapes)
    numbers = [
        -(-max(map(len, shape.values())) // repeats) if repeats is not None and _balanced(shape) else 1
        for shape in shapes
    ]
    firsts = [specs[spec_of[caches[0]]] for caches, _ in buckets.values()]
    states = [rules.state_bucket(first, repeats is None) for first in firsts]
    anchor = max(
        sum(
            -(-len(caches) // (sum(map(len, shape.values())) if state else number)) * page
            for page, caches in shape.items()
        )
        for shape, number, state in zip(shapes, numbers, states, strict=True)
    )
    parts = []
    for (caches, shape), number, state, first in zip(buckets.values(), numbers, states, firsts, strict=True):
        if state:
            number = max(number, -(-len(caches) // max(anchor // first.page_size_bytes, 1)))
        if number == 1:
            parts.append(_packed_part(tuple(caches), first, pages))
            continue
        repeated = list(zip(*shape.values(), strict=False))  # as the release pairs them: the rest is lost
        if number > len(repeated):
            raise engine_refuses(
                "packed-groups-filled",
                "StopIteration",
                "groups",
                f"{len(caches)} caches of {first.type} in pages of {sorted(shape)} bytes are cut into {number} groups "
                f"and fill {len(repeated)}",
                PACKED_SOURCE,
            )
        if not _balanced(shape):
            raise not_modelled(
                "packed-repeats-even",
                f"the release cuts {len(caches)} caches of {first.type} in pages of {sorted(shape)} bytes into groups "
                "and loses some of them",
            )
        for j in range(number):
            chosen = tuple(position for repeat in repeated[j::number] for position in repeat)
            parts.append(_packed_part(chosen, specs[spec_of[chosen[0]]], pages))
    return parts


def _packed_part(caches: tuple[int, ...], first: Spec, pages: Sequence[int]) -> Part:
    return Part(caches, uniform_type(first, list(map(pages.__getitem__, caches))))


def _balanced(shape: dict[int, list[int]]) -> bool:
    return len({len(caches) for caches in shape.values()}) == 1


def _repeats(shapes: Sequence[dict[int, list[int]]]) -> int | None:
    """How many repeats a group of a balanced bucket holds: at least what the mixed ones have, and the least padding."""
    balanced = [max(map(len, shape.values())) for shape in shapes if _balanced(shape)]
    mixed = [max(map(len, shape.values())) for shape in shapes if _balanced(shape) and len(shape) > 1]
    if not mixed:
        return None
    least = max(mixed)
    candidates = range(least, max(balanced) + 1)
    return min(candidates, key=lambda d: (sum((d - count % d) % d for count in balanced), -d), default=least)


def no_aliases(owned: OwnedCaches) -> Aliased | None:
    """No cache lies in another's page."""
    return None


def no_alignment(specs: Sequence[Spec]) -> int:
    """A block costs exactly the widest group."""
    return 1


def state_bucket(spec: Spec, no_repeats: bool) -> bool:
    """Whether a bucket holds fixed-size state, cut by what fits rather than by repeats."""
    return spec.type == "MambaSpec"
