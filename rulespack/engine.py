"""A release's pack asked in order: from a graph and a deployment to a plan."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from rulespack.deployment import Deployment
from rulespack.errors import BadPack, Refused, not_modelled
from rulespack.graph.capability import UndescribedFamily, for_capability
from rulespack.graph.memo import PerGraph
from rulespack.graph.model import ModelGraph
from rulespack.hooks import CacheDtype, CacheGroup, Grouping, OwnedCaches, Pool, Resolution
from rulespack.kv.pages import PageCount
from rulespack.kv.plan import Group, Plan, Reason
from rulespack.releases import DEFAULT_ENGINE, plugin_manager, resolve

if TYPE_CHECKING:
    from rulespack.graph.problems import Problem

A = TypeVar("A")

#: The classes of caches that keep a sliding window.
WINDOW_TYPES = ("SlidingWindowSpec", "SlidingWindowMLASpec")


class Engine:
    """One release of one engine, ready to be asked.

    Every question takes a graph and a deployment and raises :class:`~rulespack.errors.Refused` where there is no
    answer. Only work that depends on the graph alone is kept between calls.
    """

    def __init__(
        self, release: str, engine: str = DEFAULT_ENGINE, *, asked: str | None = None, plugins: Sequence[object] = ()
    ) -> None:
        self.engine = engine
        self.release = release
        self._nearest = asked if asked is not None and asked != release else None
        self._hook = plugin_manager(release, engine, plugins).hook
        self._overlaid: dict[int, PerGraph[ModelGraph]] = {}
        self._checked = PerGraph(self._check)

    def __repr__(self) -> str:
        return f"<rulespack engine {self.engine} {self.release}>"

    def check_graph(self, graph: ModelGraph) -> tuple[Problem, ...]:
        """What the graph says that this release does not know, as named problems; empty where all is well."""
        return tuple(problem for problems in self._hook.check_graph(graph=graph) for problem in problems)

    def resolve_cache_dtype(self, graph: ModelGraph, deployment: Deployment) -> CacheDtype:
        """Which cache dtype really runs."""
        return self._cache_dtype(self._accepted(graph, deployment), deployment)

    def resolve_engine(self, graph: ModelGraph, deployment: Deployment) -> Resolution:
        """Backends, block sizes, layout, hybrid manager and lengths."""
        graph = self._accepted(graph, deployment)
        return self._resolution(graph, deployment, self._cache_dtype(graph, deployment))

    def owned_kv_cache_layers(self, graph: ModelGraph, deployment: Deployment) -> OwnedCaches:
        """Which layers own a cache, and each cache as a spec, in the engine's order."""
        graph = self._accepted(graph, deployment)
        resolution = self._resolution(graph, deployment, self._cache_dtype(graph, deployment))
        return self._owned(graph, deployment, resolution)

    def kv_cache_groups(self, graph: ModelGraph, deployment: Deployment) -> Grouping:
        """How the caches form groups, and what a block costs."""
        graph = self._accepted(graph, deployment)
        resolution = self._resolution(graph, deployment, self._cache_dtype(graph, deployment))
        return self._groups(graph, deployment, resolution, self._owned(graph, deployment, resolution))

    def window_pages_per_request(self, graph: ModelGraph, deployment: Deployment) -> Mapping[int, PageCount]:
        """Blocks a request pins in each sliding-window group, by the group's position in the engine's order."""
        graph = self._accepted(graph, deployment)
        resolution = self._resolution(graph, deployment, self._cache_dtype(graph, deployment))
        groups = self._groups(graph, deployment, resolution, self._owned(graph, deployment, resolution)).groups
        pages = self._pages(deployment, resolution, groups)
        return {i: count for i, (group, count) in enumerate(zip(groups, pages, strict=True)) if _is_window(group)}

    def plan(self, graph: ModelGraph, deployment: Deployment | None = None) -> Plan:
        """All that the release decides for ``graph`` under ``deployment`` (the engine's defaults on an H200 if None).

        Raises Refused: by the engine, with the error class and the stage at which the release itself stops (and the
        plan as far as it was made, where it stops after grouping), or by the pack, for what it does not model.
        """
        if deployment is None:
            deployment = Deployment()
        graph = self._accepted(graph, deployment)
        dtype = self._cache_dtype(graph, deployment)
        resolution = self._resolution(graph, deployment, dtype)
        owned = self._owned(graph, deployment, resolution)
        grouping = self._groups(graph, deployment, resolution, owned)
        pages = self._pages(deployment, resolution, grouping.groups)
        try:
            pool = _answered(
                "size_pool",
                self._hook.size_pool(
                    graph=graph,
                    deployment=deployment,
                    resolution=resolution,
                    owned=owned,
                    grouping=grouping,
                    pages=pages,
                ),
            )
        except Refused as refused:
            refused.plan = self._assemble(graph, deployment, dtype, resolution, owned, grouping, pages, None)
            raise
        return self._assemble(graph, deployment, dtype, resolution, owned, grouping, pages, pool)

    def _accepted(self, graph: ModelGraph, deployment: Deployment) -> ModelGraph:
        """The graph as the deployment's GPU describes it, checked; the deployment accepted by the release."""
        family = deployment.gpu.family
        overlay = self._overlaid.get(family)
        if overlay is None:
            overlay = self._overlaid[family] = PerGraph(functools.partial(for_capability, family=family))
        try:
            described = overlay(graph)
        except UndescribedFamily as error:
            raise not_modelled("capability-described", str(error)) from None
        self._checked(described)
        self._hook.check_deployment(graph=described, deployment=deployment)
        return described

    def _check(self, graph: ModelGraph) -> bool:
        problems = [problem for problem in self.check_graph(graph) if problem.severity == "error"]
        if problems:
            said = "; ".join(f"{problem.path}: {problem.message}" for problem in problems)
            raise not_modelled(problems[0].rule, f"the graph does not fit {self.engine} {self.release}: {said}")
        return True

    def _cache_dtype(self, graph: ModelGraph, deployment: Deployment) -> CacheDtype:
        answer = _answered("resolve_cache_dtype", self._hook.resolve_cache_dtype(graph=graph, deployment=deployment))
        if isinstance(answer, str):
            said = Reason("resolve_cache_dtype", answer, {}, "a registered override says so", "override")
            return CacheDtype(answer, answer, (said,))
        return answer

    def _resolution(self, graph: ModelGraph, deployment: Deployment, dtype: CacheDtype) -> Resolution:
        return _answered(
            "resolve_engine", self._hook.resolve_engine(graph=graph, deployment=deployment, cache_dtype=dtype)
        )

    def _owned(self, graph: ModelGraph, deployment: Deployment, resolution: Resolution) -> OwnedCaches:
        return _answered(
            "owned_kv_cache_layers",
            self._hook.owned_kv_cache_layers(graph=graph, deployment=deployment, resolution=resolution),
        )

    def _groups(
        self, graph: ModelGraph, deployment: Deployment, resolution: Resolution, owned: OwnedCaches
    ) -> Grouping:
        return _answered(
            "kv_cache_groups",
            self._hook.kv_cache_groups(graph=graph, deployment=deployment, resolution=resolution, owned=owned),
        )

    def _pages(
        self, deployment: Deployment, resolution: Resolution, groups: Sequence[CacheGroup]
    ) -> tuple[PageCount, ...]:
        counts = []
        last, count = None, None
        for group in groups:
            if group.spec is not last:  # neighbours that share a spec pin the same number of blocks
                last = group.spec
                ask = self._hook.window_pages_per_request if _is_window(group) else self._hook.pages_per_request
                count = _answered(
                    "pages_per_request", ask(deployment=deployment, resolution=resolution, spec=group.spec)
                )
            assert count is not None
            counts.append(count)
        return tuple(counts)

    def _assemble(
        self,
        graph: ModelGraph,
        deployment: Deployment,
        dtype: CacheDtype,
        resolution: Resolution,
        owned: OwnedCaches,
        grouping: Grouping,
        pages: Sequence[PageCount],
        pool: Pool | None,
    ) -> Plan:
        resolved = resolution.resolved
        if pool is not None:
            resolved = resolved.with_pool(pool.scheduler_block_size, pool.hash_block_size, pool.max_model_len)
        length = resolved.max_model_len
        cost, stages = grouping.bytes_per_block, grouping.stages
        if pool is None and grouping.whole_bytes_per_block is not None:
            cost, stages = grouping.whole_bytes_per_block, None
        total = 0
        groups = []
        for group, count in zip(grouping.groups, pages, strict=True):
            spec = group.spec
            blocks = count.at(length)
            total += blocks
            groups.append(
                Group(
                    caches=group.caches,
                    type=spec.type,
                    block_size=spec.block_size,
                    page_size_bytes=spec.page_size_bytes,
                    blocks_per_request=blocks,
                    draft=group.draft,
                    padding_bytes=cost - group.bytes_used,
                    pages=count,
                )
            )
        reasons = dtype.reasons + resolution.reasons + owned.reasons + grouping.reasons
        return Plan(
            engine=self.engine,
            release=self.release,
            model=graph.name,
            deployment=deployment.stated,
            architecture=graph.globals_.architecture or "",
            resolved=resolved,
            specs=owned.specs,
            caches=tuple(zip(owned.names, owned.spec_of, strict=True)),
            draft_caches=owned.draft,
            groups=tuple(groups),
            bytes_per_block=cost,
            blocks_per_request=total,
            backends=owned.backends,
            stages=stages,
            capacity=None if pool is None else pool.capacity,
            reasons=reasons if pool is None else reasons + pool.reasons,
            nearest=self._nearest,
        )


def _is_window(group: CacheGroup) -> bool:
    return (group.spec.members or group.spec.type) in WINDOW_TYPES


def _answered(question: str, answer: A | None) -> A:
    if answer is None:
        raise BadPack(f"no plugin answers {question}")
    return answer


@functools.cache
def engine(release: str, *, engine: str = DEFAULT_ENGINE, nearest: bool = False) -> Engine:
    """The engine of a release, such as ``engine("0.31.0")``; kept for the life of the process.

    ``nearest`` admits the closest lower release there is a pack for, which every plan then says. For plugins of your
    own build :class:`Engine` with ``plugins``. Raises UnknownRelease with the releases there are.
    """
    return Engine(resolve(release, engine, nearest=nearest), engine, asked=release if nearest else None)
