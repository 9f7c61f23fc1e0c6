"""Values of arguments that the release refuses while it makes the configuration, whatever the rest says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rulespack.errors import engine_refuses
from vllm_0_29.backends import model_dtype

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Rules

#: ``vllm/config/vllm.py: PerformanceMode``.
PERFORMANCE_MODES: Final = ("balanced", "interactivity", "throughput")
#: ``vllm/config/attention.py: AttentionConfig.flash_attn_version``.
FLASH_ATTN_VERSIONS: Final = (2, 3, 4)

DTYPES: Final = frozenset({"bfloat16", "float16", "float32"})
HALVES: Final = frozenset({"bfloat16", "float16"})
#: The model dtypes a quantization method runs in (``get_supported_act_dtypes`` of its class); the methods that are not
#: here take every dtype.
QUANTIZED_DTYPES: Final = {
    "fp8": HALVES,
    "deepseek_v4_fp8": HALVES,
    "modelopt": HALVES,
    "modelopt_fp4": HALVES,
    "modelopt_mixed": HALVES,
    "modelopt_mxfp8": frozenset({"bfloat16"}),
    "mxfp4": frozenset({"bfloat16"}),
}


def check_performance_mode(rules: Rules, model: Model, deployment: Deployment) -> None:
    """``performance_mode`` is one the release has."""
    mode = deployment.performance_mode
    if mode is not None and mode not in PERFORMANCE_MODES:
        raise engine_refuses(
            "performance-mode-accepted",
            "ValidationError",
            "config",
            f"performance_mode {mode!r} is none of {', '.join(PERFORMANCE_MODES)}",
            "vllm/config/vllm.py: PerformanceMode",
        )


def check_flash_attn_version(rules: Rules, model: Model, deployment: Deployment) -> None:
    """``attention_config.flash_attn_version`` is one there is."""
    version = (deployment.attention_config or {}).get("flash_attn_version")
    if version is not None and (isinstance(version, bool) or version not in FLASH_ATTN_VERSIONS):
        raise engine_refuses(
            "flash-attn-version-accepted",
            "ValidationError",
            "config",
            f"attention_config.flash_attn_version {version!r} is none of 2, 3, 4",
            "vllm/config/attention.py: AttentionConfig",
        )


def check_skip_layers(rules: Rules, model: Model, deployment: Deployment) -> None:
    """Under turboquant every entry of ``kv_cache_dtype_skip_layers`` is an index: the release sorts them as such."""
    if not deployment.kv_cache_dtype.startswith("turboquant_"):
        return
    for entry in deployment.kv_cache_dtype_skip_layers:
        try:
            int(entry)
        except ValueError:
            raise engine_refuses(
                "turboquant-skips-indices",
                "ValueError",
                "config",
                f"kv_cache_dtype_skip_layers under {deployment.kv_cache_dtype} takes indices alone, not {entry!r}",
                "vllm/engine/arg_utils.py: EngineArgs.create_engine_config",
            ) from None


def check_float16(rules: Rules, model: Model, deployment: Deployment) -> None:
    """float16 is not asked for a model that is unstable in it."""
    if model_dtype(model, deployment) == "float16" and not model.architecture.takes_float16:
        raise engine_refuses(
            "float16-stable",
            "ValidationError",
            "config",
            f"{model.architecture_name} is not run in float16, in which it is unstable: take bfloat16 or float32",
            "vllm/config/model.py: _check_valid_dtype",
        )


def check_quantized_dtype(rules: Rules, model: Model, deployment: Deployment) -> None:
    """The checkpoint's quantization method runs in the model's dtype; a name that is no dtype is refused elsewhere."""
    method = None if model.quantization is None else model.quantization.method
    served = QUANTIZED_DTYPES.get(method or "")
    dtype = model_dtype(model, deployment)
    if served is not None and dtype in DTYPES and dtype not in served:
        raise engine_refuses(
            "quantized-model-dtype",
            "ValidationError",
            "config",
            f"the quantization method {method} does not run in {dtype}; it takes {', '.join(sorted(served))}",
            "vllm/config/vllm.py: VllmConfig._get_quantization_config",
        )
