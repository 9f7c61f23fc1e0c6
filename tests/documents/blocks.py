"""The fenced blocks of a Markdown file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK: Final = re.compile(r"^```(\w*)(?: +file=(\S+))?[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One block: its language, the file it is the content of, its text, and where it stands."""

    language: str
    file: str | None
    text: str
    start: int
    line: int


def blocks(text: str) -> Iterator[Block]:
    """The blocks in order."""
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(found[1], found[2], found[3], found.start(3), line)


def commands(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block with what each prints; a command goes on after a backslash."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        while command.endswith("\\"):
            more, _, shown = shown.partition("\n")
            command = f"{command}\n{more}"
        yield command, shown


def agrees(shown: str, printed: str) -> bool:
    """Whether a document shows what was printed; ``...`` stands for anything on a line, alone for any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else r".*?".join(map(re.escape, line.rstrip().split("..."))) + "\n"
        for line in shown.splitlines()
    )
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in printed.splitlines())) is not None
