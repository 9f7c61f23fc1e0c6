"""A document run from its first block to its last, and what of it is not so."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from rulespack.graph.load import load_graph

from .blocks import Block, agrees, blocks, commands
from .scratch import Scratch

#: Commands that are not run: these run the tests, this one among them.
NOT_RUN: Final = (".venv/bin/python -m pytest", ".ci/run")
#: Blocks that are a drawing or a form and nothing that could be run.
PLAIN: Final = ("text",)


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """The modules of a folder can be imported, and are forgotten afterwards."""
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]


class Document:
    """One document, run in a folder of its own; ``flaws`` are the blocks that are not so."""

    def __init__(self, file: Path, scratch: Scratch) -> None:
        self._text = file.read_text(encoding="utf-8")
        self._scratch = scratch
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._renewed: list[tuple[int, int, str]] = []

    def flaws(self) -> Iterator[str]:
        """Run every block, and say what is wrong with each."""
        by_language: dict[str, Callable[[Block], Iterator[str]]] = {
            "console": self._console,
            "sh": self._shell,
            "python": self._python,
            "javascript": self._file,
            "yaml": self._yaml,
            "toml": self._toml,
            "json": self._json,
        }
        for block in blocks(self._text):
            if block.file is not None:
                self._scratch.write(block.file, block.text)
            run = by_language.get(block.language)
            if run is None and block.language not in PLAIN:
                yield f"line {block.line}: nothing runs a block of {block.language or 'no language'}"
            for flaw in run(block) if run is not None else ():
                yield f"line {block.line}: {flaw}"

    def renewed(self) -> str:
        """The text with what its console blocks print now, once they have been run."""
        text = self._text
        for start, end, block in reversed(self._renewed):
            text = text[:start] + block + text[end:]
        return text

    def _console(self, block: Block) -> Iterator[str]:
        renewed = ""
        for command, shown in commands(block.text):
            _, printed = self._scratch.run(command)
            same = agrees(shown, printed)
            renewed += f"$ {command}\n{shown if same else printed}"
            if not same:
                yield f"$ {command}\nprints\n{printed}\nand not\n{shown}"
        self._renewed.append((block.start, block.start + len(block.text), renewed))

    def _shell(self, block: Block) -> Iterator[str]:
        for command in block.text.replace("\\\n", "").splitlines():
            if command and command not in NOT_RUN:
                status, printed = self._scratch.run(command)
                if status:
                    yield f"{command}\nends with {status}:\n{printed}"

    def _python(self, block: Block) -> Iterator[str]:
        if ">>>" in block.text:
            test = doctest.DocTestParser().get_doctest(block.text, self._names, "block", None, block.line)
            said: list[str] = []
            with contextlib.chdir(self._scratch.folder), _importable(self._scratch.folder):
                doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append, clear_globs=False)
            self._names = test.globs
            yield from said
        elif block.file is None:
            self._scratch.write("block.py", block.text)
            status, printed = self._scratch.run("python block.py")
            if status:
                yield printed
        else:
            compile(block.text, block.file, "exec")

    def _file(self, block: Block) -> Iterator[str]:
        if block.file is None:
            yield "a program needs file=NAME, so that a console block can run it"

    def _yaml(self, block: Block) -> Iterator[str]:
        found = yaml.safe_load(block.text)
        if isinstance(found, dict) and found.get("kind") == "ModelGraph":
            load_graph(block.text.encode(), "block")
        if block.file is not None and block.file.startswith(".github/workflows/"):
            for job in found["jobs"].values():
                for step in job["steps"]:
                    status, printed = self._scratch.run(step["run"]) if "run" in step else (0, "")
                    if status and not step.get("continue-on-error"):
                        yield f"{step['run']}\nends with {status}:\n{printed}"

    def _toml(self, block: Block) -> Iterator[str]:
        tomllib.loads(block.text)
        return iter(())

    def _json(self, block: Block) -> Iterator[str]:
        json.loads(block.text)
        return iter(())
