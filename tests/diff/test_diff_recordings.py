"""Where two releases were recorded with one question, the diff says "same" exactly where their answers are equal."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rulespack
from rulespack import Deployment, catalog
from rulespack.diff import Comparison, Pair, Question, compare_questions

OLD, NEW = "0.29.0", "0.31.0"
RECORDINGS = Path(__file__).parent.parent / "recordings"
#: What agreement compares of a refusal.
REFUSAL = ("type", "stage")


class Recorded(msgspec.Struct, frozen=True):
    """One question that both releases were asked, and what each answered."""

    model: str
    case: str
    deployment: dict[str, Any]
    old: dict[str, Any]
    new: dict[str, Any]


@cache
def recorded() -> tuple[Recorded, ...]:
    found = []
    for file in sorted((RECORDINGS / OLD).glob("*.json")):
        if not (RECORDINGS / NEW / file.name).exists():
            continue
        old, new = (json.loads((RECORDINGS / release / file.name).read_text()) for release in (OLD, NEW))
        for case, entry in old["cases"].items():
            later = new["cases"].get(case)
            if later is not None and later["deployment"] == entry["deployment"] and known_draft(entry["deployment"]):
                found.append(Recorded(old["model"], case, entry["deployment"], entry, later))
    return tuple(found)


def known_draft(stated: dict[str, Any]) -> bool:
    """Whether the draft model of a question, where it has one, is of the catalog."""
    draft = (stated.get("speculative_config") or {}).get("model")
    return draft is None or draft in catalog.names()


@cache
def compared() -> Comparison:
    graphs = {model: rulespack.load_model(model) for model in {one.model for one in recorded()}}
    questions = [Question(graphs[one.model], deployment(one), one.case) for one in recorded()]
    return compare_questions(OLD, NEW, questions)


def deployment(one: Recorded) -> Deployment:
    return Deployment.of(one.deployment)


def pairs() -> list[tuple[Recorded, Pair]]:
    return list(zip(recorded(), compared().pairs, strict=True))


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The fields agreement compares that differ between two recorded answers."""
    was, is_now = old.get("refused"), new.get("refused")
    if (was is None) != (is_now is None):
        return ["refused"]
    if was is not None and is_now is not None:
        found = [f"refused.{key}" for key in REFUSAL if was[key] != is_now[key]]
        if "plan" not in old or "plan" not in new:
            return found + (["plan"] if ("plan" in old) != ("plan" in new) else [])
        return found + plan_differences(old["plan"], new["plan"])
    return plan_differences(old["plan"], new["plan"])


def plan_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Every recorded field but the layers' names, and weights within half a per cent."""
    found = [
        key
        for key in ("architecture", "bytes_per_block", "blocks_per_request", "resolved", "groups", "backends")
        if old[key] != new[key]
    ]
    found += [key for key in ("capacity", "stages") if old.get(key) != new.get(key)]
    was, is_now = ((plan.get("weights") or {}).get("model") for plan in (old, new))
    if was and is_now and not was.get("packed"):
        if abs(was["elements"] - is_now["elements"]) > 0.005 * was["elements"]:
            found.append("weights")
    specs = [[plan["specs"][index] for _, index in plan["caches"]] for plan in (old, new)]
    return found + (["caches"] if specs[0] != specs[1] else [])


def said_same(one: Recorded, pair: Pair) -> bool:
    """Whether the diff says "same" of what is recorded: of weights nothing where the recordings have none."""
    weighed = all("weights" in side.get("plan", {}) for side in (one.old, one.new))
    alone = not (pair.changes or pair.caches or pair.groups)
    return pair.status == "same" or (pair.status == "changed" and alone and not weighed)


def test_same_is_said_exactly_where_the_recordings_are_equal() -> None:
    wrong = [
        f"{one.model}/{one.case}: {pair.status}, recorded {differences(one.old, one.new)}"
        for one, pair in pairs()
        if pair.status != "not-modelled" and said_same(one, pair) != (not differences(one.old, one.new))
    ]
    assert wrong == []


def test_weights_alone_can_differ() -> None:
    """On Blackwell the later release rounds the experts of 16-bit models up for its kernels."""
    only = [(one, pair) for one, pair in pairs() if differences(one.old, one.new) == ["weights"]]
    assert len(only) >= 2
    for one, pair in only:
        elements = [side["plan"]["weights"]["model"]["elements"] for side in (one.old, one.new)]
        change = next(change for change in pair.weights if change.key == "weights.elements")
        assert (pair.status, pair.changes, pair.caches, pair.groups) == ("changed", (), (), ())
        assert [change.old, change.new] == pytest.approx(elements, rel=0.005)


def test_there_is_enough_of_each_to_tell() -> None:
    equal = sum(not differences(one.old, one.new) for one in recorded())
    assert equal > 200
    assert len(recorded()) - equal > 30


def test_nothing_is_said_where_a_pack_refuses() -> None:
    for one, pair in pairs():
        silent = [answer.refusal is not None and answer.refusal.by == "pack" for answer in (pair.old, pair.new)]
        assert any(silent) == (pair.status == "not-modelled"), one


@pytest.mark.parametrize(
    ("refused", "statuses"),
    [
        ((False, False), {"same", "changed"}),
        ((True, False), {"newly-accepted", "newly-served"}),
        ((False, True), {"newly-refused", "no-longer-served"}),
        ((True, True), {"same", "changed", "refusal-changed"}),
    ],
)
def test_a_status_tells_who_refuses(refused: tuple[bool, bool], statuses: set[str]) -> None:
    said = {
        pair.status
        for one, pair in pairs()
        if ("refused" in one.old, "refused" in one.new) == refused and pair.status != "not-modelled"
    }
    assert said
    assert said <= statuses


def test_every_difference_of_a_plan_is_told() -> None:
    """Each recorded number that moved is among the changes, with the values that were recorded."""
    told = 0
    for one, pair in pairs():
        if pair.status == "not-modelled" or "plan" not in one.old or "plan" not in one.new:
            continue
        said = {change.key: (change.old, change.new) for change in pair.changes}
        for key in ("architecture", "bytes_per_block", "blocks_per_request"):
            if one.old["plan"][key] != one.new["plan"][key]:
                assert said[key] == (one.old["plan"][key], one.new["plan"][key])
                told += 1
        for key, was in one.old["plan"]["resolved"].items():
            is_now = one.new["plan"]["resolved"][key]
            if was != is_now and None not in (was, is_now):
                assert said[f"resolved.{key}"] == (was, is_now)
                told += 1
        tokens = [(side["plan"].get("capacity") or {}).get("tokens") for side in (one.old, one.new)]
        if tokens[0] != tokens[1]:
            assert said["capacity.tokens"] == tuple(tokens)
            told += 1
    assert told > 40
