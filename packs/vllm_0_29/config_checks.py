"""What the release refuses while it reads the arguments, and what of them is not modelled.

Source: ``vllm/engine/arg_utils.py: EngineArgs.create_engine_config`` and the configuration classes it makes; an error
raised inside one of them reaches the user as pydantic's ValidationError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rulespack.deployment import READERS
from rulespack.errors import BadDeployment, Refused, engine_refuses, meant, not_modelled
from rulespack.graph.canonical import canonical_json
from vllm_0_29 import arguments
from vllm_0_29.attention_config import check_attention_config
from vllm_0_29.backends import check_backend_arguments
from vllm_0_29.connectors import check_transfer
from vllm_0_29.draft_checks import check_adaptive, check_stated
from vllm_0_29.drafts import check_stages as check_draft_stages
from vllm_0_29.drafts import speculative_tokens
from vllm_0_29.environment import check_switches
from vllm_0_29.quantization import check_quantization
from vllm_0_29.scheduler import prefix_caching
from vllm_0_29.value_checks import (
    check_choices,
    check_flash_attn_version,
    check_float16,
    check_item_limits,
    check_quantized_dtype,
    check_turboquant,
)
from vllm_0_29.windows import check_windows
from vllm_0_29.words import meant_variable

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Rules

CONFIG_SOURCE = "vllm/engine/arg_utils.py: EngineArgs.create_engine_config"
PARALLEL_SOURCE = "vllm/config/model.py: ModelConfig.verify_with_parallel_config"

MODEL_DTYPES: Final = ("auto", "half", "float16", "bfloat16", "float", "float32")
MAMBA_DTYPES: Final = ("auto", "float32", "float16", "bfloat16")
MAMBA_MODES: Final = ("none", "align", "all")
USAGE_CONTEXTS: Final = (
    "UNKNOWN_CONTEXT",
    "LLM_CLASS",
    "API_SERVER",
    "OPENAI_API_SERVER",
    "OPENAI_BATCH_RUNNER",
    "ENGINE_CONTEXT",
)
#: The algorithms the release infers a method from where a ModelOpt checkpoint states one in a file of its own.
MODELOPT_ALGORITHMS: Final = frozenset({"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4"})
#: Compute-capability major versions whose backends are modelled.
FAMILIES: Final = (8, 9, 10, 12)


def invalid(rule: str, reason: str, source: str = CONFIG_SOURCE) -> Refused:
    """A refusal of the release's own argument validation."""
    return engine_refuses(rule, "ValidationError", "config", reason, source)


def check_deployment(rules: Rules, model: Model, deployment: Deployment) -> None:
    """Refuse what the release refuses or what is not modelled."""
    for check in CHECKS:
        check(rules, model, deployment)
    stated = deployment.stated
    if len(stated) > 1 or "gpu" not in stated:
        for check in STATED_CHECKS:
            check(rules, model, deployment)
        for argument, check in ARGUMENT_CHECKS:
            if argument in stated:
                check(rules, model, deployment)
    if model.architecture.check is not None:
        model.architecture.check(model, deployment)


def check_names(rules: Rules, deployment: Deployment) -> None:
    """Refuse arguments that are not modelled; raise BadDeployment for a name the release does not have."""
    for name in deployment.stated:
        if name in READERS and name not in rules.absent_arguments:
            continue
        kind = rules.arguments.get(name)
        if kind is None:
            raise BadDeployment(f"{name}: vLLM {rules.release} has no such argument")
        if kind == "unmodelled":
            raise not_modelled("argument-modelled", f"the argument {name} could change the plan and is not modelled")


def _gpu(rules: Rules, model: Model, deployment: Deployment) -> None:
    if deployment.gpu.family not in FAMILIES:
        major, minor = deployment.gpu.capability
        raise not_modelled("capability-modelled", f"GPUs of compute capability {major}.{minor} are not modelled")


def _modelopt(rules: Rules, model: Model, deployment: Deployment) -> None:
    algorithm = model.quantization.algorithm if model.quantization is not None else None
    if algorithm is not None and algorithm not in MODELOPT_ALGORITHMS:
        raise invalid(
            "modelopt-algorithm-known",
            f"the checkpoint's hf_quant_config.json names the algorithm {algorithm}, from which the release infers no "
            f"method; it knows {', '.join(sorted(MODELOPT_ALGORITHMS))}",
            "vllm/transformers_utils/model_arch_config_convertor.py: _normalize_quantization_config",
        )


def _dtype_names(rules: Rules, model: Model, deployment: Deployment) -> None:
    asked = deployment.kv_cache_dtype
    if asked not in rules.cache_dtypes:
        raise invalid(
            "cache-dtype-accepted",
            f"kv_cache_dtype {asked!r} is none of vLLM {rules.release}'s: {', '.join(sorted(rules.cache_dtypes))}"
            f"{meant(asked, rules.cache_dtypes)}",
            "vllm/config/cache.py: CacheDType",
        )
    if model.mla and asked.startswith("nvfp4") and not asked.endswith("_ds_mla"):
        raise invalid("nvfp4-without-mla", f"kv_cache_dtype {asked} is not supported for latent attention")
    if deployment.dtype not in MODEL_DTYPES:
        raise invalid("model-dtype-accepted", f"dtype {deployment.dtype!r} is none of {', '.join(MODEL_DTYPES)}")


def _heads(rules: Rules, model: Model, deployment: Deployment) -> None:
    tp, dcp = deployment.tensor_parallel_size, deployment.decode_context_parallel_size
    if tp % dcp and deployment.prefill_context_parallel_size == 1:
        raise invalid(
            "dcp-divides-tp",
            f"tensor_parallel_size {tp} is not divisible by decode_context_parallel_size {dcp}",
            "vllm/config/parallel.py: ParallelConfig._validate_parallel_config",
        )
    if model.heads % tp:
        raise invalid("heads-divide", f"{model.heads} attention heads are not divisible by {tp} ranks", PARALLEL_SOURCE)
    if deployment.enable_expert_parallel and model.experts == 0 and not model.architecture.config_claims_experts:
        raise invalid(
            "experts-for-expert-parallelism",
            "expert parallelism was asked for a model without experts",
            PARALLEL_SOURCE,
        )
    if deployment.pipeline_parallel_size > 1 and not model.architecture.pipeline_parallel:
        raise engine_refuses(
            "pipeline-parallel-supported",
            "NotImplementedError",
            "config",
            f"{model.architecture_name} does not support pipeline parallelism",
            PARALLEL_SOURCE,
        )
    if dcp > 1 and not model.mla:
        _dcp_heads(model, tp, dcp)


def _dcp_heads(model: Model, tp: int, dcp: int) -> None:
    kv_heads = model.kv_heads
    if kv_heads == 0:
        raise not_modelled("dcp-needs-attention", "decode context parallelism without attention is not modelled")
    if tp <= kv_heads:
        raise invalid(
            "dcp-beyond-kv-heads",
            f"decode context parallelism needs more than {kv_heads} ranks, one for each KV head, and there are {tp}",
            PARALLEL_SOURCE,
        )
    if dcp > tp // kv_heads:
        raise invalid(
            "dcp-within-replicas",
            f"decode_context_parallel_size {dcp} is more than the {tp // kv_heads} ranks that share a KV head",
            PARALLEL_SOURCE,
        )
    if model.heads // kv_heads % dcp:
        raise invalid(
            "dcp-divides-queries",
            f"{model.heads // kv_heads} query heads a KV head are not divisible by decode_context_parallel_size {dcp}",
            PARALLEL_SOURCE,
        )


def _environment(rules: Rules, model: Model, deployment: Deployment) -> None:
    for name in deployment.env:
        if name in rules.environment or not name.startswith("VLLM_"):
            continue
        if name in rules.environment_unmodelled:
            raise not_modelled(
                "environment-modelled", f"the environment variable {name} could change the plan and is not modelled"
            )
        if name not in rules.environment_inert:
            near = meant_variable(name, [*rules.environment, *rules.environment_inert])
            said = near or " and ignores it: leave it out"
            raise BadDeployment(f"env.{name}: vLLM {rules.release} has no such environment variable{said}")
    asked = deployment.env.get("VLLM_KV_CACHE_LAYOUT")
    if asked is not None and asked not in rules.layout_names:
        raise engine_refuses(
            "layout-known",
            "ValueError",
            "groups",
            f"VLLM_KV_CACHE_LAYOUT {asked!r} is none of {', '.join(rules.layout_names)}",
            "vllm/envs.py: VLLM_KV_CACHE_LAYOUT",
        )


def _usage_context(rules: Rules, model: Model, deployment: Deployment) -> None:
    if deployment.usage_context not in USAGE_CONTEXTS:
        raise BadDeployment(f"usage_context: {deployment.usage_context!r} is none of {', '.join(USAGE_CONTEXTS)}")


def _drafts(rules: Rules, model: Model, deployment: Deployment) -> None:
    draft = model.draft
    if draft is None:
        return
    speculative_tokens(model, deployment)
    check_stated(rules, model, deployment)
    check_draft_stages(rules, model, deployment)
    check_adaptive(deployment)


def _overrides(rules: Rules, model: Model, deployment: Deployment) -> None:
    asked = deployment.hf_overrides
    if not asked and model.hf_overrides is None:
        return
    if model.hf_overrides != (canonical_json(asked) if asked else None):
        derived = (
            "without them: load the model from its configuration with them"
            if model.hf_overrides is None
            else f"under {model.hf_overrides}: a deployment states what its graph was derived under"
        )
        raise not_modelled(
            "hf-overrides-modelled",
            "hf_overrides change the configuration before a graph is derived from it, and this graph was derived "
            f"{derived}",
        )


def _parallel(rules: Rules, model: Model, deployment: Deployment) -> None:
    if deployment.prefill_context_parallel_size > 1:
        rules.check_shared_ranks(deployment)
    if deployment.distributed_executor_backend == "external_launcher":
        raise not_modelled("external-launcher-modelled", "the external_launcher executor is not modelled")


def _mamba(rules: Rules, model: Model, deployment: Deployment) -> None:
    for name in ("mamba_cache_dtype", "mamba_ssm_cache_dtype"):
        if getattr(deployment, name) not in MAMBA_DTYPES:
            raise invalid(
                "mamba-dtype-accepted", f"{name} {getattr(deployment, name)!r} is none of {', '.join(MAMBA_DTYPES)}"
            )
    mode = deployment.mamba_cache_mode
    if mode is not None and mode not in MAMBA_MODES:
        raise invalid("mamba-mode-accepted", f"mamba_cache_mode {mode!r} is none of {', '.join(MAMBA_MODES)}")
    if deployment.mamba_block_size is not None and not prefix_caching(model, deployment):
        if deployment.mamba_block_size != rules.max_model_len(rules, model, deployment, []):
            raise invalid(
                "mamba-block-size-needs-prefix-caching",
                "mamba_block_size can be stated with prefix caching only, unless it is the longest request",
                "vllm/config/vllm.py: VllmConfig.validate_mamba_block_size",
            )


def _backend(rules: Rules, model: Model, deployment: Deployment) -> None:
    check_backend_arguments(rules, deployment)


Check = Callable[["Rules", "Model", "Deployment"], None]

#: Checks of every question, in the release's order where it has one.
CHECKS: Final[tuple[Check, ...]] = (_gpu, _modelopt, _overrides, check_quantized_dtype)
#: Checks that can only fail where something beyond the GPU was stated.
STATED_CHECKS: Final[tuple[Check, ...]] = (
    _usage_context,
    _environment,
    check_switches,
    check_choices,
    check_flash_attn_version,
    _drafts,
    _dtype_names,
    check_float16,
    check_turboquant,
    _parallel,
    _heads,
    _backend,
    _mamba,
)
#: Checks that can only fail where one argument was stated.
ARGUMENT_CHECKS: Final[tuple[tuple[str, Check], ...]] = (
    ("quantization", check_quantization),
    ("disable_sliding_window", check_windows),
    ("limit_mm_per_prompt", check_item_limits),
    ("attention_config", check_attention_config),
    ("kv_transfer_config", check_transfer),
    ("kv_offloading_size", check_transfer),
)

ARGUMENTS: Final = dict.fromkeys(arguments.INERT, "inert") | dict.fromkeys(arguments.UNMODELLED, "unmodelled")
