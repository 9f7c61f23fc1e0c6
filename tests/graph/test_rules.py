"""The list of rules is the list the checks use and the documentation shows."""

from __future__ import annotations

import re
from pathlib import Path

import test_graph_checks
import test_graph_reading
import test_identity
import test_node_checks

from rulespack.graph.rules import RULES

ROOT = Path(__file__).parents[2]
READING = {"The text", "Model identity"}


def test_every_rule_about_a_graph_has_a_case_that_breaks_it() -> None:
    broken = {case.rule for case in [*test_graph_checks.CASES, *test_node_checks.CASES]}
    said = Path(test_node_checks.__file__).read_text() + Path(test_graph_checks.__file__).read_text()
    named = broken | set(re.findall(r'"([a-z0-9-]+)"', said))
    assert {name for name, rule in RULES.items() if rule.group not in READING} - named == set()


def test_every_rule_about_a_text_has_a_case_that_breaks_it() -> None:
    said = Path(test_graph_reading.__file__).read_text() + Path(test_identity.__file__).read_text()
    rules = {name for name, rule in RULES.items() if rule.group in READING}
    assert {name for name in rules if f'"{name}"' not in said} == set()


def test_the_documentation_lists_every_rule_with_what_breaks_it() -> None:
    listed = re.findall(r"^\| `([a-z0-9-]+)` \| (.+?) \|$", (ROOT / "docs/graph.md").read_text(), re.MULTILINE)
    shown = {name: summary for name, summary in listed if name in RULES}
    assert shown == {name: rule.summary for name, rule in RULES.items()}


def test_two_rules_are_warnings() -> None:
    warnings = [name for name, rule in RULES.items() if rule.severity == "warning"]
    assert warnings == ["layer-kind-unused", "emit-on-non-collective"]
