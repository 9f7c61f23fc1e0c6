"""What ``rulespack validate`` checks: graphs, identities, models' folders and whole catalogs, file by file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rulespack.catalog import GRAPH_FILE, IDENTITY_FILE, MODEL_FILES
from rulespack.derive.document import CONFIG_FILES
from rulespack.derive.errors import InvalidConfig
from rulespack.derive.importer import extract_text
from rulespack.derive.translate import Translation, translate
from rulespack.graph.document import Unreadable, read_document
from rulespack.graph.load import inspect_graph, inspect_identity, read_bounded
from rulespack.graph.model import ModelGraph
from rulespack.graph.problems import Path as Steps
from rulespack.graph.problems import Problem, show_path

#: The rules of this module, beside those of a graph and an identity (``rulespack.graph.rules``).
RULES: Final = {
    "unreadable": "A file or folder cannot be read, or is not there.",
    "no-model": "A folder holds neither a model nor models.",
    "entry-incomplete": "A model's folder lacks its graph, its identity or its configuration.",
    "name-not-folder": "The name a graph or an identity states is not its folder's.",
    "source-missing": "derived_from.path names no configuration in the model's folder.",
    "digest": "derived_from.sha256 is not the digest of the configuration it names.",
    "config-invalid": "The configuration cannot be translated.",
    "not-an-extract": "The configuration is not what the importer writes: the facts alone, keys sorted.",
    "drift": "The graph says something else than the configuration derives to.",
}
#: Differences of one graph that are spelled out; the rest are counted.
SHOWN: Final = 20
_ENTRY_FILES: Final = (*MODEL_FILES, IDENTITY_FILE)


class FileReport(msgspec.Struct, frozen=True):
    """What was found in one file or folder; ``valid`` where no problem is an error."""

    file: str
    valid: bool
    problems: tuple[Problem, ...]


def validate(paths: Iterable[str | Path]) -> list[FileReport]:
    """A report for each file under ``paths``: catalogs, models' folders, graphs, identities, in the order given.

    Never raises for what it finds: whatever cannot be read is a problem of its file.
    """
    return [report for path in paths for report in _reports(Path(path))]


def _reports(path: Path) -> Iterator[FileReport]:
    try:
        if not path.is_dir():
            yield _single(path)
            return
        folders = [path] if _holds_model(path) else sorted(child for child in path.iterdir() if _is_entry(child))
    except (OSError, ValueError) as error:
        yield _report(path, [_problem("unreadable", f"cannot be read: {_reason(error)}")])
        return
    if not folders:
        message = f"holds none of {', '.join(_ENTRY_FILES)}, nor a folder that does"
        yield _report(path, [_problem("no-model", message)])
    for folder in folders:
        yield from _entry(folder)


def _is_entry(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith((".", "_"))


def _holds_model(folder: Path) -> bool:
    return any((folder / name).exists() for name in _ENTRY_FILES)


def _single(path: Path) -> FileReport:
    """A file by itself: an identity by its name, a configuration by its ending, anything else a graph."""
    if path.suffix == ".json":
        return _report(path, _translated(path, None)[1])
    raw = _read(path)
    if isinstance(raw, Problem):
        return _report(path, [raw])
    inspect = inspect_identity if path.name == IDENTITY_FILE else inspect_graph
    return _report(path, inspect(raw, str(path))[1])


def _entry(folder: Path) -> Iterator[FileReport]:
    """The files of one model, checked against each other and against the folder's name."""
    config = next((folder / name for name in CONFIG_FILES if (folder / name).exists()), None)
    translation = None
    if config is None:
        message = f"the model has no configuration: add {' or '.join(CONFIG_FILES)}, as the importer writes it"
        yield _report(folder / CONFIG_FILES[0], [_problem("entry-incomplete", message)])
    else:
        translation, problems = _translated(config, folder.absolute().name)
        yield _report(config, problems or list(_extract_problems(config, translation)))
    yield _graph_report(folder, translation)
    yield _identity_report(folder)


def _translated(config: Path, name: str | None) -> tuple[Translation | None, list[Problem]]:
    try:
        return translate(config, name), []
    except InvalidConfig as error:
        served = f" [{error.architecture}]" if error.architecture else ""
        problem = Problem(
            rule="config-invalid",
            severity="error",
            path=error.path,
            message=f"{error.problem}{served}",
            line=error.line,
        )
        return None, [problem]


def _extract_problems(config: Path, translation: Translation | None) -> Iterator[Problem]:
    raw = _read(config)
    if isinstance(raw, Problem):
        yield raw
    elif translation is not None and raw != extract_text(translation).encode():
        yield _problem("not-an-extract", "is not what the importer writes for it: import the model again")


def _graph_report(folder: Path, translation: Translation | None) -> FileReport:
    file = folder / GRAPH_FILE
    if not file.exists():
        return _report(file, [_problem("entry-incomplete", "the model has no graph: derive it from its configuration")])
    raw = _read(file)
    if isinstance(raw, Problem):
        return _report(file, [raw])
    graph, problems = inspect_graph(raw, str(file))
    if graph is not None:
        problems = [*problems, *_entry_problems(folder, graph, translation, raw)]
    return _report(file, problems)


def _entry_problems(folder: Path, graph: ModelGraph, translation: Translation | None, raw: bytes) -> Iterator[Problem]:
    """What only shows beside the folder and the configuration: the name, the digest, drift."""
    name = folder.absolute().name
    if graph.name != name:
        yield _at(raw, "name-not-folder", ("name",), f"is {graph.name}, and the folder is {name}: make them equal")
    source = folder / graph.derived_from.path
    if graph.derived_from.path not in CONFIG_FILES or not source.is_file():
        message = f"{graph.derived_from.path!r} is no configuration in the folder: derive the graph again"
        yield _at(raw, "source-missing", ("derived_from", "path"), message)
        return
    content = _read(source)
    digest = None if isinstance(content, Problem) else hashlib.sha256(content).hexdigest()
    if digest is not None and graph.derived_from.sha256.lower() != digest:
        message = f"is {graph.derived_from.sha256}, and {source.name} has {digest}: derive the graph again"
        yield _at(raw, "digest", ("derived_from", "sha256"), message)
    if translation is None or translation.document.path.name != source.name:
        return
    # The digest has a rule of its own, and a name that differs has been said.
    derived = msgspec.structs.replace(translation.graph, name=graph.name, derived_from=graph.derived_from)
    version = translation.graph.derived_from.deriver_version
    if graph.derived_from.deriver_version != version:
        message = f"is {graph.derived_from.deriver_version}, and this deriver is {version}: derive the graph again"
        yield _at(raw, "drift", ("derived_from", "deriver_version"), message)
    if graph == derived:
        return
    differences = list(_differences(msgspec.to_builtins(graph), msgspec.to_builtins(derived), ()))
    for path, committed, expected in differences[:SHOWN]:
        yield _at(raw, "drift", path, f"is {committed}, and {source.name} derives to {expected}")
    if len(differences) > SHOWN:
        yield _problem("drift", f"and {len(differences) - SHOWN} more differences: derive the graph again")


def _differences(committed: Any, expected: Any, path: Steps) -> Iterator[tuple[Steps, str, str]]:
    """Where two trees of plain data differ, and what stands there in each."""
    if isinstance(committed, dict) and isinstance(expected, dict):
        for key in [*committed, *(key for key in expected if key not in committed)]:
            yield from _differences(committed.get(key, _NOTHING), expected.get(key, _NOTHING), (*path, key))
    elif isinstance(committed, (list, tuple)) and isinstance(expected, (list, tuple)):
        if len(committed) != len(expected):
            yield path, f"{len(committed)} entries", f"{len(expected)}"
        else:
            for position, (ours, theirs) in enumerate(zip(committed, expected, strict=True)):
                yield from _differences(ours, theirs, (*path, position))
    elif committed != expected:
        yield path, _short(committed), _short(expected)


_NOTHING: Final = object()


def _short(value: Any) -> str:
    if value is _NOTHING:
        return "not stated"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."


def _identity_report(folder: Path) -> FileReport:
    file = folder / IDENTITY_FILE
    if not file.exists():
        message = "the model has no identity: state its name and where its configuration came from"
        return _report(file, [_problem("entry-incomplete", message)])
    raw = _read(file)
    if isinstance(raw, Problem):
        return _report(file, [raw])
    identity, problems = inspect_identity(raw, str(file))
    name = folder.absolute().name
    if identity is not None and identity.name and identity.name != name:
        message = f"is {identity.name}, and the folder is {name}: make them equal"
        problems = [*problems, _at(raw, "name-not-folder", ("name",), message)]
    return _report(file, problems)


def _read(path: Path) -> bytes | Problem:
    try:
        return read_bounded(path)
    except (OSError, ValueError) as error:
        return _problem("unreadable", f"cannot be read: {_reason(error)}")


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _at(raw: bytes, rule: str, path: Steps, message: str) -> Problem:
    try:
        line = read_document(raw, "").line(path)
    except Unreadable:
        line = None
    return Problem(rule=rule, severity="error", path=show_path(path), message=message, line=line)


def _problem(rule: str, message: str, path: str = "") -> Problem:
    return Problem(rule=rule, severity="error", path=path, message=message)


def _report(path: Path, problems: Sequence[Problem]) -> FileReport:
    valid = all(problem.severity != "error" for problem in problems)
    return FileReport(file=str(path), valid=valid, problems=tuple(problems))
