"""The extract of a vendor's configuration: the facts the deriver reads, keys sorted, and nothing else.

A catalog entry keeps the extract and not the vendor's file. Token ids, initializer ranges, tool versions and the like
are left out; an extract derives to the same graph as the file it was taken from, but for ``derived_from``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from rulespack.derive.document import FORMATS
from rulespack.derive.translate import Translation, translate
from rulespack.graph.dump import dump_graph, text
from rulespack.graph.model import ModelGraph, Source

#: Facts of the architecture kept where they are stated although no graph says them yet.
KEPT: Final = frozenset(
    {
        "model_type",
        "mtp_hybrid_override_pattern",
        "mtp_layers_block_type",
        "mtp_num_hidden_layers",
        "num_nextn_predict_layers",
        "rope_theta",
    }
)


def extract(path: Path) -> dict[str, Any]:
    """The facts of a configuration, in its own dialect and shape, keys sorted. Raises InvalidConfig."""
    return extract_of(translate(path))


def extract_of(translation: Translation) -> dict[str, Any]:
    """The extract of a file that has been translated."""
    data = translation.document.data
    kept = {(key,) for key in KEPT} | {("text_config", key) for key in KEPT}
    return _select(data, translation.reads | kept)


def _select(data: dict[str, Any], paths: Iterable[tuple[str, ...]]) -> dict[str, Any]:
    """``data`` cut down to ``paths``: an object is kept for the paths inside it, anything else whole."""
    below: dict[str, set[tuple[str, ...]]] = {}
    for path in paths:
        below.setdefault(path[0], set()).add(path[1:])
    result: dict[str, Any] = {}
    for key in sorted(below):
        if key in data:
            value = data[key]
            inside = {path for path in below[key] if path}
            result[key] = _select(value, inside) if isinstance(value, dict) else value
    return result


def extract_text(translation: Translation) -> str:
    """The extract as the catalog keeps it: keys sorted at every level, one to a line."""
    return json.dumps(extract_of(translation), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def import_model(path: Path, name: str, models: Path, source: Source, draft_for: str | None = None) -> ModelGraph:
    """Write the catalog entry ``models/<name>``: the extract, ``graph.yaml`` derived from it, ``model.yaml``.

    ``source`` says where the vendor's file came from, ``draft_for`` which model it drafts for. What stands in the
    folder already is replaced; importing the extract again changes nothing. Raises InvalidConfig before anything is
    written.
    """
    translation = translate(path, name)
    folder = models / name
    file = folder / {dialect: file for file, dialect in FORMATS.items()}[translation.document.format]
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(extract_text(translation), encoding="utf-8")
    graph = translate(file, name).graph
    (folder / "graph.yaml").write_text(dump_graph(graph), encoding="utf-8")
    (folder / "model.yaml").write_text(_identity_text(name, source, draft_for), encoding="utf-8")
    return graph


def _identity_text(name: str, source: Source, draft_for: str | None) -> str:
    lines = [f"name: {text(name)}", "source:"]
    for key in ("provider", "repo", "revision", "retrieved"):
        value = getattr(source, key)
        if value is not None:
            lines.append(f"  {key}: {value if key == 'retrieved' else text(value)}")
    if draft_for is not None:
        lines.append(f"draft_for: {text(draft_for)}")
    return "\n".join(lines) + "\n"
