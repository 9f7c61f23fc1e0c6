"""A folder that documents are run in: the catalog, the command, pytest, and a pip that installs what stands there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.surroundings import CHECKOUT, environment

from .blocks import ROOT

#: The model whose folder documents write to, and which is there as a download.
WRITTEN: Final = "qwen3-14b"

_PYTEST: Final = "-m pytest -p syrupy -p xdist.plugin -p rulespack.testing.plugin -p no:cacheprovider"

#: Stands in for ``pip install``: a project in the folder gets its entry points, anything else is there already.
_PIP: Final = """
import pathlib, sys, tomllib
if sys.argv[-1] == ".":
    project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
    info = pathlib.Path(f"{project['name'].replace('-', '_')}-{project['version']}.dist-info")
    info.mkdir(exist_ok=True)
    said = f"Name: {project['name']}\\nVersion: {project['version']}\\n"
    (info / "METADATA").write_text("Metadata-Version: 2.1\\n" + said)
    groups = project["entry-points"].items()
    lines = [f"[{group}]\\n" + "".join(f"{k} = {v}\\n" for k, v in entries.items()) for group, entries in groups]
    (info / "entry_points.txt").write_text("\\n".join(lines))
"""


class Scratch:
    """Where the blocks of one document are run, one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self._bin = folder / "bin"
        self.folder.mkdir(parents=True)
        self._bin.mkdir()
        (self.folder / "docs").symlink_to(ROOT / "docs")
        (self.folder / "pyproject.toml").write_text("")  # so that pytest looks no further up
        self._models()
        python = f'"{sys.executable}"'
        self._script("rulespack", f'exec {python} -m rulespack "$@"')
        self._script("pytest", f'exec {python} {_PYTEST} "$@"')
        (self._bin / "pip.py").write_text(_PIP)
        self._script("pip", f'exec {python} "{self._bin}/pip.py" "$@"')
        venv = 'mkdir -p "$3/bin" && exec ln -sf ' + f'"{self._bin}"/* "$3/bin"'
        self._script("python", f'[ "$1 $2" = "-m venv" ] && {{ {venv}; }}\nexec {python} "$@"')
        self._script("python3", f'exec "{self._bin}/python" "$@"')

    def run(self, command: str) -> tuple[int, str]:
        """One shell command: its exit status, and what it printed, complaints last."""
        path = os.pathsep.join([str(self._bin), os.environ["PATH"]])
        modules = os.pathsep.join((str(self.folder), CHECKOUT))
        surroundings = environment({"PATH": path, "PYTHONPATH": modules, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.folder, env=surroundings, capture_output=True, text=True, check=False
        )
        return done.returncode, re.sub(r"[ \t]+$", "", done.stdout + done.stderr, flags=re.MULTILINE)

    def write(self, name: str, text: str) -> None:
        """A file of the document's."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def _models(self) -> None:
        (self.folder / "models").mkdir()
        for model in (ROOT / "models").iterdir():
            if model.name == WRITTEN:
                shutil.copytree(model, self.folder / "models" / WRITTEN)
                shutil.copytree(model, self.folder / "downloads", ignore=shutil.ignore_patterns("*.yaml"))
            else:
                (self.folder / "models" / model.name).symlink_to(model)

    def _script(self, name: str, text: str) -> None:
        (self._bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self._bin / name).chmod(0o755)
