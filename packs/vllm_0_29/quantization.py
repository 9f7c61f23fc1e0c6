"""``quantization`` stated by hand: over what a checkpoint says of itself, or over one that is not quantized.

Source: ``vllm/config/model.py: ModelConfig._verify_quantization``,
``vllm/model_executor/model_loader/weight_utils.py: get_quant_config``, and ``override_quantization_method`` of the
classes in ``vllm/model_executor/layers/quantization`` and ``vllm/models/deepseek_v4``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rulespack.errors import Refused, engine_refuses, meant, not_modelled
from vllm_0_29.backends import model_dtype

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Rules

VERIFY: Final = "vllm/config/model.py: ModelConfig._verify_quantization"
FILES: Final = "vllm/model_executor/model_loader/weight_utils.py: get_quant_config"

#: ``vllm/model_executor/layers/quantization/__init__.py: QuantizationMethods``.
METHODS: Final = frozenset(
    """
    awq auto_awq fp8 fbgemm_fp8 fp_quant modelopt modelopt_fp4 modelopt_mxfp8 modelopt_mixed auto_gptq gptq gptq_marlin
    awq_marlin humming compressed-tensors experts_int8 quark moe_wna16 torchao inc mxfp4 gpt_oss_mxfp4 deepseek_v4_fp8
    online fp8_per_tensor fp8_per_block fp8_per_channel int8_per_channel_weight_only nvfp4_per_token mxfp8
    """.split()
)
DEPRECATED: Final = frozenset({"fbgemm_fp8", "fp_quant"})
#: Methods whose checkpoints are known by what they say, whatever else is asked; the humming kernels apart.
INSISTING: Final = frozenset(
    {"mxfp4", "gpt_oss_mxfp4", "modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "deepseek_v4_fp8"}
)
#: Classes whose fp8 checkpoints are known by the model's type.
INSISTING_CLASSES: Final = frozenset({"DeepseekV4ForCausalLM", "DeepseekV41ForCausalLM"})
HUMMING: Final = "humming"

#: Methods that read a file beside the weights, which a checkpoint that is not quantized does not have.
FROM_FILES: Final = frozenset(
    """
    awq auto_awq awq_marlin gptq auto_gptq gptq_marlin inc moe_wna16 modelopt modelopt_fp4 modelopt_mxfp8 modelopt_mixed
    """.split()
)
#: Methods that cannot be made without a configuration, and crash.
FROM_CONFIG: Final = frozenset({"compressed-tensors", "quark", "torchao", "online"})
#: Methods that quantize any checkpoint's weights while they are loaded, and leave the cache alone.
WHILE_LOADING: Final = frozenset(
    {"fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "experts_int8", "int8_per_channel_weight_only"}
)
#: Methods that are also applied on top of a checkpoint's own, where its layers let them.
COMPOSED: Final = frozenset(
    """
    online fp8_per_tensor fp8_per_block fp8_per_channel int8_per_channel_weight_only experts_int8 nvfp4_per_token mxfp8
    """.split()
)
HALVES: Final = ("bfloat16", "float16")
#: Compute capabilities no kernel multiplies experts on that are quantized to mxfp4 while they are loaded.
WITHOUT_MXFP4_EXPERTS: Final = ((8, 0), (9, 0))


def own_method(model: Model) -> str | None:
    """The method the checkpoint itself states."""
    return None if model.quantization is None else model.quantization.method


def quantizes_anew(model: Model, deployment: Deployment) -> bool:
    """Whether the weights are quantized otherwise than the checkpoint states."""
    asked, own = deployment.quantization, own_method(model)
    return asked is not None and asked != own and not _insists(model)


def _insists(model: Model) -> bool:
    return own_method(model) in INSISTING or (
        model.quantization is not None and model.architecture_name in INSISTING_CLASSES
    )


def check_quantization(rules: Rules, model: Model, deployment: Deployment) -> None:
    """A method stated by hand is the checkpoint's own, or one that quantizes a checkpoint which is not."""
    asked, own = deployment.quantization, own_method(model)
    if asked is None or asked == own:
        return
    if asked == HUMMING or model.draft is not None:
        raise _unmodelled(asked, own)
    if own is not None:
        _check_over(asked, own, insists=_insists(model))
        return
    if asked not in METHODS:
        raise _invalid(f"{asked!r} is no quantization method of vLLM {rules.release}{meant(asked, METHODS)}")
    if asked in DEPRECATED:
        if deployment.stated.get("allow_deprecated_quantization"):
            raise _unmodelled(asked, own)
        raise _invalid(f"the quantization method {asked} is deprecated")
    if asked in FROM_FILES:
        raise _invalid(f"{asked} reads a file beside the weights, which this checkpoint does not have", FILES)
    if asked in FROM_CONFIG:
        raise engine_refuses(
            "quantization-has-config",
            "TypeError",
            "config",
            f"{asked} needs a configuration, and this checkpoint carries none",
            FILES,
        )
    _check_while_loading(model, deployment, asked)


def _check_over(asked: str, own: str, *, insists: bool) -> None:
    """A method over a checkpoint's own: passed over where that insists, else refused."""
    if insists and asked in COMPOSED:
        raise _unmodelled(asked, own)
    if insists or (own == "fp8" and asked == "deepseek_v4_fp8"):
        return
    raise _invalid(f"the checkpoint's quantization method is {own}, and {asked} was asked for")


def _check_while_loading(model: Model, deployment: Deployment, asked: str) -> None:
    if asked == "mxfp4" and model.experts and deployment.gpu.capability in WITHOUT_MXFP4_EXPERTS:
        raise engine_refuses(
            "quantization-serves-experts",
            "NotImplementedError",
            "construct",
            "no kernel multiplies experts quantized to mxfp4 while they are loaded on this GPU",
            "vllm/model_executor/layers/fused_moe/oracle/mxfp4.py",
        )
    if asked == "fp8_per_channel" and deployment.gpu.capability < (8, 9):
        raise engine_refuses(
            "quantization-serves-experts",
            "ValueError",
            "construct",
            f"{asked} quantizes inputs, too, which no kernel below compute capability 8.9 does",
            "vllm/model_executor/layers/quantization/online",
        )
    dtype = model_dtype(model, deployment)
    if asked == "gpt_oss_mxfp4" and deployment.gpu.family == 9 and dtype == "bfloat16":
        return
    if asked not in WHILE_LOADING or (asked != "fp8" and deployment.kv_cache_dtype == "fp8_e5m2"):
        raise _unmodelled(asked, None)
    if dtype in HALVES:
        return
    if asked != "fp8":
        raise _unmodelled(asked, None)
    raise engine_refuses(
        "quantized-model-dtype",
        "ValidationError",
        "config",
        f"the quantization method {asked} does not run in {dtype}; it takes {', '.join(HALVES)}",
        "vllm/config/vllm.py: VllmConfig._get_quantization_config",
    )


def _invalid(reason: str, source: str = VERIFY) -> Refused:
    return engine_refuses("quantization-accepted", "ValidationError", "config", reason, source)


def _unmodelled(asked: str, own: str | None) -> Refused:
    return not_modelled(
        "quantization-as-checkpoint",
        f"quantization {asked!r} over the checkpoint's own ({own or 'none'}) is not modelled",
    )
