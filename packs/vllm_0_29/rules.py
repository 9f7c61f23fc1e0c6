"""The table a release is: one field for each fact and each step between the flags and the groups.

Every step is given the table it belongs to and reaches other steps through it, so that moving one rule in a later
release moves it for all its callers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from rulespack.deployment import Deployment
from rulespack.graph.model import ModelGraph, Positions
from rulespack.hooks import (
    BlockSizes,
    CacheDtype,
    CacheGroup,
    Grouping,
    LayerBackend,
    OwnedCaches,
    Pool,
    Resolution,
    WeightLayout,
)
from rulespack.kv.pages import PageCount
from rulespack.kv.plan import Reason
from rulespack.kv.specs import Spec
from vllm_0_29.attention_config import Indexer, Taken
from vllm_0_29.backend_terms import Backend, Want
from vllm_0_29.draft_layers import Own
from vllm_0_29.model import Architecture, CacheClass, Draft, Model, Unserved

if TYPE_CHECKING:
    from vllm_0_29.draft_checks import Check as DraftCheck
    from vllm_0_29.groups import Aliased
    from vllm_0_29.listing import Line

Reasons = list[Reason]


class Connector(msgspec.Struct, frozen=True):
    """A KV connector: whether it keeps the hybrid manager, and the layout it prefers (for models without MLA only,
    where ``layout_spares_mla``)."""

    hybrid: bool
    layout: str | None = None
    layout_spares_mla: bool = False


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine's configuration says once the model is built, as the specs and the grouping read it."""

    block_size: int
    skip_page_bytes: int | None
    model_dtype: str
    tensor_parallel_size: int
    model_runner: int
    mamba_block_size: int | None
    mamba_page_bytes: int | None


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """One release."""

    release: str
    lines: Mapping[str, Line]

    # what the release accepts
    arguments: Mapping[str, str]
    cache_dtypes: frozenset[str]
    later_cache_dtypes: frozenset[str]
    speculative_methods: frozenset[str]
    connectors: Mapping[str, Connector]
    unmodelled_connectors: frozenset[str]
    absent_arguments: frozenset[str]
    environment: frozenset[str]
    environment_unmodelled: frozenset[str]
    environment_inert: frozenset[str]
    layout_names: Sequence[str]
    choices: Mapping[str, frozenset[str]]
    attention_keys: Mapping[str, Taken]
    prefill_backends: frozenset[str]
    indexers: Mapping[str, Indexer]
    residencies: Mapping[str, str]
    architectures: Mapping[str, Architecture]
    unserved: Mapping[str, Unserved]
    check_deployment: Callable[[Rules, Model, Deployment], None]
    check_shared_ranks: Callable[[Deployment], None]
    check_nixl: Callable[[Model, Deployment], None]

    # drafts
    draft_architectures: Mapping[str, Architecture]
    first_runner_methods: frozenset[str]
    speculative_keys: frozenset[str]
    speculative_switches: frozenset[str]
    speculative_choices: Mapping[str, frozenset[str]]
    draft_checks: Mapping[str, DraftCheck]
    drafts_choose_experts: frozenset[str]
    modules_reduce_locally: frozenset[str]
    drafts_state_tokens: frozenset[str]
    inner_state_targets: frozenset[str]
    inner_states_over_stages: frozenset[str]
    own_backend_methods: frozenset[str]
    drafts_over_stages: frozenset[str] | None
    own_draft: Callable[[ModelGraph, Model, str], Draft]
    draft_layers: Callable[[Rules, Model, Deployment], Own]
    draft_spec: Callable[[Rules, Model, Deployment, Spec], Spec]
    configured_blocks: frozenset[str]
    loaded_fp8_scales: bool
    skippable: frozenset[str]
    draft_groups: Callable[[Model, Deployment, str, Sequence[Sequence[int]]], frozenset[int]]

    # lengths and the scheduler
    scaled_length: Callable[[Positions], tuple[float, str]]
    max_model_len: Callable[[Rules, Model, Deployment, Reasons], int]
    batch_sizes: Callable[[Rules, Model, Deployment, int, Reasons], tuple[int, int]]
    model_runner: Callable[[Rules, Model, Deployment, Reasons], int]
    async_scheduling: Callable[[Rules, Model, Deployment, int, Reasons], bool]
    in_flight_tokens: Callable[[Deployment, int, bool, int, Reasons], int]
    mamba_mode: Callable[[Rules, Model, Deployment, int, Reasons], tuple[str, int | None]]
    hybrid_manager: Callable[[Rules, Model, Deployment, Reasons], bool]

    # the cache dtype and what runs
    cache_dtype: Callable[[Rules, Model, Deployment], CacheDtype]
    skip_layers: Callable[[Model, Deployment], frozenset[str]]
    backends: Mapping[str, Backend]
    model_backends: Mapping[str, Callable[[Rules, Model, Deployment, CacheClass, str], str]]
    priorities: Callable[[Want], Sequence[str]]
    selector_asks_dcp: bool
    backend_names: frozenset[str]
    flash_attn_version: Callable[[Model, Deployment, str], int | None]
    select_backends: Callable[[Rules, Model, Deployment, CacheDtype, Reasons], tuple[LayerBackend, ...]]

    # weights
    weight_layout: Callable[[Rules, Model, ModelGraph, Deployment], WeightLayout | None]
    expert_multiples: Callable[[str, str, int, Deployment], tuple[int, int] | None]

    # recurrent state
    state_dtypes: Callable[[Model, Deployment, CacheClass], tuple[str, str]]
    state_page_bytes: Callable[[Rules, Model, Deployment, CacheClass], int]
    pooled_block: Callable[[Model, Deployment, int], int]
    checkpoint_blocks: Callable[[Rules, Model, Deployment, CacheClass], int]

    # sizes
    preferred_block_size: Callable[[Rules, Sequence[tuple[Backend, Want]]], int]
    block_size: Callable[
        [Rules, Model, Deployment, CacheDtype, Sequence[LayerBackend], tuple[str, int | None], Reasons], BlockSizes
    ]
    window_block_size: Callable[[Backend, Want, int, int, int | None], int]
    specs: dict[str, Callable[[Rules, Model, Deployment, CacheClass, LayerBackend, Settings], Spec]]
    layout: Callable[[Rules, Model, Deployment, Sequence[LayerBackend], Sequence[Spec], Reasons], str]
    layouts_of_shapes: Callable[[Sequence[Spec], Sequence[str]], Sequence[str]]

    # groups, blocks and the pool
    uniform_key: Callable[[Spec], object]
    merge_key: Callable[[Spec], object]
    promote: Callable[[Rules, OwnedCaches], OwnedCaches]
    state_bucket: Callable[[Spec, bool], bool]
    block_alignment: Callable[[Sequence[Spec]], int]
    aliased_groups: Callable[[OwnedCaches], Aliased | None]
    hidden_states_scale: Callable[[Spec, int], int]
    groups: Callable[[Rules, Model, Deployment, Resolution, OwnedCaches], Grouping]
    pages: Callable[[Deployment, Resolution, Spec], PageCount]
    window_pages: Callable[[Deployment, Resolution, Spec], PageCount]
    prefix_cacheable: Callable[[Spec], bool]
    over_ranks: Callable[[Spec], bool]
    kernel_block_check: Callable[[Rules, Model, Deployment, Resolution, OwnedCaches, Sequence[CacheGroup]], None]
    check_block_size: Callable[[Model, Deployment, Resolution, Sequence[CacheGroup]], None]
    check_shared_prefill: Callable[[Model, Deployment], None]
    pool: Callable[[Rules, Model, Deployment, Resolution, OwnedCaches, Grouping, Sequence[PageCount]], Pool]
