"""What makes a graph or an identity invalid, everything at once. ``rulespack.graph.rules`` names the rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias, TypeVar

import msgspec

from rulespack.graph.aliases import check_aliases
from rulespack.graph.check_caches import check_layer_caches, check_outside
from rulespack.graph.check_layers import check_edges, check_layer_kinds, check_stacks, check_unused, draft_only
from rulespack.graph.check_nodes import check_node, check_scale
from rulespack.graph.check_overrides import check_families, check_overrides
from rulespack.graph.check_readers import check_readers
from rulespack.graph.findings import Finding, nodes_outside, not_among, problem
from rulespack.graph.model import DerivedFrom, Global, ModelGraph, ModelIdentity, Positions
from rulespack.graph.problems import Path, Problem
from rulespack.graph.vocabulary import DTYPES, KIND, MODALITIES, MODEL_DTYPES, SHA256_LENGTH

Findings: TypeAlias = Iterator[Finding]
T = TypeVar("T", ModelGraph, ModelIdentity)

_SHA256: Final = re.compile(f"[0-9a-fA-F]{{{SHA256_LENGTH}}}")


def check_graph(graph: ModelGraph) -> list[Problem]:
    """Everything wrong with a graph, errors and warnings; empty for a valid one.

    The graph may come from a file or be built in Python, where nothing but this keeps a value to its type.
    """
    return _problems(graph, ModelGraph, graph_findings)


def check_identity(identity: ModelIdentity) -> list[Problem]:
    """Everything wrong with a model identity; empty for a valid one."""
    return _problems(identity, ModelIdentity, identity_findings)


def _problems(found: T, cls: type[T], findings: Callable[[T], Findings]) -> list[Problem]:
    try:
        msgspec.convert(data := msgspec.to_builtins(found), cls)
    except msgspec.ValidationError:
        from rulespack.graph.diagnose import diagnose

        return [problem(finding) for finding in diagnose(cls, data, findings)]
    return [problem(finding) for finding in findings(found)]


def graph_findings(graph: ModelGraph) -> Findings:
    """Every broken rule of a graph."""
    yield from _header(graph)
    yield from _derived_from(graph.derived_from)
    yield from _global(graph.globals_)
    yield from check_layer_kinds(graph)
    drafted = draft_only(graph)
    for index, kind in enumerate(graph.layer_kinds):
        path: Path = ("layer_kinds", index)
        for number, node in enumerate(kind.nodes):
            yield from check_node(node, (*path, "nodes", number), graph)
        spec_tokens = None
        if kind.id in drafted and graph.speculator is not None:
            spec_tokens = graph.speculator.num_spec_tokens
        yield from check_layer_caches(graph, kind, path, spec_tokens)
        yield from check_edges(kind, path)
    for path, node in nodes_outside(graph):
        yield from check_node(node, path, graph)
    yield from check_outside(graph)
    yield from check_stacks(graph)
    yield from check_readers(graph)
    yield from check_aliases(graph)
    yield from check_families(graph)
    yield from check_overrides(graph)
    yield from check_unused(graph)


def _header(graph: ModelGraph) -> Findings:
    if graph.kind != KIND:
        yield Finding("kind-not-model-graph", ("kind",), f"kind is {graph.kind!r}: a graph says kind: {KIND}")
    if not graph.name:
        yield Finding("name-empty", ("name",), "name is empty: give the name of the model's folder in the catalog")
    if graph.modality not in MODALITIES:
        yield Finding("modality-unknown", ("modality",), not_among("modality", graph.modality, MODALITIES))


def _derived_from(source: DerivedFrom) -> Findings:
    path = ("derived_from",)
    if not source.format:
        message = "format is empty: say what the source file is, such as hf_config_json"
        yield Finding("derived-from-format-missing", (*path, "format"), message)
    if not source.path:
        message = "path is empty: name the source file, relative to the model's folder"
        yield Finding("derived-from-path-missing", (*path, "path"), message)
    if not _SHA256.fullmatch(source.sha256):
        message = (
            f"sha256 is the source file's digest, {SHA256_LENGTH} hexadecimal digits; this has {len(source.sha256)}"
        )
        if len(source.sha256) == SHA256_LENGTH:
            message += " characters that are not all hexadecimal digits"
        yield Finding("derived-from-sha256", (*path, "sha256"), message)
    if source.deriver_version < 1:
        message = f"deriver_version is {source.deriver_version}: versions count from 1"
        yield Finding("derived-from-deriver-version", (*path, "deriver_version"), message)


def _global(shapes: Global) -> Findings:
    path = ("global",)
    for rule, key in (("hidden-size", "hidden_size"), ("vocab-size", "vocab_size")):
        if (value := getattr(shapes, key)) < 1:
            yield Finding(rule, (*path, key), f"{key} is {value}, and must be at least 1")
    if shapes.weight_dtype not in DTYPES:
        message = not_among("dtype", shapes.weight_dtype, DTYPES)
        yield Finding("global-weight-dtype-unknown", (*path, "weight_dtype"), message)
    if shapes.weight_scale is not None:
        yield from check_scale(shapes.weight_scale, (*path, "weight_scale"), "global-weight-scale-not-positive")
    yield from _context_windows(shapes, path)
    if shapes.dtype is not None and shapes.dtype not in MODEL_DTYPES:
        message = not_among("format a model computes in", shapes.dtype, MODEL_DTYPES)
        yield Finding("global-dtype-unknown", (*path, "dtype"), message)
    if shapes.positions is not None:
        yield from _positions(shapes.positions, (*path, "positions"))
    if shapes.quantization is not None and not shapes.quantization.method:
        message = "method is empty: name the engine's quantization method, or remove quantization"
        yield Finding("quantization-method-empty", (*path, "quantization", "method"), message)
    items = None if shapes.multimodal is None else shapes.multimodal.max_item_tokens
    if items is not None and items < 1:
        message = f"max_item_tokens is {items}: an item takes at least 1 token; remove it where it is not known"
        yield Finding("item-tokens-not-positive", (*path, "multimodal", "max_item_tokens"), message)


def _context_windows(shapes: Global, path: Path) -> Findings:
    whole, default = shapes.context_window, shapes.default_context_window
    if whole is not None and whole < 0:
        message = f"context_window is {whole}, and cannot be negative"
        yield Finding("context-window-negative", (*path, "context_window"), message)
    if default is None:
        return
    where, uses = (*path, "default_context_window"), ((*path, "context_window"),)
    if default < 0:
        message = f"default_context_window is {default}, and cannot be negative"
        yield Finding("default-context-window-negative", where, message)
    if whole is None:
        message = "default_context_window is a part of context_window: state that too"
        yield Finding("default-context-window-alone", where, message, uses)
    elif default > whole:
        message = f"default_context_window {default} exceeds context_window {whole}"
        yield Finding("default-context-window-exceeds", where, message, uses)


def _positions(positions: Positions, path: Path) -> Findings:
    lengths: list[tuple[Path, float | None]] = [
        ((*path, key), getattr(positions, key))
        for key in ("max_position_embeddings", "original_max_position_embeddings", "model_max_length")
    ]
    for index, rope in enumerate(positions.rope):
        here = (*path, "rope", index)
        if not rope.type:
            yield Finding("rope-type-empty", (*here, "type"), "type is empty: say how the positions are encoded")
        lengths.append(((*here, "factor"), rope.factor))
        lengths.append(((*here, "original_max_position_embeddings"), rope.original_max_position_embeddings))
    for where, value in lengths:
        if value is not None and not 0 < value < float("inf"):
            message = f"{where[-1]} is {value}, and must be positive: remove it where the configuration states none"
            yield Finding("position-not-positive", where, message)


def identity_findings(identity: ModelIdentity) -> Findings:
    """Every broken rule of a model identity."""
    if not identity.name:
        yield Finding("identity-name-empty", ("name",), "name is empty: give the name of the model's folder")
    for key, means in (
        ("provider", "the hosting service, such as huggingface"),
        ("repo", "the repository on that service"),
        ("revision", "the exact revision the configuration was taken at"),
    ):
        if not getattr(identity.source, key):
            yield Finding(f"identity-{key}-missing", ("source", key), f"{key} is empty: state {means}")
