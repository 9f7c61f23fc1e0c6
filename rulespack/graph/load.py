"""YAML text -> ModelGraph or ModelIdentity: strict, bounded, and with everything that is wrong said at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from rulespack.graph.check import graph_findings, identity_findings
from rulespack.graph.document import MAX_BYTES, Document, Unreadable, read_document
from rulespack.graph.findings import Finding, problem
from rulespack.graph.model import ModelGraph, ModelIdentity
from rulespack.graph.problems import InvalidDocument, InvalidGraph, InvalidModel, Problem
from rulespack.graph.scalars import Odd, is_date

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T", ModelGraph, ModelIdentity)


def load_graph(text: str | bytes, file: str = "<graph>") -> ModelGraph:
    """The graph of a ``graph.yaml``; warnings do not stop it.

    ``file`` is what errors call the text. Raises :class:`InvalidGraph` with everything that is wrong, each problem with
    its line and path.
    """
    return _usable(*inspect_graph(text, file), InvalidGraph, file)


def load_identity(text: str | bytes, file: str = "<model>") -> ModelIdentity:
    """The identity of a ``model.yaml``. Raises :class:`InvalidModel` with everything that is wrong."""
    return _usable(*inspect_identity(text, file), InvalidModel, file)


def inspect_graph(text: str | bytes, file: str = "<graph>") -> tuple[ModelGraph | None, list[Problem]]:
    """The graph, where the text has a graph's structure, and everything wrong with it, warnings included.

    Never raises for a bad text. A graph that comes back beside an error has the right structure and the wrong meaning.
    """
    return _inspect(text, file, ModelGraph, graph_findings)


def inspect_identity(text: str | bytes, file: str = "<model>") -> tuple[ModelIdentity | None, list[Problem]]:
    """The identity, where the text has the structure of one, and everything wrong with it. Never raises."""
    return _inspect(text, file, ModelIdentity, identity_findings)


def read_bounded(path: Path) -> bytes:
    """A file's bytes, no more than the loader needs to see that there are too many. Raises OSError."""
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _usable(
    found: T | None, problems: list[Problem], error: Callable[[str, list[Problem]], InvalidDocument], file: str
) -> T:
    wrong = [problem for problem in problems if problem.severity == "error"]
    if found is None or wrong:
        raise error(file, wrong)
    return found


def _inspect(
    text: str | bytes, file: str, cls: type[T], findings: Callable[[T], Iterator[Finding]]
) -> tuple[T | None, list[Problem]]:
    try:
        document = read_document(text, file)
    except Unreadable as error:
        return None, [error.problem]
    if isinstance(document.data, dict):
        _accept_date(document.data)
    found = _decoded(document, cls)
    if found is None:
        return None, _sorted(_diagnosed(document, cls, findings))
    wrong = [problem(finding, document.line(finding.path)) for finding in findings(found)]
    return found, _sorted(wrong) if wrong else wrong


def _accept_date(data: dict[str, Any]) -> None:
    """``source.retrieved`` may be an unquoted date, which says its own text and nothing else."""
    source = data.get("source")
    if isinstance(source, dict) and is_date(date := source.get("retrieved")) and isinstance(date, Odd):
        source["retrieved"] = date.text


def _decoded(document: Document, cls: type[T]) -> T | None:
    """The document as the class it should be; None where it is not, so that the slow walk finds out why."""
    if document.problems or document.has_null:
        return None
    try:
        return msgspec.convert(document.data, cls)
    except msgspec.ValidationError:
        return None


def _diagnosed(document: Document, cls: type[T], findings: Callable[[T], Iterator[Finding]]) -> Iterator[Problem]:
    """What is wrong with a document that does not decode."""
    from rulespack.graph.diagnose import diagnose

    yield from document.problems
    for finding in diagnose(cls, document.data, findings, document.partial):
        yield problem(finding, document.line(finding.path))


def _sorted(problems: Iterator[Problem] | list[Problem]) -> list[Problem]:
    """In the order a person meets them in the file."""
    return sorted(problems, key=lambda problem: problem.line or 0)
