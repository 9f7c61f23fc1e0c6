"""What every command shares: how it parses, complains and writes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from rulespack.errors import meant
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
            formatter_class=_formatter,
        )

    def error(self, message: str) -> NoReturn:
        """Raise :class:`Usage`; ``--help`` is where the whole story stands."""
        what, found, words = message.partition("unrecognized arguments: ")
        if found and not what:
            message = self._unknown(words.split()[0])
        raise Usage(f"{message} (see {self.prog} --help)")

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"{word!r} is one word too many"
        return f"{word}: no option of this command{meant(word, self._option_string_actions)}"


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, width=terminal_style().width - 2)


def add_format(parser: argparse.ArgumentParser, *formats: str) -> None:
    """The ``--format`` option: text for people, JSON for programs, and whatever else a command draws."""
    known = formats or ("text", "json")
    parser.add_argument(
        "--format", type=one_of(*known), default="text", metavar="|".join(known), help="how it is drawn (default text)"
    )


def one_of(*words: str) -> Callable[[str], str]:
    """A type for argparse: one of some words, and the nearest of them where it is another."""

    def read(text: str) -> str:
        if text in words:
            return text
        raise argparse.ArgumentTypeError(f"expected {' or '.join(words)}, got {text!r}{meant(text, words)}")

    return read


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
