"""Rules that came with vLLM 0.31.0, in one line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vllm_0_29.listing import DRAFTS, DTYPE, GROUPS, LENGTHS, PARALLEL, SIZES, STATE, Line, topic

LINES: Final[Mapping[str, Line]] = {
    **topic(
        PARALLEL,
        deepseek_v41_hash_heads=(
            "Every rank must have a head of the n-gram table.",
            "architectures.DeepseekV41ForCausalLM",
        ),
        deepseek_v41_hash_heads_modelled=(
            "An n-gram table over several replicas is modelled for few.",
            "architectures.DeepseekV41ForCausalLM",
        ),
        deepseek_v41_output_groups=(
            "Every rank must have an output group of DeepSeek V4.1; ranks that split one are not modelled.",
            "architectures.DeepseekV41ForCausalLM",
        ),
        deepseek_v41_stage_boundary=(
            "A pipeline boundary must not part a reader from the layer that owns its cache.",
            "architectures.DeepseekV41ForCausalLM",
        ),
        glm5_next_one_stage=(
            "GLM 5.3 Flash crashes with more than one pipeline stage.",
            "architectures.Glm5NextForConditionalGeneration",
        ),
    ),
    **topic(
        LENGTHS,
        model_runner_keeps_all_states=(
            "The second model runner does not support the mamba cache mode all.",
            "model_runner",
        ),
        async_scheduling_runner=(
            "The first model runner does not schedule asynchronously over pipeline stages.",
            "async_scheduling",
        ),
    ),
    **topic(
        DTYPE,
        deepseek_v41_backend=(
            "The sparse FlashInfer kernels of other models do not serve DeepSeek V4.1.",
            "model_backends.DeepseekV41Main",
        ),
        deepseek_v41_record=(
            "DeepSeek V4.1 takes a cache dtype that becomes one of its records.",
            "model_backends.DeepseekV41Main",
        ),
        deepseek_v41_nvfp4_record=(
            "nvfp4 records of DeepSeek V4.1 are read on compute-capability family 10 alone.",
            "model_backends.DeepseekV41Main",
        ),
    ),
    **topic(
        STATE,
        kda_state_dtype=("A KDA state is stored in float32 or bfloat16.", "state_dtypes"),
        latent_pages_alike=("Latent caches beside states have pages of one size.", "aliased_groups"),
        state_fits_latent_page=("A state must fit the page of the latent cache it lies in.", "aliased_groups"),
    ),
    **topic(
        SIZES,
        composite_packing=(
            "Where layers are skipped, the parts of a composite backend must lay the cache out alike.",
            "backends.TRITON_FLASH_ATTN backends.TRITON_FLASHINFER",
        ),
        layout_block_outermost=(
            "A draft's caches that every rank keeps whole need a layout that puts the block outermost.",
            "layouts_of_shapes",
        ),
        common_block_size=("The backends of a model must share a block size.", "preferred_block_size"),
        tail_ring_divides_block=(
            "The ring of keys not yet pooled must divide GLM 5.3 Flash's block.",
            "specs.Glm5NextTailCache",
        ),
    ),
    **topic(
        DRAFTS,
        deepseek_v41_mtp=("DeepSeek V4.1 drafts by DSpark alone.", "own_draft"),
    ),
    **topic(
        GROUPS,
        latent_window_promotion=(
            "Without the hybrid manager the release crashes on latent windows beside full caches.",
            "promote",
        ),
    ),
}
