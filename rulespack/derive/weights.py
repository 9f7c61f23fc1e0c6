"""In which format a checkpoint stores each weight, asked by module name.

Facts of vLLM 0.31.0, model_executor/layers/quantization: a method quantizes linear layers and routed experts; the
vocabulary table, the LM head and the router keep the model's own dtype unless a family says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from rulespack.graph.model import Quantization, WeightScale

#: The unfused modules a fused one stands for in a checkpoint's lists (each model class's packed_modules_mapping).
FUSED: Final = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
}
#: What a layer is called in a checkpoint: a text model's own name, or that of a decoder inside a multimodal one.
PREFIXES: Final = ("model.", "language_model.model.", "model.language_model.")


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
