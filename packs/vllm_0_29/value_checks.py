"""Values of arguments that the release refuses while it makes the configuration, whatever the rest says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rulespack.errors import Refused, engine_refuses, not_modelled
from vllm_0_29.backends import model_dtype
from vllm_0_29.scheduler import text_only

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Rules

#: The names an argument takes.
CHOICES: Final[Mapping[str, frozenset[str]]] = {
    "performance_mode": frozenset({"balanced", "interactivity", "throughput"}),
    "distributed_executor_backend": frozenset({"ray", "mp", "uni", "external_launcher"}),
    "all2all_backend": frozenset(
        """
        naive pplx deepep_high_throughput deepep_low_latency deepep_v2 mori_high_throughput mori_low_latency nixl_ep
        allgather_reducescatter flashinfer_all2allv flashinfer_nvlink_two_sided flashinfer_nvlink_one_sided
        """.split()
    ),
    "kv_offloading_backend": frozenset({"native", "lmcache"}),
    "config_format": frozenset({"auto", "hf", "mistral"}),
}
SOURCES: Final = {
    "performance_mode": "vllm/config/vllm.py: PerformanceMode",
    "distributed_executor_backend": "vllm/config/parallel.py: DistributedExecutorBackend",
    "all2all_backend": "vllm/config/parallel.py: All2AllBackend",
    "kv_offloading_backend": "vllm/config/cache.py: KVOffloadingBackend",
    "config_format": "vllm/transformers_utils/config.py: get_config_parser",
}
#: What a limit on a kind of item may state; any other kind has a count alone (``vllm/config/multimodal.py``).
ITEM_OPTIONS: Final = {
    "image": ("count", "width", "height"),
    "video": ("count", "num_frames", "width", "height"),
    "audio": ("count", "length"),
}
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


def check_choices(rules: Rules, model: Model, deployment: Deployment) -> None:
    """Arguments that take a few names take one of them, and memory is a share."""
    for name in CHOICES:
        value = getattr(deployment, name)
        if value is None or value in rules.choices[name]:
            continue
        if name == "distributed_executor_backend" and "." in value:
            raise not_modelled("executor-class-modelled", f"the executor class {value} is not modelled")
        known = ", ".join(sorted(rules.choices[name]))
        raise invalid("choice-accepted", f"{name} {value!r} is none of {known}", SOURCES[name])
    share = deployment.gpu_memory_utilization
    if share is not None and not 0 < share <= 1:
        raise invalid(
            "gpu-memory-share",
            f"gpu_memory_utilization {share} is no share above 0 and up to 1",
            "vllm/config/cache.py: CacheConfig.gpu_memory_utilization",
        )


def invalid(rule: str, reason: str, source: str) -> Refused:
    """The refusal of a value by the release's own validation."""
    return engine_refuses(rule, "ValidationError", "config", reason, source)


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


def check_item_limits(rules: Rules, model: Model, deployment: Deployment) -> None:
    """Limits on items of a prompt are counts, or a count among what their kind is profiled by.

    Not modelled: limits that leave open whether a model whose images attend in both directions takes any item.
    """
    limits = deployment.limit_mm_per_prompt
    if limits is None or model.multimodal is None:
        return
    for kind, limit in limits.items():
        options = limit if isinstance(limit, Mapping) else {"count": limit}
        if not all(type(value) is int for value in options.values()):
            raise not_modelled("limit-mm-modelled", f"limit_mm_per_prompt.{kind} is not modelled but for whole numbers")
        known = ITEM_OPTIONS.get(kind, ("count",))
        wrong = [key for key, value in options.items() if key not in known or value < (0 if key == "count" else 1)]
        if wrong:
            raise invalid(
                "item-limit-accepted",
                f"limit_mm_per_prompt.{kind} takes {', '.join(known)}, a count from 0 and sizes from 1, not {limit!r}",
                "vllm/config/multimodal.py: MultiModalConfig.limit_per_prompt",
            )
    if model.multimodal.prefix_lm and text_only(model, deployment) is None:
        raise not_modelled(
            "limit-mm-modelled",
            f"limit_mm_per_prompt leaves open whether {model.architecture_name} takes items of every kind: state "
            f"{', '.join((*model.architecture.items, *model.architecture.optional_items))}",
        )


def check_turboquant(rules: Rules, model: Model, deployment: Deployment) -> None:
    """What turboquant asks of a model and of the layers it leaves out: a hybrid's configuration lists those that
    attend, and every entry of ``kv_cache_dtype_skip_layers`` is an index, as which the release sorts them."""
    if not deployment.kv_cache_dtype.startswith("turboquant_"):
        return
    if model.hybrid and model.architecture.state is not None and not model.architecture.state.lists_attention:
        raise engine_refuses(
            "turboquant-finds-attention",
            "NotImplementedError",
            "config",
            f"{deployment.kv_cache_dtype} needs to know which layers of a hybrid attend, and the configuration of "
            f"{model.architecture_name} does not list them",
            "vllm/model_executor/layers/quantization/turboquant/config.py: TurboQuantConfig.get_boundary_skip_layers",
        )
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
