"""A graph as canonical YAML: one way to write each graph, made to be read and to be compared line by line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from rulespack.graph.model import ModelGraph
from rulespack.graph.scalars import plain

#: Flow collections are wrapped so that no line grows past this, where a break is possible.
WIDTH: Final = 100

_GRAPH_KEYS: Final = (
    "kind",
    "name",
    "derived_from",
    "modality",
    "global",
    "embedding",
    "layer_kinds",
    "stack",
    "head",
    "speculator",
    "base_capability_families",
    "arch_overrides",
)
_SPECULATOR_KEYS: Final = (
    "method",
    "num_spec_tokens",
    "modules",
    "drafting",
    "embedding",
    "stack",
    "context_stack",
    "head",
    "sequential_head",
)
_GLOBAL_KEYS: Final = (
    "architecture",
    "hidden_size",
    "vocab_size",
    "tie_word_embeddings",
    "weight_dtype",
    "weight_scale",
    "context_window",
    "default_context_window",
    "dtype",
)
#: A node opens with what it is and closes with how it is divided and stored, whatever primitive stands between.
_NODE_FIRST: Final = ("op", "role", "emit", "recurrent_kind", "kind")
_NODE_LAST: Final = (
    "tp",
    "weight_dtype",
    "weight_scale",
    "under_sequence_parallel",
    "aliases",
    "context",
    "caches",
)
#: Letters first, and nothing that YAML gives a meaning to inside a flow collection.
_SAFE_TEXT: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+@-]*")


def dump_graph(graph: ModelGraph) -> str:
    """The graph as YAML text that ends with a newline and loads back to an equal graph.

    Keys stand in a fixed order, values equal to their default are left out (``tie_word_embeddings`` is always
    written), and small parts such as a node stand on a line of their own. Raises ValueError where a value cannot be
    written (a lone surrogate, a number that is not finite).
    """
    data: dict[str, Any] = msgspec.to_builtins(graph)
    data["global"].setdefault("tie_word_embeddings", False)
    lines: list[str] = []
    for key, value in _ordered(data, _GRAPH_KEYS):
        _section(lines, key, value)
    return "\n".join(lines) + "\n"


def _section(lines: list[str], key: str, value: Any) -> None:
    if key == "layer_kinds" and value:
        lines.append("layer_kinds:")
        for kind in value:
            _layer_kind(lines, kind)
    elif key == "speculator":
        lines.append("speculator:")
        for part, content in _ordered(value, _SPECULATOR_KEYS):
            _entry(lines, part, content, "  ", "  ")
    elif key == "arch_overrides":
        lines.append("arch_overrides:")
        for override in value:
            lead = "- "
            for part, content in override.items():
                _entry(lines, part, content, "  ", lead)
                lead = "  "
    elif key == "global":
        lines.append("global:")
        for part, content in _ordered(value, _GLOBAL_KEYS):
            _entry(lines, part, content, "  ", "  ")
    else:
        _entry(lines, key, value, "", "")


def _layer_kind(lines: list[str], kind: dict[str, Any]) -> None:
    lead = "- "
    for key, value in kind.items():
        _entry(lines, key, value, "  ", lead)
        lead = "  "


def _entry(lines: list[str], key: str, value: Any, indent: str, before: str) -> None:
    """One key of a block mapping at ``indent``; ``before`` is what its first line starts with."""
    if value and isinstance(value, dict) and key in _BLOCK_MAPPINGS:
        lines.append(f"{before}{key}:")
        for part, content in value.items():
            _entry(lines, part, content, indent + "  ", indent + "  ")
    elif isinstance(value, Sequence) and not isinstance(value, str) and value and isinstance(value[0], dict):
        _nodes(lines, key, value, indent, before)
    else:
        _flow(lines, f"{before}{key}: ", value, indent)


_BLOCK_MAPPINGS: Final = frozenset({"derived_from", "stack", "context_stack", "positions"})


def _nodes(lines: list[str], key: str, nodes: Sequence[dict[str, Any]], indent: str, before: str) -> None:
    """A block list of mappings, each on one line unless it holds a list of caches."""
    lines.append(f"{before}{key}:")
    for node in nodes:
        ordered = dict(_ordered(node, _node_keys(tuple(node)))) if "op" in node else node
        caches = ordered.pop("caches", None)
        if caches is None:
            _flow(lines, f"{indent}- ", ordered, indent + "   ")
            continue
        lead = "- "
        for part, content in ordered.items():
            _flow(lines, f"{indent}{lead}{part}: ", content, indent + "  ")
            lead = "  "
        if not caches:
            lines.append(f"{indent}  caches: []")
            continue
        lines.append(f"{indent}  caches:")
        for entry in caches:
            _flow(lines, f"{indent}  - ", entry, indent + "     ")


@cache
def _node_keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    own = tuple(key for key in keys if key not in _NODE_FIRST and key not in _NODE_LAST)
    common = [key for key in _NODE_FIRST if key in keys]
    return (*common, *own, *(key for key in _NODE_LAST if key in keys))


def _ordered(data: Mapping[str, Any], keys: Iterable[str]) -> Iterable[tuple[str, Any]]:
    """The entries of ``data``: those of ``keys`` first, in that order, then the rest as they come."""
    first = [key for key in keys if key in data]
    for key in first:
        yield key, data[key]
    for key, value in data.items():
        if key not in first:
            yield key, value


def _flow(lines: list[str], before: str, value: Any, indent: str) -> None:
    """A value in flow style after ``before``, its top-level items wrapped at WIDTH."""
    whole = before + _inline(value)
    if len(whole) <= WIDTH or not isinstance(value, (dict, list, tuple)):
        lines.append(whole)
        return
    if isinstance(value, dict):
        opening, closing = "{", "}"
        items = [f"{text(key)}: {_inline(item)}" for key, item in value.items()]
    else:
        opening, closing = "[", "]"
        items = [_inline(item) for item in value]
    line = before + opening
    # What is wrapped stands under the first item where the opening bracket opens the line.
    hang = " " * len(line) if before.endswith("- ") else indent + "  "
    for number, item in enumerate(items):
        piece = item + (closing if number == len(items) - 1 else ",")
        if number and len(line) + 1 + len(piece) > WIDTH:
            lines.append(line)
            line = hang + piece
        else:
            line += piece if number == 0 else " " + piece
    lines.append(line)


def _inline(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{text(key)}: {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, float) and value - value != 0:
        raise ValueError(f"{value} is not a finite number")
    return repr(value)


def text(value: str) -> str:
    """A string as a YAML scalar: plain where every reader takes it for that string, double-quoted otherwise."""
    if _SAFE_TEXT.fullmatch(value) and plain(value) == value:
        return value
    if _plain_digest(value):
        return value
    return '"' + "".join(map(_escaped, value)) + '"'


def _plain_digest(value: str) -> bool:
    """Whether a text that starts with a digit, as most digests and revisions do, is still text to every reader."""
    return value.isalnum() and value.isascii() and value[0].isdigit() and plain(value) == value


@cache
def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char.isprintable():
        return char
    point = ord(char)
    if 0xD800 <= point <= 0xDFFF:
        raise ValueError(f"U+{point:04X} is half of a surrogate pair and cannot be written as text")
    if point < 0x100:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
