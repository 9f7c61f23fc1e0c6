"""A table of rules as a plugin: each hook is one or two rules of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple
from weakref import ref

import msgspec
from msgspec.structs import asdict

from rulespack.deployment import Deployment
from rulespack.errors import Refused, engine_refuses, not_modelled
from rulespack.graph.memo import PerGraph
from rulespack.graph.model import ModelGraph
from rulespack.graph.problems import Problem
from rulespack.hooks import (
    Accepts,
    CacheDtype,
    Grouping,
    LayerBackend,
    OwnedCaches,
    Pool,
    Resolution,
    Rule,
    WeightLayout,
    hookimpl,
)
from rulespack.kv.pages import PageCount
from rulespack.kv.plan import Reason, Resolved
from rulespack.kv.specs import Spec
from vllm_0_29.accepts import accepts
from vllm_0_29.attention_config import check_indexer
from vllm_0_29.backends import model_dtype
from vllm_0_29.config_checks import check_names
from vllm_0_29.draft_checks import check_local_argmax, check_schedule
from vllm_0_29.draft_layers import TAKEN_FOR_STATED
from vllm_0_29.draft_modules import drafted, read_draft, run_method
from vllm_0_29.drafts import (
    WITHOUT_DRAFT,
    check_head,
    check_inner_states,
    check_slots,
    draft_reason,
    extra_retained_tokens,
    method_of,
    speculative_tokens,
)
from vllm_0_29.graph_checks import check_graph
from vllm_0_29.lengths import derived_length
from vllm_0_29.listing import listed
from vllm_0_29.model import Model, read_model
from vllm_0_29.pool import auto_fitted
from vllm_0_29.rules import Rules, Settings
from vllm_0_29.scheduler import prefix_caching
from vllm_0_29.shards import check_shards
from vllm_0_29.stage_sizes import stage_sizes
from vllm_0_29.stages import PARTITION, stage_of
from vllm_0_29.windows import windowless

#: How many drafts are kept beside one target.
KEPT_DRAFTS: Final = 16


class _Drafted(NamedTuple):
    """A model with a drafter's caches after its own, and the draft checkpoint they come from, if any."""

    draft: Callable[[], ModelGraph | None]
    model: Model


class _Last(NamedTuple):
    """The question that was last answered with a drafter. Neither graph nor deployment is kept alive by it."""

    graph: ref[ModelGraph]
    deployment: ref[Deployment]
    model: Model


class _Answered(NamedTuple):
    """The specs last made, and what of."""

    model: Model
    deployment: ref[Deployment]
    backends: Sequence[LayerBackend]
    settings: Settings
    specs: Sequence[Spec]


def _weakly(draft: ModelGraph | None) -> Callable[[], ModelGraph | None]:
    return (lambda: None) if draft is None else ref(draft)


class Pack:
    """One release's plugin. What depends on a graph alone is read once and kept with the graph."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._target = PerGraph(lambda graph: read_model(graph, rules.architectures))
        self._derived = PerGraph(lambda graph: self._derive(self._target(graph)))
        self._windowless = PerGraph(lambda graph: windowless(self._target(graph)))
        self._drafted: PerGraph[dict[object, _Drafted]] = PerGraph(lambda graph: {})
        self._last: _Last | None = None
        self._answered: _Answered | None = None

    def _derive(self, model: Model) -> float:
        return derived_length(self.rules, model, model.positions)[0]

    def _model(self, graph: ModelGraph, deployment: Deployment) -> Model:
        """The graph as the release reads it, with the caches of the deployment's drafter after its own."""
        if deployment.speculative_config is None:
            return (self._windowless if deployment.disable_sliding_window else self._target)(graph)
        model = self._target(graph)
        last = self._last
        if last is not None and last.graph() is graph and last.deployment() is deployment:  # one plan asks six times
            return last.model
        method = method_of(self.rules, deployment)
        assert method is not None
        kept = self._drafted(graph)
        given = None if method in WITHOUT_DRAFT else deployment.draft
        # All that reading a draft looks at, so that no answer depends on what was asked before.
        key = (
            repr(deployment.speculative_config),
            id(given),
            deployment.pipeline_parallel_size,
            deployment.env.get(PARTITION),
        )
        found = kept.get(key)
        if found is None or found.draft() is not given:
            if len(kept) >= KEPT_DRAFTS:
                kept.clear()
            draft = read_draft(self.rules, graph, model, deployment, run_method(method, given))
            found = kept[key] = _Drafted(_weakly(given), drafted(model, draft))
        self._last = _Last(ref(graph), ref(deployment), found.model)
        return found.model

    @hookimpl
    def pack_release(self) -> str:
        """The release, such as ``0.29.0``."""
        return self.rules.release

    @hookimpl
    def known_arguments(self) -> Mapping[str, str]:
        """The arguments beyond the modelled ones, by kind."""
        return self.rules.arguments

    @hookimpl
    def accepts(self) -> Accepts:
        """What the release takes and serves, by name."""
        return accepts(self.rules)

    @hookimpl(specname="rules")
    def listed_rules(self) -> Sequence[Rule]:
        """The rules that reasons and refusals name, with what decides each."""
        return listed(self.rules)

    @hookimpl
    def check_graph(self, graph: ModelGraph) -> Sequence[Problem]:
        """What the graph says that the release does not know."""
        return check_graph(self.rules, graph)

    @hookimpl
    def check_deployment(self, graph: ModelGraph, deployment: Deployment) -> bool:
        """True where the release accepts the arguments for this model; raises Refused where it does not."""
        unserved = self.rules.unserved.get(graph.globals_.architecture or "")
        if unserved is not None:
            raise engine_refuses("architecture-served", unserved.type, unserved.stage, unserved.reason, unserved.source)
        if graph.globals_.architecture not in self.rules.architectures:
            raise not_modelled("draft-has-a-target", f"{graph.name} drafts for another model: name it as its draft")
        check_names(self.rules, deployment)
        asked = deployment.max_model_len
        if asked is not None and not 0 < asked <= self._derived(graph):
            # The target's own configuration is read before the drafter's and before that of the ranks.
            self.rules.max_model_len(self.rules, self._target(graph), deployment, [])
        self.rules.check_deployment(self.rules, self._model(graph, deployment), deployment)
        return True

    @hookimpl
    def resolve_cache_dtype(self, graph: ModelGraph, deployment: Deployment) -> CacheDtype:
        """Which cache dtype really runs."""
        return self.rules.cache_dtype(self.rules, self._model(graph, deployment), deployment)

    @hookimpl
    def resolve_engine(self, graph: ModelGraph, deployment: Deployment, cache_dtype: CacheDtype) -> Resolution:
        """Lengths, batch sizes, manager, backends, block size and layout, in the engine's order."""
        rules, model = self.rules, self._model(graph, deployment)
        reasons: list[Reason] = []
        drafted_tokens = speculative_tokens(model, deployment)
        if model.draft is not None:
            reasons.append(draft_reason(model.draft, drafted_tokens))
        length = rules.max_model_len(rules, model, deployment, reasons)
        tokens, seqs = rules.batch_sizes(rules, model, deployment, length, reasons)
        check_slots(model, deployment, tokens, drafted_tokens)
        runner = rules.model_runner(rules, model, deployment, reasons)
        asynchronous = rules.async_scheduling(rules, model, deployment, runner, reasons)
        in_flight = rules.in_flight_tokens(deployment, tokens, asynchronous, runner, reasons)
        mamba = rules.mamba_mode(rules, model, deployment, length, reasons)
        hybrid = rules.hybrid_manager(rules, model, deployment, reasons)
        check_shards(model.vocabulary, model.shards, deployment)
        check_inner_states(rules, model, deployment)
        if model.draft is not None and deployment.tensor_parallel_size > 1:
            check_shards(model.draft.vocabulary or model.vocabulary, model.draft.shards, deployment)
        backends = rules.select_backends(rules, model, deployment, cache_dtype, reasons)
        if deployment.attention_config:
            check_indexer(rules, model, deployment)
        if model.draft is not None:
            check_local_argmax(rules, model, deployment)
            check_head(model)
        sizes = whole = rules.block_size(rules, model, deployment, cache_dtype, backends, mamba, reasons)
        if deployment.pipeline_parallel_size > 1:
            backends, sizes = stage_sizes(rules, model, deployment, cache_dtype, backends, mamba, whole, reasons)
        resolved = Resolved(
            cache_dtype=cache_dtype.value,
            block_size=sizes.block_size,
            kv_cache_layout=None,
            hybrid_kv_cache_manager=hybrid,
            max_model_len=length,
            max_num_batched_tokens=tokens,
            max_num_seqs=seqs,
            max_in_flight_tokens=in_flight,
            num_speculative_tokens=drafted_tokens,
            enable_prefix_caching=prefix_caching(model, deployment),
            async_scheduling=asynchronous,
            mamba_block_size=sizes.mamba_block_size,
            mamba_cache_mode=mamba[0],
        )
        draft = Resolution(
            resolved=resolved,
            backends=backends,
            skip_page_bytes=sizes.skip_page_bytes,
            mamba_page_bytes=sizes.mamba_page_bytes,
            model_runner=runner,
            extra_retained_tokens=extra_retained_tokens(model, drafted_tokens),
        )
        specs = self._specs(model, deployment, draft)
        layout = rules.layout(rules, model, deployment, backends, specs, reasons)
        return msgspec.structs.replace(
            draft, resolved=msgspec.structs.replace(resolved, kv_cache_layout=layout), reasons=tuple(reasons)
        )

    def _specs(self, model: Model, deployment: Deployment, resolution: Resolution) -> Sequence[Spec]:
        """The spec of each part of the resolution; one plan asks twice."""
        settings = Settings(
            block_size=resolution.resolved.block_size,
            skip_page_bytes=resolution.skip_page_bytes,
            model_dtype=model_dtype(model, deployment),
            tensor_parallel_size=deployment.tensor_parallel_size,
            model_runner=resolution.model_runner,
            mamba_block_size=resolution.resolved.mamba_block_size,
            mamba_page_bytes=resolution.mamba_page_bytes,
        )
        backends = resolution.backends
        last = self._answered
        if (
            last is not None
            and last.model is model
            and last.deployment() is deployment
            and last.backends is backends
            and last.settings == settings
        ):
            return last.specs
        specs = []
        for part in backends:
            cls = model.classes[model.class_of[part.caches[0]]]
            asked = settings if part.sizes is None else msgspec.structs.replace(settings, **asdict(part.sizes))
            if cls.draft and cls.layer_class in self.rules.configured_blocks:
                asked = self._configured(model, deployment, settings)
            spec = self.rules.specs[cls.layer_class](self.rules, model, deployment, cls, part, asked)
            if cls.draft and deployment.decode_context_parallel_size > 1:
                spec = self.rules.draft_spec(self.rules, model, deployment, spec)
            specs.append(spec)
        self._answered = _Answered(model, ref(deployment), backends, settings, specs)
        return specs

    def _configured(self, model: Model, deployment: Deployment, settings: Settings) -> Settings:
        """The settings as a draft's layers read them that keep to the configuration they were built with."""
        if (deployment.speculative_config or {}).get("kv_cache_dtype") is None:
            return settings
        if self.rules.draft_layers(self.rules, model, deployment).cache_dtype is None:
            return settings
        return msgspec.structs.replace(settings, block_size=deployment.block_size or TAKEN_FOR_STATED)

    @hookimpl
    def owned_kv_cache_layers(self, graph: ModelGraph, deployment: Deployment, resolution: Resolution) -> OwnedCaches:
        """Every owned cache as a spec, in registration order."""
        model = self._model(graph, deployment)
        specs: list[Spec] = []
        spec_of = [0] * len(model.names)
        counts: dict[str, int] = {}
        reasons = []
        for part, spec in zip(resolution.backends, self._specs(model, deployment, resolution), strict=True):
            counts[part.backend] = counts.get(part.backend, 0) + len(part.caches)
            if spec not in specs:
                specs.append(spec)
            position = specs.index(spec)
            for cache in part.caches:
                spec_of[cache] = position
            reasons.append(
                Reason(
                    "cache-spec",
                    spec.page_size_bytes,
                    {"type": spec.type, "dtype": spec.dtype, "caches": len(part.caches)},
                    f"{len(part.caches)} caches from {model.names[part.caches[0]]} on, {spec.block_size} tokens a page",
                    f"{spec.type} in vllm/v1/kv_cache_interface.py",
                )
            )
        return OwnedCaches(
            names=model.names,
            specs=tuple(specs),
            spec_of=tuple(spec_of),
            backends=counts,
            stage_of=stage_of(model, deployment),
            draft=() if model.first_draft is None else tuple(range(model.first_draft, len(model.names))),
            reasons=tuple(reasons),
        )

    @hookimpl
    def kv_cache_groups(
        self, graph: ModelGraph, deployment: Deployment, resolution: Resolution, owned: OwnedCaches
    ) -> Grouping:
        """The groups in the engine's order and the bytes of a block."""
        return self.rules.groups(self.rules, self._model(graph, deployment), deployment, resolution, owned)

    @hookimpl
    def weight_layout(self, graph: ModelGraph, deployment: Deployment) -> WeightLayout | None:
        """How the weights are laid out over the ranks; None where that is not modelled."""
        return self.rules.weight_layout(self.rules, self._model(graph, deployment), graph, deployment)

    @hookimpl
    def window_pages_per_request(self, deployment: Deployment, resolution: Resolution, spec: Spec) -> PageCount:
        """Blocks a request pins in a sliding-window group."""
        return self.rules.window_pages(deployment, resolution, spec)

    @hookimpl
    def pages_per_request(self, deployment: Deployment, resolution: Resolution, spec: Spec) -> PageCount:
        """Blocks a request pins in any other group."""
        return self.rules.pages(deployment, resolution, spec)

    @hookimpl
    def size_pool(
        self,
        graph: ModelGraph,
        deployment: Deployment,
        resolution: Resolution,
        owned: OwnedCaches,
        grouping: Grouping,
        pages: Sequence[PageCount],
    ) -> Pool:
        """The memory check, the scheduler's block sizes and the capacity."""
        fitted = resolution
        if deployment.max_model_len == -1:
            fitted = auto_fitted(resolution, deployment, grouping, pages)
        model = self._model(graph, deployment)
        try:
            pool = self.rules.pool(self.rules, model, deployment, fitted, owned, grouping, pages)
        except Refused as refused:
            refused.max_model_len = fitted.resolved.max_model_len
            raise
        if deployment.speculative_config is not None:
            check_schedule(deployment)
        return pool
