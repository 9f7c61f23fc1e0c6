"""The command, run in an empty folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Outcome, Run, environment


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
