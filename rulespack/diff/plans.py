"""Two plans of one model and deployment, value by value.

The keys are those that recordings of real releases state; two plans without a difference here are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rulespack.diff.model import CacheChange, Change, RequestChange
from rulespack.kv.plan import Plan, Resolved, Stage, pinned
from rulespack.kv.specs import Spec

#: What a spec says in the public JSON.
SPEC_KEYS: Final = (
    "type",
    "block_size",
    "page_size_bytes",
    "dtype",
    "num_kv_heads",
    "head_size",
    "sliding_window",
    "attention_chunk_size",
    "shapes",
    "dtypes",
)


def differing(keys: Sequence[str], old: object, new: object, prefix: str = "") -> Iterator[Change]:
    """The attributes that differ between two objects."""
    for key in keys:
        was, is_now = getattr(old, key, None), getattr(new, key, None)
        if was != is_now:
            yield Change(f"{prefix}{key}", was, is_now)


def changes(old: Plan, new: Plan) -> tuple[Change, ...]:
    """What differs of a plan besides its caches and groups: settings, costs, backends, stages, capacity."""
    found = [
        *differing(("architecture",), old, new),
        *differing(Resolved.__struct_fields__, old.resolved, new.resolved, "resolved."),
        *_entries("backends.", old.backends, new.backends),
        *differing(("bytes_per_block",), old, new),
        *_total(old, new),
        *_stages(old.stages, new.stages),
        *_derived(old, new),
        *differing(("num_blocks", "tokens", "max_concurrency"), old.capacity, new.capacity, "capacity."),
    ]
    if len(old.caches) != len(new.caches):
        found.append(Change("caches", len(old.caches), len(new.caches)))
    if len(old.groups) != len(new.groups):
        found.append(Change("groups", len(old.groups), len(new.groups)))
    return tuple(found)


def _total(old: Plan, new: Plan) -> Iterator[Change]:
    """The blocks of a request, or that a release crashes while it counts them."""
    was, is_now = pinned(old)[1], pinned(new)[1]
    if was != is_now:
        yield Change("blocks_per_request", was, is_now)


def _derived(old: Plan, new: Plan) -> Iterator[Change]:
    """What follows from the groups: growth for each token, the fixed part and the padding of the longest request."""
    longest = longest_common(old, new)
    for key, of in (("growth_bytes_per_token", _growth), ("fixed_bytes", _fixed), ("padding_bytes", _padding)):
        was, is_now = of(old, longest), of(new, longest)
        if was != is_now:
            yield Change(key, was, is_now)


def _growth(plan: Plan, tokens: int) -> float:
    per_token = sum(1 / (group.pages.block_size * group.pages.shards) for group in plan.groups if group.pages.grows)
    return dearest_block(plan) * per_token


def _fixed(plan: Plan, tokens: int) -> int:
    return dearest_block(plan) * sum(group.pages.at(tokens) for group in plan.groups if not group.pages.grows)


def _padding(plan: Plan, tokens: int) -> int:
    return sum(group.padding_bytes * group.pages.at(tokens) for group in plan.groups)


def longest_common(old: Plan, new: Plan) -> int:
    """The longest request both releases serve, in tokens."""
    return min(old.resolved.max_model_len, new.resolved.max_model_len)


def _entries(prefix: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield Change(prefix + key, old.get(key), new.get(key))


def _stages(old: Sequence[Stage] | None, new: Sequence[Stage] | None) -> Iterator[Change]:
    if old is None or new is None or len(old) != len(new):
        if old != new:
            yield Change("stages", None if old is None else len(old), None if new is None else len(new))
        return
    for number, (was, is_now) in enumerate(zip(old, new, strict=True)):
        yield from differing(("bytes_per_block",), was, is_now, f"stages[{number}].")
        if was.groups != is_now.groups:
            held = [", ".join(str(len(caches)) for caches in stage.groups) for stage in (was, is_now)]
            yield Change(f"stages[{number}].caches", *held)


def paired(old: Plan, new: Plan) -> list[tuple[int | None, int | None]]:
    """The caches of both plans side by side, as indices: in the engine's order where as many, else by name."""
    if len(old.caches) == len(new.caches):
        return [(index, index) for index in range(len(old.caches))]
    place = {name: index for index, (name, _) in enumerate(new.caches)}
    both: list[tuple[int | None, int | None]] = [(i, place.pop(name, None)) for i, (name, _) in enumerate(old.caches)]
    return [*both, *((None, index) for index in place.values())]


def cache_changes(old: Plan, new: Plan) -> tuple[CacheChange, ...]:
    """Caches whose spec differs, those that differ alike together; a cache one release lacks differs in nothing."""
    alike: dict[tuple[int, int], list[str]] = {}
    for was, is_now in paired(old, new):
        if was is not None and is_now is not None:
            name, index = new.caches[is_now]
            alike.setdefault((old.caches[was][1], index), []).append(name)
    found: dict[tuple[Change, ...], list[str]] = {}
    for (was_spec, new_spec), names in alike.items():
        spec_changes = _spec_changes(old.specs[was_spec], new.specs[new_spec])
        if spec_changes:
            found.setdefault(spec_changes, []).extend(names)
    return tuple(CacheChange(tuple(names), spec_changes) for spec_changes, names in found.items())


def _spec_changes(old: Spec, new: Spec) -> tuple[Change, ...]:
    return tuple(differing(SPEC_KEYS, old, new))


def renamed(old: Plan, new: Plan) -> tuple[tuple[str, str], ...]:
    """Layer names that differ at the same place of the engine's order."""
    if len(old.caches) != len(new.caches):
        return ()
    both = zip(old.caches, new.caches, strict=True)
    return tuple((was, is_now) for (was, _), (is_now, _) in both if was != is_now)


def requests(old: Plan, new: Plan, tokens: Sequence[int]) -> tuple[RequestChange, ...]:
    """Requests of each length both releases serve, and of the longest such length."""
    longest = longest_common(old, new)
    lengths = sorted({length for length in tokens if 1 <= length < longest} | {longest})
    return tuple(_request(old, new, length) for length in lengths)


def _request(old: Plan, new: Plan, tokens: int) -> RequestChange:
    was, is_now = old.request(tokens), new.request(tokens)
    old_cost, new_cost = dearest_block(old), dearest_block(new)
    return RequestChange(
        tokens=tokens,
        old_blocks=was.blocks,
        new_blocks=is_now.blocks,
        old_bytes=was.blocks * old_cost,
        new_bytes=is_now.blocks * new_cost,
        old_fixed_bytes=_fixed(old, tokens),
        new_fixed_bytes=_fixed(new, tokens),
    )


def dearest_block(plan: Plan) -> int:
    """What a block costs on the pipeline stage where it costs most, which is the one that sets their number."""
    return max((stage.bytes_per_block for stage in plan.stages or ()), default=plan.bytes_per_block)
