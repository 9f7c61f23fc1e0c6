"""``rulespack derive``: a vendor's configuration as a model graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rulespack.cli.terminal import Parser, write


def run(command: str, words: Sequence[str]) -> int:
    """Print the graph, or write it to a file."""
    parser = Parser("derive", "Translate a vendor's configuration into a model graph.")
    parser.add_argument("config", metavar="CONFIG", help="a config.json or params.json, or a folder that holds one")
    parser.add_argument("--name", metavar="NAME", help="what the graph is called (the folder's name if left out)")
    parser.add_argument("--out", metavar="FILE", help="where the graph is written (standard output if left out)")
    options = parser.parse_args(words)

    from rulespack.derive import derive_file
    from rulespack.graph.dump import dump_graph

    text = dump_graph(derive_file(Path(options.config), options.name))
    if options.out is None or options.out == "-":
        write(text)
    else:
        Path(options.out).write_text(text, encoding="utf-8")
    return 0
