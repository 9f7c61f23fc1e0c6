"""In which format a checkpoint stores each weight, asked by module name.

Facts of vLLM 0.31.0, model_executor/layers/quantization: a method quantizes linear layers and routed experts; the
vocabulary table, the LM head and the router keep the model's own dtype unless a family says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from rulespack.graph.model import Quantization, WeightScale

#: The unfused modules a fused one stands for in a checkpoint's lists (each model class's packed_modules_mapping).
FUSED: Final = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
#: What a layer is called in a checkpoint: a text model's own name, or that of a decoder inside a multimodal one.
PREFIXES: Final = ("model.", "language_model.model.", "model.language_model.", "backbone.")
#: A draft module that stands beside the model, not among its layers: it goes by its own name, or by the model's.
BESIDE: Final = "mtp."
BESIDE_PREFIXES: Final = ("", "model.")


class Format(msgspec.Struct, frozen=True):
    """A storage format: the dtype and, where the checkpoint says, the resident scale layout."""

    dtype: str
    scale: WeightScale | None = None


class ModuleFormats(msgspec.Struct, frozen=True):
    """Formats a checkpoint states module by module: the ``names`` it lists, and how to read those of one layer.

    ``read`` raises InvalidConfig where modules that the engine fuses are stored in different formats.
    """

    names: tuple[str, ...]
    read: Callable[[Sequence[str]], Format]

    def exactly(self, wanted: Sequence[str]) -> Format | None:
        """The format of the listed ones among ``wanted``, None where none is listed."""
        found = [name for name in wanted if name in self.names]
        return self.read(found) if found else None

    def first_below(self, parents: Sequence[str]) -> Format | None:
        """The format of the first module listed below one of ``parents``, None where there is none."""
        prefixes = tuple(f"{parent}." for parent in parents)
        found = next((name for name in self.names if name.startswith(prefixes)), None)
        return None if found is None else self.read([found])


class Weights(msgspec.Struct, frozen=True):
    """What the checkpoint's quantization does to each weight.

    ``plain`` is the model's own dtype; ``linear`` and ``experts`` the formats of quantized linear layers and routed
    experts; ``stored`` the one the checkpoint is named for (``global.weight_dtype``). ``ignored`` names modules that
    stay plain: exact names, ``re:`` patterns, or globs with ``*``. Where the checkpoint lists its modules one by one,
    ``listed`` decides, and what it does not list stays plain.
    """

    facts: Quantization | None
    plain: Format
    linear: Format
    experts: Format
    stored: Format
    ignored: tuple[str, ...] = ()
    listed: ModuleFormats | None = None

    def of_linear(self, module: str) -> Format:
        """The format of a linear layer, named without its model prefix (``layers.3.self_attn.qkv_proj``)."""
        if self._ignores(module):
            return self.plain
        if self.listed is None:
            return self.linear
        return self.listed.exactly(_names(module)) or self.plain

    def of_experts(self, module: str) -> Format:
        """The format of the routed experts of ``module`` (``layers.3.mlp.experts``).

        A list names them by that name, one by one below it, or as their neighbours in the layer's MoE; the first one
        stands for all (0.31.0, quantization/modelopt.py, _resolve_quant_algo).
        """
        if self._ignores(module):
            return self.plain
        if self.listed is None:
            return self.experts
        names = _names(module)
        neighbours = [name.rpartition(".")[0] for name in names]
        listed = self.listed
        return listed.exactly(names) or listed.first_below(names) or listed.first_below(neighbours) or self.plain

    def of_head(self) -> Format:
        """The format of the LM head: plain, unless the checkpoint lists it."""
        return self.plain if self.listed is None else self.listed.exactly(("lm_head",)) or self.plain

    def _ignores(self, module: str) -> bool:
        return bool(self.ignored) and any(_matches(pattern, _names(module)) for pattern in self.ignored)


def _names(module: str) -> list[str]:
    """What a checkpoint may call a module: by itself or by the ones it fuses, below each known prefix."""
    parent, _, last = module.rpartition(".")
    parts = [module, *(f"{parent}.{part}" for part in FUSED.get(last, ()))]
    prefixes = BESIDE_PREFIXES if module.startswith(BESIDE) else PREFIXES
    return [prefix + part for part in parts for prefix in prefixes]


def _matches(pattern: str, names: Sequence[str]) -> bool:
    if pattern.startswith("re:"):
        return any(re.match(pattern[3:], name) for name in names)
    if "*" in pattern:
        glob = re.compile(".*".join(re.escape(part) for part in pattern.split("*")) + r"(\.|$)")
        return any(glob.match(name) for name in names)
    return any(name == pattern or name.startswith(pattern + ".") for name in names)
