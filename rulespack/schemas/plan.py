"""The JSON Schemas of a question, a plan and an answer. Keys may be added within a version, so others are allowed."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rulespack.graph.problems import Problem
from rulespack.kv.plan import SCHEMA_VERSION, Capacity, Group, Reason, Request, Resolved, Stage
from rulespack.kv.specs import Spec
from rulespack.report.json import GROUP_KEYS, OPTIONAL_SPEC_KEYS, SPEC_KEYS
from rulespack.schemas.deployment import deployment_schema
from rulespack.schemas.graph import DIALECT

TEXT: Final = {"type": "string"}
SIZE: Final = {"type": "integer", "minimum": 0}
COUNT: Final = {"type": "integer", "minimum": 1}
INDICES: Final = {"type": "array", "items": SIZE}
DEPLOYMENT: Final = {"type": "object", "description": "vLLM's engine arguments as they were stated, with gpu and env."}
AMOUNT: Final = {"elements": SIZE, "bytes": SIZE}
STAGES: Final = ("config", "construct", "specs", "groups", "engine", "worker_kv_cache", "scheduler")
COUNTED: Final = {
    "anyOf": [
        SIZE,
        {"type": "object", "properties": {"error": TEXT}, "required": ["error"], "description": "The engine crashes."},
    ]
}
#: Keys of a plan that are there only where there is something to say.
SOMETIMES: Final = ("nearest", "stages", "capacity", "weights", "requests")


def plan_schema() -> dict[str, Any]:
    """A plan, as ``rulespack plan --format json`` prints it."""
    return _document("plan", "A KV-cache plan", _plan())


def answer_schema() -> dict[str, Any]:
    """A line of ``rulespack batch``."""
    identity = {"type": ["string", "number", "null"], "description": "As the question stated it; null without one."}
    forms = [
        ({"plan": _ref("plan")}, ["plan"], ["refused", "error"]),
        ({"refused": _ref("refused"), "plan": _ref("plan")}, ["refused"], ["error"]),
        ({"error": _ref("error")}, ["error"], ["plan", "refused"]),
    ]
    options = [
        {
            **_object({"id": identity, **keys}, ("id", *needed)),
            "not": {"anyOf": [{"required": [key]} for key in absent]},
        }
        for keys, needed, absent in forms
    ]
    schema = _document("answer", "An answer of rulespack batch", {"oneOf": options})
    schema["$defs"] |= {"plan": _plan(), "refused": _refused(), "error": _error()}
    return schema


def question_schema() -> dict[str, Any]:
    """A line that ``rulespack batch`` reads."""
    keys = {
        "id": {"type": ["string", "number", "null"], "description": "Comes back as it was written."},
        "engine": {"type": "string", "default": "vllm"},
        "release": {"type": "string", "description": "Such as 0.31.0."},
        "model": {
            "type": "string",
            "description": "A catalog name, or the path of a graph, a configuration or a folder.",
        },
        "deployment": deployment_schema(),
        "tokens": {"type": "array", "items": COUNT, "description": "Lengths to answer requests for."},
        "nearest": {"type": "boolean", "default": False, "description": "Accept the closest lower release."},
    }
    schema = _object(keys, ("release", "model"))
    return {
        "$schema": DIALECT,
        "$id": _name("question"),
        "title": "A question",
        **schema,
        "additionalProperties": False,
    }


def _document(name: str, title: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"$schema": DIALECT, "$id": _name(name), "title": title, **schema, "$defs": _parts()}


def _name(name: str) -> str:
    return f"urn:rulespack:{name}:{SCHEMA_VERSION}"


def _parts() -> dict[str, Any]:
    _, parts = msgspec.json.schema_components(
        [Resolved, Spec, Group, Stage, Capacity, Request, Reason, Problem],
        ref_template="#/$defs/{name}",
        schema_hook=lambda kind: {"title": kind.__name__},  # of keys that the JSON leaves out
    )
    kept = {name: _plain(found) for name, found in parts.items()}
    kept.pop("PageCount")
    for name, keys, needed in (
        ("Spec", (*SPEC_KEYS, *OPTIONAL_SPEC_KEYS), SPEC_KEYS),
        ("Group", GROUP_KEYS, GROUP_KEYS),
    ):
        kept[name]["properties"] = {key: kept[name]["properties"][key] for key in keys}
        kept[name]["required"] = list(needed)
    for key in OPTIONAL_SPEC_KEYS:  # left out where the class has none
        kept["Spec"]["properties"][key] = _never_null(kept["Spec"]["properties"][key])
    kept["Group"]["properties"]["blocks_per_request"] = COUNTED
    for key in ("tokens", "max_concurrency"):  # of a model without caches
        counted = kept["Capacity"]["properties"][key]
        counted["type"] = [counted["type"], "null"]
    for part in ("Spec", "Group"):
        kept[part]["description"] = kept[part]["description"].partition(" ``")[0]
    kept["Resolved"]["required"] = list(Resolved.__struct_fields__)
    return kept


def _plan() -> dict[str, Any]:
    keys: dict[str, Any] = {
        "schema_version": {"const": SCHEMA_VERSION},
        "engine": TEXT,
        "release": TEXT,
        "model": TEXT,
        "deployment": DEPLOYMENT,
        "nearest": {"type": "string", "description": "The release that was asked for, where another's pack answered."},
        "architecture": TEXT,
        "resolved": _ref("Resolved"),
        "specs": {"type": "array", "items": _ref("Spec")},
        "caches": {
            "type": "array",
            "description": "Owned caches in the engine's order: layer name, index into specs.",
            "items": {"type": "array", "prefixItems": [TEXT, SIZE], "items": False, "minItems": 2},
        },
        "draft_caches": INDICES,
        "groups": {"type": "array", "items": _ref("Group")},
        "bytes_per_block": {**SIZE, "type": ["integer", "null"], "description": "null without groups."},
        "blocks_per_request": COUNTED,
        "stages": {"type": "array", "items": _ref("Stage")},
        "capacity": _ref("Capacity"),
        "backends": {"type": "object", "additionalProperties": COUNT, "description": "Backend -> layers it serves."},
        "weights": _object(
            {
                "model": _object(
                    {
                        **AMOUNT,
                        "by_format": {
                            "type": "object",
                            "additionalProperties": _object(AMOUNT, tuple(AMOUNT)),
                        },
                    },
                    (*AMOUNT, "by_format"),
                )
            },
            ("model",),
        ),
        "requests": {"type": "array", "items": _ref("Request")},
        "reasons": {"type": "array", "items": _ref("Reason")},
    }
    return _object(keys, tuple(key for key in keys if key not in SOMETIMES))


def _refused() -> dict[str, Any]:
    said = {"rule": TEXT, "reason": TEXT, "source": TEXT}
    engine = _object({"by": {"const": "engine"}, **said, "type": TEXT, "stage": {"enum": list(STAGES)}}, ())
    engine["required"] = ["by", "rule", "type", "stage", "reason"]
    return {"oneOf": [engine, _object({"by": {"const": "pack"}, **said}, ("by", "rule", "reason"))]}


def _error() -> dict[str, Any]:
    keys = {"type": TEXT, "message": TEXT, "problems": {"type": "array", "items": _ref("Problem")}}
    return _object(keys, ("type", "message"))


def _object(keys: dict[str, Any], needed: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "object", "properties": keys, "required": list(needed)}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def _never_null(schema: dict[str, Any]) -> dict[str, Any]:
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    return options[0] if len(options) == 1 else schema


def _plain(part: Any) -> Any:
    """Without defaults, which readers do not need, descriptions on one line, and choices of null as one type."""
    if isinstance(part, list):
        return [_plain(item) for item in part]
    if not isinstance(part, dict):
        return part
    said = {key: _plain(value) for key, value in part.items() if key != "default"}
    if isinstance(said.get("description"), str):
        said["description"] = " ".join(said["description"].split())
    return said
