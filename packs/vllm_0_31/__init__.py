"""vLLM 0.31.0.

Moved since 0.29.0: DeepSeek V4.1 is served; the block size must suit every backend, and a window may take the whole
cache block; composites serve bidirectional images; FlashAttention stores fp8 for heads of 512 on Hopper; yarn lengths
are taken as stated; rings and windows may be split in packed groups; blocks are aligned to their caches' strides; the
selector asks for decode context parallelism; MoRIIO keeps the hybrid manager; the dtype flag reaches KDA states.
"""

from __future__ import annotations

import msgspec

import vllm_0_29
from vllm_0_29 import forced_backends
from vllm_0_29.pack import Pack
from vllm_0_31 import (
    arguments,
    backend_facts,
    backends,
    block_size,
    connectors,
    deepseek_v4,
    deepseek_v41,
    drafts,
    facts,
    glm5_next,
    groups,
    lengths,
    qwen4_exp,
    rule_lines,
    scheduler,
    shared_prefill,
    sparse_mla,
    state,
    weights,
)

RULES = msgspec.structs.replace(
    vllm_0_29.RULES,
    release="0.31.0",
    lines={**vllm_0_29.RULES.lines, **rule_lines.LINES},
    arguments=arguments.ARGUMENTS,
    absent_arguments=arguments.ABSENT,
    environment_inert=arguments.ENVIRONMENT_INERT,
    cache_dtypes=facts.CACHE_DTYPES,
    choices=facts.CHOICES,
    speculative_methods=facts.SPECULATIVE_METHODS,
    connectors=facts.CONNECTORS,
    unmodelled_connectors=facts.UNMODELLED_CONNECTORS,
    architectures=facts.ARCHITECTURES,
    unserved=facts.UNSERVED,
    check_nixl=connectors.check_nixl,
    attention_keys=facts.ATTENTION_KEYS,
    prefill_backends=facts.PREFILL_BACKENDS,
    indexers=facts.INDEXERS,
    residencies=facts.RESIDENCIES,
    first_runner_methods=drafts.FIRST_RUNNER,
    speculative_keys=drafts.KEYS,
    speculative_switches=drafts.SWITCHES,
    speculative_choices=drafts.CHOICES,
    draft_checks=drafts.CHECKS,
    drafts_choose_experts=drafts.CHOOSE_EXPERTS,
    modules_reduce_locally=drafts.MODULES_REDUCE_LOCALLY,
    drafts_state_tokens=drafts.STATE_TOKENS,
    inner_state_targets=facts.INNER_STATE_TARGETS,
    inner_states_over_stages=facts.INNER_STATES_OVER_STAGES,
    own_backend_methods=drafts.CHOOSE_THEIR_BACKEND,
    drafts_over_stages=None,
    own_draft=drafts.own_draft,
    draft_layers=drafts.draft_layers,
    draft_spec=drafts.draft_spec,
    configured_blocks=vllm_0_29.RULES.configured_blocks | {deepseek_v41.INDEX, glm5_next.POOLED, glm5_next.TAIL},
    loaded_fp8_scales=False,
    draft_groups=drafts.draft_groups,
    scaled_length=lengths.scaled_length,
    expert_multiples=weights.expert_multiples,
    state_dtypes=state.state_dtypes,
    state_page_bytes=state.page_bytes,
    pooled_block=glm5_next.pooled_block,
    checkpoint_blocks=state.checkpoint_blocks,
    model_runner=scheduler.model_runner,
    async_scheduling=scheduler.async_scheduling,
    check_block_size=connectors.check_block_size,
    check_shared_ranks=shared_prefill.check_shared_ranks,
    check_shared_prefill=shared_prefill.check_shared_prefill,
    backends={
        **vllm_0_29.RULES.backends,
        **backend_facts.BACKENDS,
        **forced_backends.of_other_widths(backend_facts.BACKENDS),
        **sparse_mla.BACKENDS,
        **deepseek_v4.BACKENDS,
        **glm5_next.BACKENDS,
        **deepseek_v41.BACKENDS,
    },
    model_backends={
        **vllm_0_29.RULES.model_backends,
        **deepseek_v4.MODEL_BACKENDS,
        **glm5_next.MODEL_BACKENDS,
        **qwen4_exp.MODEL_BACKENDS,
        **deepseek_v41.MODEL_BACKENDS,
    },
    priorities=sparse_mla.priorities,
    selector_asks_dcp=True,
    backend_names=backend_facts.NAMES,
    flash_attn_version=backends.flash_attn_version,
    preferred_block_size=block_size.preferred_block_size,
    window_block_size=block_size.window_block_size,
    specs={**vllm_0_29.RULES.specs, **sparse_mla.SPECS, **glm5_next.SPECS, **deepseek_v41.SPECS},
    merge_key=groups.merge_key,
    uniform_key=groups.uniform_key,
    state_bucket=groups.state_bucket,
    block_alignment=groups.block_alignment,
    aliased_groups=glm5_next.aliased_groups,
    hidden_states_scale=groups.hidden_states_scale,
    promote=groups.promote,
    layouts_of_shapes=groups.layouts_of_shapes,
    over_ranks=groups.over_ranks,
    pages=groups.pages,
    window_pages=groups.window_pages,
    prefix_cacheable=groups.prefix_cacheable,
)

plugin = Pack(RULES)
