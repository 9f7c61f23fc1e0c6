"""How text is laid out: numbers, layer names, wrapping, tables."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rulespack.report.style import Style, count, layer_names, pairs, size, table, wrap


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0"), (999, "999"), (1_000, "1,000"), (20480.0, "20,480"), (3355.5, "3,355.5"), (20.4797, "20.48")],
)
def test_counts(number: float, said: str) -> None:
    assert count(number) == said


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "0"),
        (1023, "1,023"),
        (1024, "1,024 (1 KiB)"),
        (2_621_440, "2,621,440 (2.5 MiB)"),
        (6_710_886_400, "6,710,886,400 (6.25 GiB)"),
        (1 << 41, "2,199,023,255,552 (2 TiB)"),
    ],
)
def test_sizes(number: float, said: str) -> None:
    assert size(number) == said


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([f"model.layers.{i}.self_attn.attn" for i in range(40)], "model.layers.{0-39}.self_attn.attn"),
        (["model.layers.7.attn"], "model.layers.7.attn"),
        ([f"layers.{i}" for i in (0, 2, 4, 6)], "layers.{0-6/2}"),
        ([f"layers.{i}" for i in (0, 1, 2, 5, 9, 10)], "layers.{0-2,5,9-10}"),
        (["a.0.x", "a.0.y", "a.1.x"], "a.{0-1}.x, a.0.y"),
        (["plain"], "plain"),
    ],
)
def test_layer_names_alike_are_written_once(names: list[str], said: str) -> None:
    assert layer_names(names) == said


def spelled_out(said: str) -> Iterator[str]:
    """The names a compact spelling stands for."""
    for part in said.split(", "):
        match = re.fullmatch(r"(.*?)\{(.*)\}(.*)", part)
        if match is None:
            yield part
            continue
        before, ranges, after = match.groups()
        for each in ranges.split(","):
            bounds, _, step = each.partition("/")
            first, _, last = bounds.partition("-")
            for number in range(int(first), int(last or first) + 1, int(step or 1)):
                yield f"{before}{number}{after}"


@given(st.lists(st.integers(0, 200), min_size=1, unique=True).map(sorted))
def test_a_compact_spelling_stands_for_the_same_layers(numbers: list[int]) -> None:
    names = [f"model.layers.{number}.attn" for number in numbers]
    assert list(spelled_out(layer_names(names))) == names


@given(st.text("ab.,/ ", max_size=200), st.integers(1, 60))
def test_wrapping_loses_nothing_and_keeps_the_width(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_a_table_is_as_wide_as_it_may_be() -> None:
    headings = ("group", "block", "holds")
    rows = [
        ("0", "16", "40 x FullAttentionSpec: layers.{0-39}.attn"),
        ("1", "16", "2 x KpoolTailSpec: layers.{3,7}.tail"),
    ]
    assert table(headings, rows, Style(width=56)) == [
        "group  block  holds",
        "    0     16  40 x FullAttentionSpec: layers.{0-39}.attn",
        "    1     16  2 x KpoolTailSpec: layers.{3,7}.tail",
    ]
    assert table(headings, rows, Style(width=40)) == [
        "group  block",
        "       holds",
        "    0     16",
        "       40 x FullAttentionSpec:",
        "       layers.{0-39}.attn",
        "    1     16",
        "       2 x KpoolTailSpec:",
        "       layers.{3,7}.tail",
    ]
    long = ("group", "tokens of a block", "holds")
    assert table(long, rows[:1], Style(width=22)) == [
        "group 0: holds 40 x",
        "  FullAttentionSpec:",
        "  layers.{0-39}.attn",
        "  tokens of a block 16",
    ]


@given(st.integers(1, 100), st.lists(st.integers(0, 1 << 50), min_size=4, max_size=4))
def test_every_figure_of_a_table_has_its_heading_however_narrow_it_is(width: int, figures: list[int]) -> None:
    headings = ("request tokens", "blocks", "fixed bytes", "bytes")
    said = " ".join(" ".join(table(headings, [[str(figure) for figure in figures]], Style(width=width))).split())
    without = said.replace("fixed bytes", "", 1)
    assert all(heading in said for heading in headings)
    assert "bytes" in without


def test_names_stand_beside_what_they_are_or_above_it() -> None:
    rows = [("cache", "dtype auto, block 16 tokens, layout LBNHC")]
    assert pairs(rows, Style(width=50)) == ["  cache  dtype auto, block 16 tokens, layout LBNHC"]
    assert pairs(rows, Style(width=30)) == ["  cache", "    dtype auto, block 16", "    tokens, layout LBNHC"]


@pytest.mark.parametrize("width", [-5, 0, 1, 2, 19])
def test_a_screen_too_narrow_for_any_report_is_taken_to_be_wider(width: int) -> None:
    assert Style(width=width).width == 20
    assert wrap("block size", width - 20) == list("blocksize")


def test_emphasis_only_where_it_is_wanted() -> None:
    assert Style(emphasis=True).strong("x") == "\x1b[1mx\x1b[0m"
    assert Style(emphasis=False).strong("x") == "x"
