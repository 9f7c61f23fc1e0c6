"""The list of rules: whole, true, and the same in docs/rules."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rulespack
from rulespack import Deployment, Refused, catalog
from rulespack.cli import main
from rulespack.report.rules import rules_markdown
from rulespack.rules import rules

ROOT = Path(__file__).parents[2]
#: Where a rule is named: the first argument of these.
NAMING = ("Reason", "engine_refuses", "not_modelled", "invalid", "_problem")
BRANCHES = {"one-group", "one-type-group", "aliased-groups", "packed-groups", "equal-page-groups"}
DEPLOYMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"gpu": "B200", "kv_cache_dtype": "fp8"},
    {"tensor_parallel_size": 8, "pipeline_parallel_size": 2, "kv_cache_memory_bytes": 1 << 36},
    {"disable_hybrid_kv_cache_manager": True, "block_size": 64},
    {"tensor_parallel_size": 8, "decode_context_parallel_size": 8},
    {"gpu": "A100", "kv_cache_dtype": "nvfp4"},
)


def named(folder: Path) -> Iterator[str]:
    """Every rule the code names."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                called = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
                if called in NAMING and isinstance(node.args[0].value, str):
                    yield node.args[0].value


@pytest.mark.parametrize("release", rulespack.releases())
def test_every_rule_that_a_plan_or_a_refusal_names_is_listed(release: str) -> None:
    listed = {rule.name for rule in rules(release)}
    engine = rulespack.engine(release)
    seen = set()
    for name in catalog.names():
        graph = rulespack.load_model(name)
        for stated in DEPLOYMENTS:
            try:
                plan = engine.plan(graph, Deployment(**stated))
            except Refused as refused:
                seen.add(refused.rule)
            else:
                seen |= {reason.rule for reason in plan.reasons}
    assert len(seen) > 30
    assert seen - listed == set()


def test_every_rule_a_recorded_question_meets_is_listed() -> None:
    listed = {release: {rule.name for rule in rules(release)} for release in rulespack.releases()}
    met: set[str] = set()
    graphs: dict[str, Any] = {}
    for file in sorted((ROOT / "tests" / "recordings").glob("*/*.json")):
        recorded = json.loads(file.read_text(encoding="utf-8"))
        graph = graphs.setdefault(recorded["model"], rulespack.load_model(recorded["model"]))
        for entry in recorded["cases"].values():
            draft = (entry["deployment"].get("speculative_config") or {}).get("model")
            if draft is not None and draft not in catalog.names():
                continue
            if "refused" in entry:
                with pytest.raises(Refused) as refused:
                    rulespack.engine(recorded["release"]).plan(graph, Deployment.of(entry["deployment"]))
                assert refused.value.rule in listed[recorded["release"]]
                met.add(refused.value.rule)
    assert len(met) > 10


def test_every_rule_the_packs_name_has_a_line_and_no_other() -> None:
    older, newer = (set(named(ROOT / "packs" / pack)) for pack in ("vllm_0_29", "vllm_0_31"))
    common = set(named(ROOT / "rulespack"))
    assert {rule.name for rule in rules("0.29.0")} - common == (older - common) | BRANCHES
    assert {rule.name for rule in rules("0.31.0")} - common == ((older | newer) - common) | BRANCHES


def test_a_line_is_one_sentence() -> None:
    for rule in rules():
        assert re.fullmatch(r"[A-Za-z_][^\n]{10,110}\.", rule.line), rule
        assert "`" not in rule.line


def test_where_a_rule_moved_is_told_from_the_releases_themselves() -> None:
    found = {rule.name: rule for rule in rules("0.31.0")}
    assert found["common-block-size"].since == "0.31.0"
    assert found["cache-dtype-accepted"].since is None
    (moved,) = found["cache-dtype-accepted"].moved
    assert (moved.release, moved.steps) == ("0.31.0", (("cache_dtypes", "new: nvfp4_ds_mla"),))
    assert dict(found["attention-backend"].moved[0].steps)["selector_asks_dcp"] == "False before, True now"
    assert found["capacity"].moved == ()
    assert all(rule.moved == () and rule.since is None for rule in rules("0.29.0"))
    assert "common-block-size" not in {rule.name for rule in rules("0.29.0")}


def test_the_reference_is_what_the_code_says() -> None:
    text = (ROOT / "docs" / "rules" / "README.md").read_text(encoding="utf-8")
    assert text == rules_markdown(rules()), "write it again with: rulespack rules --format md > docs/rules/README.md"


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["rules", "0.31.0"]) == 0
    text = capsys.readouterr().out
    assert re.search(
        r"^  common-block-size +The backends of a model must share a block size\. \(since 0\.31\.0\)$", text, re.M
    )
    assert main(["rules", "--format", "json"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert list(first) == ["name", "line", "topic", "since", "moved"]
    assert main(["rules", "0.30.0"]) == 2
    assert "releases there are packs for: 0.29.0, 0.31.0\n" in capsys.readouterr().err
