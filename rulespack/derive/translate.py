"""From a vendor's file to a graph: open it, find the family that serves it, let it build."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rulespack.derive.assemble import assemble
from rulespack.derive.config import open_config, read_config, respelt
from rulespack.derive.document import Document, read_document
from rulespack.derive.errors import Inconsistent, InvalidConfig, NotTranslated
from rulespack.derive.families import families
from rulespack.graph.canonical import canonical_json
from rulespack.graph.model import ModelGraph


class Translation(msgspec.Struct, frozen=True):
    """A graph and the record of what it was made from: every key of the file that was read."""

    graph: ModelGraph
    document: Document
    reads: frozenset[tuple[str, ...]]


def translate(path: Path, name: str | None = None, overrides: Mapping[str, Any] | None = None) -> Translation:
    """Translate a ``config.json``, a ``params.json``, or the one a folder holds.

    ``overrides`` are laid over the file's own keys first, nested objects key by key (the engine's ``hf_overrides``).
    The graph is called ``name``, else after the folder. Raises InvalidConfig with the architecture and the key that
    stopped it.
    """
    document = read_document(path)
    if not overrides:
        return _translated(document, name)
    data, said = _overlaid(document.data, overrides), canonical_json(overrides)
    try:
        return _translated(msgspec.structs.replace(document, data=data, overrides=said), name)
    except InvalidConfig as error:  # which of the two is at fault only their reader can tell
        file = f"{error.file} with hf_overrides"
        kind = NotTranslated if isinstance(error, Inconsistent) else type(error)
        raise kind(file, error.path, error.problem, error.architecture, error.line) from None


def _translated(document: Document, name: str | None) -> Translation:
    head = open_config(document)
    family = families().get(head.architecture)
    if family is None:
        raise _unserved(head.architecture, str(document.path))
    served = family.serves[head.architecture]
    if served.with_vision is not None and head.root.has("vision_config"):
        head = msgspec.structs.replace(head, architecture=served.with_vision)
        served = family.serves[served.with_vision]
    config = read_config(respelt(head, served), served)
    parts = family.build(config)
    graph = assemble(name or document.path.absolute().parent.name, document, config, parts)
    return Translation(graph, document, frozenset(head.reads))


def _unserved(architecture: str, file: str) -> NotTranslated:
    import difflib  # only a refusal pays for it

    like = difflib.get_close_matches(architecture, families(), n=3, cutoff=0.8)
    known = f" ({', '.join(like)} {'is' if len(like) == 1 else 'are'})" if like else ""
    problem = f"the architecture {architecture} is not translated{known}; write a graph.yaml of the model instead"
    return NotTranslated(file, "architectures", problem, architecture)


def _overlaid(data: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(data)
    for key, value in overrides.items():
        below = result.get(key)
        result[key] = _overlaid(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return result
