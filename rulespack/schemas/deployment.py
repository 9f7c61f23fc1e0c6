"""The JSON Schema of a deployment as a question states it: each argument of the kind the code reads."""

from __future__ import annotations

from typing import Any, Final

from rulespack.deployment import GPUS, KINDS

COUNT: Final[dict[str, Any]] = {"type": "integer", "minimum": 1}
TEXT: Final[dict[str, Any]] = {"type": "string"}
OBJECT: Final[dict[str, Any]] = {"type": "object"}
#: What JSON states each kind of value. Words an argument chooses from differ between releases, so they are open here.
FORMS: Final[dict[str, dict[str, Any]]] = {
    "count": COUNT,
    "environment": {**OBJECT, "additionalProperties": {"type": ["string", "integer"]}},
    "gpu": {
        "type": ["string", "object"],
        "description": f"{', '.join(GPUS)}, or what another GPU is.",
        "properties": {
            "name": TEXT,
            "capability": {**TEXT, "pattern": r"^\d+\.\d+$", "description": "Such as 9.0."},
            "memory_bytes": COUNT,
        },
        "required": ["capability", "memory_bytes"],
        "additionalProperties": False,
    },
    "integer": {"type": "integer"},
    "json": OBJECT,
    "length": {"type": "integer", "anyOf": [{"minimum": 1}, {"const": -1}]},
    "mapping": OBJECT,
    "number": {"type": "number"},
    "switch": {"type": "boolean"},
    "text": TEXT,
    "texts": {"type": "array", "items": {"type": ["string", "integer"]}},
}


def deployment_schema() -> dict[str, Any]:
    """A deployment. Arguments that cannot change a plan are taken as well, which releases have of their own."""
    return {
        "type": "object",
        "description": "vLLM's engine arguments by their names, with gpu and env; null is the engine's default.",
        "properties": {name: _or_null(FORMS[kind]) for name, kind in KINDS.items()},
    }


def _or_null(form: dict[str, Any]) -> dict[str, Any]:
    kinds = form["type"] if isinstance(form["type"], list) else [form["type"]]
    options = {"anyOf": [*form["anyOf"], {"type": "null"}]} if "anyOf" in form else {}
    return {**form, "type": [*kinds, "null"], **options}
