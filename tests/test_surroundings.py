"""What runs the tests changes nothing of what they see."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.surroundings import CHECKOUT, NEEDED, ROOT, environment

TESTS = ROOT / "tests"
#: What is no test: the benchmark measures this machine as it stands.
ELSE = {TESTS / "bench"}
STARTING = {"run", "Popen", "call", "check_call", "check_output"}


def test_a_command_sees_nothing_of_the_machine_it_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "GITHUB_ACTIONS", "COLUMNS", "FORCE_COLOR", "PYTEST_ADDOPTS", "PYTHONWARNINGS", "PYTHONPATH"):
        monkeypatch.setenv(name, "1")
    seen = environment()
    assert set(seen) <= {*NEEDED, "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
    assert (seen["PATH"], seen["PYTHONPATH"]) == (os.environ["PATH"], CHECKOUT)


def test_every_command_under_test_is_given_its_environment() -> None:
    files = [file for file in TESTS.rglob("*.py") if not ELSE & set(file.parents)]
    started = [(file, call) for file in files for call in processes(file)]
    assert started
    without = [f"{file.relative_to(ROOT)}:{call.lineno}" for file, call in started if not given(call)]
    assert not without


def processes(file: Path) -> Iterator[ast.Call]:
    """The calls of a file that start a process."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in STARTING:
            of = node.func.value
            if isinstance(of, ast.Name) and of.id == "subprocess":
                yield node


def given(call: ast.Call) -> bool:
    return any(keyword.arg == "env" for keyword in call.keywords)
