"""The geometry of the pictures: a block to scale, and the blocks a request pins over its length. Nothing is drawn here.

Positions are per cent of the picture's width or height, so that a page of any width draws them alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from rulespack.kv.pages import PageCount
from rulespack.kv.plan import Group, Plan
from rulespack.kv.specs import Spec
from rulespack.report.changes import group_numbers, many, share
from rulespack.report.style import count, layer_names, size

#: Blocks a curve gains up to which each is drawn as a step; more look like a straight line, and are drawn as one.
STEPS: Final = 60
#: The narrowest stripe that is drawn, in per cent, so that a small page is seen at all.
HAIR: Final = 0.15
#: The narrowest stripe with a letter on a wide page, and on a narrow one.
ROOM: Final = 2.4
ROOM_EVERYWHERE: Final = 5.5
#: Textures there are, one for each kind of cache; further kinds begin again.
TEXTURES: Final = 8


class Kind(msgspec.Struct, frozen=True):
    """One kind of cache in the legend: its letter, its texture's number, and what it is."""

    letter: str
    texture: int
    text: str


class Stripe(msgspec.Struct, frozen=True):
    """One cache's page in a block: where it begins, how wide its content is and its padding, and its kind.

    ``letter`` says where the kind's letter is written: nowhere, on a ``wide`` page, or ``everywhere``.
    """

    x: float
    width: float
    padding: float
    kind: Kind
    letter: Literal["", "wide", "everywhere"]


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A block as some groups fill it, alike: the stripes of their caches, and the rest of the block."""

    groups: str
    holds: str
    facts: str
    stripes: tuple[Stripe, ...]
    width: float
    rest: float
    used: str


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One block of the pool, on one pipeline stage: a bar for each way to fill it."""

    title: str
    bytes_per_block: str
    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, str], ...]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of one request over its length: the points of a line, which groups it is for, and where it ends.

    ``texture`` is the number of the kind of cache whose colour it has, ``dash`` that of its stroke.
    """

    text: str
    texture: int
    dash: int
    points: str


class Curves(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of all groups over one pair of axes, and their sum."""

    lines: tuple[Curve, ...]
    total: Curve
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


class _Page(msgspec.Struct, frozen=True):
    """One cache's page in bytes: its content, and what it is padded with."""

    spec: int
    content: int
    padding: int


def kinds(*plans: Plan) -> dict[tuple[object, ...], Kind]:
    """The kinds of cache of some plans, by what tells them apart, lettered in the order they are first owned."""
    found: dict[tuple[object, ...], Kind] = {}
    for plan in plans:
        for spec in plan.specs:
            key = kind_key(spec)
            if key not in found:
                number = len(found)
                letter = chr(ord("A") + number) if number < 26 else str(number + 1)
                found[key] = Kind(letter, number % TEXTURES, describe(spec))
    return found


def kind_key(spec: Spec) -> tuple[object, ...]:
    """What tells kinds of cache apart: all but how large a block of them is."""
    return (
        spec.type,
        spec.dtype,
        spec.num_kv_heads,
        spec.head_size,
        spec.sliding_window,
        spec.attention_chunk_size,
        spec.tokens_per_state if spec.shapes is None else 0,
        spec.shapes,
        spec.dtypes,
    )


def describe(spec: Spec) -> str:
    """A kind of cache in words: ``SlidingWindowSpec, window of 128 tokens, 8 heads of 64, bfloat16``."""
    said = [spec.type]
    if spec.sliding_window is not None:
        said.append(f"window of {count(spec.sliding_window)} tokens")
    if spec.attention_chunk_size is not None:
        said.append(f"chunks of {count(spec.attention_chunk_size)} tokens")
    if spec.num_kv_heads is not None and spec.head_size is not None:
        heads = "1 head" if spec.num_kv_heads == 1 else f"{count(spec.num_kv_heads)} heads"
        said.append(f"{heads} of {count(spec.head_size)}")
    if spec.shapes is None and spec.tokens_per_state > 1:
        said.append(f"one entry for {count(spec.tokens_per_state)} tokens")
    if spec.dtype is not None:
        said.append(spec.dtype)
    if spec.dtypes is not None:
        said += [f"one state of {size(spec.content_bytes)}", *dict.fromkeys(spec.dtypes)]
    return ", ".join(said)


def blocks(plan: Plan, legend: dict[tuple[object, ...], Kind], widest: int | None = None) -> tuple[Block, ...]:
    """A picture for each pipeline stage; ``widest`` is the number of bytes that fills the width (a block if None)."""
    if plan.stages is None:
        held: list[tuple[str, Sequence[Sequence[int]], int]] = [
            ("", [group.caches for group in plan.groups], plan.bytes_per_block)
        ]
    else:
        held = [(f"stage {number}", stage.groups, stage.bytes_per_block) for number, stage in enumerate(plan.stages)]
    scale = widest or max((cost for _, _, cost in held), default=0) or 1
    return tuple(
        Block(
            title=title,
            bytes_per_block=size(cost),
            bars=tuple(_bars(plan, groups, cost, scale, legend)),
            ticks=_ticks(cost, scale),
        )
        for title, groups, cost in held
    )


def _bars(
    plan: Plan, groups: Sequence[Sequence[int]], cost: int, scale: int, legend: dict[tuple[object, ...], Kind]
) -> Iterable[Bar]:
    alike: dict[tuple[tuple[_Page, ...], int, bool, PageCount], list[int]] = {}
    for number, (group, caches) in enumerate(zip(plan.groups, groups, strict=True)):
        pages = tuple(_pages(plan, group, caches))
        alike.setdefault((pages, group.block_size, group.draft, group.pages), []).append(number)
    for (pages, *_), numbers in alike.items():
        group = plan.groups[numbers[0]]
        filled = sum(page.content for page in pages)
        caches = [cache for number in numbers for cache in groups[number]]
        yield Bar(
            groups=group_numbers(numbers),
            holds=holds(plan, caches),
            facts=_facts(group, len(numbers)),
            stripes=tuple(_stripes(plan, pages, scale, legend)),
            width=100 * cost / scale,
            rest=100 * max(cost - sum(page.content + page.padding for page in pages), 0) / scale,
            used=share(filled, cost),
        )


def _pages(plan: Plan, group: Group, caches: Sequence[int]) -> Iterable[_Page]:
    """The pages of a group's caches in a block: as their specs have them, or cut to the group's own page."""
    uniform = group.page_size_bytes == sum(plan.specs[plan.caches[i][1]].page_size_bytes for i in group.caches)
    for cache in caches:
        index = plan.caches[cache][1]
        spec = plan.specs[index]
        page = spec.page_size_bytes if uniform else group.page_size_bytes
        block = spec.block_size if uniform else group.block_size
        content = min(page, spec.head_slots * spec.content_bytes * (block // spec.tokens_per_state) or page)
        yield _Page(index, content, page - content)


def _stripes(
    plan: Plan, pages: Sequence[_Page], scale: int, legend: dict[tuple[object, ...], Kind]
) -> Iterable[Stripe]:
    at = 0
    unnamed = set(legend)
    for page in pages:
        key = kind_key(plan.specs[page.spec])
        width = 100 * page.content / scale
        letter: Literal["", "wide", "everywhere"] = ""
        if key in unnamed and width > ROOM:
            letter = "everywhere" if width > ROOM_EVERYWHERE else "wide"
            unnamed.discard(key)
        padding = 100 * page.padding / scale
        yield Stripe(100 * at / scale, max(width, HAIR), padding, legend[key], letter)
        at += page.content + page.padding


def _facts(group: Group, number: int) -> str:
    each = " each" if number > 1 else ""
    pinned = f"{many(group.blocks_per_request, 'block')} of the longest request{each}"
    padding = f", {size(group.padding_bytes)} of padding" if group.padding_bytes else ""
    drafted = ", a drafter's" if group.draft else ""
    return f"blocks of {count(group.block_size)} tokens, {pinned}{padding}{drafted}"


def _ticks(cost: int, scale: int) -> tuple[tuple[float, str], ...]:
    return ((0.0, "0"), (100 * cost / scale, size(cost).partition("(")[2].rstrip(")") or f"{cost} bytes"))


def holds(plan: Plan, caches: Sequence[int]) -> str:
    """How many caches, and which layers' they are."""
    names = [plan.caches[cache][0] for cache in caches]
    return f"{count(len(names))} caches: {layer_names(names)}" if len(names) != 1 else f"1 cache: {names[0]}"


def curves(plan: Plan, legend: dict[tuple[object, ...], Kind]) -> Curves | None:
    """Blocks over the length of a request for each kind of group, and in all; None without a group."""
    longest = plan.resolved.max_model_len
    if not plan.groups or longest < 2:
        return None
    alike: dict[PageCount, list[int]] = {}
    for number, group in enumerate(plan.groups):
        alike.setdefault(group.pages, []).append(number)
    highest = max(plan.request(longest).blocks, 1)
    lengths = {pages: _lengths(pages, longest) for pages in alike}
    lines = tuple(
        Curve(
            text=f"{_curve_text(pages, numbers)}; {many(pages.at(longest), 'block')} at the end",
            texture=_dominant(plan, plan.groups[numbers[0]], legend).texture,
            dash=position,
            points=_points(lengths[pages], [pages.at(length) for length in lengths[pages]], longest, highest),
        )
        for position, (pages, numbers) in enumerate(alike.items())
    )
    every = sorted(set().union(*lengths.values()))
    sums = [sum(group.pages.at(length) for group in plan.groups) for length in every]
    total = Curve(
        text=f"all groups together; {many(sums[-1], 'block')} at the end",
        texture=-1,
        dash=-1,
        points=_points(every, sums, longest, highest),
    )
    x_ticks = tuple((100 * part / 4, _tokens(longest * part // 4)) for part in range(5))
    step = _nice(highest / 4)
    y_ticks = tuple((100 - 100 * value / highest, count(value)) for value in range(0, highest + 1, step))
    return Curves(lines=lines, total=total, x_ticks=x_ticks, y_ticks=y_ticks)


def _lengths(pages: PageCount, longest: int) -> list[int]:
    """The lengths at which a curve bends; every step of one with few."""
    end = longest if pages.bound is None else min(pages.bound * pages.shards, longest)
    bends = {1, max(end, 1), longest}
    stride = pages.block_size * pages.shards
    if pages.bound != 0 and end // stride <= STEPS:
        bends |= {edge for step in range(stride, end, stride) for edge in (step, step + 1)}
    return sorted(bends)


def _dominant(plan: Plan, group: Group, legend: dict[tuple[object, ...], Kind]) -> Kind:
    """The kind of cache that takes most of a group's block."""
    share: dict[tuple[object, ...], int] = {}
    for cache in group.caches:
        spec = plan.specs[plan.caches[cache][1]]
        share[kind_key(spec)] = share.get(kind_key(spec), 0) + spec.page_size_bytes
    return legend[max(share, key=share.__getitem__)] if share else next(iter(legend.values()))


def _nice(step: float) -> int:
    """A round number of at least one near ``step``: 1, 2 or 5 times a power of ten."""
    power = 1
    while power * 10 <= step * 1.3:
        power *= 10
    return max(factor * power for factor in (1, 2, 5) if factor == 1 or factor * power <= step * 1.3)


def _curve_text(pages: PageCount, numbers: Sequence[int]) -> str:
    each = ", each" if len(numbers) > 1 else ""
    how = "grows without end" if pages.grows else "stops growing" if pages.bound else "does not grow"
    return f"{group_numbers(numbers)}{each}: {how}"


def _points(lengths: Sequence[int], values: Sequence[int], longest: int, highest: int) -> str:
    return " ".join(
        f"{100 * length / longest:.2f},{100 - 100 * value / highest:.2f}"
        for length, value in zip(lengths, values, strict=True)
    )


def _tokens(number: int) -> str:
    """A length in few characters: ``128K`` is 131,072."""
    if number >= 1 << 20:
        return f"{number / (1 << 20):.3g}M"
    return f"{number / 1024:.4g}K" if number >= 1024 else str(number)
