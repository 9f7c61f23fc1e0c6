"""Every recorded case, both releases: our answer is the engine's."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from rulespack import catalog, releases

from .cases import RECORDINGS, Case, recorded
from .compare import ELSEWHERE, judged, same
from .score import END, MARK, shown, table

#: Models that stay recorded for every release, whatever is added: the catalog this project began with.
KEPT = frozenset(
    """
    codellama-34b-instruct-hf deepseek-r1 deepseek-v2-lite deepseek-v3 deepseek-v4.1-flash gemma-2-9b gemma-3-4b-it
    gemma-4-26b-a4b glm-4.7-flash gpt-oss-120b gpt-oss-20b granite-5.0-230b-rl-preview kimi-k2.5 llama-2-7b-hf
    llama-3.1-70b-instruct llama-3.1-8b-instruct llama-4-maverick-17b-128e-instruct llama-4-scout-17b-16e-instruct
    minimax-m2.5 mistral-7b-v0.1 mistral-nemo-instruct-2407 mistral-small-4-119b-2603 mixtral-8x22b-v0.1
    mixtral-8x7b-v0.1 qwen2.5-7b-instruct qwen3-14b qwen3-235b-a22b qwen3-30b-a3b qwen3-32b-fp8 qwen3-8b
    qwen3-vl-30b-a3b-instruct yi-34b
    """.split()
)
#: What 0.29.0 was not asked about: it cannot load the first, and the second was recorded for 0.31.0 alone.
NOT_RECORDED = {("0.29.0", "deepseek-v4.1-flash"), ("0.29.0", "mistral-small-4-119b-2603")}


def case(release: str, model: str, name: str) -> Case:
    return next(c for c in recorded() if (c.release, c.model, c.name) == (release, model, name))


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in recorded()])
def test_the_pack_answers_as_the_release_did(case: Case) -> None:
    verdict = judged(case)
    assert verdict.kind == "equal", "\n".join(map(str, verdict.differences)) or verdict.rule


def test_every_case_of_every_file_is_compared() -> None:
    held = {
        (file.parent.name, file.stem, name)
        for file in RECORDINGS.rglob("*.json")
        for name in json.loads(file.read_text(encoding="utf-8"))["cases"]
    }
    compared = {(c.release, c.model, c.name) for c in recorded()}
    assert compared == held
    assert all(judged(c).facts > 20 for c in recorded() if c.plan is not None)
    assert all(judged(c).facts >= 3 for c in recorded())


def test_every_kept_model_is_recorded_for_every_release() -> None:
    recordings = {(c.release, c.model) for c in recorded()}
    assert recordings >= {(release, model) for release in releases() for model in KEPT} - NOT_RECORDED


def test_every_recorded_model_is_in_the_catalog_and_every_recorded_release_has_a_pack() -> None:
    assert {c.model for c in recorded()} <= set(catalog.names())
    assert {c.release for c in recorded()} <= set(releases())


@pytest.mark.parametrize(
    ("release", "model", "name"),
    [
        ("0.31.0", "gpt-oss-120b", "default"),
        ("0.31.0", "deepseek-v4.1-flash", "nohybrid"),
        ("0.29.0", "deepseek-v3", "pp2"),
        ("0.29.0", "llama-4-maverick-17b-128e-instruct", "default"),
    ],
)
def test_no_value_of_a_recording_can_change_unnoticed(release: str, model: str, name: str) -> None:
    original = copy.deepcopy(case(release, model, name))
    stated = {key: getattr(original, key) for key in ("plan", "refused") if getattr(original, key) is not None}
    for path, where, key in list(leaves(stated)):
        value = where[key]
        where[key] = other(value)
        assert judged(msgspec.structs.replace(original)).kind == "wrong", path
        where[key] = value
    assert judged(msgspec.structs.replace(original)).kind == "equal"


def test_a_cache_with_another_caches_spec_is_noticed() -> None:
    original = case("0.31.0", "gpt-oss-20b", "default")
    assert original.plan is not None
    caches = [[name, 1 - spec] for name, spec in original.plan["caches"]]
    swapped = msgspec.structs.replace(original, plan={**original.plan, "caches": caches})
    assert judged(swapped).kind == "wrong"


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every plain value below ``node`` that a plan is compared by: its path, what holds it, and under which key."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        here = f"{path}.{key}"
        if key in (*ELSEWHERE, "message", "raised_at", "crash") or (".caches." in here and isinstance(value, int)):
            continue  # a cache's number for its spec counts by what it points to
        if isinstance(value, (dict, list)):
            yield from leaves(value, here)
        elif value is not None:
            yield here, node, key


def other(value: object) -> object:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return f"{value}x"


@pytest.mark.parametrize(
    ("engine", "ours"),
    [(1, True), (0, False), (16, 16.0), (1.0, 1), ("16", 16), (None, 0), ([1, 2], [2, 1]), ([1], [1, 1]), (1.0, 1.001)],
)
def test_alike_is_not_the_same(engine: object, ours: object) -> None:
    assert not same(engine, ours)
    assert not same(ours, engine)


def test_the_readme_shows_the_score() -> None:
    assert shown() == table(), f"README.md shows it between {MARK} and {END}: python -m tests.agreement --write"
