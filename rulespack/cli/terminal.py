"""What every command shares: how it parses, complains and writes."""

from __future__ import annotations

import argparse
import os
import sys
from typing import NoReturn

from rulespack.report.style import Style


class Usage(Exception):
    """The command line cannot be used; the message is one sentence for the person who typed it."""


class Parser(argparse.ArgumentParser):
    """An argument parser of one command, whose complaints are :class:`Usage`."""

    def __init__(self, command: str, description: str, usage: str | None = None) -> None:
        super().__init__(
            prog=f"rulespack {command}",
            description=description,
            usage=usage,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Raise :class:`Usage`; ``--help`` is where the whole story stands."""
        raise Usage(f"{message} (see {self.prog} --help)")


def add_format(parser: argparse.ArgumentParser) -> None:
    """The ``--format`` option: for people, or for programs."""
    parser.add_argument("--format", choices=("text", "json"), default="text", help="text for people (default) or JSON")


def write(text: str) -> None:
    """Write a result to standard output, ended by a newline."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def complain(text: str) -> None:
    """Write one paragraph to standard error, after the answer that may stand on standard output."""
    sys.stdout.flush()
    sys.stderr.write(f"rulespack: {' '.join(text.split())}\n")


def terminal_style() -> Style:
    """How standard output is to be drawn: its width in columns, and whether it takes emphasis.

    ``COLUMNS`` wins over the terminal; what is no terminal is 80 wide. ``NO_COLOR`` or a dumb terminal: plain text.
    """
    from shutil import get_terminal_size

    plain = not sys.stdout.isatty() or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return Style(width=get_terminal_size((80, 24)).columns, emphasis=not plain)
