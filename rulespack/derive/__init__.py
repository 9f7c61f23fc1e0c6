"""From a vendor's configuration to a graph: ``derive_file`` translates, ``extract`` keeps the facts.

``import_model`` writes a whole catalog entry: the extract, the graph derived from it, and the model's identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rulespack.derive.errors import InvalidConfig
from rulespack.derive.importer import extract, import_model
from rulespack.derive.translate import translate
from rulespack.graph.model import ModelGraph

__all__ = ["InvalidConfig", "derive_file", "extract", "import_model"]


def derive_file(path: Path, name: str | None = None, overrides: Mapping[str, Any] | None = None) -> ModelGraph:
    """The graph of a ``config.json`` or ``params.json``, or of the one a folder holds.

    ``name`` is what the graph is called, the folder's name where it is left out; ``overrides`` are laid over the
    configuration first, as the engine's ``hf_overrides``. Raises InvalidConfig with the file, the architecture and the
    key that stopped the translation.
    """
    return translate(path, name, overrides).graph
