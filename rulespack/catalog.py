"""The catalog of models, and a model from whatever names it: a catalog name, a graph, a vendor's configuration."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rulespack.errors import RulespackError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rulespack.graph.model import ModelGraph

GRAPH_FILE: Final = "graph.yaml"
IDENTITY_FILE: Final = "model.yaml"
#: What a folder may hold a model in, in the order they are looked for.
MODEL_FILES: Final = (GRAPH_FILE, "config.json", "params.json")


class UnknownModel(RulespackError):
    """No catalog entry and no file of that name.

    ``model`` is what was asked for, ``nearest`` a name like it, ``remedy`` what else there is to do.
    """

    def __init__(self, model: str, problem: str, nearest: str | None = None, remedy: str | None = None) -> None:
        self.model = model
        self.problem = problem
        self.nearest = nearest
        self.remedy = remedy
        meant = f"; did you mean {nearest}?" if nearest else ""
        more = "" if remedy is None else f" Else {remedy}" if nearest else f"; {remedy}"
        super().__init__(f"{problem}{meant}{more}")


@cache
def root() -> Path:
    """The catalog's folder: inside the package where it is installed, beside it in a checkout."""
    package = Path(__file__).parent
    installed = package / "models"
    return installed if installed.is_dir() else package.parent / "models"


def names() -> list[str]:
    """The names of the catalog's models, sorted."""
    return sorted(folder.parent.name for folder in root().glob(f"*/{GRAPH_FILE}"))


def load_model(model: str | Path, hf_overrides: Mapping[str, Any] | None = None) -> ModelGraph:
    """The graph of a catalog name, a ``graph.yaml``, a ``config.json`` or ``params.json``, or a folder holding one.

    A catalog name is looked for first; ``./name`` is always a path. A vendor's repository, such as ``Qwen/Qwen3-14B``,
    is the catalog's model from there, where nothing of that path exists. In a folder a graph is preferred to a
    configuration. A ``.json`` file is translated, any other is read as a graph.

    ``hf_overrides`` are laid over the configuration before it is translated, the engine argument's own form; a graph
    beside the configuration it is derived from is translated anew. One that stands alone, or was written or changed by
    hand, stays as it is, which packs then refuse.

    Raises UnknownModel (with the nearest name), InvalidGraph, InvalidConfig, BadDeployment for overrides that are none.
    """
    file = locate(model)
    if hf_overrides:
        from rulespack.deployment import Deployment

        hf_overrides = Deployment(hf_overrides=hf_overrides).hf_overrides
    if hf_overrides and file.name == GRAPH_FILE:
        file = _origin(file) or file
    if file.suffix == ".json":
        from rulespack.derive import derive_file

        return derive_file(file, overrides=hf_overrides)
    return _read(file)


def _origin(file: Path) -> Path | None:
    """The configuration beside a graph, where the graph is what is derived from it; the catalog's all are."""
    beside = next((there for name in MODEL_FILES[1:] if _exists(there := file.with_name(name))), None)
    if beside is None or root() in file.parents:
        return beside
    from rulespack.derive import InvalidConfig, derive_file

    graph = _read(file)
    try:
        return beside if derive_file(beside, graph.name) == graph else None
    except InvalidConfig:
        return None


def _read(file: Path) -> ModelGraph:
    from rulespack.graph.load import load_graph, read_bounded

    try:
        return load_graph(read_bounded(file), str(file))
    except OSError as error:
        raise UnknownModel(str(file), f"{file} cannot be read: {error.strerror or error}") from None


def locate(model: str | Path) -> Path:
    """The file a model is read from. Raises UnknownModel, TypeError for what is neither a name nor a path."""
    if not isinstance(model, (str, Path)):
        raise TypeError(f"a model is its name or a path, such as 'qwen3-14b', not {model!r} ({type(model).__name__})")
    text = str(model)
    if isinstance(model, str) and model and model not in (".", "..") and not set(model) & set("/\\\0"):
        graph = root() / model / GRAPH_FILE
        if _exists(graph):
            return graph
    path = Path(text)
    if not text or "\0" in text or not _exists(path):
        entry = _from_repository(text)
        if entry is not None:
            return entry
        nearest = _nearest(text)
        raise UnknownModel(
            text, f"no model named {text!r} in the catalog, and no such file", nearest, _remedy(text, nearest)
        )
    if not path.is_dir():
        return path
    for name in MODEL_FILES:
        if _exists(path / name):
            return path / name
    raise UnknownModel(
        text, f"{text} is a folder that holds none of {', '.join(MODEL_FILES)}; name a model's file or its folder"
    )


def _from_repository(text: str) -> Path | None:
    """The graph of the catalog's model that comes from a vendor's repository, whose name it has in lower case."""
    _, slash, name = text.partition("/")
    entry = root() / name.lower()
    if not slash or not name or set(name) & set("/\\\0") or name in (".", "..") or not _exists(entry / IDENTITY_FILE):
        return None
    from rulespack.graph.load import load_identity, read_bounded

    identity = load_identity(read_bounded(entry / IDENTITY_FILE), str(entry / IDENTITY_FILE))
    return entry / GRAPH_FILE if identity.source.repo.lower() == text.lower() else None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long for the file system, or a folder that may not be entered
        return False


def _remedy(text: str, nearest: str | None) -> str | None:
    """What to do besides looking for a misspelling."""
    if "\\" in text:
        return "write the path with / between its folders"
    if text.count("/") == 1 and not text.startswith((".", "/")):
        return "name the config.json of that repository, downloaded, since the catalog does not have it"
    return None if nearest else "rulespack models lists the catalog"


def _nearest(text: str) -> str | None:
    """The catalog name ``text`` begins, or the one most like its last part: ``Qwen/Qwen3-14B`` is qwen3-14b."""
    import difflib  # only a mistake pays for it

    wanted = text.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()
    known = names()
    begun = [name for name in known if wanted and name.startswith(wanted)]
    found = sorted(begun, key=len) or difflib.get_close_matches(wanted, known, n=1)
    return found[0] if found else None
