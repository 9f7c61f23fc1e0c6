"""``import rulespack``: everything public is there, and nothing is paid for before it is used."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import rulespack
from tests.surroundings import environment

#: What importing the package alone must not bring in.
COSTLY = ("yaml", "pluggy", "packaging", "msgspec", "rich", "jinja2", "argparse", "inspect", "difflib", "typing", "re")
#: What nothing but drawing may bring in.
DRAWING = ("rich", "jinja2")


def loaded_after(code: str) -> set[str]:
    """The modules a fresh interpreter has loaded after running ``code``, and had not before."""
    script = f"import sys; before = set(sys.modules); {code}; print(*(set(sys.modules) - before), file=sys.__stdout__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment())
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_else() -> None:
    assert not loaded_after("import rulespack").intersection(COSTLY)


def test_a_question_draws_nothing() -> None:
    code = "import rulespack; rulespack.engine('0.31.0').plan(rulespack.load_model('qwen3-14b'))"
    assert not loaded_after(code).intersection((*DRAWING, "argparse", "difflib"))


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "qwen3-14b", "--release", "0.31.0"],
        ["plan", "qwen3-14b", "--release", "0.31.0", "--format", "json"],
        ["batch", "/dev/null"],
        ["models"],
        ["show", "qwen3-14b"],
    ],
)
def test_a_command_imports_only_what_it_needs(words: list[str]) -> None:
    modules = loaded_after(
        f"import io, os; sys.stdout = open(os.devnull, 'w'); from rulespack.cli import main; main({words})"
    )
    assert not modules.intersection((*DRAWING, "difflib", "rulespack.derive", "rulespack.validation"))


@pytest.mark.parametrize("name", rulespack.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert name in dir(rulespack)
    value = getattr(rulespack, name)
    assert not isinstance(value, ModuleType)
    assert name in ("__version__", "GPUS") or value.__doc__


def test_a_public_function_is_never_hidden_by_the_module_it_lives_in() -> None:
    code = (
        "import rulespack.releases, rulespack.engine; from rulespack.engine import Engine;"
        "print(rulespack.engine('0.31.0'), rulespack.releases())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert "engine vllm 0.31.0" in done.stdout


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'plan'"):
        rulespack.plan  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("graph", "deployment", "said"),
    [
        ("qwen3-14b", rulespack.Deployment(), "graph: expected a ModelGraph"),
        (None, {"tensor_parallel_size": 2}, "deployment: expected a Deployment"),
    ],
)
def test_what_is_no_graph_or_no_deployment_is_told_so(graph: object, deployment: object, said: str) -> None:
    asked = rulespack.load_model("qwen3-14b") if graph is None else graph
    with pytest.raises(rulespack.RulespackError, match=said):
        rulespack.engine("0.31.0").plan(asked, deployment)  # type: ignore[arg-type]
