"""A release's pack asked in order: from a graph and a deployment to a plan."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from rulespack.catalog import UnknownModel
from rulespack.deployment import Deployment
from rulespack.errors import BadDeployment, BadGraph, BadPack, Refused, not_modelled
from rulespack.graph.capability import UndescribedFamily, for_capability
from rulespack.graph.memo import PerGraph
from rulespack.graph.model import ModelGraph
from rulespack.hooks import Accepts, CacheDtype, CacheGroup, Grouping, OwnedCaches, Pool, Resolution, Rule, WeightLayout
from rulespack.kv.pages import PageCount
from rulespack.kv.plan import Group, Plan, Reason
from rulespack.releases import DEFAULT_ENGINE, is_release, plugin_manager, resolve

if TYPE_CHECKING:
    import pluggy

    from rulespack.graph.problems import Problem
    from rulespack.graph.weights import Parameters

A = TypeVar("A")

#: The questions of which the first answer counts.
ONE_ANSWER: Final = (
    "accepts",
    "check_deployment",
    "resolve_cache_dtype",
    "resolve_engine",
    "owned_kv_cache_layers",
    "kv_cache_groups",
    "window_pages_per_request",
    "pages_per_request",
    "size_pool",
    "weight_layout",
)

#: The classes of caches that keep a sliding window.
WINDOW_TYPES: Final = ("SlidingWindowSpec", "SlidingWindowMLASpec")

#: What ``speculative_config.model`` may say where it means no model.
NO_DRAFT: Final = ("ngram", "[ngram]")


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
        self._one = {name: answering(getattr(self._hook, name)) for name in ONE_ANSWER}
        self._overlaid: dict[int, PerGraph[ModelGraph]] = {}
        self._checked = PerGraph(self._check)

    def __repr__(self) -> str:
        return f"<rulespack engine {self.engine} {self.release}>"

    def accepts(self) -> Accepts:
        """What the release takes and serves whatever the model: names of dtypes, backends, connectors, arguments."""
        return self._ask("accepts", Accepts)

    def rules(self) -> tuple[Rule, ...]:
        """The rules that the release's reasons and refusals name, in the order of the walk."""
        listed = self._hook.rules()
        if not isinstance(listed, (list, tuple)):
            raise BadPack("no plugin answers rules: a list of Rule is wanted")
        return tuple(listed)

    def check_graph(self, graph: ModelGraph) -> tuple[Problem, ...]:
        """What the graph says that this release does not know, as named problems; empty where all is well."""
        return tuple(problem for problems in self._hook.check_graph(graph=graph) for problem in problems)

    def resolve_cache_dtype(self, graph: ModelGraph, deployment: Deployment) -> CacheDtype:
        """Which cache dtype really runs."""
        return self._cache_dtype(*self._accepted(graph, deployment))

    def resolve_engine(self, graph: ModelGraph, deployment: Deployment) -> Resolution:
        """Backends, block sizes, layout, hybrid manager and lengths."""
        graph, deployment = self._accepted(graph, deployment)
        return self._resolution(graph, deployment, self._cache_dtype(graph, deployment))

    def owned_kv_cache_layers(self, graph: ModelGraph, deployment: Deployment) -> OwnedCaches:
        """Which layers own a cache, and each cache as a spec, in the engine's order."""
        graph, deployment = self._accepted(graph, deployment)
        resolution = self._resolution(graph, deployment, self._cache_dtype(graph, deployment))
        return self._owned(graph, deployment, resolution)

    def kv_cache_groups(self, graph: ModelGraph, deployment: Deployment) -> Grouping:
        """How the caches form groups, and what a block costs."""
        return self._grouped(*self._accepted(graph, deployment)).grouping

    def window_pages_per_request(self, graph: ModelGraph, deployment: Deployment) -> Mapping[int, PageCount]:
        """Blocks a request pins in each sliding-window group, by the group's position in the engine's order."""
        graph, deployment = self._accepted(graph, deployment)
        made = self._grouped(graph, deployment)
        windows = {i: group for i, group in enumerate(made.grouping.groups) if _is_window(group)}
        return {i: self._pages_of(deployment, made.resolution, group) for i, group in windows.items()}

    def plan(self, graph: ModelGraph, deployment: Deployment | None = None, *, draft: ModelGraph | None = None) -> Plan:
        """All that the release decides for ``graph`` under ``deployment`` (the engine's defaults on an H200 if None).

        ``draft`` is the draft model's graph, where ``speculative_config.model`` is not a name to load it by.

        Raises Refused: by the engine, with the error class and the stage at which the release itself stops (and the
        plan as far as it was made, where it stops after grouping), or by the pack, for what it does not model.
        """
        graph, deployment = self._accepted(graph, _beside(deployment, draft))
        made = self._grouped(graph, deployment)
        pages = self._pages(deployment, made)
        try:
            pool = self._ask(
                "size_pool",
                Pool,
                graph=graph,
                deployment=deployment,
                resolution=made.resolution,
                owned=made.owned,
                grouping=made.grouping,
                pages=pages,
            )
        except Refused as refused:
            if refused.by == "engine":  # what is not modelled has no part that could be relied on
                # Stopped while it groups, a release has not parted the groups over its stages yet.
                whole, fitted = refused.stage == "groups", refused.max_model_len
                refused.plan = self._assemble(graph, deployment, made, pages, None, whole=whole, fitted=fitted)
            raise
        return self._assemble(graph, deployment, made, pages, pool)

    def weights(
        self, graph: ModelGraph, deployment: Deployment | None = None, *, draft: ModelGraph | None = None
    ) -> Parameters | None:
        """What the first rank of the first pipeline stage holds as the model is constructed, before kernels repack it.

        Asked apart from the plan, which costs less without it. None where the release lays weights out in a way that
        is not modelled, or the graph does not say how ranks share a layer. Raises Refused where the release does not
        accept the arguments; what stops it later does not stop this answer.
        """
        from rulespack.graph.resident import resident_weights  # who asks for plans alone need not wait for it
        from rulespack.graph.shares import ExpertPadding, Undivided
        from rulespack.graph.state import Uneven

        graph, deployment = self._accepted(graph, _beside(deployment, draft))
        layout = self._weight_layout(graph, deployment)
        if layout is None:
            return None
        try:
            return resident_weights(
                graph,
                tensor_parallel_size=deployment.tensor_parallel_size,
                pipeline_parallel_size=deployment.pipeline_parallel_size,
                data_parallel_size=deployment.data_parallel_size,
                enable_expert_parallel=deployment.enable_expert_parallel,
                layers_of_stage=layout.layers_of_stage,
                head_on_every_stage=layout.head_on_every_stage,
                padding=ExpertPadding(
                    least_inner=layout.least_expert_inner,
                    inner_multiple=layout.expert_inner_multiple,
                    outer_multiple=layout.expert_outer_multiple,
                ),
            )
        except (Undivided, Uneven):
            return None

    def weight_layout(self, graph: ModelGraph, deployment: Deployment) -> WeightLayout | None:
        """How the release lays weights out over ranks, None where that is not modelled: what :meth:`weights` is
        computed from, so that releases which lay them out alike hold the same."""
        return self._weight_layout(*self._accepted(graph, deployment))

    def _weight_layout(self, graph: ModelGraph, deployment: Deployment) -> WeightLayout | None:
        layout = self._one["weight_layout"](graph=graph, deployment=deployment)
        if layout is None or isinstance(layout, WeightLayout):
            return layout
        raise BadPack(f"a {type(layout).__name__} is no answer to weight_layout: a WeightLayout or None is wanted")

    def _accepted(self, graph: ModelGraph, deployment: Deployment) -> tuple[ModelGraph, Deployment]:
        """The graph, and the draft's beside the deployment, as its GPU describes them; all accepted by the release."""
        if not isinstance(graph, ModelGraph):
            raise BadGraph(f"graph: expected a ModelGraph, such as load_model gives, got {type(graph).__name__}")
        if not isinstance(deployment, Deployment):
            said = f"deployment: expected a Deployment, as Deployment.of makes, got {type(deployment).__name__}"
            raise BadDeployment(said)
        described = self._described(graph, deployment)
        if deployment.speculative_config is not None:
            deployment = deployment.with_draft(functools.partial(self._draft, deployment))
        self._one["check_deployment"](graph=described, deployment=deployment)
        return described, deployment

    def _draft(self, deployment: Deployment) -> ModelGraph | None:
        draft = deployment.draft
        if draft is None:
            draft = named_draft(deployment)
            deployment.keep_draft(draft)
        return None if draft is None else self._described(draft, deployment)

    def _described(self, graph: ModelGraph, deployment: Deployment) -> ModelGraph:
        family = deployment.gpu.family
        overlay = self._overlaid.get(family)
        if overlay is None:
            overlay = self._overlaid[family] = PerGraph(functools.partial(for_capability, family=family))
        try:
            described = overlay(graph)
        except UndescribedFamily as error:
            raise not_modelled("capability-described", str(error)) from None
        self._checked(described)
        return described

    def _check(self, graph: ModelGraph) -> bool:
        problems = [problem for problem in self.check_graph(graph) if problem.severity == "error"]
        if problems:
            said = "; ".join(f"{problem.path}: {problem.message}" for problem in problems)
            raise not_modelled(problems[0].rule, f"the graph does not fit {self.engine} {self.release}: {said}")
        return True

    def _ask(self, question: str, kind: type[A], **arguments: object) -> A:
        """The first plugin's answer to one question; raises BadPack where it is none of the kind it must be."""
        answer = self._one[question](**arguments)
        if not isinstance(answer, kind):
            said = "no plugin answers" if answer is None else f"a {type(answer).__name__} is no answer to"
            raise BadPack(f"{said} {question}: a {kind.__name__} is wanted")
        return answer

    def _cache_dtype(self, graph: ModelGraph, deployment: Deployment) -> CacheDtype:
        answer = self._one["resolve_cache_dtype"](graph=graph, deployment=deployment)
        if isinstance(answer, str):
            said = Reason("cache-dtype", answer, {}, "a registered override says so", "override")
            return CacheDtype(answer, answer, (said,))
        if not isinstance(answer, CacheDtype):
            raise BadPack(f"{answer!r} is no answer to resolve_cache_dtype: a CacheDtype or a string is wanted")
        return answer

    def _resolution(self, graph: ModelGraph, deployment: Deployment, dtype: CacheDtype) -> Resolution:
        return self._ask("resolve_engine", Resolution, graph=graph, deployment=deployment, cache_dtype=dtype)

    def _owned(self, graph: ModelGraph, deployment: Deployment, resolution: Resolution) -> OwnedCaches:
        return self._ask(
            "owned_kv_cache_layers", OwnedCaches, graph=graph, deployment=deployment, resolution=resolution
        )

    def _grouped(self, graph: ModelGraph, deployment: Deployment) -> _Made:
        dtype = self._cache_dtype(graph, deployment)
        resolution = self._resolution(graph, deployment, dtype)
        owned = self._owned(graph, deployment, resolution)
        grouping = self._ask(
            "kv_cache_groups", Grouping, graph=graph, deployment=deployment, resolution=resolution, owned=owned
        )
        return _Made(dtype, resolution, owned, grouping)

    def _pages(self, deployment: Deployment, made: _Made) -> tuple[PageCount, ...]:
        counts: list[PageCount] = []
        last = None
        for group in made.grouping.groups:
            if group.spec is not last:  # neighbours cut from one bucket share a spec, and pin as many blocks
                last = group.spec
                count = self._pages_of(deployment, made.resolution, group)
            counts.append(count)
        return tuple(counts)

    def _pages_of(self, deployment: Deployment, resolution: Resolution, group: CacheGroup) -> PageCount:
        question = "window_pages_per_request" if _is_window(group) else "pages_per_request"
        return self._ask(question, PageCount, deployment=deployment, resolution=resolution, spec=group.spec)

    def _assemble(
        self,
        graph: ModelGraph,
        deployment: Deployment,
        made: _Made,
        pages: Sequence[PageCount],
        pool: Pool | None,
        *,
        whole: bool = False,
        fitted: int | None = None,
    ) -> Plan:
        resolved = made.resolution.resolved
        if fitted is not None:
            resolved = msgspec.structs.replace(resolved, max_model_len=fitted)
        if pool is not None:
            resolved = resolved.with_pool(pool.scheduler_block_size, pool.hash_block_size, pool.max_model_len)
        grouping = made.grouping
        cost, stages = grouping.bytes_per_block, grouping.stages
        if whole and grouping.whole_bytes_per_block is not None:
            cost, stages = grouping.whole_bytes_per_block, None
        held = stages[0].groups if stages else [group.caches for group in grouping.groups]
        blocks = [count.at(resolved.max_model_len) for count in pages]
        groups = tuple(
            Group(
                caches=group.caches,
                type=group.spec.type,
                block_size=group.spec.block_size,
                page_size_bytes=group.spec.page_size_bytes,
                blocks_per_request=pinned,
                draft=group.draft,
                padding_bytes=cost - sum(map(grouping.pages.__getitem__, caches)),
                pages=count,
            )
            for group, count, pinned, caches in zip(grouping.groups, pages, blocks, held, strict=True)
        )
        reasons = made.dtype.reasons + made.resolution.reasons + made.owned.reasons + grouping.reasons
        return Plan(
            engine=self.engine,
            release=self.release,
            model=graph.name,
            deployment=dict(deployment.stated),
            architecture=graph.globals_.architecture or "",
            resolved=resolved,
            specs=made.owned.specs,
            caches=tuple(zip(made.owned.names, made.owned.spec_of, strict=True)),
            draft_caches=made.owned.draft,
            groups=groups,
            bytes_per_block=cost,
            blocks_per_request=sum(blocks),
            backends=made.owned.backends,
            stages=stages,
            capacity=None if pool is None else pool.capacity,
            reasons=reasons if pool is None else reasons + pool.reasons,
            nearest=self._nearest,
        )


class _Made(msgspec.Struct, frozen=True):
    """The answers up to the groups."""

    dtype: CacheDtype
    resolution: Resolution
    owned: OwnedCaches
    grouping: Grouping


def answering(question: pluggy.HookCaller) -> Callable[..., Any]:
    """What answers a question that takes one answer: the hook, or the one plugin that implements it.

    Most engines are a pack without overrides. Then there is nothing to choose between, and the way through the plugin
    manager, a tenth of a plan, leads where the plugin's own function does.
    """
    plugins = question.get_hookimpls()
    if len(plugins) == 1:
        only, wanted = plugins[0], question.spec
        if wanted is not None and only.argnames == wanted.argnames and not (only.wrapper or only.hookwrapper):
            return only.function
    return question


def _beside(deployment: Deployment | None, draft: ModelGraph | None) -> Deployment:
    """The deployment that is asked for, the engine's defaults where none is, and the draft where one is given."""
    stated = Deployment() if deployment is None else deployment
    return stated if draft is None else stated.with_draft(draft)


def _is_window(group: CacheGroup) -> bool:
    return (group.spec.members or group.spec.type) in WINDOW_TYPES


def named_draft(deployment: Deployment) -> ModelGraph | None:
    """The draft that ``speculative_config.model`` names, loaded; None where it names none.

    Raises UnknownModel where there is none of that name, InvalidGraph and InvalidConfig where it cannot be read.
    """
    config = deployment.speculative_config
    named = None if config is None else config.get("model")
    if not isinstance(named, str) or named in NO_DRAFT:
        return None
    from rulespack.shelf import shelf  # only a draft that is named by its file pays for it

    try:
        return shelf().get(named)
    except UnknownModel as error:
        raise UnknownModel(
            error.model, f"speculative_config.model: {error.problem}", error.nearest, error.remedy
        ) from None


def engine(release: str, *, engine: str = DEFAULT_ENGINE, nearest: bool = False) -> Engine:
    """The engine of a release, such as ``engine("0.31.0")``; kept for the life of the process.

    ``nearest`` admits the closest lower release there is a pack for, which every plan then says. For plugins of your
    own build :class:`Engine` with ``plugins``. Raises UnknownRelease with the releases there are.
    """
    answers = resolve(release, engine, nearest=nearest)
    if is_release(release, answers):
        return _engine(answers, engine)
    return Engine(answers, engine, asked=release)


@functools.cache
def _engine(release: str, engine: str) -> Engine:
    return Engine(release, engine)
