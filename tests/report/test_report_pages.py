"""The pages in a real browser: nothing is missing, nothing is fetched, nothing overflows, everything can be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from headless import Browser, Drawn

PLANS = ("gpt-oss-120b", "qwen3.5-35b-a3b", "deepseek-v4-flash", "glm-5.3-flash", "gemma-4-26b-a4b", "falcon-mamba-7b")
STAGES = ("plan", "gpt-oss-120b", "--release", "0.31.0", "-pp", "2", "-tp", "2", "--kv-cache-dtype", "fp8")
REFUSED = ("plan", "qwen3-14b", "--release", "0.31.0", "--kv-cache-memory-bytes", "1G")
DIFF = ("diff", "0.29.0", "0.31.0")
PAGES = [*(("plan", model, "--release", "0.31.0") for model in PLANS), STAGES, REFUSED, DIFF]

#: Elements that reach past the page or lie left of it, and those whose content does not fit them.
OVERFLOWING = """[...document.body.querySelectorAll('*')].filter(e => {
  if (e.closest('svg') && e.tagName !== 'svg') return false;
  const box = e.getBoundingClientRect();
  const head = e.closest('thead');  // on a narrow page headings are there for screen readers alone
  if (head && getComputedStyle(head).position === 'absolute') return false;
  const outside = box.right > innerWidth + 0.5 || box.left < -0.5;
  return outside || (e.tagName !== 'svg' && e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1);
}).map(e => e.outerHTML.slice(0, 120))"""
#: The lowest contrast of a text with what it stands on, and of a picture's colour with the page.
CONTRASTS = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = color => {
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const linear = c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = color => {
    const [r, g, b] = rgb(color).map(c => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => {
    const [high, low] = [light(a), light(b)].sort((p, q) => q - p);
    return (high + 0.05) / (low + 0.05);
  };
  const ground = e => {
    const color = getComputedStyle(e).backgroundColor;
    return color === 'rgba(0, 0, 0, 0)' ? ground(e.parentElement) : color;
  };
  const texts = [...document.body.querySelectorAll('*')]
    .filter(e => !e.closest('svg') && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()))
    .map(e => ratio(getComputedStyle(e).color, ground(e)));
  const root = getComputedStyle(document.documentElement);
  const drawn = ['c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7', 'hatch', 'ink']
    .map(v => ratio(root.getPropertyValue('--' + v), root.getPropertyValue('--paper')));
  return [Math.min(...texts), Math.min(...drawn)];
})()"""


def name(words: tuple[str, ...]) -> str:
    return "-".join(words[:2]) + ("-stages" if words is STAGES else "")


@pytest.mark.parametrize("words", PAGES, ids=name)
@pytest.mark.parametrize("width", [375, 660, 1440])
def test_a_page_loads_whole_at_any_width(browser: Browser, drawn: Drawn, words: tuple[str, ...], width: int) -> None:
    file = drawn(*words)
    with browser.page(file, width) as page:
        assert page.complaints() == []
        assert page.requested() == [file.as_uri()]
        assert page.evaluate("innerWidth") == width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(OVERFLOWING) == []
        assert page.evaluate("document.scripts.length") == 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("words", [PAGES[0], REFUSED, DIFF], ids=name)
def test_everything_can_be_read_in_light_and_in_the_dark(
    browser: Browser, drawn: Drawn, words: tuple[str, ...], dark: bool
) -> None:
    with browser.page(drawn(*words), 1440, dark=dark) as page:
        text, graphics = page.evaluate(CONTRASTS)
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert text >= 4.5
    assert graphics >= 3
    assert paper == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")


def test_paper_is_white_whatever_the_screen_is(browser: Browser, drawn: Drawn, tmp_path: Path) -> None:
    with browser.page(drawn(*PAGES[0]), 800, dark=True, media="print") as page:
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
        page.pdf(tmp_path / "plan.pdf")
    assert (tmp_path / "plan.pdf").read_bytes().startswith(b"%PDF")


def test_a_plan_says_what_a_reader_needs(browser: Browser, drawn: Drawn) -> None:
    with browser.page(drawn(*PAGES[0]), 1440) as page:
        text = page.evaluate("document.body.innerText")
        stripes = page.evaluate("document.querySelectorAll('.bar rect[fill^=\"url(#t\"]').length")
        lines = page.evaluate("document.querySelectorAll('.plot polyline').length")
    for said in (
        "gpt-oss-120b on vllm 0.31.0",
        "GPU H200 (default)",
        "589,824",
        "Group 0: blocks of 16 tokens, 1,033 blocks of the longest request",
        "SlidingWindowSpec, window of 128 tokens, 8 heads of 64, bfloat16",
        "group 1: grows without end; 8,192 blocks at the end",
        "hybrid-kv-cache-manager: on",
        "decided otherwise, a request of 131,072 tokens would take 9,663,676,416 (9 GiB)",
        "vllm/v1/core/kv_cache_utils.py",
    ):
        assert said in text
    assert stripes == 36
    assert lines == 3


@pytest.mark.parametrize(
    ("words", "width"), [(("plan", "glm-5.3-flash", "--release", "0.31.0"), 1440), (DIFF, 375), (DIFF, 1440)]
)
def test_no_name_in_a_table_is_broken_within_a_word(
    browser: Browser, drawn: Drawn, words: tuple[str, ...], width: int
) -> None:
    """A column is as wide as its longest word needs, whatever stands beside it; only hyphens may end a line."""
    broken = """(() => {
      const range = document.createRange();
      const shown = e => e.firstChild && getComputedStyle(e.closest('thead') || e).position !== 'absolute';
      return [...document.querySelectorAll('table th')].filter(shown).flatMap(e => {
        const text = e.firstChild.textContent;
        return [...text.matchAll(/[^ -]+/g)].filter(word => {
          range.setStart(e.firstChild, word.index);
          range.setEnd(e.firstChild, word.index + word[0].length);
          return range.getClientRects().length > 1;
        }).map(word => word[0]);
      });
    })()"""
    with browser.page(drawn(*words), width) as page:
        assert page.evaluate(broken) == []


def test_what_was_asked_and_what_it_does(browser: Browser, drawn: Drawn) -> None:
    with browser.page(drawn(*STAGES), 1440) as page:
        text = page.evaluate("document.body.innerText")
        bars = page.evaluate("[...document.querySelectorAll('figure h4')].map(e => e.innerText)")
    assert "kv_cache_dtype=fp8: holds 100.0 % more in the same memory" in text
    assert bars == ["Stage 0", "Stage 1"]


def test_a_refusal_stands_above_what_had_been_decided(browser: Browser, drawn: Drawn) -> None:
    with browser.page(drawn(*REFUSED), 1440) as page:
        refused = page.evaluate("document.querySelector('.refused').innerText")
    assert refused.startswith("Refused, ValueError at stage groups: one request of 40960 tokens needs")


def test_a_diff_draws_the_old_block_above_the_new_one_to_one_scale(browser: Browser, drawn: Drawn) -> None:
    widths = """[...document.querySelectorAll('h2')].filter(e => e.innerText.startsWith('gemma-4-26b-a4b-nvfp4'))
      .flatMap(e => { const found = []; let next = e; while ((next = next.nextElementSibling) && next.tagName !== 'H2')
        found.push(...next.querySelectorAll('.bar svg > rect:nth-of-type(n)[fill=none]')); return found; })
      .map(e => Math.round(e.getBoundingClientRect().width))"""
    with browser.page(drawn(*DIFF), 1440) as page:
        text = page.evaluate("document.body.innerText")
        old_windows, old_full, new_windows, new_full = page.evaluate(widths)
    assert old_windows == old_full
    assert new_windows == new_full
    assert abs(new_full / old_full - 4) < 0.05, "a block of 1.25 MiB beside one of 320 KiB"
    for said in ("vllm 0.29.0 → 0.31.0", "newly served", "groups 0 to 4: block size 16 → 64", "▼ -0.11 %", "qwen3-14b"):
        assert said in text
