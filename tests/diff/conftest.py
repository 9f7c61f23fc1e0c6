"""The command, run in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import Command, Ran

from rulespack.cli import main


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run ``rulespack`` with these words in an empty folder, outside of GitHub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words: str) -> Ran:
        status = main(words)
        said = capsys.readouterr()
        return Ran(status, said.out, said.err)

    return run
