"""The list of rules is the list the checks use and the documentation shows."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import test_graph_checks
import test_graph_reading
import test_identity
import test_node_checks

from rulespack.graph import model, vocabulary
from rulespack.graph.load import inspect_graph
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


def test_the_documentation_has_every_key() -> None:
    said = (ROOT / "docs/graph.md").read_text()
    classes = [value for value in vars(model).values() if isinstance(value, type) and issubclass(value, model.Record)]
    keys = {field.encode_name for cls in classes for field in msgspec.structs.fields(cls)}
    assert {key for key in keys if not re.search(rf"\b{key}\b", said)} == set()


def test_the_documentation_has_every_entry_of_the_closed_lists() -> None:
    said = (ROOT / "docs/graph.md").read_text()
    lists = [value for name, value in vars(vocabulary).items() if name.isupper() and isinstance(value, tuple)]
    assert {entry for entries in lists for entry in entries if f"`{entry}`" not in said} == set()


def test_the_documentations_graph_is_valid() -> None:
    text = re.search(r"^```yaml\n(.*?)^```$", (ROOT / "docs/graph.md").read_text(), re.MULTILINE | re.DOTALL)
    assert text is not None
    assert inspect_graph(text[1], "docs/graph.md")[1] == []
