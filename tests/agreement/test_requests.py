"""What a request of any length pins, held against what releases said about the longest one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import lcm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rulespack
from rulespack import Deployment

from .cases import Case, planned, recorded

PLANNED = [case for case in recorded() if case.plan is not None and case.refused is None]
#: Where the counts behave differently: windows, chunks, rings, several groups, sharding.
TELLING = {
    "default": [
        "gpt-oss-120b",
        "gemma-2-9b",
        "gemma-3-4b-it",
        "gemma-4-26b-a4b",
        "mistral-7b-v0.1",
        "deepseek-v4.1-flash",
    ],
    "len2k": ["llama-4-scout-17b-16e-instruct", "qwen2.5-7b-instruct"],
    "tp8dcp8": ["deepseek-v3"],
    "nohybrid": ["gpt-oss-120b"],
    "pp2": ["deepseek-v3"],
}


plan = cache(planned)


@pytest.mark.parametrize(("release", "model"), sorted({(case.release, case.model) for case in PLANNED}))
def test_the_longest_request_pins_what_the_release_said(release: str, model: str) -> None:
    for case in PLANNED:
        if (case.release, case.model) != (release, model):
            continue
        assert case.plan is not None
        ours, longest = plan(case), case.plan["resolved"]["max_model_len"]
        request = ours.request(longest)
        assert request.tokens == longest
        assert request.blocks == case.plan["blocks_per_request"], case.name
        assert request.bytes == case.plan["blocks_per_request"] * case.plan["bytes_per_block"], case.name
        recorded_blocks = [group["blocks_per_request"] for group in case.plan["groups"]]
        assert [group.pages.at(longest) for group in ours.groups] == recorded_blocks, case.name
        for tokens, wrong in ((0, "at least 1 token, got 0"), (longest + 1, f"not served, {longest} is max_model_len")):
            with pytest.raises(rulespack.BadLength, match=wrong):
                ours.request(tokens)


TELLING_CASES = [case for case in PLANNED if case.model in TELLING.get(case.name, ())]


def each_telling_case(test: Callable[..., None]) -> Callable[..., None]:
    each = pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in TELLING_CASES])
    marked: Callable[..., None] = each(settings(max_examples=60, deadline=None)(test))
    return marked


def test_the_telling_cases_are_recorded() -> None:
    assert {(case.name, case.model) for case in TELLING_CASES} == {
        (name, model) for name, models in TELLING.items() for model in models
    }


@each_telling_case
@given(data=st.data())
def test_a_longer_request_never_pins_less(case: Case, data: st.DataObject) -> None:
    ours = plan(case)
    lengths = st.integers(1, ours.resolved.max_model_len)
    shorter, longer = sorted((data.draw(lengths), data.draw(lengths)))
    less, more = ours.request(shorter), ours.request(longer)
    assert 1 <= less.blocks <= more.blocks <= ours.blocks_per_request
    assert less.fixed_bytes <= more.fixed_bytes <= more.bytes
    assert less.growth_bytes_per_token == more.growth_bytes_per_token


@each_telling_case
@given(data=st.data())
def test_growth_is_what_further_tokens_cost_and_the_fixed_part_is_the_rest(case: Case, data: st.DataObject) -> None:
    """Over whole blocks of every group, the growing groups grow by exactly what the plan says a token costs."""
    ours = plan(case)
    whole = lcm(*(group.pages.block_size * group.pages.shards for group in ours.groups))
    steps = data.draw(st.integers(1, ours.resolved.max_model_len // whole - 1))
    start = data.draw(st.integers(1, ours.resolved.max_model_len - steps * whole))
    before, after = ours.request(start), ours.request(start + steps * whole)
    grown = (after.bytes - after.fixed_bytes) - (before.bytes - before.fixed_bytes)
    assert grown == pytest.approx(steps * whole * ours.growth_bytes_per_token, abs=1e-3)


@pytest.mark.parametrize("release", rulespack.releases())
def test_a_request_by_hand(release: str) -> None:
    """gpt-oss-20b: 12 layers that see all, 12 that see 128 tokens; 2 batches of 2,048 under way; blocks of 16."""
    graph = rulespack.load_model("gpt-oss-20b")
    ours = rulespack.engine(release).plan(graph, Deployment(max_num_batched_tokens=2048))
    block = 12 * 2 * 8 * 64 * 2 * 16
    assert ours.bytes_per_block == block
    assert ours.growth_bytes_per_token == block / 16
    window = -(-(127 + 2 * 2048) // 16) + 1
    for tokens, full, sliding in ((1, 1, 2), (16, 1, 2), (17, 2, 3), (100_000, 6250, window)):
        request = ours.request(tokens)
        assert (request.blocks, request.fixed_bytes) == (full + sliding, sliding * block)
        assert request.bytes == (full + sliding) * block


@pytest.mark.parametrize("release", rulespack.releases())
def test_without_the_hybrid_manager_nothing_is_fixed(release: str) -> None:
    graph = rulespack.load_model("gpt-oss-20b")
    ours = rulespack.engine(release).plan(graph, Deployment(disable_hybrid_kv_cache_manager=True))
    request = ours.request(100_000)
    assert request.fixed_bytes == 0
    assert request.bytes == 6250 * ours.bytes_per_block
