"""Graphs kept for as long as the files they came from do not change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from rulespack.catalog import load_model, locate

if TYPE_CHECKING:
    import os

    from rulespack.graph.model import ModelGraph

#: How many graphs a shelf holds, the ones asked for longest ago put away first.
MAX_GRAPHS: Final = 256

Stamp: TypeAlias = tuple[tuple[int, ...], ...]


class Shelf:
    """Loads each model once, and again when its file is another."""

    def __init__(self) -> None:
        self._kept: dict[Path, tuple[Stamp, ModelGraph]] = {}

    def get(self, model: str) -> ModelGraph:
        """The graph of whatever names a model. Raises what :func:`~rulespack.catalog.load_model` does."""
        file = locate(model)
        stamp = _stamp(file)
        kept = self._kept.pop(file, None)
        if kept is None or kept[0] != stamp:
            kept = (stamp, load_model(file))
        if len(self._kept) >= MAX_GRAPHS:
            del self._kept[next(iter(self._kept))]
        self._kept[file] = kept
        return kept[1]


def _stamp(file: Path) -> Stamp:
    """What changes when a model's file does, or the quantization that stands beside a configuration."""
    files = [file]
    if file.suffix == ".json":
        from rulespack.derive.document import MODELOPT_FILE  # graphs are read without the deriver

        files.append(file.with_name(MODELOPT_FILE))
    return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for each in files if (stat := _status(each)) is not None)


def _status(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:
        return None
