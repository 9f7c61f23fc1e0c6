"""What can be wrong with a graph or an identity, and the errors that carry it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from rulespack.errors import RulespackError

Severity: TypeAlias = Literal["error", "warning"]

#: Where something stands in a document: keys and list positions from the root.
Path: TypeAlias = tuple[str | int, ...]

#: Problems an error's text spells out; the rest are counted.
SHOWN: Final = 10


class Problem(msgspec.Struct, frozen=True):
    """One thing wrong.

    ``rule`` is the broken rule's name (``rulespack.graph.rules.RULES`` lists them), ``path`` where in the document it
    is broken (``layer_kinds[2].nodes[3].n``; empty for the document as a whole), ``message`` what to do about it, and
    ``line`` the line of the file, counted from 1, None for a graph that came from no file.
    """

    rule: str
    severity: Severity
    path: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        """The problem in one line: where, what, and the rule's name."""
        where = [f"line {self.line}"] if self.line is not None else []
        if self.path:
            where.append(self.path)
        text = f"{', '.join(where)}: {self.message}" if where else self.message
        return f"{text} [{self.rule}]"


class InvalidDocument(RulespackError):
    """A file that cannot be used. ``file`` names it, ``problems`` holds everything that is wrong with it."""

    what: str = "document"

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        """An error about ``file`` for ``problems``, of which there is at least one."""
        super().__init__(file, tuple(problems))
        self.file = file
        self.problems = tuple(problems)

    def __str__(self) -> str:
        """One paragraph: the file and what is wrong with it."""
        shown = "; ".join(str(problem) for problem in self.problems[:SHOWN])
        more = len(self.problems) - SHOWN
        rest = f"; and {more} more" if more > 0 else ""
        return f"{self.file} is not a valid {self.what}: {shown}{rest}"


class InvalidGraph(InvalidDocument):
    """A model graph that cannot be used."""

    what = "model graph"


class InvalidModel(InvalidDocument):
    """A model identity (``model.yaml``) that cannot be used."""

    what = "model identity"


def show_path(path: Path) -> str:
    """A path as people write it: ``layer_kinds[2].nodes[3].caches[0].bytes_per_entry``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.isidentifier():
            text += f".{step}" if text else step
        else:
            text += f"[{step!r}]"
    return text
