"""A package that does not do what a pack must is said to be at fault, by name and in one paragraph."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from other_packages import Interpreter, Ran

PACKS, OVERRIDES = "rulespack.packs", "rulespack.overrides"

#: A pack that is whole but for what each test changes: another release's rules under the name of 0.33.0.
WHOLE = """
import msgspec
import vllm_0_31
from vllm_0_29.pack import Pack
from rulespack import hookimpl

plugin = Pack(msgspec.structs.replace(vllm_0_31.RULES, release="{release}"))
"""

ONLY_A_RELEASE = """
from rulespack import hookimpl

class Plugin:
    @hookimpl
    def pack_release(self):
        return "0.33.0"

plugin = Plugin()
"""


def plan(
    interpreter: Interpreter,
    folder: Path,
    code: str,
    *,
    group: str = PACKS,
    name: str = "vllm_0_33",
    release: str = "0.33.0",
) -> Ran:
    """The plan of a release where a package with this code is installed."""
    folder.mkdir()
    (folder / "broken_pack.py").write_text(code, encoding="utf-8")
    interpreter.register(folder, "broken-pack", "1.0", {group: {name: "broken_pack:plugin"}})
    return interpreter.run("plan", "qwen3-14b", "--release", release)


def fault(done: Ran) -> str:
    """What was said, in one paragraph, of a question that could not be answered."""
    assert done.status != 0
    assert done.out == ""
    assert "Traceback" not in done.err
    assert "\n\n" not in done.err.strip()
    return " ".join(done.err.split())


def test_a_whole_pack_of_another_answers(interpreter: Interpreter, tmp_path: Path) -> None:
    done = plan(interpreter, tmp_path / "p", WHOLE.format(release="0.33.0"))
    assert done.status == 0, done.err
    assert "0.33.0" in done.out


@pytest.mark.parametrize("stated", ["0.34.0", "0.33.1", "nightly", ""])
def test_a_pack_of_another_release_than_its_name(interpreter: Interpreter, tmp_path: Path, stated: str) -> None:
    said = fault(plan(interpreter, tmp_path / "p", WHOLE.format(release=stated)))
    assert "vllm_0_33" in said
    assert repr(stated) in said


def test_a_pack_that_does_not_answer(interpreter: Interpreter, tmp_path: Path) -> None:
    said = fault(plan(interpreter, tmp_path / "p", ONLY_A_RELEASE))
    assert "resolve_cache_dtype" in said


def test_a_pack_that_does_not_say_its_release(interpreter: Interpreter, tmp_path: Path) -> None:
    said = fault(plan(interpreter, tmp_path / "p", "plugin = object()"))
    assert "vllm_0_33" in said
    assert "None" in said


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import acme_that_is_not_there", "acme_that_is_not_there"),
        ("pack = None", "plugin"),
        ("1 / 0", "division by zero"),
    ],
)
@pytest.mark.parametrize(("group", "name"), [(PACKS, "vllm_0_33"), (OVERRIDES, "vllm_0_31.broken")])
def test_a_plugin_that_cannot_be_loaded(
    interpreter: Interpreter, tmp_path: Path, code: str, reason: str, group: str, name: str
) -> None:
    release = "0.33.0" if group == PACKS else "0.31.0"
    said = fault(plan(interpreter, tmp_path / "p", code, group=group, name=name, release=release))
    assert name in said
    assert reason in said


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        ("def resolve_cache_dtyp(self, deployment): return 'fp8'", "resolve_cache_dtyp"),
        ("def resolve_cache_dtype(self, deploiment): return 'fp8'", "deploiment"),
    ],
)
def test_a_hook_there_is_none_of(interpreter: Interpreter, tmp_path: Path, hook: str, reason: str) -> None:
    code = f"from rulespack import hookimpl\nclass Plugin:\n    @hookimpl\n    {hook}\nplugin = Plugin()\n"
    said = fault(plan(interpreter, tmp_path / "p", code, group=OVERRIDES, name="vllm_0_31.broken", release="0.31.0"))
    assert "vllm_0_31.broken" in said
    assert reason in said


@pytest.mark.parametrize("answer", ["5", "['fp8']", "{}"])
def test_an_answer_of_the_wrong_kind(interpreter: Interpreter, tmp_path: Path, answer: str) -> None:
    code = (
        "from rulespack import hookimpl\nclass Plugin:\n    @hookimpl\n"
        f"    def resolve_cache_dtype(self): return {answer}\nplugin = Plugin()\n"
    )
    said = fault(plan(interpreter, tmp_path / "p", code, group=OVERRIDES, name="vllm_0_31.broken", release="0.31.0"))
    assert "resolve_cache_dtype" in said
    assert answer in said


@pytest.mark.parametrize("name", ["vllm", "vllm_latest", "vllm-0.33"])
def test_a_name_that_is_no_engine_and_release(interpreter: Interpreter, tmp_path: Path, name: str) -> None:
    said = fault(plan(interpreter, tmp_path / "p", WHOLE.format(release="0.33.0"), name=name))
    assert repr(name) in said
    assert "as vllm_0_31 does" in said


def test_two_packs_for_one_release(interpreter: Interpreter, tmp_path: Path) -> None:
    said = fault(plan(interpreter, tmp_path / "p", WHOLE.format(release="0.31.0"), name="vllm_0_31", release="0.31.0"))
    assert "vllm_0_31" in said
    assert "broken_pack:plugin" in said


def test_an_override_of_a_pack_there_is_none_of_is_not_asked(interpreter: Interpreter, tmp_path: Path) -> None:
    done = plan(interpreter, tmp_path / "p", "1 / 0", group=OVERRIDES, name="vllm_0_99.acme", release="0.31.0")
    assert done.status == 0, done.err


def test_a_broken_pack_does_not_spoil_the_others(interpreter: Interpreter, tmp_path: Path) -> None:
    """Nor where an argument that cannot change the plan has to be looked up, and only for questions it is asked."""
    plan(interpreter, tmp_path / "p", "import acme_that_is_not_there")
    done = interpreter.run("plan", "qwen3-14b", "--release", "0.31.0", "--port", "8001")
    assert done.status == 0, done.err


def test_a_batch_says_so_for_each_line(interpreter: Interpreter, tmp_path: Path) -> None:
    plan(interpreter, tmp_path / "p", WHOLE.format(release="0.34.0"))
    lines = [json.dumps({"id": i, "model": "qwen3-14b", "release": r}) for i, r in enumerate(("0.33.0", "0.31.0"))]
    done = interpreter.run("batch", "-", stdin="\n".join(lines) + "\n")
    broken, fine = map(json.loads, done.out.splitlines())
    assert broken["error"]["type"] == "BadPack"
    assert "0.34.0" in broken["error"]["message"]
    assert fine["plan"]["release"] == "0.31.0"
