"""The public JSON of a comparison; ``docs/diff.md`` says what each key means."""

from __future__ import annotations

from typing import Any

from rulespack.diff import Answer, Comparison, Pair
from rulespack.kv.plan import SCHEMA_VERSION
from rulespack.report.json import stated


def diff_document(comparison: Comparison, *, only_changed: bool = False) -> dict[str, Any]:
    """The comparison's keys, pairs that are the same left out where ``only_changed``."""
    return {
        "schema_version": SCHEMA_VERSION,
        "engine": comparison.engine,
        "old": comparison.old,
        "new": comparison.new,
        "tokens": comparison.tokens,
        "differs": comparison.differs,
        "counts": comparison.counts,
        "accepts": comparison.accepts,
        "pairs": [_pair(pair) for pair in comparison.pairs if pair.differs or not only_changed],
    }


def _pair(pair: Pair) -> dict[str, Any]:
    document: dict[str, Any] = {
        "model": pair.model,
        "name": pair.name,
        "deployment": stated(pair.deployment),
        "status": pair.status,
        "capacity": pair.capacity,
        "old": _answer(pair.old),
        "new": _answer(pair.new),
    }
    for key in ("changes", "caches", "groups", "weights", "requests", "renamed", "reasons"):
        if found := getattr(pair, key):
            document[key] = found
    return document


def _answer(answer: Answer) -> dict[str, Any]:
    document: dict[str, Any] = {"release": answer.release}
    if answer.refusal is not None:
        said = answer.refusal
        keys = ("by", "rule", "type", "stage", "reason", "source")
        document["refused"] = {key: getattr(said, key) for key in keys if getattr(said, key) is not None}
    plan = answer.plan
    if plan is not None:
        document["plan"] = {
            "resolved": plan.resolved,
            "caches": len(plan.caches),
            "groups": len(plan.groups),
            "bytes_per_block": plan.bytes_per_block,
            "blocks_per_request": plan.blocks_per_request,
        }
        if plan.capacity is not None:
            document["plan"]["capacity"] = plan.capacity
    return document
