"""Markdown and annotations within GitHub's limits."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

import rulespack
from rulespack.diff import Comparison
from rulespack.report.annotations import MESSAGE, MOST, annotation_lines
from rulespack.report.markdown import diff_markdown, escape, fitted, markdown_parts


@cache
def comparison() -> Comparison:
    return rulespack.compare("0.29.0", "0.31.0", ["gemma-4-26b-a4b-nvfp4", "deepseek-v4-flash", "qwen3-14b"])


def repeated(times: int) -> Comparison:
    """A comparison of many models that all changed, each in a way of its own."""
    changed = comparison().pairs[0]
    pairs = tuple(msgspec.structs.replace(changed, model=f"model-{number}") for number in range(times))
    return msgspec.structs.replace(comparison(), pairs=pairs)


def test_as_many_sections_as_fit() -> None:
    parts = markdown_parts(repeated(500))
    whole = diff_markdown(repeated(500))
    assert fitted(parts, len(whole.encode()), "*{} more*\n") == whole
    cut = fitted(parts, 100_000, "*{} more*\n")
    assert len(cut.encode()) <= 100_000
    assert cut.startswith(parts[0])
    kept = cut.count("## model-")
    assert 10 < kept < 500
    assert cut.endswith(f"*{len(parts) - 1 - kept} more*\n")
    assert cut.count("<details>") == cut.count("</details>") == kept


def test_a_full_summary_takes_no_more() -> None:
    assert fitted(["# a long heading\n", "text\n"], 3, "*{} more*\n") == ""


def test_no_more_annotations_of_a_level_than_github_shows() -> None:
    lines = annotation_lines(repeated(40))
    assert len(lines) == MOST
    assert all(line.startswith("::warning title=") for line in lines)
    assert lines[-1].startswith("::warning title=31 more::")


def test_an_annotation_is_one_line_and_not_too_long() -> None:
    for line in annotation_lines(comparison()):
        head, _, body = line.removeprefix("::").partition("::")
        assert "\n" not in line
        assert ":" not in head.partition("title=")[2]
        assert "," not in head.partition("title=")[2]
        assert len(body.replace("%25", "%")) <= MESSAGE


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("FLASH_ATTN", "FLASH_ATTN"),
        ("a | b", "a \\| b"),
        ("<b> [x](y) *z* `q`", "\\<b> \\[x\\](y) \\*z\\* \\`q\\`"),
        ("two\nlines", "two lines"),
    ],
)
def test_text_is_shown_letter_by_letter(text: str, shown: str) -> None:
    assert escape(text) == shown
