"""The page of ``docs/reference`` that is drawn from the command: what each command says of itself."""

from __future__ import annotations

from rulespack.cli import COMMANDS

from .blocks import ROOT
from .scratch import Scratch

FILE = ROOT / "docs" / "reference" / "cli.md"

_HEAD = """# Every command and option

Generated from the command itself by `python -m tests.documents --write`. [The command](../cli.md) says how it is used:
exit statuses, spellings of flags, what each command prints.
"""


def cli_reference(scratch: Scratch) -> str:
    """The page."""
    parts = [_HEAD]
    for words in ["", *COMMANDS]:
        command = " ".join(filter(None, ["rulespack", words, "--help"]))
        _, printed = scratch.run(command)
        title = f"`rulespack {words}`" if words else "`rulespack`"
        parts.append(f"## {title}\n\n```console\n$ {command}\n{printed}```\n")
    return "\n".join(parts)
