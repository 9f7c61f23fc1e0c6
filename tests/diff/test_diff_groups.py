"""What is said of groups that were kept, split, merged or mixed: plans made by hand from one of the release's."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

import rulespack
from rulespack import Plan
from rulespack.diff.groups import group_changes
from rulespack.diff.plans import cache_changes, changes, renamed
from rulespack.report.changes import group_sentences, sentence


@cache
def plan() -> Plan:
    """A plan of 18 windows in group 0 and 18 full caches in group 1."""
    return rulespack.engine("0.31.0").plan(rulespack.load_model("gpt-oss-120b"))


def grouped(*parts: list[int]) -> Plan:
    """The same with its caches grouped otherwise."""
    groups = tuple(msgspec.structs.replace(plan().groups[0], caches=tuple(part)) for part in parts)
    return msgspec.structs.replace(plan(), groups=groups)


def moves(old: Plan, new: Plan) -> list[tuple[str, tuple[int, ...], tuple[int, ...], int]]:
    return [(change.kind, change.old, change.new, len(change.caches)) for change in group_changes(old, new)]


ALL = list(range(36))
LOW, HIGH, EVEN, ODD = ALL[:18], ALL[18:], ALL[::2], ALL[1::2]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ([ALL], [ALL], []),
        ([LOW, HIGH], [LOW, HIGH], []),
        ([ALL], [LOW, HIGH], [("split", (0,), (0, 1), 36)]),
        ([LOW, HIGH], [ALL], [("merged", (0, 1), (0,), 36)]),
        ([LOW, HIGH], [EVEN, ODD], [("regrouped", (0, 1), (0, 1), 36)]),
        ([LOW, HIGH], [HIGH, LOW], [("renumbered", (0,), (1,), 18), ("renumbered", (1,), (0,), 18)]),
        ([LOW, HIGH], [LOW, ALL[18:27], ALL[27:]], [("split", (1,), (1, 2), 18)]),
        ([LOW, HIGH], [LOW, HIGH[::-1]], [("kept", (1,), (1,), 18)]),
    ],
)
def test_what_became_of_the_groups(
    old: list[list[int]], new: list[list[int]], said: list[tuple[str, tuple[int, ...], tuple[int, ...], int]]
) -> None:
    assert moves(grouped(*old), grouped(*new)) == said


def test_a_cache_only_one_release_has() -> None:
    """With another number of caches they are told apart by name, not by place."""
    fewer = msgspec.structs.replace(
        plan(), caches=plan().caches[:35], groups=grouped(LOW, ALL[18:35]).groups, draft_caches=()
    )
    assert moves(grouped(LOW, HIGH), fewer) == [("kept", (1,), (1,), 17)]
    gone = msgspec.structs.replace(plan(), caches=plan().caches[:18], groups=grouped(LOW).groups)
    assert moves(grouped(LOW, HIGH), gone) == [("removed", (1,), (), 18)]
    assert moves(gone, grouped(LOW, HIGH)) == [("added", (), (1,), 18)]
    assert ("caches", 36, 18) in [(change.key, change.old, change.new) for change in changes(plan(), gone)]


def test_what_changed_of_a_kept_group() -> None:
    group = msgspec.structs.replace(plan().groups[1], block_size=64, padding_bytes=512, draft=True)
    other = msgspec.structs.replace(plan(), groups=(plan().groups[0], group))
    (change,) = group_changes(plan(), other)
    assert [sentence(one) for one in change.changes] == ["block size 16 -> 64", "draft off -> on", "padding 0 -> 512"]


def test_a_count_that_differs_only_between_lengths_is_told() -> None:
    """Two windows can pin as much of the longest request and not of a shorter one."""
    pages = msgspec.structs.replace(plan().groups[0].pages, extra=0)
    pages = msgspec.structs.replace(pages, bound=(pages.bound or 0) + 16)
    other = msgspec.structs.replace(
        plan(), groups=(msgspec.structs.replace(plan().groups[0], pages=pages), plan().groups[1])
    )
    (change,) = group_changes(plan(), other)
    assert {one.key for one in change.changes} == {"pages.bound", "pages.extra"}


def test_groups_that_changed_alike_are_told_together() -> None:
    (found,) = rulespack.compare("0.29.0", "0.31.0", ["gemma-4-26b-a4b-nvfp4"]).pairs
    assert [what for what, _ in group_sentences(found)] == ["groups 0 to 4", "group 5"]


def test_names_alone_are_no_difference() -> None:
    other = msgspec.structs.replace(plan(), caches=tuple((f"x.{name}", spec) for name, spec in plan().caches))
    assert group_changes(plan(), other) == changes(plan(), other) == cache_changes(plan(), other) == ()
    assert renamed(plan(), other)[0] == ("model.layers.0.attn.attn", "x.model.layers.0.attn.attn")
