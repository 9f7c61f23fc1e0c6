"""``rulespack show``: what a model is, and what one rank of a layout holds of it, from its graph alone."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rulespack.cli.terminal import Parser, Usage, add_format, terminal_style, write

if TYPE_CHECKING:
    from rulespack.graph.model import ModelGraph
    from rulespack.graph.sequence import SequenceState
    from rulespack.graph.weights import Parameters


def run(command: str, words: Sequence[str]) -> int:
    """Print the summary, and below it one rank's part where a layout is asked for."""
    options = _parser().parse_args(words)

    from rulespack.catalog import load_model
    from rulespack.report.model import model_document, model_text

    graph = load_model(options.model)
    if options.gpu is not None:
        from rulespack.deployment import parse_gpu
        from rulespack.graph.capability import for_capability

        graph = for_capability(graph, parse_gpu("--gpu", options.gpu).family)
    layout = _layout(options)
    held = _held(graph, options) if layout else None
    if options.format == "json":
        from rulespack.report.json import indented

        document = model_document(graph)
        if held is not None:
            from rulespack.report.ranks import rank_document

            document["rank"] = {"layout": layout, **rank_document(*held)}
        write(indented(document))
    else:
        style = terminal_style()
        text = model_text(graph, style)
        if held is not None:
            from rulespack.report.ranks import rank_text

            said = ", ".join(name if value is True else f"{name} {value}" for name, value in layout.items())
            text += "\n" + rank_text(*held, f"one rank of {said}", style)
        write(text)
    return 0


def _parser() -> Parser:
    parser = Parser(
        "show",
        "What a model is, from its graph alone: layers, attention, caches, parameters. With a layout also what one "
        "rank holds: weights by role and format, and the state each sequence adds.",
    )
    parser.add_argument("model", metavar="MODEL", help="a catalog name, a graph.yaml, a config.json, or a folder")
    parser.add_argument(
        "--tensor-parallel-size", "-tp", type=_ranks, metavar="N", help="ranks that share each layer of a replica"
    )
    parser.add_argument(
        "--data-parallel-size", "-dp", type=_ranks, metavar="N", help="replicas, which share routed experts alone"
    )
    parser.add_argument(
        "--enable-expert-parallel", "-ep", action="store_true", help="share routed experts one by one, not inside"
    )
    parser.add_argument("--gpu", metavar="GPU", help="as the model is served there, where that makes a difference")
    add_format(parser)
    return parser


def _layout(options: argparse.Namespace) -> dict[str, int | bool]:
    """What was asked for, by the engine's names; empty where nothing was."""
    asked = {
        name: getattr(options, name)
        for name in ("tensor_parallel_size", "data_parallel_size", "enable_expert_parallel")
    }
    return {name: value for name, value in asked.items() if value}


def _held(graph: ModelGraph, options: argparse.Namespace) -> tuple[Parameters, SequenceState]:
    from rulespack.graph.resident import resident_weights
    from rulespack.graph.sequence import state_bytes_per_sequence
    from rulespack.graph.state import Uneven

    ranks = options.tensor_parallel_size or 1
    try:
        weights = resident_weights(
            graph,
            tensor_parallel_size=ranks,
            data_parallel_size=options.data_parallel_size or 1,
            enable_expert_parallel=options.enable_expert_parallel,
        )
        return weights, state_bytes_per_sequence(graph, tensor_parallel_size=ranks)
    except Uneven as error:
        raise Usage(
            f"{graph.name}: {error.what} {error.size} cannot be shared evenly by {error.ranks} ranks; choose a "
            f"--tensor-parallel-size that divides {error.size}"
        ) from None


def _ranks(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 1 << 20:
        raise argparse.ArgumentTypeError(f"expected a number of ranks, got {text!r}")
    return int(text)
