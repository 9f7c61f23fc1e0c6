"""How caches form groups, on models small enough to do by hand. A page of 8 heads of 128 in bf16 is 64 KiB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import RELEASES, chunked, full, graph_of, latent, plan, sliding

from rulespack import Group, Plan, Refused
from rulespack.graph.model import Attention

KIB = 1 << 10
#: A layout with the block outermost, where pages of any size lie side by side.
PACKED = {"env": {"VLLM_KV_CACHE_LAYOUT": "BLHNC"}}


def rule(answer: Plan) -> str:
    """The branch that made the groups."""
    branches = ("one-group", "one-type-group", "packed-groups", "equal-page-groups")
    return next(reason.rule for reason in answer.reasons if reason.rule in branches)


def shape(answer: Plan) -> list[tuple[int, str, int, int]]:
    """Each group as its number of caches, type, block size and page in KiB."""
    return [(len(g.caches), g.type, g.block_size, g.page_size_bytes // KIB) for g in answer.groups]


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_caches_that_are_all_alike_are_one_group(release: str) -> None:
    answer = plan(release, graph_of([full()] * 4))
    assert rule(answer) == "one-group"
    assert shape(answer) == [(4, "FullAttentionSpec", 16, 64)]
    assert answer.bytes_per_block == 4 * 64 * KIB


def test_caches_of_one_type_with_other_pages_are_one_group_too(release: str) -> None:
    answer = plan(release, graph_of([full(8), full(4)] * 2))
    assert rule(answer) == "one-type-group"
    assert shape(answer) == [(4, "UniformTypeKVCacheSpecs", 16, 2 * 64 + 2 * 32)]
    assert answer.bytes_per_block == 192 * KIB


def test_windows_of_two_lengths_are_two_types(release: str) -> None:
    answer = plan(release, graph_of([sliding(128), sliding(256)] * 2))
    assert rule(answer) == "equal-page-groups"
    assert shape(answer) == [(2, "SlidingWindowSpec", 16, 64)] * 2


def test_a_smaller_page_takes_more_tokens_where_that_fills_the_largest(release: str) -> None:
    answer = plan(release, graph_of([full(8), sliding(128, 4)] * 2))
    assert rule(answer) == "equal-page-groups"
    assert shape(answer) == [(2, "FullAttentionSpec", 16, 64), (2, "SlidingWindowSpec", 32, 64)]
    assert [group.padding_bytes for group in answer.groups] == [0, 0]
    assert (answer.resolved.scheduler_block_size, answer.resolved.hash_block_size) == (32, 16)


def test_a_page_that_does_not_divide_the_largest_is_padded_to_it(release: str) -> None:
    answer = plan(release, graph_of([full(6, n_q=24), sliding(128, 4, n_q=24)] * 2))
    assert rule(answer) == "equal-page-groups"
    assert [spec.page_size_bytes // KIB for spec in answer.specs] == [48, 32]
    assert shape(answer) == [(2, "FullAttentionSpec", 16, 48), (2, "SlidingWindowSpec", 16, 48)]


def test_windows_beside_a_latent_page_that_cannot_be_padded_are_allocated_in_full(release: str) -> None:
    answer = plan(release, graph_of([latent(), sliding(128, 4, n_q=16)] * 2))
    assert rule(answer) == "one-type-group"
    assert shape(answer) == [(4, "UniformTypeKVCacheSpecs", 16, 2 * (18 + 32))]
    assert [group.blocks_per_request for group in answer.groups] == [8192 // 16]


def test_chunks_beside_a_latent_page_that_cannot_be_padded_are_refused(release: str) -> None:
    with pytest.raises(Refused, match="18432 bytes of MLAAttentionSpec") as refused:
        plan(release, graph_of([latent(), chunked(512, 4)] * 2))
    answer = refused.value
    assert (answer.by, answer.type, answer.stage) == ("engine", "NotImplementedError", "groups")


@pytest.mark.parametrize(
    ("full_layers", "windows", "groups", "block"),
    [
        (4, 4, [4, 4], 4),
        (5, 4, [5, 4], 5),  # 5 < 1.5 x 4: groups of 5, one place of the window group empty
        (6, 4, [3, 3, 4], 4),  # 6 is not less: groups of 4
        (7, 5, [7, 5], 7),
        (8, 5, [4, 4, 5], 5),
        (1, 3, [1, 1, 1, 1], 1),
        (3, 2, [2, 1, 2], 2),
        (10, 4, [4, 3, 3, 4], 4),
    ],
)
def test_a_group_is_as_large_as_the_smallest_kind_or_the_largest_if_that_is_near(
    release: str, full_layers: int, windows: int, groups: list[int], block: int
) -> None:
    answer = plan(release, graph_of([full()] * full_layers + [sliding(128)] * windows))
    assert [len(group.caches) for group in answer.groups] == groups
    assert answer.bytes_per_block == block * 64 * KIB
    assert [group.padding_bytes for group in answer.groups] == [(block - count) * 64 * KIB for count in groups]


def test_a_kind_that_is_cut_is_dealt_out_in_turn(release: str) -> None:
    answer = plan(release, graph_of([full(), sliding(128), sliding(128), sliding(128)] * 2))
    assert [group.caches for group in answer.groups] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_kinds_come_in_the_order_their_first_layers_do(release: str) -> None:
    answer = plan(release, graph_of([chunked(1024), sliding(128), full()]))
    assert [g.type for g in answer.groups] == ["ChunkedLocalAttentionSpec", "SlidingWindowSpec", "FullAttentionSpec"]


def test_pages_of_several_sizes_are_packed_where_the_block_is_outermost(release: str) -> None:
    """Three layers of each of two page sizes set three repeats a group; six windows make two groups of three."""
    answer = plan(release, graph_of([full(8), full(4), sliding(128), sliding(128)] * 3), **PACKED)
    assert rule(answer) == "packed-groups"
    assert shape(answer) == [
        (6, "UniformTypeKVCacheSpecs", 16, 3 * (64 + 32)),
        (3, "UniformTypeKVCacheSpecs", 16, 3 * 64),
        (3, "UniformTypeKVCacheSpecs", 16, 3 * 64),
    ]
    assert answer.bytes_per_block == 288 * KIB
    assert [group.padding_bytes // KIB for group in answer.groups] == [0, 96, 96]
    assert [group.caches for group in answer.groups[1:]] == [(2, 6, 10), (3, 7, 11)]


def test_the_same_layers_are_made_equal_where_it_is_not(release: str) -> None:
    answer = plan(release, graph_of([full(8), full(4), sliding(128), sliding(128)] * 3))
    assert rule(answer) == "equal-page-groups"
    assert {group.page_size_bytes for group in answer.groups} == {64 * KIB}


def test_pages_of_one_size_need_no_packing(release: str) -> None:
    answer = plan(release, graph_of([full(), sliding(128)] * 2), **PACKED)
    assert rule(answer) == "equal-page-groups"


def test_windows_alone_are_cut_to_what_the_others_need_only_by_the_later_release() -> None:
    """Two full pages of 64 KiB hold four window pages of 32 KiB: 0.31.0 cuts five windows, 0.29.0 widens the block."""
    graph = graph_of([full()] * 2 + [sliding(128, 4)] * 5)
    old, new = (plan(release, graph, **PACKED) for release in RELEASES)
    assert [len(group.caches) for group in old.groups] == [2, 5]
    assert old.bytes_per_block == 5 * 32 * KIB
    assert [len(group.caches) for group in new.groups] == [2, 3, 2]
    assert new.bytes_per_block == 2 * 64 * KIB


def test_windows_of_uneven_pages_crash_the_later_release_where_it_cuts_them() -> None:
    """It deals them out by pairs of pages: here one pair for three groups."""
    graph = graph_of([full(), sliding(128), sliding(128), sliding(128, 4)])
    with pytest.raises(Refused, match="3 groups and fill 1") as refused:
        plan("0.31.0", graph, **PACKED)
    assert (refused.value.by, refused.value.type, refused.value.stage) == ("engine", "StopIteration", "groups")
    assert [len(group.caches) for group in plan("0.29.0", graph, **PACKED).groups] == [1, 3]


def test_windows_of_uneven_pages_that_the_later_release_would_lose_are_not_guessed() -> None:
    """Two pairs of pages fill two groups, and the third large page has no place."""
    graph = graph_of([full()] * 3 + [sliding(128), sliding(128, 4)] * 2 + [sliding(128)])
    with pytest.raises(Refused, match="loses some") as refused:
        plan("0.31.0", graph, **PACKED)
    assert (refused.value.by, refused.value.rule) == ("pack", "packed-repeats-even")


def test_without_the_hybrid_manager_windows_are_full(release: str) -> None:
    answer = plan(release, graph_of([full(8), sliding(128, 8)] * 2), disable_hybrid_kv_cache_manager=True)
    assert rule(answer) == "one-group"
    assert shape(answer) == [(4, "FullAttentionSpec", 16, 64)]
    assert [group.blocks_per_request for group in answer.groups] == [8192 // 16]


def test_without_the_hybrid_manager_windows_and_chunks_are_one_type(release: str) -> None:
    answer = plan(release, graph_of([full(), sliding(128), chunked(512)]), disable_hybrid_kv_cache_manager=True)
    assert rule(answer) == "one-type-group"
    assert shape(answer) == [(3, "UniformTypeKVCacheSpecs", 16, 3 * 64)]


@pytest.mark.parametrize(
    "layers",
    [
        [full(), sliding(128), sliding(256)],
        [full(4), sliding(128), sliding(256)],
        [full(), chunked(512), chunked(1024)],
        [sliding(128), sliding(256)],
        [chunked(512), sliding(256)],
    ],
)
def test_without_the_hybrid_manager_windows_of_two_lengths_cannot_be_joined(
    release: str, layers: Sequence[Attention]
) -> None:
    with pytest.raises(Refused) as refused:
        plan(release, graph_of(layers), disable_hybrid_kv_cache_manager=True)
    assert (refused.value.by, refused.value.type, refused.value.stage) == ("engine", "ValueError", "groups")


def test_without_the_hybrid_manager_windows_of_two_lengths_join_latent_caches(release: str) -> None:
    graph = graph_of([latent(), sliding(128, n_q=16), sliding(256, n_q=16)])
    answer = plan(release, graph, disable_hybrid_kv_cache_manager=True)
    assert shape(answer) == [(3, "UniformTypeKVCacheSpecs", 16, 18 + 64 + 64)]


# what holds for every model

layer = st.one_of(
    st.builds(full, st.sampled_from([1, 2, 4, 8]), st.sampled_from([64, 128])),
    st.builds(sliding, st.sampled_from([128, 1024]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([64, 128])),
    st.builds(chunked, st.just(512), st.sampled_from([4, 8])),
)
layers = st.lists(layer, min_size=1, max_size=4).flatmap(
    lambda kinds: st.lists(st.sampled_from(kinds), min_size=1, max_size=14)
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "env": st.sampled_from([{"VLLM_KV_CACHE_LAYOUT": name} for name in ("LBNHC", "BLHNC", "BLNHC")]),
        "disable_hybrid_kv_cache_manager": st.booleans(),
        "kv_cache_dtype": st.sampled_from(["fp8", "auto"]),
        "tensor_parallel_size": st.sampled_from([1, 2, 8]),
        "block_size": st.sampled_from([16, 32, 64]),
        "max_num_batched_tokens": st.sampled_from([2048, 8192]),
    },
)


@pytest.mark.parametrize("of_release", RELEASES)
@settings(max_examples=300, deadline=None)
@given(nodes=layers, stated=arguments)
def test_every_cache_is_in_one_group_and_every_block_holds_any_group(
    of_release: str, nodes: Sequence[Attention], stated: dict[str, Any]
) -> None:
    answer = plan_or_refusal(of_release, nodes, stated)
    if isinstance(answer, Refused):
        assert answer.stage == "groups" or answer.rule == "packed-repeats-even"
        assert answer.type in ("ValueError", "StopIteration", None)
        return
    held = [position for group in answer.groups for position in group.caches]
    assert sorted(held) == list(range(len(nodes)))
    assert all(list(group.caches) == sorted(group.caches) or rule(answer) == "packed-groups" for group in answer.groups)
    assert all(group.padding_bytes == answer.bytes_per_block - used(group) >= 0 for group in answer.groups)
    assert min(group.padding_bytes for group in answer.groups) == 0
    assert answer.blocks_per_request == sum(group.blocks_per_request for group in answer.groups)
    if rule(answer) == "equal-page-groups":
        assert len({group.page_size_bytes for group in answer.groups}) == 1
        sizes = [len(group.caches) for group in answer.groups]
        assert answer.bytes_per_block == max(sizes) * answer.groups[0].page_size_bytes
    if stated.get("disable_hybrid_kv_cache_manager"):
        assert len(answer.groups) == 1


def plan_or_refusal(release: str, nodes: Sequence[Attention], stated: dict[str, Any]) -> Plan | Refused:
    try:
        return plan(release, graph_of(nodes), **stated)
    except Refused as refused:
        return refused


def used(group: Group) -> int:
    """Bytes of a block the group's caches take: one page for each, which a group of several sizes has summed."""
    return group.page_size_bytes * (1 if group.type == "UniformTypeKVCacheSpecs" else len(group.caches))


@pytest.mark.parametrize("of_release", RELEASES)
@settings(max_examples=150, deadline=None)
@given(full_layers=st.integers(1, 40), windows=st.integers(1, 40))
def test_the_1_5_rule_on_both_sides(of_release: str, full_layers: int, windows: int) -> None:
    answer = plan(of_release, graph_of([full()] * full_layers + [sliding(128)] * windows))
    fewest, most = sorted((full_layers, windows))
    near = 2 * most < 3 * fewest
    largest = most if near else fewest
    assert len(answer.groups) == -(-full_layers // largest) + -(-windows // largest)
    assert (len(answer.groups) == 2) == (near or fewest == most)
    assert max(len(group.caches) for group in answer.groups) <= largest
