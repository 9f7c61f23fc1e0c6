"""``rulespack schema``: the JSON Schemas of graphs, plans, questions and answers."""

from __future__ import annotations

from collections.abc import Sequence

from rulespack.cli.terminal import Parser, one_of, write

#: The schemas there are, so that naming one wrong costs no import.
NAMES = ("graph", "plan", "question", "answer")


def run(command: str, words: Sequence[str]) -> int:
    """Print one schema."""
    parser = Parser("schema", "The JSON Schema of graph.yaml, of a plan, or of a question or answer of batch.")
    parser.add_argument("name", type=one_of(*NAMES), metavar="|".join(NAMES), help="which one")
    name = parser.parse_args(words).name

    from rulespack.report.json import indented
    from rulespack.schemas import SCHEMAS

    write(indented(SCHEMAS[name]()))
    return 0
