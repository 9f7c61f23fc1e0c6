"""Packages of others as an interpreter of its own finds them: on its path, with their entry points."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from tests.surroundings import CHECKOUT, environment

ACME = Path(__file__).parent / "acme"


class Ran(NamedTuple):
    """What a command said and how it ended."""

    status: int
    out: str
    err: str


class Interpreter:
    """Runs rulespack where packages of others are installed besides it."""

    def __init__(self, metadata: Path) -> None:
        self._metadata = metadata
        self._path: list[Path] = []

    def install(self, project: Path) -> None:
        """Install a project from its ``pyproject.toml``: its modules on the path, its entry points beside them."""
        stated = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        self.register(project, stated["name"], stated["version"], stated["entry-points"])

    def register(self, project: Path, name: str, version: str, entry_points: dict[str, dict[str, str]]) -> None:
        """Put ``project`` on the path as an installed distribution with these entry points."""
        home = self._metadata / name
        info = home / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        lines = []
        for group, entries in entry_points.items():
            lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()), ""]
        (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
        self._path += [project, home]

    def run(self, *words: str, stdin: str = "") -> Ran:
        """``python -m rulespack`` with these words."""
        return self._python("-m", "rulespack", *words, stdin=stdin)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression over the public names, through JSON."""
        done = self._python("-c", f"import json, rulespack; print(json.dumps({expression}))")
        assert done.status == 0, done.err
        return json.loads(done.out)

    def _python(self, *words: str, stdin: str = "") -> Ran:
        known = environment({"PYTHONPATH": os.pathsep.join([*map(str, self._path), CHECKOUT])})
        done = subprocess.run(
            [sys.executable, *words], input=stdin, capture_output=True, text=True, env=known, check=False
        )
        return Ran(done.returncode, done.stdout, done.stderr)
