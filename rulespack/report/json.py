"""The public JSON of a plan, a refusal and an error; ``docs/plan.md`` says what each key means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rulespack.deployment import GPUS, Gpu
from rulespack.errors import Refused, not_modelled
from rulespack.kv.plan import SCHEMA_VERSION, Capacity, Plan, pinned
from rulespack.kv.specs import Spec

if TYPE_CHECKING:
    from rulespack.graph.weights import Amount, Parameters

#: What every spec says, and what it says only where its engine class has it.
SPEC_KEYS: Final = ("type", "block_size", "page_size_bytes")
OPTIONAL_SPEC_KEYS: Final = (
    "dtype",
    "num_kv_heads",
    "head_size",
    "sliding_window",
    "attention_chunk_size",
    "shapes",
    "dtypes",
)
GROUP_KEYS: Final = (
    "caches",
    "type",
    "block_size",
    "page_size_bytes",
    "blocks_per_request",
    "draft",
    "padding_bytes",
)
#: A list without brackets of any kind inside; a line break stands only between values, never in a string.
_PLAIN_LIST: Final = re.compile(r"\[\n *([^\[\]{}]*?)\n *\]")


def plan_document(plan: Plan, tokens: Sequence[int] = (), weights: Parameters | None = None) -> dict[str, Any]:
    """The plan's keys in the contract's order. ``tokens`` are the lengths to answer ``requests`` for, ``weights`` what
    the first rank holds, where that is known.

    Raises ValueError for a length that the plan does not serve.
    """
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "engine": plan.engine,
        "release": plan.release,
        "model": plan.model,
        "deployment": stated(plan.deployment),
    }
    if plan.nearest is not None:
        document["nearest"] = plan.nearest
    blocks, total = pinned(plan)
    document |= {
        "architecture": plan.architecture,
        "resolved": plan.resolved,
        "specs": [_spec(spec) for spec in plan.specs],
        "caches": plan.caches,
        "draft_caches": plan.draft_caches,
        "groups": [
            {key: pinned if key == "blocks_per_request" else getattr(group, key) for key in GROUP_KEYS}
            for group, pinned in zip(plan.groups, blocks, strict=True)
        ],
        "bytes_per_block": plan.bytes_per_block if plan.groups else None,
        "blocks_per_request": total,
    }
    if plan.stages is not None:
        document["stages"] = plan.stages
    if plan.capacity is not None:
        document["capacity"] = plan.capacity if plan.groups else _pool_alone(plan.capacity)
    document["backends"] = plan.backends
    if weights is not None:
        document["weights"] = {"model": _weights(weights)}
    if tokens:
        document["requests"] = [plan.request(length) for length in tokens]
    document["reasons"] = plan.reasons
    return document


def _pool_alone(capacity: Capacity) -> dict[str, int | None]:
    """The capacity for a model that keeps no cache: the engine counts no tokens of it."""
    return {"num_blocks": capacity.num_blocks, "tokens": None, "max_concurrency": None}


def _weights(weights: Parameters) -> dict[str, Any]:
    by_format = {dtype: _amount(amount) for dtype, amount in weights.by_dtype().items()}
    return {**_amount(weights.target), "by_format": by_format}


def _amount(amount: Amount) -> dict[str, int]:
    return {"elements": amount.elements, "bytes": amount.bytes}


def refusal_document(refused: Refused) -> dict[str, Any]:
    """A refusal, and the plan as far as it was made beside it."""
    said = {"by": refused.by, "rule": refused.rule, "type": refused.type, "stage": refused.stage}
    document: dict[str, Any] = {"refused": {key: value for key, value in said.items() if value is not None}}
    document["refused"]["reason"] = refused.reason
    if refused.source is not None:
        document["refused"]["source"] = refused.source
    if refused.plan is not None:
        document["plan"] = plan_document(refused.plan)
    return document


def error_document(error: Exception) -> dict[str, Any]:
    """An error of the question: the class's name, its message, and the problems of a file where it carries them.

    One that is no fault of the question is a pack's refusal: a configuration no family translates.
    """
    if getattr(error, "unmodelled", False):
        return refusal_document(not_modelled("configuration-translated", printable(str(error))))
    said: dict[str, Any] = {"type": type(error).__name__, "message": printable(str(error))}
    problems = getattr(error, "problems", ())
    if problems:
        said["problems"] = problems
    return {"error": said}


def printable(text: str) -> str:
    """``text`` with what is no Unicode (a lone surrogate) spelled out, so that it can be written."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def compact(document: object) -> bytes:
    """A document as one line of JSON, the newline left out."""
    return msgspec.json.encode(document)


def indented(document: object) -> str:
    """A document as JSON on several lines, a list of plain values on one."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    return _PLAIN_LIST.sub(lambda found: "[" + re.sub(r"\n *", " ", found.group(1)) + "]", text)


def _spec(spec: Spec) -> dict[str, Any]:
    said = {key: getattr(spec, key) for key in SPEC_KEYS}
    for key in OPTIONAL_SPEC_KEYS:
        value = getattr(spec, key)
        if value is not None:
            said[key] = value
    return said


def stated(deployment: Mapping[str, Any]) -> Mapping[str, Any]:
    """A deployment as it was stated, its GPU by name, or by what it is where it has no name of ours."""
    gpu = deployment.get("gpu")
    if not isinstance(gpu, Gpu):
        return deployment
    if GPUS.get(gpu.name) == gpu:
        return {**deployment, "gpu": gpu.name}
    major, minor = gpu.capability
    spelled = {"name": gpu.name, "capability": f"{major}.{minor}", "memory_bytes": gpu.memory_bytes}
    return {**deployment, "gpu": spelled}
