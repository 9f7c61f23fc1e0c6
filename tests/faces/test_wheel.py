"""The project as it is installed: a wheel, in an environment of its own, away from the checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from command_line import environment

ROOT = Path(__file__).parents[2]
#: An environment that does not know the checkout.
AWAY = environment({"PYTHONPATH": ""})


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel; the dependencies are this environment's own."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = folder.glob("*.whl")
    home = folder / "home"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], check=True)
    # Listed in a .pth file, the folder's packages are importable and its own .pth files, the checkout's, are not read.
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


def test_the_command_answers_from_an_installed_wheel(installed: Path, tmp_path: Path) -> None:
    command = str(installed / "bin" / "rulespack")

    def run(*words: str) -> str:
        done = subprocess.run([command, *words], cwd=tmp_path, env=AWAY, capture_output=True, text=True, check=True)
        return done.stdout

    assert len(run("models").split()) == len(list((ROOT / "models").iterdir()))
    for release in ("0.29.0", "0.31.0"):
        plan = json.loads(run("plan", "qwen3-14b", "--release", release, "--format", "json"))
        assert plan["bytes_per_block"] == 2_621_440


def test_the_package_is_whole(installed: Path, tmp_path: Path) -> None:
    code = (
        "import rulespack, vllm_0_29, vllm_0_31, pathlib, sys; home = pathlib.Path(sys.prefix);"
        "assert all(home in pathlib.Path(module.__file__).parents for module in (rulespack, vllm_0_29, vllm_0_31));"
        "assert (pathlib.Path(rulespack.__file__).parent / 'py.typed').exists()"
    )
    subprocess.run([str(installed / "bin" / "python"), "-c", code], cwd=tmp_path, env=AWAY, check=True)
