"""The recorded cases, read as they are."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

import rulespack
from rulespack import Deployment, ModelGraph, Plan

RECORDINGS = Path(__file__).parent.parent / "recordings"


class Case(msgspec.Struct, frozen=True, eq=False):
    """One deployment a release was asked for, and what it answered: a plan, a refusal, or a refusal with a plan."""

    release: str
    model: str
    name: str
    deployment: dict[str, Any]
    plan: dict[str, Any] | None = None
    refused: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        """Release, model and case, as a test's name shows them."""
        return f"{self.release}-{self.model}-{self.name}"


@cache
def recorded() -> tuple[Case, ...]:
    """Every recorded case, by release, model and name."""
    return tuple(
        Case(document["release"], document["model"], name, **entry)
        for file in sorted(RECORDINGS.glob("*/*.json"))
        for document in [json.loads(file.read_text(encoding="utf-8"))]
        for name, entry in document["cases"].items()
    )


@cache
def graph(model: str) -> ModelGraph:
    """A model's graph, read once for all its cases."""
    return rulespack.load_model(model)


def planned(case: Case) -> Plan:
    """Our plan for a case; raises Refused."""
    return rulespack.engine(case.release).plan(asked_graph(case), Deployment.of(case.deployment))


def asked_graph(case: Case) -> ModelGraph:
    """The graph a case is about: its model's, with the overrides it states."""
    overrides = case.deployment.get("hf_overrides")
    return rulespack.load_model(case.model, overrides) if overrides else graph(case.model)
