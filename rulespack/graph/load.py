"""YAML text -> ModelGraph or ModelIdentity: strict, bounded, and with everything that is wrong said at once."""

from __future__ import annotations

import msgspec

from rulespack.graph.document import Unreadable, read_document
from rulespack.graph.model import ModelGraph
from rulespack.graph.problems import InvalidGraph, Problem


def load_graph(text: str | bytes, file: str = "<graph>") -> ModelGraph:
    """The graph of a ``graph.yaml``. Raises :class:`InvalidGraph` with every problem found; ``file`` names the text."""
    try:
        document = read_document(text)
    except Unreadable as error:
        raise InvalidGraph(file, (error.problem,)) from None
    if document.problems:
        raise InvalidGraph(file, document.problems)
    try:
        return msgspec.convert(document.data, ModelGraph)
    except msgspec.ValidationError as error:
        raise InvalidGraph(
            file, (Problem(rule="mistyped-value", severity="error", path="", message=str(error)),)
        ) from None
