"""One recorded case against our answer: every fact either side states, types strictly, layer names included."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

import msgspec

from rulespack import Refused, RulespackError
from rulespack.report.json import compact, error_document, plan_document, refusal_document

from .cases import Case, planned

#: What a recording cannot have: the question, and what is ours alone.
OURS = ("schema_version", "engine", "release", "model", "deployment", "draft_caches", "requests", "reasons")
#: What is compared elsewhere, with a tolerance: the parameters of the graph.
ELSEWHERE = ("weights",)
#: What of a refusal is the engine's to say.
REFUSAL = ("by", "type", "stage")
#: A quotient of ours and of the engine's may differ in the last digit, for the order of the division.
TOLERANCE = 1e-9

Kind = Literal["equal", "refused", "wrong"]


class Difference(msgspec.Struct, frozen=True):
    """One fact the two sides do not share; ``...`` where a side does not state it."""

    path: str
    engine: object
    ours: object

    def __str__(self) -> str:
        engine, ours = ("nothing" if side is ... else repr(side) for side in (self.engine, self.ours))
        return f"{self.path}: engine {engine}, ours {ours}"


class Verdict(msgspec.Struct, frozen=True):
    """``equal``, ``refused`` (by the pack: not modelled) or ``wrong``, and over how many facts."""

    kind: Kind
    facts: int
    differences: tuple[Difference, ...] = ()
    rule: str | None = None


@cache
def judged(case: Case) -> Verdict:
    """What our answer to a recorded case is worth."""
    ours = answer(case)
    if "error" in ours:
        return Verdict("wrong", 0, (Difference("error", ..., ours["error"]["message"]),))
    refused = ours.get("refused", {})
    if refused.get("by") == "pack":
        return Verdict("refused", 0, rule=refused["rule"])
    engine = {"plan": case.plan, "refused": case.refused and {"by": "engine", **case.refused}}
    stopped = case.refused is not None
    wanted, given = facts(engine, stopped), facts(ours, stopped)
    paths = [*wanted, *(path for path in given if path not in wanted)]
    found = (Difference(path, wanted.get(path, ...), given.get(path, ...)) for path in paths)
    differences = tuple(one for one in found if not same(one.engine, one.ours))
    return Verdict("wrong" if differences else "equal", len(paths), differences)


def answer(case: Case) -> dict[str, Any]:
    """Our answer to a case, as the public JSON has it."""
    try:
        plan = planned(case)
    except Refused as refused:
        document = refusal_document(refused)
    except RulespackError as error:
        document = error_document(error)
    else:
        document = {"plan": plan_document(plan)}
    answered: dict[str, Any] = json.loads(compact(document))
    return answered


def facts(answered: dict[str, Any], stopped: bool) -> dict[str, object]:
    """An answer as one fact for each path: ``resolved.block_size``, ``caches[3].spec.page_size_bytes``.

    Each cache carries its spec, so that the order specs are numbered in does not count. Where the engine stopped
    before it had set a value, there is no fact.
    """
    said: dict[str, object] = {}
    refused, plan = answered.get("refused"), answered.get("plan")
    if refused:
        said |= {f"refused.{key}": refused[key] for key in REFUSAL}
    if plan:
        specs = plan["specs"]
        caches = [{"name": name, "spec": specs[index]} for name, index in plan["caches"]]
        groups = [{key: value for key, value in group.items() if key != "padding_bytes"} for group in plan["groups"]]
        left_out = {*OURS, *ELSEWHERE, "specs"}
        rest = {key: value for key, value in plan.items() if key not in left_out}
        said |= flat({**rest, "caches": caches, "groups": groups})
        if stopped:
            unset = [path for path, value in said.items() if value is None and path.startswith("resolved.")]
            said = {path: value for path, value in said.items() if path not in unset}
    return said


def flat(value: object, path: str = "") -> dict[str, object]:
    """A document as its leaves by path; a list of plain values is a leaf, an empty container too."""
    return dict(_leaves(value, path))


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict) and value:
        for key, below in value.items():
            yield from _leaves(below, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        yield f"{path}.count", len(value)
        for position, below in enumerate(value):
            yield from _leaves(below, f"{path}[{position}]")
    else:
        yield path, value


def same(wanted: object, given: object) -> bool:
    """Equal and of one type: 1 is not true, and not 1.0; two floats within the last digits of each other."""
    if type(wanted) is not type(given):
        return False
    if isinstance(wanted, float) and isinstance(given, float):
        return abs(wanted - given) <= TOLERANCE * abs(wanted)
    if isinstance(wanted, list) and isinstance(given, list):
        return len(wanted) == len(given) and all(map(same, wanted, given))
    return wanted == given
