"""``rulespack show``: what a model is, from its graph alone."""

from __future__ import annotations

from collections.abc import Sequence

from rulespack.cli.terminal import Parser, add_format, terminal_style, write


def run(command: str, words: Sequence[str]) -> int:
    """Print the summary."""
    parser = Parser("show", "What a model is, from its graph alone: layers, attention, caches, parameters.")
    parser.add_argument("model", metavar="MODEL", help="a catalog name, a graph.yaml, a config.json, or a folder")
    add_format(parser)
    options = parser.parse_args(words)

    from rulespack.catalog import load_model
    from rulespack.report.model import model_document, model_text

    graph = load_model(options.model)
    if options.format == "json":
        from rulespack.report.json import indented

        write(indented(model_document(graph)))
    else:
        write(model_text(graph, terminal_style()))
    return 0
