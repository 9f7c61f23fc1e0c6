"""``rulespack batch``: questions as JSON lines, an answer line for each."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rulespack.cli.terminal import Parser, Usage


def run(command: str, words: Sequence[str]) -> int:
    """Answer every line of a file or of standard input; 0 when every line was answered, whatever the answers are."""
    parser = Parser(
        "batch", "Answer questions given as JSON lines, one answer line for each; docs/plan.md has the keys."
    )
    parser.add_argument(
        "file", nargs="?", default="-", metavar="FILE", help="JSON lines; - (or nothing) is standard input"
    )
    file = parser.parse_args(words).file

    from rulespack.batch import serve

    if file == "-":
        serve(sys.stdin.buffer, sys.stdout.buffer)
        return 0
    try:
        questions = open(file, "rb")  # noqa: SIM115 - closed below, opened apart so that only opening it is usage
    except (OSError, ValueError) as error:
        raise Usage(f"{file}: {getattr(error, 'strerror', None) or error}") from None
    with questions:
        serve(questions, sys.stdout.buffer)
    return 0
