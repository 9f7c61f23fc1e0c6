"""What makes the facts for one GPU architecture invalid."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final, TypeAlias

from rulespack.graph.check_caches import check_entries
from rulespack.graph.check_nodes import check_scale
from rulespack.graph.findings import Finding, all_nodes, near, not_among, quoted
from rulespack.graph.model import GEMM, ArchOverride, Attention, CacheOverride, GroupedGEMM, ModelGraph, NodeOverride
from rulespack.graph.problems import Path
from rulespack.graph.vocabulary import DTYPES

Findings: TypeAlias = Iterator[Finding]

_EVERY_NODE: Final[tuple[Path, ...]] = (("layer_kinds",), ("embedding",), ("head",), ("speculator",))


def check_families(graph: ModelGraph) -> Findings:
    """Each capability family is positive and stated once, as a base or by an override."""
    where: Path = ("base_capability_families",)
    overrides, bases = graph.arch_overrides, graph.base_capability_families
    if overrides and not bases:
        message = "arch_overrides differ from a base: state the capability families the base graph describes"
        yield Finding("overrides-without-base", where, message)
    stated: set[int] = set()
    for index, family in enumerate(bases):
        yield from _positive(family, (*where, index))
        if family in stated:
            yield Finding("base-family-repeated", (*where, index), f"family {family} is listed already: remove it")
        stated.add(family)
    overridden: set[int] = set()
    for index, override in enumerate(overrides):
        family, path = override.capability_family, ("arch_overrides", index, "capability_family")
        yield from _positive(family, path)
        if family in overridden:
            message = f"family {family} has an override already: state all that differs in one"
            yield Finding("override-family-repeated", path, message)
        if family in stated:
            message = f"family {family} is a base too: either the base graph describes it or an override does"
            yield Finding("family-base-and-override", path, message, (where,))
        overridden.add(family)


def _positive(family: int, path: Path) -> Findings:
    if family < 1:
        message = f"{family} is no compute-capability major version: use one such as 9 for SM90"
        yield Finding("capability-family-not-positive", path, message)


def check_overrides(graph: ModelGraph) -> Findings:
    """Each override restates something that is there."""
    if not graph.arch_overrides:
        return
    roles: dict[str, bool] = {}
    caches: set[str] = set()
    for _, node in all_nodes(graph):
        if node.role is not None:
            holds = isinstance(node, (GEMM, GroupedGEMM)) and node.aliases is None
            roles[node.role] = holds or roles.get(node.role, False)
        if isinstance(node, Attention) and node.caches:
            caches.update(cache.name for cache in node.caches)
    for index, override in enumerate(graph.arch_overrides):
        yield from _override(override, ("arch_overrides", index), roles, caches)


def _override(override: ArchOverride, path: Path, roles: dict[str, bool], caches: set[str]) -> Findings:
    if not override.nodes and not override.caches:
        message = f"the override for family {override.capability_family} overrides nothing: state nodes or caches"
        uses = ((*path, "nodes"), (*path, "caches"))
        yield Finding("override-empty", path, message, uses)
    yield from _twice([entry.role for entry in override.nodes], (*path, "nodes"), "role")
    yield from _twice([entry.name for entry in override.caches], (*path, "caches"), "name")
    for index, node in enumerate(override.nodes):
        yield from _node_entry(node, (*path, "nodes", index), roles)
    for index, cache in enumerate(override.caches):
        yield from _cache_entry(cache, (*path, "caches", index), caches)


def _twice(names: Iterable[str], path: Path, key: str) -> Findings:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            message = f"{name} is restated in an entry before this one: make them one"
            yield Finding("override-entry-repeated", (*path, index, key), message)
        seen.add(name)


def _node_entry(entry: NodeOverride, path: Path, roles: dict[str, bool]) -> Findings:
    where = (*path, "role")
    if entry.role not in roles:
        yield Finding("override-role-unknown", where, _nobody("node has the role", entry.role, roles), _EVERY_NODE)
    elif not roles[entry.role]:
        message = (
            f"no GEMM or GroupedGEMM called {entry.role} holds weights of its own, so there is no format to restate"
        )
        yield Finding("override-role-without-parameters", where, message, _EVERY_NODE)
    if entry.weight_dtype is None and entry.weight_scale is None:
        yield _restates_nothing(path, "weight_dtype", "weight_scale")
    if entry.weight_dtype is not None and entry.weight_dtype not in DTYPES:
        message = not_among("dtype", entry.weight_dtype, DTYPES)
        yield Finding("override-weight-dtype-unknown", (*path, "weight_dtype"), message)
    if entry.weight_scale is not None:
        yield from check_scale(entry.weight_scale, (*path, "weight_scale"), "override-weight-scale-not-positive")


def _cache_entry(entry: CacheOverride, path: Path, caches: set[str]) -> Findings:
    if entry.name not in caches:
        message = _nobody("node lists a cache", entry.name, caches)
        yield Finding("override-cache-unknown", (*path, "name"), message, _EVERY_NODE)
    if entry.bytes_per_entry is None and entry.page_alignment is None and not entry.bytes_by_cache_dtype:
        yield _restates_nothing(path, "bytes_per_entry", "page_alignment", "bytes_by_cache_dtype")
    if entry.bytes_per_entry is not None and entry.bytes_per_entry < 1:
        message = f"bytes_per_entry is {entry.bytes_per_entry}: a stored entry has a positive size"
        yield Finding("override-bytes-not-positive", (*path, "bytes_per_entry"), message)
    if entry.page_alignment is not None and entry.page_alignment < 1:
        message = f"page_alignment is {entry.page_alignment}: pages are rounded up to a multiple of a positive number"
        yield Finding("override-alignment-not-positive", (*path, "page_alignment"), message)
    if entry.bytes_by_cache_dtype is not None:
        yield from check_entries(entry.bytes_by_cache_dtype, (*path, "bytes_by_cache_dtype"), "override")


def _restates_nothing(path: Path, *keys: str) -> Finding:
    message = f"the entry restates nothing: state {', '.join(keys[:-1])} or {keys[-1]}, or remove it"
    return Finding("override-entry-empty", path, message, tuple((*path, key) for key in keys))


def _nobody(what: str, name: str, known: Collection[str]) -> str:
    guess = near(name, known)
    return f"no {what} {quoted(name)}" + (
        f": did you mean {guess}?" if guess else ": name one that is there, or remove it"
    )
