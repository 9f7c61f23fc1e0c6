"""What every rule decides, in one line, and which steps of the table decide it.

The names are those that reasons, refusals and problems of a graph carry. A rule moved in a release where one of its
steps is another than in the release before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vllm_0_29 import draft_lines
from vllm_0_29.listing import (
    ARGUMENTS,
    DTYPE,
    GRAPH,
    GROUPS,
    LENGTHS,
    MEMORY,
    PARALLEL,
    SIZES,
    STATE,
    Line,
    topic,
)

LINES: Final[Mapping[str, Line]] = {
    **topic(
        ARGUMENTS,
        argument_modelled=(
            "An argument that could change the plan and is not modelled is refused by name.",
            "arguments",
        ),
        environment_modelled=(
            "An environment variable that could change the plan and is not modelled is refused by name.",
            "environment environment_unmodelled environment_inert",
        ),
        environment_switch_modelled=("A switch among the variables must be an integer.", "check_deployment"),
        model_runner_switch=("VLLM_USE_V2_MODEL_RUNNER must be an integer.", "check_deployment"),
        choice_accepted=("An argument that takes a few names takes one of the release's.", "choices"),
        executor_class_modelled=("An executor class of one's own is not modelled.", "choices"),
        gpu_memory_share=("gpu_memory_utilization is a share above 0 and up to 1.", "check_deployment"),
        connector_value=("A connector is a name, and what it is told beside it a mapping.", "check_deployment"),
        connector_key_known=("A key of kv_transfer_config must be one the release has.", "check_deployment"),
        flash_attn_version_accepted=("A version of FlashAttention must be 2, 3 or 4.", "check_deployment"),
        capability_modelled=("GPUs whose attention backends are not modelled are refused.", "check_deployment"),
        architecture_served=("The release must be able to load the model's architecture at all.", "unserved"),
        modelopt_algorithm_known=(
            "A ModelOpt checkpoint that states its algorithm in a file of its own must name one the release knows.",
            "check_deployment",
        ),
        cache_dtype_accepted=("kv_cache_dtype must be one of the release's names.", "cache_dtypes"),
        nvfp4_without_mla=("Latent attention takes no nvfp4 cache but as packed records.", "check_deployment"),
        model_dtype_accepted=("dtype must be one of the release's names.", "check_deployment"),
        quantized_model_dtype=(
            "The checkpoint's quantization method must run in the model's dtype.",
            "check_deployment",
        ),
        float16_stable=("Some models are not run in float16.", "check_deployment"),
        turboquant_finds_attention=(
            "Turboquant on a hybrid needs a configuration that lists the layers that attend.",
            "check_deployment",
        ),
        turboquant_skips_indices=("Under turboquant layers are skipped by index alone.", "check_deployment"),
        quantization_as_checkpoint=(
            "Some quantization methods over a checkpoint that states another, or none, are not modelled.",
            "check_deployment",
        ),
        quantization_accepted=(
            "A quantization method must be one there is, and that the checkpoint has or can be given.",
            "check_deployment",
        ),
        quantization_has_config=(
            "Some quantization methods need a configuration of the checkpoint.",
            "check_deployment",
        ),
        quantization_serves_experts=("Some quantization methods have no kernel on some GPUs.", "check_deployment"),
        attention_config_known=("A key of attention_config must be one the release has.", "attention_keys"),
        attention_config_value=("A key of attention_config must have a value it takes.", "attention_keys"),
        hf_overrides_modelled=(
            "Overrides of the configuration are not applied to a finished graph: derive a graph with them.",
            "check_deployment",
        ),
        disable_sliding_window_modelled=(
            "Turning sliding windows off is modelled for classes that read one window from their configuration.",
            "check_deployment",
        ),
        limit_mm_modelled=(
            "Limits on items must say whether a model whose images attend in both directions takes any.",
            "check_deployment",
        ),
        item_limit_accepted=("A limit on items must be a count, or one among sizes of its kind.", "check_deployment"),
        connector_needs_sparse_attention=(
            "A connector of sparse latent caches serves no other.",
            "unmodelled_connectors",
        ),
        connector_named=("A KV transfer must name its connector.", "check_deployment"),
        connector_has_parts=("A MultiConnector must list its parts.", "check_deployment"),
        connector_role_accepted=("kv_role must be one of the release's.", "check_deployment"),
        connector_role_stated=("A KV connector needs a role.", "check_deployment"),
        connector_known=("The KV connector must be one the release has.", "connectors hybrid_manager"),
        connector_modelled=(
            "Some KV connectors, and those of a user's own module, are not modelled.",
            "unmodelled_connectors",
        ),
        nixl_dcp=("NIXL takes decode context parallelism over all its ranks only, and a latent cache.", "check_nixl"),
        nixl_pcp=("NIXL takes no prefill context parallelism.", "check_nixl"),
        mamba_mode_accepted=("mamba_cache_mode must be one of the release's.", "check_deployment"),
        mamba_dtype_accepted=("The dtypes of recurrent state must be among the release's.", "check_deployment"),
        mamba_block_size_needs_prefix_caching=(
            "mamba_block_size can be stated with prefix caching only, unless it is the longest request.",
            "check_deployment",
        ),
    ),
    **topic(
        GRAPH,
        architecture_stated=("A graph must state the architecture, which the rules are keyed on.", ""),
        architecture_modelled=(
            "An architecture the pack has no rules for is refused.",
            "architectures draft_architectures",
        ),
        fact_stated=("A fact the plan cannot be made without must stand in the graph.", ""),
        cache_modelled=("Every cache a layer owns must be one the architecture registers.", ""),
        cache_dtype_known=(
            "Records stated for a cache dtype must be for one the release has.",
            "cache_dtypes later_cache_dtypes",
        ),
        ring_unpadded=("Pages of a ring cannot be padded, so a graph must not ask for it.", ""),
        residency_control_known=("A setting that moves a table must be one the release has.", "residencies"),
        residency_default=("A table must lie where the release puts it by default.", "residencies"),
    ),
    **topic(
        PARALLEL,
        experts_divide=("All ranks of all replicas must share an expert's width evenly.", "check_deployment"),
        qwen4_whole_tokens=(
            "Qwen 4 takes no tokens split over the ranks of its experts.",
            "architectures.Qwen4ExpForConditionalGeneration",
        ),
        qwen4_whole_tokens_modelled=(
            "Whether an all-to-all backend splits Qwen 4's tokens is modelled where the releases agree.",
            "architectures.Qwen4ExpForConditionalGeneration",
        ),
        heads_divide=("The ranks must share the query heads evenly.", "check_deployment"),
        kv_heads_divide=("The ranks must share or copy the KV heads evenly.", "specs.Attention"),
        kv_heads_replicate=("A class that cannot copy KV heads takes no more ranks than there are.", "specs.Attention"),
        vocabulary_divides=("The ranks must share the vocabulary evenly.", "check_deployment"),
        layer_divides=("The ranks must share the inner widths of a layer evenly.", "check_deployment"),
        fp8_block_divides=("A rank's part must hold whole blocks of an fp8 checkpoint's scales.", "check_deployment"),
        experts_for_expert_parallelism=("Expert parallelism needs a model with experts.", "check_deployment"),
        pipeline_parallel_supported=("The model class must support pipeline stages.", ""),
        layer_partition_fits=("A stated partition must part the layers over the stages.", "check_deployment"),
        head_tied_on_every_stage=(
            "A class that ties its head on every pipeline stage crashes on those without one.",
            "architectures.Ernie4_5_MoeForCausalLM",
        ),
        decoder_class_named=(
            "Pipeline stages need a decoder whose own configuration names its class.",
            "architectures.Qwen3VLMoeForConditionalGeneration",
        ),
        dcp_divides_tp=("Decode context parallelism must divide the tensor-parallel ranks.", "check_deployment"),
        dcp_needs_attention=(
            "Decode context parallelism is not modelled for a model without attention.",
            "check_deployment",
        ),
        dcp_beyond_kv_heads=(
            "Decode context parallelism needs more ranks than there are KV heads.",
            "check_deployment",
        ),
        dcp_within_replicas=(
            "Decode context parallelism shares among the ranks that hold copies of a KV head, and no more.",
            "check_deployment",
        ),
        dcp_divides_queries=(
            "Decode context parallelism must divide the query heads of a KV head.",
            "check_deployment",
        ),
        pcp_modelled=(
            "A prefill shared over ranks is modelled for a latent cache on one stage alone.",
            "check_shared_ranks check_shared_prefill",
        ),
        pcp_without_data_parallelism=(
            "A prefill shared over ranks does not go with data parallelism.",
            "check_shared_ranks",
        ),
        dcp_spans_pcp=(
            "A decode context beside a shared prefill spans its ranks, or those of every tensor-parallel part.",
            "check_shared_ranks",
        ),
        backend_shares_prefill=("Every backend must take a prefill shared over ranks.", "backends"),
        model_runner_shares_prefill=("The first model runner shares no prefill over ranks.", "model_runner"),
        external_launcher_modelled=("The external launcher is not modelled.", "check_deployment"),
    ),
    **topic(
        LENGTHS,
        max_model_len=(
            "The longest request: as asked, else what the configuration states.",
            "max_model_len scaled_length",
        ),
        max_model_len_admitted=(
            "A longer request than the configuration states is refused unless the environment admits it.",
            "max_model_len scaled_length",
        ),
        max_model_len_derivable=(
            "max_model_len auto needs a length in the configuration to start from.",
            "max_model_len",
        ),
        rope_original_length=(
            "A rope scaling whose original length decides must state it.",
            "scaled_length",
        ),
        max_num_batched_tokens=(
            "Tokens of one step: as asked, else by the GPU's memory and who calls the engine.",
            "batch_sizes",
        ),
        batch_holds_a_prompt=("Without chunked prefill a step must hold a whole prompt.", "batch_sizes"),
        batch_holds_a_token_a_sequence=("A step must hold a token of every sequence.", "batch_sizes"),
        model_runner=("Which of the two model runners serves the model.", "model_runner first_runner_methods"),
        async_scheduling=("Whether the next step is scheduled while the last one runs.", "async_scheduling"),
        async_scheduling_method=(
            "Asynchronous scheduling cannot be asked for with a method that does not support it.",
            "async_scheduling",
        ),
        max_in_flight_tokens=(
            "Tokens that may be scheduled and not yet settled; windows keep that many more.",
            "in_flight_tokens",
        ),
        hybrid_kv_cache_manager=(
            "Whether windows and states are managed as such, or every cache as a full one.",
            "hybrid_manager connectors",
        ),
        hybrid_manager_supported=(
            "The hybrid manager cannot be asked for with what does not support it.",
            "hybrid_manager connectors",
        ),
        connector_keeps_hybrid_manager=(
            "Whether a connector of several keeps the hybrid manager is not modelled.",
            "hybrid_manager connectors",
        ),
    ),
    **topic(
        DTYPE,
        cache_dtype=(
            "What the caches are stored in: as asked, else what the checkpoint or the model class says.",
            "cache_dtype",
        ),
        e5m2_without_scales=("An fp8_e5m2 cache takes no scales of a checkpoint.", "select_backends"),
        attention_backend=(
            "What serves a class of layers: the backend that was forced, else the first in order that can.",
            "select_backends backends model_backends priorities selector_asks_dcp flash_attn_version",
        ),
        backend_known=("A forced backend must be one the release has.", "backend_names"),
        backend_modelled=("A forced backend that is not modelled is refused by name.", "backends"),
        backend_found=("Some backend must serve every class of layers.", "select_backends backends priorities"),
        backend_constructed=("The backend that was chosen must then take the layer.", "select_backends"),
        backend_returns_lse=(
            "Decode context parallelism needs backends that return their softmax sums.",
            "backends selector_asks_dcp",
        ),
        forced_backend_valid=("A forced backend must be able to serve the layers.", "backends"),
        one_attention_backend=("The backend may be forced in one place only.", "check_deployment"),
        prefill_backend_valid=("A prefill backend asked for must run on the GPU.", "prefill_backends"),
        indexer_dtype_served=("An indexer stores its keys in the dtypes its class has.", "indexers"),
        attention_config_modelled=("A key of attention_config that is not modelled is refused.", "check_deployment"),
        sparse_backend_found=("Hunyuan 4 needs a sparse backend that can be selected.", "model_backends.HYV4Attention"),
        padded_rows_plain=(
            "Rows padded to the windows' width are kept in the model's own dtype.",
            "model_backends.Dots3NotePaddedMLAAttention",
        ),
        qsa_supported=(
            "What Qwen 4's own attention runs: bfloat16, and no context parallelism.",
            "model_backends.Qwen4ExpQSA",
        ),
        deepseek_v4_backend=("DeepSeek V4 takes only backends that read its records.", "model_backends.DeepseekV4Main"),
        deepseek_v4_record=(
            "DeepSeek V4 keeps packed records, so the cache dtype must be one that becomes a record.",
            "model_backends.DeepseekV4Main",
        ),
    ),
    **topic(
        STATE,
        mamba_cache_mode=(
            "Which states a request keeps: one, that of the last block boundary, or one at every boundary.",
            "mamba_mode",
        ),
        align_needs_chunks=("Keeping the state of the last boundary needs chunked prefill.", "mamba_mode"),
        state_groups_divide=("The ranks must share a state's groups evenly.", "state_page_bytes"),
        state_divides=("The ranks must share a state evenly.", "state_page_bytes state_dtypes"),
        hybrid_block_size=(
            "The attention block grows until a page of it holds a recurrent state.",
            "block_size state_page_bytes state_dtypes pooled_block",
        ),
        state_fits_page=("A state must fit the page it was padded to.", "specs.MambaBase state_dtypes"),
        ngram_embedding_one_stage=(
            "An n-gram embedding needs the tokens themselves, which only the first pipeline stage has.",
            "architectures.Qwen4ExpForConditionalGeneration",
        ),
        inkling_conv_state=(
            "Inkling's convolutions keep bfloat16 inputs and no more ranks than KV heads.",
            "specs.InklingConvState",
        ),
        qsa_block_holds_keys=("A block must hold whole compressed keys of Qwen 4.", "model_backends.QSAKeyStateCache"),
        qsa_block_holds_groups=(
            "A block must hold whole groups of Qwen 4's compressed keys.",
            "specs.QSAKeyStateCache",
        ),
    ),
    **topic(
        SIZES,
        block_size=(
            "Tokens in a block of attention: as asked, else what the backends prefer.",
            "block_size preferred_block_size",
        ),
        layouts_of_stages_agree=("Pipeline stages must support the same layouts.", "layout"),
        stage_block_sizes=("Each pipeline stage resolves its blocks from the layers it holds.", "block_size"),
        skip_layer_block_size=(
            "The block grows until a page in the cache dtype covers a kernel block of a skipped layer.",
            "block_size skip_layers",
        ),
        skipped_layers_not_narrower=(
            "A layer left out of the cache dtype must not take fewer bytes than the others.",
            "block_size skip_layers",
        ),
        kernel_block_divides=(
            "Some kernel block of every backend of a group must divide the group's block.",
            "kernel_block_check backends",
        ),
        block_holds_interleaved_runs=(
            "The smallest block of a cache shared over ranks must hold whole interleaved runs.",
            "check_block_size",
        ),
        align_needs_image_chunks=(
            "States are not aligned to blocks where images are not scheduled in pieces.",
            "check_block_size",
        ),
        connector_parts_share_layout=("The parts of a MultiConnector must prefer one layout.", "layout connectors"),
        kv_cache_layout=(
            "The order of layer, block, head, token and content in memory.",
            "layout backends connectors",
        ),
        layout_known=("A layout asked for by the environment must be one the release has.", "layout_names"),
        layout_common=("Every backend must take one layout.", "layout backends"),
        layout_supported=("A layout asked for must be one that every backend takes.", "layout backends"),
        layout_block_compact=("Some caches need a layout that keeps a block of a layer in one piece.", "layout"),
    ),
    **draft_lines.LINES,
    **topic(
        GROUPS,
        cache_spec=(
            "What one class of layers keeps: its page in bytes and its block in tokens.",
            "specs window_block_size",
        ),
        one_group=("Caches that are all alike share one group.", "groups merge_key"),
        one_type_group=("Caches that grow alike share one group whatever their pages.", "groups uniform_key"),
        aliased_groups=("Some caches lie in the pages of others, and are grouped apart.", "groups aliased_groups"),
        packed_groups=(
            "Where the block is outermost, pages of any size lie side by side in it.",
            "groups uniform_key state_bucket",
        ),
        equal_page_groups=(
            "Caches whose pages are made equal form groups of one size, and what does not divide is padding.",
            "groups merge_key",
        ),
        padded_page_holds_block=(
            "The release crashes where a padded page is less than what it holds.",
            "specs.Attention",
        ),
        padded_pages_kept=("The release crashes where a padded page must hold more tokens.", "groups"),
        pages_made_equal=("Pages must be made equal by larger blocks or by padding.", "groups"),
        packed_groups_filled=(
            "The release crashes where uneven pages are cut into more groups than they fill.",
            "groups state_bucket",
        ),
        packed_repeats_even=(
            "Where the release would leave caches without a group, nothing is said.",
            "groups state_bucket",
        ),
        one_type_without_hybrid_manager=(
            "Without the hybrid manager every cache must become a full one of one type.",
            "promote",
        ),
        one_window_size_without_hybrid_manager=(
            "Without the hybrid manager all windows must be of one size.",
            "promote",
        ),
        bytes_per_block=(
            "What one block of the pool costs: the widest group's pages, aligned.",
            "groups block_alignment",
        ),
        stage_holds_caches=("The release crashes where a pipeline stage holds no cache.", "pool"),
        blocks_counted=("The release crashes where it cannot count the blocks of a group.", "pages window_pages"),
        scheduler_block_size=(
            "The scheduler's block: the least common multiple of the groups' blocks.",
            "pool prefix_cacheable",
        ),
        prefix_match_unit=(
            "A stated unit of prefix matching must divide every group's block.",
            "pool prefix_cacheable",
        ),
        prefix_boundary_aligned=(
            "The scheduler's block must hold whole entries of compressed caches.",
            "pool prefix_cacheable",
        ),
    ),
    **topic(
        MEMORY,
        memory_for_blocks=("The memory must hold a block beside the null block.", "pool"),
        memory_for_one_request=("The memory must hold one request of the longest length.", "pool pages window_pages"),
        auto_fit_memory=("A length fitted to memory needs the memory to be stated.", "pool"),
        auto_fit_one_token=("The memory must hold a request of one token.", "pool"),
        capacity=("How many tokens and requests the stated memory holds, as the engine logs them.", "pool"),
    ),
}
