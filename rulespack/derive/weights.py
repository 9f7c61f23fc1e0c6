"""In which format a checkpoint stores each weight: the quantization, read once and asked by module name.

Facts of vLLM 0.31.0, model_executor/layers/quantization: a method quantizes linear layers and routed experts; the
vocabulary table, the LM head and the router keep the model's own dtype unless a family says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from rulespack.derive.section import Section
from rulespack.graph.model import Quantization, WeightScale

#: The unfused modules a fused one stands for in a checkpoint's lists (each model class's packed_modules_mapping).
FUSED: Final = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
}
#: What a layer is called in a checkpoint: a text model's own name, or that of a decoder inside a multimodal one.
PREFIXES: Final = ("model.", "language_model.model.", "model.language_model.")

FP32_SCALE_BYTES: Final = 4
BF16_SCALE_BYTES: Final = 2
MXFP8_BLOCK: Final = (32, 32)


class Format(msgspec.Struct, frozen=True):
    """A storage format: the dtype and, where the checkpoint says, the resident scale layout."""

    dtype: str
    scale: WeightScale | None = None


class Weights(msgspec.Struct, frozen=True):
    """What the checkpoint's quantization does to each weight.

    ``plain`` is the model's own dtype; ``linear`` and ``experts`` the formats of quantized linear layers and routed
    experts; ``stored`` the one the checkpoint is named for (``global.weight_dtype``). ``ignored`` names modules that
    stay plain: exact names, ``re:`` patterns, or globs with ``*``.
    """

    facts: Quantization | None
    plain: Format
    linear: Format
    experts: Format
    stored: Format
    ignored: tuple[str, ...] = ()

    def of_linear(self, module: str) -> Format:
        """The format of a linear layer, named without its model prefix (``layers.3.self_attn.qkv_proj``)."""
        return self.plain if self._ignores(module) else self.linear

    def of_experts(self, module: str) -> Format:
        """The format of the routed experts of ``module`` (``layers.3.mlp.experts``)."""
        return self.plain if self._ignores(module) else self.experts

    def _ignores(self, module: str) -> bool:
        if not self.ignored:
            return False
        parent, _, last = module.rpartition(".")
        parts = [module, *(f"{parent}.{part}" for part in FUSED.get(last, ()))]
        names = [prefix + part for part in parts for prefix in PREFIXES]
        return any(_matches(pattern, names) for pattern in self.ignored)


def _matches(pattern: str, names: Sequence[str]) -> bool:
    if pattern.startswith("re:"):
        return any(re.match(pattern[3:], name) for name in names)
    if "*" in pattern:
        glob = re.compile(".*".join(re.escape(part) for part in pattern.split("*")) + r"(\.|$)")
        return any(glob.match(name) for name in names)
    return any(name == pattern or name.startswith(pattern + ".") for name in names)


def read_weights(root: Section, text: Section, dtype: str) -> Weights:
    """Read ``quantization_config`` where the engine looks for it: the top level, else the text configuration.

    Source: 0.31.0, transformers_utils/model_arch_config_convertor.py, get_quantization_config. Raises InvalidConfig
    for a method or a layout that is not translated.
    """
    plain = Format(dtype)
    for owner in (root, text):
        for key in ("quantization_config", "compression_config"):
            quantization = owner.optional_section(key)
            if quantization is not None:
                return _read(quantization, plain)
    return Weights(facts=None, plain=plain, linear=plain, experts=plain, stored=plain)


def _read(section: Section, plain: Format) -> Weights:
    method = section.string("quant_method").lower().replace("compressed_tensors", "compressed-tensors")
    read = METHODS.get(method)
    if read is None:
        known = ", ".join(METHODS)
        section.refuse("quant_method", f"the quantization method {method!r} is not translated; known are {known}")
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
        section.refuse("expert_dtype", f"{experts_dtype!r} is not translated; known is fp4")
    if experts_dtype == "fp4":
        if block != MXFP8_BLOCK:
            section.refuse("weight_block_size", f"is not {list(MXFP8_BLOCK)}, the one translated beside fp4 experts")
        scale = WeightScale(elements=MXFP8_BLOCK[1], bytes=1)
    stored = Format("fp8", scale)
    experts = Format("mxfp4") if experts_dtype == "fp4" else stored
    ignored = section.optional_strings("ignored_layers") or section.optional_strings("modules_to_not_convert") or ()
    facts = Quantization(method="fp8")
    return Weights(facts=facts, plain=plain, linear=stored, experts=experts, stored=stored, ignored=ignored)


def _mxfp4(section: Section, plain: Format) -> Weights:
    """GPT-OSS: only the experts are MXFP4 (0.31.0, quantization/mxfp4.py); its scale layout goes with the format."""
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
    dtype = {(4, "int"): "int4", (8, "int"): "int8", (8, "float"): "fp8"}.get((bits, kind))
    if dtype is None:
        weights.refuse("num_bits", f"{bits}-bit {kind} weights are not translated; known are int4, int8 and fp8")
    if strategy not in ("group", "channel", "tensor"):
        weights.refuse("strategy", f"scales by {strategy!r} are not translated; known are group, channel and tensor")
    if strategy != "group":
        return Format(dtype)
    return Format(dtype, WeightScale(elements=weights.integer("group_size"), bytes=BF16_SCALE_BYTES))


#: The engine's names of the quantization methods that are translated.
METHODS: Final[Mapping[str, Callable[[Section, Format], Weights]]] = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed_tensors,
}
