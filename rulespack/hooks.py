"""The questions a pack answers, as pluggy hook specifications.

A pack implements all of them; an override implements the one it changes. The first plugin that answers wins, overrides
before the pack, and what it answers feeds every later step. An implementation may name only the arguments it needs, and
returns None to leave a question to the next plugin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import pluggy

from rulespack.kv.pages import PageCount
from rulespack.kv.plan import Capacity, Reason, Resolved, Stage
from rulespack.kv.specs import Spec

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.graph.model import ModelGraph
    from rulespack.graph.problems import Problem

PROJECT = "rulespack"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class CacheDtype(msgspec.Struct, frozen=True):
    """The cache dtype that runs: ``value`` as the engine's configuration reads in the end (``auto`` where it is left
    so), ``layers`` the string the attention layers are built with, which workers may rewrite in their own copy."""

    value: str
    layers: str
    reasons: tuple[Reason, ...] = ()


class BlockSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Block sizes in tokens and forced pages in bytes, as the configuration says once the model is built.

    ``skip_page_bytes``: what caches left out of the cache dtype are padded to; ``mamba_page_bytes``: what recurrent
    states are padded to; None where nothing is forced.
    """

    block_size: int
    skip_page_bytes: int | None = None
    mamba_block_size: int | None = None
    mamba_page_bytes: int | None = None


class LayerBackend(msgspec.Struct, frozen=True):
    """One class of owned caches and what serves it.

    ``caches`` are the positions of its caches in the engine's registration order; ``backend`` the attention backend's
    name; ``cache_dtype`` the cache-dtype string the layers carry. ``sizes`` are those of the pipeline stage that holds
    the caches, where stages differ; None where all have what the resolution says.
    """

    caches: tuple[int, ...]
    backend: str
    cache_dtype: str
    sizes: BlockSizes | None = None


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """Everything decided before a cache exists.

    ``backends`` has one entry for each class of cache, in the order the classes are first registered.
    ``skip_page_bytes`` is the page caches left out of the cache dtype are padded to, ``mamba_page_bytes`` the page
    recurrent states are padded to, None where nothing is;
    ``model_runner`` the version of the engine's model runner; ``extra_retained_tokens`` how much longer than their
    window windows are kept for drafts.
    """

    resolved: Resolved
    backends: tuple[LayerBackend, ...]
    skip_page_bytes: int | None = None
    mamba_page_bytes: int | None = None
    model_runner: int = 2
    extra_retained_tokens: int = 0
    reasons: tuple[Reason, ...] = ()


class OwnedCaches(msgspec.Struct, frozen=True, kw_only=True):
    """The owned caches in the engine's order: ``names[i]`` has spec ``specs[spec_of[i]]``.

    ``stage_of[i]`` is the pipeline stage that holds cache ``i``; empty where there is one stage. ``backends`` counts
    layers by attention backend. ``draft`` are the positions of a drafter's caches.
    """

    names: tuple[str, ...]
    specs: tuple[Spec, ...]
    spec_of: tuple[int, ...]
    backends: Mapping[str, int]
    stage_of: tuple[int, ...] = ()
    draft: tuple[int, ...] = ()
    reasons: tuple[Reason, ...] = ()


class CacheGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group: its caches as indices, the spec the engine gives the group, and the engine's draft flag."""

    caches: tuple[int, ...]
    spec: Spec
    draft: bool = False


class Grouping(msgspec.Struct, frozen=True, kw_only=True):
    """The groups in the engine's order and what one block of the shared pool costs on the first stage.

    ``whole_bytes_per_block`` is the cost over all stages together, which is all an engine has that stops before it
    parts the groups over its stages; None where there is one stage. ``pages`` is each cache's page in bytes once the
    groups are made.
    """

    groups: tuple[CacheGroup, ...]
    pages: tuple[int, ...]
    bytes_per_block: int
    whole_bytes_per_block: int | None = None
    stages: tuple[Stage, ...] | None = None
    reasons: tuple[Reason, ...] = ()


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler runs on: its block sizes, the capacity where a memory was stated, and the longest request
    after it was fitted to memory (None: as resolved)."""

    scheduler_block_size: int
    hash_block_size: int
    max_model_len: int | None = None
    capacity: Capacity | None = None
    reasons: tuple[Reason, ...] = ()


class Accepts(msgspec.Struct, frozen=True, kw_only=True):
    """What a release takes and serves whatever the model, by name and in alphabetical order.

    ``connectors`` says of each KV connector whether it keeps the hybrid KV cache manager. ``attention_backends`` are
    the names the release has for them, ``architectures`` the model classes it serves as far as the pack describes
    them. ``arguments`` and ``environment`` are the engine arguments and environment variables the release reads.
    """

    cache_dtypes: tuple[str, ...]
    speculative_methods: tuple[str, ...]
    connectors: Mapping[str, bool]
    attention_backends: tuple[str, ...]
    layouts: tuple[str, ...]
    architectures: tuple[str, ...]
    arguments: tuple[str, ...]
    environment: tuple[str, ...]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of a release: its stable name, which reasons and refusals carry, and one line on what it decides.

    ``topic`` is the part of the walk it belongs to. ``steps`` are the parts of the pack that decide it, each a function
    or a table under its name: a rule moved in a release where one of them is another than in the release before.
    """

    name: str
    line: str
    topic: str
    steps: Mapping[str, object]


class WeightLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How a release lays weights out over ranks, as far as the graph does not say.

    ``layers_of_stage`` counts the target's layers on each pipeline stage; ``head_on_every_stage``: the model class
    builds the head on every one. What the kernel of the routed experts adds on each rank: their inner dimension is at
    least ``least_expert_inner`` where ranks share it, and a multiple of ``expert_inner_multiple``; the outer one is a
    multiple of ``expert_outer_multiple``.
    """

    layers_of_stage: tuple[int, ...]
    head_on_every_stage: bool = False
    least_expert_inner: int = 0
    expert_inner_multiple: int = 1
    expert_outer_multiple: int = 1


class PackSpec:
    """The hook specifications. Every one is asked through the plugin manager of one release."""

    @hookspec(firstresult=True)
    def pack_release(self) -> str:
        """The release the pack describes, such as ``0.31.0``."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def known_arguments(self) -> Mapping[str, str]:
        """Engine arguments of the release beyond the modelled ones: name -> ``inert`` (cannot change the plan) or
        ``unmodelled`` (could; a deployment that states one is refused)."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def accepts(self) -> Accepts:
        """What the release takes and serves whatever the model."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def rules(self) -> Sequence[Rule]:
        """The rules the pack's reasons and refusals name, in the order of the walk."""
        raise NotImplementedError

    @hookspec
    def check_graph(self, graph: ModelGraph) -> Sequence[Problem]:
        """What the graph says that the release does not know: named problems. All plugins' answers are joined."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def check_deployment(self, graph: ModelGraph, deployment: Deployment) -> bool:
        """True when the release accepts these arguments for this model; raises :class:`~rulespack.errors.Refused`."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def resolve_cache_dtype(self, graph: ModelGraph, deployment: Deployment) -> CacheDtype | str:
        """Which cache dtype really runs. A plain string stands for a CacheDtype with both fields equal to it."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def resolve_engine(self, graph: ModelGraph, deployment: Deployment, cache_dtype: CacheDtype) -> Resolution:
        """Backends, block sizes, layout, hybrid manager and lengths."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def owned_kv_cache_layers(self, graph: ModelGraph, deployment: Deployment, resolution: Resolution) -> OwnedCaches:
        """Which layers own a cache, and each cache as a spec, in the engine's order."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def kv_cache_groups(
        self, graph: ModelGraph, deployment: Deployment, resolution: Resolution, owned: OwnedCaches
    ) -> Grouping:
        """How the caches form groups, and what a block costs."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def weight_layout(self, graph: ModelGraph, deployment: Deployment) -> WeightLayout | None:
        """How the weights are laid out over the ranks, None where that is not known for this deployment.

        The one question that may stay without an answer: nothing is said about weights then.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def window_pages_per_request(self, deployment: Deployment, resolution: Resolution, spec: Spec) -> PageCount:
        """Blocks a request pins in a sliding-window group."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def pages_per_request(self, deployment: Deployment, resolution: Resolution, spec: Spec) -> PageCount:
        """Blocks a request pins in any other group."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def size_pool(
        self,
        graph: ModelGraph,
        deployment: Deployment,
        resolution: Resolution,
        owned: OwnedCaches,
        grouping: Grouping,
        pages: Sequence[PageCount],
    ) -> Pool:
        """The memory check, the scheduler's block sizes and the capacity; raises Refused where the engine stops."""
        raise NotImplementedError
