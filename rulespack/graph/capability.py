"""One GPU architecture's overlay applied, so that every later step reads plain facts."""

from __future__ import annotations

import msgspec

from rulespack.errors import RulespackError
from rulespack.graph.model import (
    GEMM,
    AnyNode,
    ArchOverride,
    Attention,
    Cache,
    CacheOverride,
    GroupedGEMM,
    ModelGraph,
    NodeOverride,
)


class UndescribedFamily(RulespackError):
    """The graph does not say how it is served on this capability family; ``families`` holds those it describes."""

    def __init__(self, name: str, family: int, families: tuple[int, ...]) -> None:
        """The graph called ``name`` describes ``families`` and not ``family``."""
        super().__init__(name, family, families)
        self.name = name
        self.family = family
        self.families = families

    def __str__(self) -> str:
        """Which family was asked for, and which there are."""
        described = ", ".join(map(str, self.families))
        return (
            f"the graph {self.name} does not describe GPUs of compute capability family {self.family}; "
            f"it describes {described}"
        )


def families(graph: ModelGraph) -> tuple[int, ...]:
    """The compute-capability major versions the graph describes, lowest first; empty where it holds for all."""
    return tuple(
        sorted({*graph.base_capability_families, *(override.capability_family for override in graph.arch_overrides)})
    )


def for_capability(graph: ModelGraph, family: int) -> ModelGraph:
    """The graph as it is served on GPUs of compute-capability major version ``family`` (9 for SM90).

    The matching override is applied, none is left, and ``family`` is the result's only base. A graph that names no
    family holds for every one and is returned as it is. Raises :class:`UndescribedFamily` for a family that is neither
    a base nor overridden, zero (a device without a compute capability) included.
    """
    described = families(graph)
    if not described:
        return graph
    if family not in described:
        raise UndescribedFamily(graph.name, family, described)
    if described == (family,) and not graph.arch_overrides:
        return graph
    for override in graph.arch_overrides:
        if override.capability_family == family:
            graph = _applied(graph, override)
    return msgspec.structs.replace(graph, arch_overrides=(), base_capability_families=(family,))


def _applied(graph: ModelGraph, override: ArchOverride) -> ModelGraph:
    roles = {entry.role: entry for entry in override.nodes}
    caches = {entry.name: entry for entry in override.caches}

    def restated(nodes: tuple[AnyNode, ...]) -> tuple[AnyNode, ...]:
        return tuple(_node(node, roles, caches) for node in nodes)

    speculator = graph.speculator
    if speculator is not None:
        speculator = msgspec.structs.replace(
            speculator,
            embedding=restated(speculator.embedding),
            head=restated(speculator.head),
            sequential_head=restated(speculator.sequential_head),
        )
    return msgspec.structs.replace(
        graph,
        layer_kinds=tuple(msgspec.structs.replace(kind, nodes=restated(kind.nodes)) for kind in graph.layer_kinds),
        embedding=restated(graph.embedding),
        head=restated(graph.head),
        speculator=speculator,
    )


def _node(node: AnyNode, roles: dict[str, NodeOverride], caches: dict[str, CacheOverride]) -> AnyNode:
    if isinstance(node, (GEMM, GroupedGEMM)):
        entry = roles.get(node.role or "")
        # An alias holds no weights: it is read in its target's format, wherever that is restated.
        if entry is None or node.aliases is not None:
            return node
        return msgspec.structs.replace(
            node,
            weight_dtype=node.weight_dtype if entry.weight_dtype is None else entry.weight_dtype,
            weight_scale=node.weight_scale if entry.weight_scale is None else entry.weight_scale,
        )
    if isinstance(node, Attention) and node.caches and any(cache.name in caches for cache in node.caches):
        return msgspec.structs.replace(node, caches=tuple(_cache(cache, caches) for cache in node.caches))
    return node


def _cache(cache: Cache, caches: dict[str, CacheOverride]) -> Cache:
    entry = caches.get(cache.name)
    if entry is None:
        return cache
    by_dtype = cache.bytes_by_cache_dtype
    if entry.bytes_by_cache_dtype is not None:
        by_dtype = {**(by_dtype or {}), **entry.bytes_by_cache_dtype}
    alignment = cache.page_alignment
    if cache.owned and entry.page_alignment is not None:
        alignment = entry.page_alignment
    return msgspec.structs.replace(
        cache,
        bytes_per_entry=cache.bytes_per_entry if entry.bytes_per_entry is None else entry.bytes_per_entry,
        page_alignment=alignment,
        bytes_by_cache_dtype=by_dtype,
    )
