"""Names of vLLM 0.31.0's arguments and environment variables: what came and went since 0.29.0.

Source: ``vllm/engine/arg_utils.py: AsyncEngineArgs``, ``vllm/entrypoints/launchers/cli_args.py: FrontendArgs``,
``vllm/envs.py``.
"""

from __future__ import annotations

from typing import Final

from vllm_0_29 import arguments

GONE: Final = frozenset({"enable_bf16x3_router_gemm"})

#: New arguments that cannot change the plan.
NEW_INERT: Final = frozenset(
    """
    anthropic_disabled_thinking_effort aux_output_config dp_sync_interval enable_nccl_comm_suspend
    enable_scale_out log_level logging_config long_prefill_token_threshold_adaptive max_lora_cls_labels
    sleep_preserve_parameter_names sparse_indexer_topk_backend tool_strict_level trust_request_mm_kwargs
    """.split()
)

#: New arguments that could change the plan and are not modelled.
NEW_UNMODELLED: Final = frozenset(
    """
    elastic_ep_max_dp_size enable_mamba_shared_prefix_checkpoint engram_config kda_decode_backend
    max_num_active_seqs watermark_config
    """.split()
)

INERT: Final = (arguments.INERT - GONE) | NEW_INERT
UNMODELLED: Final = (arguments.UNMODELLED - GONE) | NEW_UNMODELLED
ABSENT: Final[frozenset[str]] = frozenset()

ENVIRONMENT_GONE: Final = frozenset(
    """
    VLLM_KIMI_K3_GEMM_RS VLLM_MM_HASHER_ALGORITHM VLLM_NIXL_EP_MAX_NUM_RANKS
    VLLM_PREFIX_CACHE_RETENTION_INTERVAL VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4 VLLM_XPU_ENABLE_XPU_GRAPH
    """.split()
)
ENVIRONMENT_NEW: Final = frozenset(
    """
    VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC VLLM_ENABLE_GEMM_RS VLLM_MAX_EMBED_DECODE_BYTES
    VLLM_MOONCAKE_CONNECTOR_TIMEOUT VLLM_MXFP4_EMULATION_DEQUANT_AT_LOAD VLLM_ROCM_AITER_MLA_DCP_VERIFY
    VLLM_ROCM_USE_AITER_FP4_ASM_GEMM VLLM_ROCM_USE_AITER_MOE_SITUV2 VLLM_SKIP_VERSION_SUFFIX
    VLLM_TRITON_JIT_WARMUP_NUM_THREADS VLLM_XPU_PP_MICROBATCH
    """.split()
)
ENVIRONMENT_INERT: Final = (arguments.ENVIRONMENT_INERT - ENVIRONMENT_GONE) | ENVIRONMENT_NEW

ARGUMENTS: Final = dict.fromkeys(INERT, "inert") | dict.fromkeys(UNMODELLED, "unmodelled")
