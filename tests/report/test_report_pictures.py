"""The pictures' geometry: blocks to scale, stripes that add up, curves that end where the plan says."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

import rulespack
from rulespack import Deployment, Plan, Refused, catalog
from rulespack.report.html import TEMPLATES
from rulespack.report.pictures import HAIR, TEXTURES, Bar, blocks, curves, kinds


def plan(model: str, release: str = "0.31.0", **stated: Any) -> Plan:
    return rulespack.engine(release).plan(rulespack.load_model(model), Deployment(**stated))


def bars(of: Plan) -> list[Bar]:
    return [bar for block in blocks(of, kinds(of)) for bar in block.bars]


def filled(bar: Bar) -> float:
    """Per cent of the picture's width that stripes take: each from where it begins to where the next one does."""
    last = bar.stripes[-1]
    return last.x + last.width + last.padding


def test_a_stripe_for_each_cache_and_no_padding_where_there_is_none() -> None:
    windows, full = bars(plan("gpt-oss-120b"))
    assert [len(bar.stripes) for bar in (windows, full)] == [18, 18]
    assert {stripe.kind.letter for stripe in windows.stripes} == {"A"}
    assert {stripe.kind.letter for stripe in full.stripes} == {"B"}
    assert [stripe.letter for stripe in full.stripes] == ["everywhere"] + [""] * 17
    assert filled(full) == pytest.approx(100)
    assert (windows.rest, full.rest) == (0, 0)


def test_what_a_group_leaves_is_hatched() -> None:
    """Of Gemma 3's seven groups six hold five caches and one four: a fifth of its block holds nothing."""
    five, four, _ = bars(plan("gemma-3-4b-it"))
    assert five.groups == "groups 0 to 4"
    assert (len(five.stripes), five.rest) == (5, 0)
    assert (four.groups, len(four.stripes), four.used) == ("group 5", 4, "80.0%")
    assert four.rest == pytest.approx(20)


def test_a_page_that_is_padded_shows_its_padding() -> None:
    states, attention = bars(plan("qwen3.5-35b-a3b"))
    assert states.groups == "groups 0 to 2"
    assert all(stripe.padding > 0 for stripe in states.stripes)
    assert all(stripe.padding == 0 for stripe in attention.stripes)
    share = states.stripes[0].padding / (states.stripes[0].padding + states.stripes[0].width)
    assert states.used == f"{1 - share:.1%}"


def test_each_pipeline_stage_is_a_block_of_its_own() -> None:
    of = plan("deepseek-v3", pipeline_parallel_size=2)
    first, second = blocks(of, kinds(of))
    assert of.stages is not None
    assert [sum(len(bar.stripes) for bar in block.bars) for block in (first, second)] == [31, 30]
    assert (first.title, second.title) == ("stage 0", "stage 1")
    assert second.bars[0].width / first.bars[0].width == pytest.approx(
        of.stages[1].bytes_per_block / of.stages[0].bytes_per_block
    )


@pytest.mark.parametrize("stated", [{}, {"kv_cache_dtype": "fp8"}, {"pipeline_parallel_size": 2}], ids=str)
def test_every_block_of_the_catalog_adds_up(stated: dict[str, Any]) -> None:
    """Stripes and rest together are the block, whatever a release makes of a model."""
    seen = 0
    for name in catalog.names():
        for release in rulespack.releases():
            try:
                of = plan(name, release, **stated)
            except Refused:
                continue
            for bar in bars(of):
                hair = HAIR * len(bar.stripes)
                whole = (filled(bar) if bar.stripes else 0) + bar.rest
                assert whole == pytest.approx(bar.width, abs=hair), (name, release, bar.groups)
                assert all(stripe.width > 0 for stripe in bar.stripes)
                seen += 1
    assert seen > 200


def test_curves_grow_and_stop_where_the_plan_says() -> None:
    of = plan("gpt-oss-120b")
    drawn = curves(of, kinds(of))
    assert drawn is not None
    windows, full = drawn.lines
    assert windows.text == "group 0: stops growing; 1,033 blocks at the end"
    assert full.text == "group 1: grows without end; 8,192 blocks at the end"
    assert drawn.total.text == "all groups together; 9,225 blocks at the end"
    at = {line.text[:7]: [tuple(map(float, point.split(","))) for point in line.points.split()] for line in drawn.lines}
    (_, _), (bend, height), (end, same) = at["group 0"]
    assert (end, height) == (100, same)
    assert bend == pytest.approx(100 * (16_384 + 127) / 131_072, abs=0.01)
    assert at["group 1"][-1] == (100, pytest.approx(100 * (1 - 8_192 / 9_225), abs=0.01))
    assert [text for _, text in drawn.x_ticks] == ["0", "32K", "64K", "96K", "128K"]
    assert [text for _, text in drawn.y_ticks] == ["0", "2,000", "4,000", "6,000", "8,000"]


def test_few_blocks_are_drawn_as_steps() -> None:
    of = plan("gpt-oss-120b", max_model_len=64)
    drawn = curves(of, kinds(of))
    assert drawn is not None
    full = [tuple(map(float, point.split(","))) for point in drawn.lines[-1].points.split()]
    assert len({height for _, height in full}) == 4


def test_kinds_that_look_alike_do_not_exist() -> None:
    """Every kind in one picture has a texture of its own, as far as there are textures."""
    for name in catalog.names():
        try:
            found = list(kinds(plan(name)).values())
        except Refused:
            continue
        assert len({kind.letter for kind in found}) == len(found)
        assert len({kind.texture for kind in found}) == min(len(found), TEXTURES)
        assert len({kind.text for kind in found}) == len(found), name


def test_light_dark_and_paper_have_the_same_colours_to_set() -> None:
    css = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    palettes = [set(re.findall(r"(--[\w]+):", block)) for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL)]
    assert len(palettes) == 3
    assert palettes[0] == palettes[1] == palettes[2]


def test_names_cannot_become_markup() -> None:
    from rulespack.diff import Answer
    from rulespack.report.html import plan_html
    from rulespack.report.why import Explanation

    of = msgspec.structs.replace(plan("qwen3-14b"), model="<script>alert(1)</script>")
    page = plan_html(Answer("0.31.0", of).plan or of, Explanation((), ()))
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
