"""How messages call what stands in a document and what should stand there."""

from __future__ import annotations

from typing import Any, Final

from msgspec import inspect as schema

from rulespack.graph.model import (
    GEMM,
    ArchOverride,
    Cache,
    CacheOverride,
    Context,
    DerivedFrom,
    Gather,
    Global,
    GroupedGEMM,
    LayerKind,
    ModelGraph,
    ModelIdentity,
    Node,
    NodeOverride,
    Source,
    Speculator,
    Stack,
    WeightScale,
)
from rulespack.graph.scalars import INT64_MAX, INT64_MIN, Odd

TOO_BIG: Final = f"does not fit 64 bits: integers go from {INT64_MIN} to {INT64_MAX}"
NAMES: Final = {schema.StrType: "text", schema.IntType: "an integer", schema.FloatType: "a number"}

_TITLES: Final[dict[type, str]] = {
    ModelGraph: "a graph",
    ModelIdentity: "a model identity",
    Global: "global",
    DerivedFrom: "derived_from",
    LayerKind: "a layer kind",
    Stack: "a stack",
    Speculator: "the speculator",
    Cache: "a cache",
    Context: "context",
    WeightScale: "a weight_scale",
    ArchOverride: "an override",
    NodeOverride: "an override's node entry",
    CacheOverride: "an override's cache entry",
    Source: "source",
    GEMM: "a GEMM",
    GroupedGEMM: "a GroupedGEMM",
    Gather: "a Gather",
}


def title(cls: type) -> str:
    """What messages call a part of the document."""
    if cls in _TITLES:
        return _TITLES[cls]
    name = cls.__name__
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}" if issubclass(cls, Node) else name.lower()


def shown(value: Any) -> str:
    """A value as the message names it."""
    if isinstance(value, Odd):
        return f"{value.text if len(value.text) <= 60 else 'this'} reads as {value.reads}"
    if isinstance(value, bool):
        return f"this is the boolean {str(value).lower()}"
    if isinstance(value, int):
        return f"this is the integer {value}"
    if isinstance(value, float):
        return f"this is the fraction {value}"
    if isinstance(value, str):
        return f"this is the text {value!r}" if len(value) <= 60 else "this is a text"
    return "this is a list" if isinstance(value, (list, tuple)) else "this is a mapping"


def remedy(wanted: schema.Type, value: Any) -> str:
    """How to write what was probably meant."""
    text = value.text if isinstance(value, Odd) else value
    scalar = isinstance(value, (Odd, bool, int, float, str))
    if isinstance(wanted, schema.StrType) and scalar:
        spelt = str(text).lower() if isinstance(text, bool) else str(text)
        # A fraction's own spelling (1.10, 1e5) is gone by now, and quoting another would be a change.
        if isinstance(text, float) or len(spelt) > 60:
            return "put quotes around it if it is meant as text"
        return f'put quotes around it, "{spelt}", if it is meant as text'
    if isinstance(wanted, schema.BoolType):
        return "write true or false, without quotes"
    if isinstance(wanted, schema.IntType) and isinstance(value, str) and value.strip().isdecimal():
        return f"remove the quotes, {value.strip()}"
    if isinstance(wanted, schema.IntType) and isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if isinstance(wanted, schema.IntType):
        return "write a whole number in decimal digits, without quotes, leading zeros, separators or a fraction"
    if isinstance(wanted, schema.FloatType):
        return "write a plain decimal number"
    return "write one value"
