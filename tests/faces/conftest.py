"""The command, run in an empty folder; the project as it is installed."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from command_line import Outcome, Run

from tests.surroundings import AWAY, ROOT, environment


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the command in an empty folder."""

    def command(*words: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "rulespack", *words],
            input=stdin,
            capture_output=True,
            cwd=tmp_path,
            env=environment(env),
            check=False,
            timeout=60,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return command


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel; the dependencies are this environment's own."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    subprocess.run([*pip, *build], env=AWAY, check=True)
    (wheel,) = folder.glob("*.whl")
    home = folder / "home"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    install = ["--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *install], env=AWAY, check=True)
    # Listed in a .pth file, the folder's packages are importable and its own .pth files, the checkout's, are not read.
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home
