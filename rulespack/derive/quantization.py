"""The quantization a configuration states, read into the format of each weight and what the KV cache needs of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from rulespack.derive.modelopt import is_modelopt, read_modelopt
from rulespack.derive.section import Section
from rulespack.derive.weights import Format, Weights
from rulespack.graph.model import Quantization, WeightScale

FP32_SCALE_BYTES: Final = 4
BF16_SCALE_BYTES: Final = 2
#: The blocks of an MXFP8 checkpoint, which the engine expands to rows of 32 when it loads them.
MXFP8_BLOCK: Final = (32, 32)
#: Weights that share one scale in MXFP4, which is what tells it from NVFP4 in a compressed-tensors checkpoint.
MXFP4_GROUP: Final = 32
MXFP4_PACKED: Final = "mxfp4-pack-quantized"


def read_weights(root: Section, text: Section, dtype: str, *, lifted: bool) -> Weights:
    """Read ``quantization_config`` where the engine looks for it: the top level, else the text configuration.

    ``lifted`` is whether the model's class makes a quantization of the text configuration the whole model's. Where it
    does not, the engine reads the weights' method there and the cache's format nowhere, which is not translated.

    Source: 0.31.0, transformers_utils/model_arch_config_convertor.py, get_quantization_config. Raises InvalidConfig
    for a method or a layout that is not translated.
    """
    plain = Format(dtype)
    for owner in (root, text):
        for key in ("quantization_config", "compression_config"):
            quantization = owner.optional_section(key)
            if quantization is None:
                continue
            if not is_modelopt(quantization):
                return _read(quantization, plain, root)
            if owner is text and text is not root and not lifted:
                owner.untranslated(
                    key, "is ModelOpt's and stands below the top level, which is not translated for this class"
                )
            return read_modelopt(quantization, plain)
    return Weights(facts=None, plain=plain, linear=plain, experts=plain, stored=plain)


def _read(section: Section, plain: Format, root: Section) -> Weights:
    if section.has("quantization") and not section.has("quant_method"):
        # ModelOpt's own file that does not name its producer: the engine finds no method in it and loads the
        # checkpoint as one that is not quantized (config/model.py, _verify_quantization). Its words stay on record.
        for key in ("quant_algo", "kv_cache_quant_algo"):
            section.section("quantization").optional_string(key)
        return Weights(facts=None, plain=plain, linear=plain, experts=plain, stored=plain)
    method = section.string("quant_method").lower().replace("compressed_tensors", "compressed-tensors")
    if method == "fp8" and root.optional_string("model_type") == "deepseek_v4":
        return _deepseek_v4(section, plain, root)
    if root.optional_string("model_type") == "kimi_k3" and section.optional_string("format") == MXFP4_PACKED:
        # The engine serves these experts with its own MXFP4 method, which quantizes nothing else
        # (model_executor/models/config.py, KimiK3ForConditionalGenerationConfig).
        return _mxfp4(section, plain)
    read = METHODS.get(method)
    if read is None:
        known = ", ".join((*METHODS, "modelopt"))
        section.untranslated("quant_method", f"the quantization method {method!r} is not translated; known are {known}")
    return read(section, plain)


def _fp8(section: Section, plain: Format) -> Weights:
    """FP8 with a float32 scale for each block, or one for each tensor where no block is stated.

    ``expert_dtype: fp4`` means MXFP4 experts beside FP8 with one-byte scales, whose 32 x 32 blocks the engine expands
    to 1 x 32 when it loads them (models/deepseek_v41/quant_config.py).
    """
    block = section.optional_integers("weight_block_size")
    scale = None
    if block is not None:
        if len(block) != 2 or min(block) < 1:
            section.refuse("weight_block_size", "is not a pair of positive sizes; state [rows, columns] of a block")
        scale = WeightScale(elements=block[0] * block[1], bytes=FP32_SCALE_BYTES)
    experts_dtype = section.optional_string("expert_dtype")
    if experts_dtype not in (None, "fp4"):
        section.untranslated("expert_dtype", f"{experts_dtype!r} is not translated; known is fp4")
    if experts_dtype == "fp4":
        if block != MXFP8_BLOCK:
            section.refuse("weight_block_size", f"is not {list(MXFP8_BLOCK)}, the one translated beside fp4 experts")
        scale = WeightScale(elements=MXFP8_BLOCK[1], bytes=1)
    stored = Format("fp8", scale)
    experts = Format("mxfp4") if experts_dtype == "fp4" else stored
    ignored = section.optional_strings("ignored_layers") or section.optional_strings("modules_to_not_convert") or ()
    facts = Quantization(method="fp8")
    return Weights(facts=facts, plain=plain, linear=stored, experts=experts, stored=stored, ignored=ignored)


def _deepseek_v4(section: Section, plain: Format, root: Section) -> Weights:
    """DeepSeek V4's FP8, which the engine reads as a method of its own (0.31.0, models/deepseek_v4/quant_config.py).

    The configuration says beside it how experts are stored: MXFP4, with one-byte scales on the FP8 blocks, or FP8. A
    ModelOpt checkpoint of it has NVFP4 experts.
    """
    kind = root.string("expert_dtype", default="fp4")
    if kind not in ("fp4", "fp8"):
        root.refuse("expert_dtype", f"{kind!r} is not one the engine knows; it knows fp4 and fp8")
    weights = _fp8(section, plain)
    algorithm = section.optional_string("moe_quant_algo")
    if algorithm is not None and algorithm.upper() != "NVFP4":
        section.untranslated("moe_quant_algo", f"{algorithm!r} is not translated; known is NVFP4")
    scale = weights.linear.scale
    if kind == "fp4" and scale is not None:
        scale = WeightScale(elements=scale.elements, bytes=1)
    stored = Format("fp8", scale)
    fp4 = Format("mxfp4" if algorithm is None else "nvfp4")
    return msgspec.structs.replace(
        weights,
        facts=Quantization(method="deepseek_v4_fp8"),
        linear=stored,
        stored=stored,
        experts=fp4 if kind == "fp4" else stored,
    )


def _mxfp4(section: Section, plain: Format) -> Weights:
    """GPT-OSS, Kimi K3: only the experts are MXFP4 (0.31.0, quantization/mxfp4.py), whose scales go with the format."""
    stored = Format("mxfp4")
    return Weights(facts=Quantization(method="mxfp4"), plain=plain, linear=plain, experts=stored, stored=stored)


def _compressed_tensors(section: Section, plain: Format) -> Weights:
    groups = section.section("config_groups")
    names = groups.names()
    if len(names) != 1:
        section.refuse("config_groups", f"holds {len(names)} groups; one is translated")
    stored = _compressed_format(groups.section(names[0]).section("weights"))
    ignored = section.optional_strings("ignore") or ()
    for pattern in ignored:
        if pattern.startswith("re:"):
            try:
                re.compile(pattern[3:])
            except re.error as error:
                section.refuse("ignore", f"holds {pattern!r}, which is not a regular expression: {error}")
    facts = Quantization(
        method="compressed-tensors", kv_cache_scheme=section.optional_section("kv_cache_scheme") is not None
    )
    return Weights(facts=facts, plain=plain, linear=stored, experts=stored, stored=stored, ignored=ignored)


def _compressed_format(weights: Section) -> Format:
    bits = weights.integer("num_bits")
    kind = weights.string("type")
    strategy = weights.optional_string("strategy")
    if (bits, kind, strategy) == (4, "float", "group") and weights.integer("group_size") == MXFP4_GROUP:
        return Format("mxfp4")
    dtype = {(4, "int"): "int4", (8, "int"): "int8", (8, "float"): "fp8"}.get((bits, kind))
    if dtype is None:
        weights.untranslated("num_bits", f"{bits}-bit {kind} weights are not translated; known are int4, int8 and fp8")
    if strategy not in ("group", "channel", "tensor"):
        weights.untranslated("strategy", f"scales by {strategy!r} are not translated; known: group, channel, tensor")
    if strategy != "group":
        return Format(dtype)
    return Format(dtype, WeightScale(elements=weights.integer("group_size"), bytes=BF16_SCALE_BYTES))


#: The engine's names of the quantization methods that are translated.
METHODS: Final[Mapping[str, Callable[[Section, Format], Weights]]] = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed_tensors,
}
