"""How a pack lists its rules: one line for each, under its topic, with the steps that decide it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from rulespack.hooks import Rule

if TYPE_CHECKING:
    from vllm_0_29.rules import Rules

ARGUMENTS: Final = "Arguments"
GRAPH: Final = "The graph"
PARALLEL: Final = "Parallelism"
LENGTHS: Final = "Lengths and the scheduler"
DTYPE: Final = "The cache dtype and the backends"
STATE: Final = "Recurrent state"
SIZES: Final = "Block sizes and the layout"
DRAFTS: Final = "Speculative decoding"
GROUPS: Final = "Caches, groups and blocks"
MEMORY: Final = "Memory and capacity"


class Line(msgspec.Struct, frozen=True):
    """One rule: what it decides or refuses, and the steps that decide it: fields of :class:`vllm_0_29.rules.Rules`, or
    one entry of a field that is a table, as ``specs.MambaBase``."""

    line: str
    topic: str
    steps: tuple[str, ...]


def topic(name: str, **rules: tuple[str, str]) -> dict[str, Line]:
    """Rules of one part of the walk: name with underscores -> (the line, its steps separated by blanks)."""
    return {rule.replace("_", "-"): Line(line, name, tuple(steps.split())) for rule, (line, steps) in rules.items()}


def listed(rules: Rules) -> Sequence[Rule]:
    """The table's rules, each with the steps that decide it."""
    return [
        Rule(
            name=name,
            line=said.line,
            topic=said.topic,
            steps={step: _decided_by(rules, step) for step in said.steps},
        )
        for name, said in rules.lines.items()
    ]


def _decided_by(rules: Rules, step: str) -> object:
    field, _, key = step.partition(".")
    found = getattr(rules, field)
    return found.get(key) if key else found
