"""The graph a question is asked of, kept for as long as the files it came from do not change."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rulespack.catalog import GRAPH_FILE, MODEL_FILES, load_model, locate, root
from rulespack.graph.canonical import canonical_json

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from rulespack.deployment import Deployment
    from rulespack.graph.model import ModelGraph

#: How many graphs a shelf holds, the ones asked for longest ago put away first.
MAX_GRAPHS: Final = 256

Stamp: TypeAlias = tuple[tuple[int, ...], ...]


def asked_graph(model: str | Path, deployment: Deployment) -> ModelGraph:
    """The graph of whatever names a model, as a deployment asks for it: its ``hf_overrides`` are laid over the
    configuration, from which the graph is then derived anew.

    Every face that takes a model by name and a deployment asks here, so that each loads a graph once. A graph without
    its configuration stays as it is, which packs refuse. Raises what :func:`~rulespack.catalog.load_model` does.
    """
    return shelf().get(model, deployment.hf_overrides)


@functools.cache
def shelf() -> Shelf:
    """The shelf of this process."""
    return Shelf()


class Shelf:
    """Loads each model once, and again when its file is another."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Path, str], tuple[Stamp, ModelGraph]] = {}
        self._named: dict[str, Path] = {}

    def get(self, model: str | Path, hf_overrides: Mapping[str, Any] | None = None) -> ModelGraph:
        """The graph of whatever names a model. Raises what :func:`~rulespack.catalog.load_model` does."""
        file = self._located(model)
        said = canonical_json(hf_overrides) if hf_overrides else ""
        key = (file, said)
        stamp = _stamp(file, overridden=bool(said))
        kept = self._kept.pop(key, None)
        if kept is None or kept[0] != stamp:
            kept = (stamp, load_model(file, hf_overrides))
        if len(self._kept) >= MAX_GRAPHS:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = kept
        return kept[1]

    def _located(self, model: str | Path) -> Path:
        """The model's file; the catalog's are looked for once, any other may be another from call to call."""
        if not isinstance(model, str):
            return locate(model)
        file = self._named.get(model)
        if file is None:
            file = locate(model)
            if file.parent.parent == root() and file.parent.name == model:
                self._named[model] = file
        return file


def _stamp(file: Path, *, overridden: bool) -> Stamp:
    """What changes when a model's file does, the configuration beside a graph that is derived anew, or the
    quantization that stands beside a configuration."""
    files = [file]
    if overridden and file.name == GRAPH_FILE:
        files += [file.with_name(name) for name in MODEL_FILES[1:]]
    if files[-1].suffix == ".json":
        from rulespack.derive.document import MODELOPT_FILE  # graphs are read without the deriver

        files.append(file.with_name(MODELOPT_FILE))
    return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for each in files if (stat := _status(each)) is not None)


def _status(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:
        return None
