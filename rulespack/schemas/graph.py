"""The JSON Schema of ``graph.yaml``: its keys and their kinds, for editors.

What one key demands of another is left to ``rulespack validate``, whose rules a schema cannot state.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rulespack.graph import vocabulary as words
from rulespack.graph.model import ModelGraph

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

#: Class -> key -> what the key may say.
CHOICES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "ModelGraph": {"kind": (words.KIND,), "modality": words.MODALITIES},
    "Global": {"weight_dtype": words.DTYPES, "dtype": words.MODEL_DTYPES},
    "GEMM": {"weight_dtype": words.DTYPES},
    "GroupedGEMM": {"weight_dtype": words.DTYPES},
    "NodeOverride": {"weight_dtype": words.DTYPES},
    "Attention": {"kind": words.ATTENTION_KINDS},
    "RecurrentUpdate": {"recurrent_kind": words.RECURRENT_KINDS, "state_dtype": words.DTYPES},
    "Cache": {"kind": words.CACHE_KINDS},
    "Gather": {"residency": words.RESIDENCIES, "shard": words.SHARDS},
    "Context": {"per": words.CONTEXT_UNITS, "phase": words.PHASES, "decode_extent": words.DECODE_EXTENTS},
    "Speculator": {"drafting": words.DRAFTING_MODES},
}


def graph_schema() -> dict[str, Any]:
    """The schema as a document."""
    whole = msgspec.json.schema(ModelGraph)
    defs = {name: _strict(found) for name, found in whole["$defs"].items()}
    for name, keys in CHOICES.items():
        for key, choices in keys.items():
            defs[name]["properties"][key] = {"enum": list(choices)}
    for op in words.PRIMITIVES:
        _node(op, defs[op]["properties"])
    defs["DerivedFrom"]["properties"]["sha256"]["pattern"] = f"^[0-9a-fA-F]{{{words.SHA256_LENGTH}}}$"
    return {"$schema": DIALECT, "$id": "urn:rulespack:graph", "title": "graph.yaml", **whole, "$defs": defs}


def _node(op: str, properties: dict[str, Any]) -> None:
    """What the keys every node has may say on this primitive; a key that means nothing there is not there."""
    choices = {
        "tp": words.TP_LAYOUTS.get(op, ()),
        "under_sequence_parallel": () if op in words.COLLECTIVES else words.SPLITS,
        "emit": words.EMIT_CONDITIONS,
    }
    for key, said in choices.items():
        if said:
            properties[key] = {"enum": list(said)}
        else:
            del properties[key]
    if op not in ("GEMM", "Gather"):
        del properties["aliases"]


def _strict(part: Any) -> Any:
    """Without ``null``, which a graph refuses; numbers not below zero; descriptions on one line."""
    if isinstance(part, list):
        return [_strict(item) for item in part]
    if not isinstance(part, dict):
        return part
    said = {key: _strict(value) for key, value in part.items() if not (key == "default" and value is None)}
    options = said.get("anyOf")
    if options and {"type": "null"} in options:
        kept = [option for option in options if option != {"type": "null"}]
        said.pop("anyOf")
        said = {**said, **(kept[0] if len(kept) == 1 else {"anyOf": kept})}
    if said.get("type") == "integer":
        said["minimum"] = 0
    if isinstance(said.get("description"), str):
        said["description"] = " ".join(said["description"].split())
    return said
