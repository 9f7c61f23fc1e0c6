"""What the documents show is what happens: their examples are run."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import environment

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(file: Path, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", file.read_text(), re.MULTILINE | re.DOTALL)


PYTHON = [file for file in DOCUMENTS if any(">>>" in block for block in blocks(file, "python"))]
CONSOLE = [(file, block) for file in DOCUMENTS for block in blocks(file, "console")]


@pytest.mark.parametrize("file", PYTHON, ids=lambda file: file.name)
def test_python_examples(file: Path) -> None:
    names: dict[str, object] = {}
    for number, block in enumerate(blocks(file, "python")):
        test = doctest.DocTestParser().get_doctest(block, names, f"{file.name}[{number}]", str(file), 0)
        said: list[str] = []
        doctest.DocTestRunner().run(test, out=said.append, clear_globs=False)
        names = test.globs
        assert not said, "".join(said)


@pytest.mark.parametrize(("file", "block"), CONSOLE, ids=lambda part: part.name if isinstance(part, Path) else "")
def test_console_examples(file: Path, block: str, tmp_path: Path) -> None:
    command, _, shown = block.removeprefix("$ ").partition("\n")
    command_path = tmp_path / "rulespack"
    command_path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rulespack "$@"\n')
    command_path.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, env=environment({"PATH": path}), cwd=ROOT, check=False
    )
    assert done.stdout + done.stderr == shown


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)
def test_links_lead_somewhere(file: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", file.read_text()):
        assert (file.parent / target).exists(), target
