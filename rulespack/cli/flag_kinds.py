"""What kind of value the flags take that a deployment does not model, as the engine's own parser reads them.

Source: 0.29.0 and 0.31.0, ``vllm/engine/arg_utils.py: EngineArgs`` and ``get_kwargs``,
``vllm/entrypoints/launchers/cli_args.py: FrontendArgs``. A flag that is not here is taken by its shape.
"""

from __future__ import annotations

from typing import Final

_NAMES: Final = {
    "bool": """
        aggregate_engine_logging allow_credentials allow_deprecated_quantization cohere_is_reasoning_model
        cudagraph_metrics data_parallel_external_lb data_parallel_hybrid_lb data_parallel_multi_port_external_lb
        dcp_q_replicate disable_cascade_attn disable_chunked_mm_input disable_custom_all_reduce disable_fastapi_docs
        disable_log_stats disable_nccl_for_dp_synchronization disable_uvicorn_access_log enable_auto_tool_choice
        enable_batch_sharded_sampling enable_bf16x3_router_gemm enable_cumem_allocator enable_dbo enable_elastic_ep
        enable_ep_weight_filter enable_eplb enable_fault_tolerance enable_flash_late_interaction
        enable_flashinfer_autotune enable_force_include_usage enable_layerwise_nvtx_tracing enable_log_deltas
        enable_log_outputs enable_log_requests enable_logging_iteration_details enable_lora
        enable_mamba_cache_stochastic_rounding enable_mamba_shared_prefix_checkpoint enable_mfu_metrics
        enable_mixed_moe_lora_format enable_mm_embeds enable_mm_processor_stats enable_moe_shared_loras
        enable_nccl_comm_suspend enable_offline_docs enable_per_request_metrics enable_prompt_embeds
        enable_prompt_tokens_details enable_request_id_headers enable_return_routed_experts enable_scale_out
        enable_server_load_tracking enable_sleep_mode enable_ssl_refresh enable_tokenizer_info_endpoint
        enable_tower_connector_lora enable_trace_replay exclude_tools_when_tool_choice_none
        fail_on_environ_validation fully_sharded_loras grpc headless interleave_mm_strings jit_monitor_verbose
        kv_cache_metrics kv_sharing_fast_prefill log_error_stack long_prefill_token_threshold_adaptive
        mm_device_do_normalize mm_encoder_only numa_bind ray_workers_use_nsight return_sampling_mask
        return_tokens_as_token_ids scheduler_reserve_full_isl skip_mm_profiling skip_tokenizer_init
        specialize_active_lora tokens_only trust_remote_code trust_request_chat_template trust_request_mm_kwargs
        use_fp64_gumbel use_replayssm use_tqdm_on_load
    """,
    "int | None": """
        api_server_count cpu_distributed_timeout_seconds data_parallel_rank data_parallel_rpc_port
        data_parallel_size_local data_parallel_start_rank distributed_timeout_seconds max_cpu_loras
        max_cudagraph_capture_size max_log_len max_lora_cls_labels max_num_active_seqs max_num_queued_reqs
        max_num_queued_tokens max_num_scheduled_tokens max_parallel_loading_workers prefix_cache_retention_interval
        spec_tokens
    """,
    "int": """
        data_parallel_supervisor_port dbo_decode_token_threshold dbo_prefill_token_threshold
        dcp_kv_cache_interleave_size dp_supervisor_probe_failure_threshold dp_sync_interval elastic_ep_max_dp_size
        h11_max_header_count h11_max_incomplete_event_size long_prefill_token_threshold mamba_cache_philox_rounds
        master_port max_logprobs max_lora_rank max_loras mm_shm_cache_max_object_size_mb nnodes node_rank
        offload_group_size offload_num_in_group offload_prefetch_step port prefill_schedule_interval
        renderer_num_workers replayssm_buffer_len safetensors_prefetch_block_size safetensors_prefetch_num_threads
        seed shutdown_timeout sse_keep_alive_interval ssl_cert_reqs stream_interval ubatch_size
    """,
    "float | None": """
        video_pruning_rate
    """,
    "float": """
        cpu_offload_gb dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s kv_cache_metrics_sample
        mm_encoder_fp8_scale_save_margin mm_ipc_gpu_memory_gb mm_processor_cache_gb watermark
    """,
    "str": """
        allowed_local_media_path anthropic_disabled_thinking_effort chat_template chat_template_content_format
        code_revision cohere_format convert data_parallel_address data_parallel_backend dcp_comm_backend device_ids
        disable_access_log_for_endpoints download_dir expert_placement_strategy fingerprint_mode fingerprint_value
        gdn_prefill_backend generation_config hf_config_path host io_processor_plugin jit_monitor_mode
        kda_decode_backend kda_prefill_backend linear_backend load_format log_config_file log_level logprobs_mode
        lora_dtype mamba_backend mamba_ssu_algorithm master_addr middleware mm_encoder_attn_backend
        mm_encoder_attn_dtype mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_path mm_encoder_tp_mode
        mm_hasher_algorithm mm_processor_cache_type mm_processor_device mm_tensor_ipc model_impl
        model_loader_extra_config model_weights moe_backend offload_backend otlp_traces_endpoint
        per_request_spec_decode_metrics prefix_caching_hash_algo pt_load_map_location reasoning_parser
        reasoning_parser_plugin response_role revision root_path runner safetensors_load_strategy scheduler_cls
        scheduling_policy show_hidden_metrics_for_version sparse_indexer_topk_backend spec_method spec_model
        ssl_ca_certs ssl_certfile ssl_ciphers ssl_keyfile tokenizer tokenizer_mode tokenizer_revision
        tool_call_parser tool_parser_plugin tool_server tool_strict_level uds uvicorn_log_level video_pruning_method
        worker_cls worker_extension_cls
    """,
    "list[str]": """
        allowed_media_domains api_key collect_detailed_traces cpu_offload_params ignore_patterns logits_processors
        lora_modules lora_target_modules numa_bind_cpus offload_params served_model_name
        sleep_preserve_parameter_names
    """,
    "list[int]": """
        cudagraph_capture_sizes numa_bind_nodes
    """,
    "json": """
        allowed_headers allowed_methods allowed_origins aux_output_config default_chat_template_kwargs
        default_mm_loras diffusion_config ec_manager_config ec_transfer_config engram_config eplb_config
        fault_tolerance_config ir_op_priority kernel_config kv_events_config logging_config mamba_config
        media_io_kwargs mm_processor_kwargs override_generation_config pooler_config profiler_config
        reasoning_config structured_outputs_config watermark_config weight_transfer_config
    """,
}
#: Argument -> the kind of value: ``bool`` is a switch, ``list[...]`` takes one word or more, ``json`` is any JSON.
OTHER_KINDS: Final = {name: kind for kind, names in _NAMES.items() for name in names.split()}
