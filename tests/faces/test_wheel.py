"""The project as it is installed: a wheel, in an environment of its own, away from the checkout."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.surroundings import AWAY

ROOT = Path(__file__).parents[2]


def test_the_command_answers_from_an_installed_wheel(installed: Path, tmp_path: Path) -> None:
    command = str(installed / "bin" / "rulespack")

    def run(*words: str) -> str:
        done = subprocess.run([command, *words], cwd=tmp_path, env=AWAY, capture_output=True, text=True, check=True)
        return done.stdout

    assert len(run("models").split()) == len(list((ROOT / "models").iterdir()))
    for release in ("0.29.0", "0.31.0"):
        plan = json.loads(run("plan", "qwen3-14b", "--release", release, "--format", "json"))
        assert plan["bytes_per_block"] == 2_621_440
    page = run("diff", "0.29.0", "0.31.0", "gemma-3-4b-it", "--format", "html")
    assert page.startswith("<!doctype html>")
    assert "gemma-3-4b-it" in page


def test_the_package_is_whole(installed: Path, tmp_path: Path) -> None:
    code = (
        "import rulespack, vllm_0_29, vllm_0_31, pathlib, sys; home = pathlib.Path(sys.prefix);"
        "assert all(home in pathlib.Path(module.__file__).parents for module in (rulespack, vllm_0_29, vllm_0_31));"
        "assert (pathlib.Path(rulespack.__file__).parent / 'py.typed').exists()"
    )
    subprocess.run([str(installed / "bin" / "python"), "-c", code], cwd=tmp_path, env=AWAY, check=True)
