"""Why a document does not have the shape of the schema: every problem at once, each with where and what to do.

Only a document that the strict decoder refused comes here. The schema is the model classes, nothing is said twice: the
walk goes down the document and the classes side by side, notes what does not fit, and puts a stand-in where a value is
missing or unusable, so that the rest can still be checked for meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect as schema

from rulespack.graph.findings import Finding, near
from rulespack.graph.model import (
    ArchOverride,
    Cache,
    Context,
    DerivedFrom,
    Gather,
    Global,
    LayerKind,
    ModelGraph,
    ModelIdentity,
    Node,
    Source,
    Speculator,
    WeightScale,
)
from rulespack.graph.problems import Path
from rulespack.graph.scalars import INT64_MAX, INT64_MIN, Odd
from rulespack.graph.wording import NAMES, TOO_BIG, remedy, shown, title

#: What a missing key breaks, where the rule has a name of its own.
_MISSING: Final[dict[tuple[type, str], str]] = {
    (ModelGraph, "kind"): "kind-not-model-graph",
    (ModelGraph, "name"): "name-empty",
    (ModelGraph, "layer_kinds"): "layer-kinds-empty",
    (ModelGraph, "stack"): "stack-empty",
    (DerivedFrom, "format"): "derived-from-format-missing",
    (DerivedFrom, "path"): "derived-from-path-missing",
    (DerivedFrom, "sha256"): "derived-from-sha256",
    (DerivedFrom, "deriver_version"): "derived-from-deriver-version",
    (Global, "hidden_size"): "hidden-size",
    (Global, "vocab_size"): "vocab-size",
    (Global, "weight_dtype"): "global-weight-dtype-unknown",
    (LayerKind, "id"): "layer-kind-id-empty",
    (LayerKind, "nodes"): "layer-kind-without-nodes",
    (Speculator, "method"): "speculator-method-missing",
    (Speculator, "num_spec_tokens"): "speculator-draft-tokens",
    (Speculator, "stack"): "speculator-pattern-missing",
    (Cache, "name"): "cache-name-missing",
    (Cache, "kind"): "cache-kind-unknown",
    (Cache, "owned"): "cache-owned-missing",
    (Cache, "bytes_per_entry"): "cache-bytes-not-positive",
    (Context, "bytes_per_entry"): "context-bytes-not-positive",
    (Context, "per"): "context-per-unknown",
    (WeightScale, "elements"): "weight-scale-not-positive",
    (WeightScale, "bytes"): "weight-scale-not-positive",
    (ArchOverride, "capability_family"): "capability-family-not-positive",
    (ModelIdentity, "name"): "identity-name-empty",
    (ModelIdentity, "source"): "identity-source-missing",
    (Source, "provider"): "identity-provider-missing",
    (Source, "repo"): "identity-repo-missing",
    (Source, "revision"): "identity-revision-missing",
}
_SCALE_RULES: Final = {
    "global": "global-weight-scale-not-positive",
    "arch_overrides": "override-weight-scale-not-positive",
}

#: What a key on a primitive that does not have it breaks, where the rule has a name of its own.
_ELSEWHERE: Final = {
    "weight_dtype": "weight-dtype-elsewhere",
    "weight_scale": "weight-scale-elsewhere",
    "caches": "caches-elsewhere",
    "per_tokens": "per-tokens-elsewhere",
    "context": "context-elsewhere",
    "writes_cache": "writes-cache-elsewhere",
    "bytes_per_token": "bytes-per-token-elsewhere",
    "index_topk": "index-topk-elsewhere",
    "compress_ratio": "compress-ratio-elsewhere",
    **{field.encode_name: "gather-key-elsewhere" for field in msgspec.structs.fields(Gather)[5:]},
}


#: How many problems of a document get a guess at the key that was meant.
_GUESSED: Final = 1000

T = TypeVar("T", ModelGraph, ModelIdentity)


def diagnose(
    cls: type[T], data: Any, checks: Callable[[T], Iterator[Finding]], partial: frozenset[int] = frozenset()
) -> Iterator[Finding]:
    """What keeps ``data`` from being a ``cls``, and every broken rule of ``checks`` that does not hang on that.

    ``partial`` holds the mappings, by ``id()``, that lost a key when the text was read: what they lack is not missed.
    """
    walk = _Walk(partial)
    usable = walk.struct(cls, data, ())
    yield from walk.findings
    if () in walk.damaged:
        return
    around = {path[:depth] for path in walk.damaged for depth in range(len(path))}
    for found in checks(msgspec.convert(usable, cls)):
        if not _in_doubt(found, walk.damaged, around):
            yield found


def _in_doubt(finding: Finding, damaged: set[Path], around: set[Path]) -> bool:
    """Whether a finding rests on something that is damaged, stands in it, or stands ``around`` it."""
    rests_on = (finding.path, *finding.uses)
    return any(path in around for path in rests_on) or any(
        path[:depth] in damaged for path in (*rests_on, *finding.given) for depth in range(len(path) + 1)
    )


class _Walk:
    """The walk over one document."""

    def __init__(self, partial: frozenset[int]) -> None:
        self.partial = partial
        self.findings: list[Finding] = []
        #: Where the data holds a stand-in for what the document does not say.
        self.damaged: set[Path] = set()

    def struct(self, cls: type, value: Any, path: Path) -> Any:
        """``value`` as data that decodes to ``cls``."""
        return self._struct(_schema_of(cls), value, path)

    def _note(self, rule: str, path: Path, message: str) -> None:
        self.findings.append(Finding(rule, path, message))

    def _value(self, wanted: schema.Type, value: Any, path: Path) -> Any:
        """``value`` where it fits, a stand-in where it does not."""
        if isinstance(wanted, schema.UnionType):
            parts = [part for part in wanted.types if not isinstance(part, schema.NoneType)]
            if len(parts) > 1:
                return self._node(parts, value, path)
            return self._value(parts[0], value, path)
        if isinstance(wanted, schema.StructType):
            return self._struct(wanted, value, path)
        if isinstance(wanted, schema.VarTupleType):
            return self._list(wanted.item_type, value, path)
        if isinstance(wanted, schema.TupleType):
            return self._pair(wanted, value, path)
        if isinstance(wanted, schema.DictType):
            return self._dict(wanted, value, path)
        return self._scalar(wanted, value, path)

    def _scalar(self, wanted: schema.Type, value: Any, path: Path) -> Any:
        fits = {
            schema.StrType: type(value) is str,
            schema.BoolType: type(value) is bool,
            schema.IntType: type(value) is int,
            schema.FloatType: type(value) in (int, float),
        }
        if fits[type(wanted)]:
            if type(value) is not int or INT64_MIN <= value <= INT64_MAX:
                return value
            self._note("integer-out-of-range", path, f"{value} {TOO_BIG}")
        elif value is None:
            self._null(path)
        elif isinstance(value, Odd) and value.reads == "an integer outside 64 bits" and type(wanted) is schema.IntType:
            number = value.text if len(value.text) <= 60 else "the number"
            self._note("integer-out-of-range", path, f"{number} {TOO_BIG}")
        else:
            wants = NAMES.get(type(wanted), "true or false")
            self._note("mistyped-value", path, f"{shown(value)}, and the key takes {wants}: {remedy(wanted, value)}")
        return self._stand_in(wanted, path)

    def _null(self, path: Path) -> None:
        message = "the key has no value: remove it (a key left out says that nothing is stated), or give it one"
        self._note("null-value", path, message)

    def _wrong_shape(self, wants: str, value: Any, path: Path) -> None:
        if value is None:
            self._null(path)
        else:
            self._note("mistyped-value", path, f"{shown(value)}, and {wants} belongs here")

    def _stand_in(self, wanted: schema.Type, path: Path) -> Any:
        self.damaged.add(path)
        return _blank(wanted)

    def _list(self, item: schema.Type, value: Any, path: Path) -> Any:
        if not isinstance(value, (list, tuple)):
            self._wrong_shape("a list", value, path)
            self.damaged.add(path)
            return []
        return [self._value(item, entry, (*path, index)) for index, entry in enumerate(value)]

    def _pair(self, wanted: schema.TupleType, value: Any, path: Path) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(wanted.item_types):
            self._wrong_shape("a pair [from, to] of node numbers", value, path)
            return self._stand_in(wanted, path)
        pair = [self._value(part, value[index], (*path, index)) for index, part in enumerate(wanted.item_types)]
        if any((*path, index) in self.damaged for index in range(len(pair))):
            self.damaged.add(path)
        return pair

    def _dict(self, wanted: schema.DictType, value: Any, path: Path) -> Any:
        if not isinstance(value, dict):
            self._wrong_shape("a mapping", value, path)
            self.damaged.add(path)
            return {}
        return {key: self._value(wanted.value_type, entry, (*path, key)) for key, entry in value.items()}

    def _node(self, parts: list[schema.Type], value: Any, path: Path) -> Any:
        """A node: which primitive it is says which keys it takes."""
        primitives = {str(part.tag): part for part in parts if isinstance(part, schema.StructType)}
        if not isinstance(value, dict):
            self._wrong_shape("a node, a mapping with an op,", value, path)
        elif "op" not in value:
            misspelt = [key for key in value if key.casefold() == "op"]
            meant = f": {misspelt[0]} is written op" if misspelt else f": state one of {', '.join(primitives)}"
            self._note("op-missing", path, "the node has no op" + meant)
        elif not isinstance(value["op"], str):
            self._scalar(schema.StrType(), value["op"], (*path, "op"))
        elif value["op"] in primitives:
            return self._struct(primitives[value["op"]], value, path)
        else:
            guess = near(value["op"], primitives)
            meant = f"did you mean {guess}?" if guess else f"use one of {', '.join(primitives)}"
            self._note("op-unknown", (*path, "op"), f"{value['op']!r} is no primitive; {meant}")
            if guess:
                self.damaged.add((*path, "op"))
                return self._struct(primitives[guess], {**value, "op": guess}, path)
        self.damaged.add(path)
        return {"op": "Elementwise"}

    def _struct(self, wanted: schema.StructType, value: Any, path: Path) -> Any:
        if not isinstance(value, dict):
            self._wrong_shape("a mapping", value, path)
            return self._stand_in(wanted, path)
        fields = {field.encode_name: field for field in wanted.fields}
        result: dict[str, Any] = {} if wanted.tag is None else {"op": wanted.tag}
        meant = self._unknown_keys(wanted, value, [*fields, *result], path)
        for key, field in fields.items():
            where = (*path, key)
            if key in value:
                result[key] = self._value(field.type, value[key], where)
                if value[key] is None and not field.required:
                    del result[key]
            elif key in meant or (id(value) in self.partial):
                self.damaged.add(where)
                if field.required:
                    result[key] = _blank(field.type)
            elif field.required:
                self._missing(wanted.cls, key, where)
                result[key] = self._stand_in(field.type, where)
        return result

    def _missing(self, cls: type, key: str, path: Path) -> None:
        rule = _MISSING.get((cls, key), "missing-key")
        if issubclass(cls, Node):
            rule = "gather-key-missing" if cls is Gather else "node-key-missing"
        elif cls is WeightScale:
            rule = _SCALE_RULES.get(str(path[0]), rule)
        self._note(rule, path, f"{title(cls)} needs {key}: state it")

    def _unknown_keys(self, wanted: schema.StructType, value: dict[str, Any], known: list[str], path: Path) -> set[str]:
        """Note the keys the class does not have; the keys that were probably meant by them come back."""
        meant: set[str] = set()
        for key in value:
            if key in known:
                continue
            where = (*path, key)
            owner = _node_keys().get(key) if issubclass(wanted.cls, Node) else None
            if owner is not None:
                message = f"{key} is a key of {owner} and means nothing on {wanted.cls.__name__}: remove it"
                self._note(_ELSEWHERE.get(key, "key-of-other-primitive"), where, message)
                continue
            free = [name for name in known if name not in value]
            # A document with that many problems is not helped by guesses, and each takes a while.
            guess = near(key, free) or near(key, known) if len(self.findings) < _GUESSED else None
            if guess is None:
                others = _homes().get(key, [])
                hint = f"it is a key of {' and of '.join(others)}" if others else f"the keys are {', '.join(known)}"
            else:
                hint = f"did you mean {guess}?"
                meant.add(guess)
            self._note("unknown-key", where, f"{title(wanted.cls)} has no key {key}; {hint}")
        return meant


@cache
def _schema_of(cls: type) -> schema.StructType:
    found = schema.type_info(cls)
    assert isinstance(found, schema.StructType)
    return found


@cache
def _structs() -> tuple[schema.StructType, ...]:
    """Every class of the schema, once."""
    found: dict[type, schema.StructType] = {}

    def visit(wanted: schema.Type) -> None:
        if isinstance(wanted, schema.StructType) and wanted.cls not in found:
            found[wanted.cls] = wanted
            for field in wanted.fields:
                visit(field.type)
        elif isinstance(wanted, schema.UnionType):
            for part in wanted.types:
                visit(part)
        elif isinstance(wanted, schema.VarTupleType):
            visit(wanted.item_type)

    for cls in (ModelGraph, ModelIdentity):
        visit(_schema_of(cls))
    return tuple(found.values())


@cache
def _node_keys() -> dict[str, str]:
    """The primitives that have a key, for every key of a node."""
    owners: dict[str, list[str]] = {}
    for wanted in _structs():
        if issubclass(wanted.cls, Node):
            for field in wanted.fields:
                owners.setdefault(field.encode_name, []).append(wanted.cls.__name__)
    return {key: " and ".join(names) for key, names in owners.items()}


@cache
def _homes() -> dict[str, list[str]]:
    """The parts of a document that have a key, for every key outside nodes."""
    homes: dict[str, list[str]] = {}
    for wanted in _structs():
        if not issubclass(wanted.cls, Node):
            for field in wanted.fields:
                homes.setdefault(field.encode_name, []).append(title(wanted.cls))
    return homes


def _blank(wanted: schema.Type) -> Any:
    """The plainest value of a type."""
    if isinstance(wanted, schema.UnionType):
        return None if any(isinstance(part, schema.NoneType) for part in wanted.types) else {"op": "Elementwise"}
    if isinstance(wanted, schema.StructType):
        blank = {field.encode_name: _blank(field.type) for field in wanted.fields if field.required}
        return blank if wanted.tag is None else {"op": wanted.tag, **blank}
    if isinstance(wanted, schema.VarTupleType):
        return []
    if isinstance(wanted, schema.TupleType):
        return [0, 1]
    if isinstance(wanted, schema.DictType):
        return {}
    return {schema.StrType: "?", schema.IntType: 1, schema.FloatType: 1.0, schema.BoolType: False}[type(wanted)]
