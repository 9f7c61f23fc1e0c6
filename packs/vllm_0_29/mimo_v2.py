"""MiMo V2: windows and full layers with values narrower than keys, built without the engine's cache settings.

Source: ``vllm/model_executor/models/mimo_v2.py: MiMoV2Attention``, ``vllm/v1/attention/backends/flash_attn_diffkv.py``,
``triton_attn_diffkv.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from rulespack.kv.specs import Spec
from vllm_0_29.backend_facts import fa_version
from vllm_0_29.backends import forced_backend, select, wants
from vllm_0_29.model import Architecture, CacheName, DraftNames
from vllm_0_29.specs import Builder

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import LayerBackend
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Rules, Settings

ATTENTION: Final = "MiMoV2Attention"
FLASH, TRITON = "FLASH_ATTN_DIFFKV", "TRITON_ATTN_DIFFKV"

MIMO: Final = Architecture(
    caches={"kv": CacheName(".self_attn.attn", ATTENTION)},
    cache_dtype_ignored=True,
    draft_names=DraftNames(prefix="model.mtp.layers.", counted_on=False),
)
ARCHITECTURES: Final = {
    "MiMoV2FlashForCausalLM": MIMO,
    "MiMoV2ForCausalLM": MIMO,
    "MiMoV2OmniForCausalLM": msgspec.structs.replace(MIMO, prefix="language_model.model.layers."),
}


def attention_backend(rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, cache_dtype: str) -> str:
    """Where keys and values differ in width: the one of the two that was forced, else FlashAttention where its version
    3 or 4 runs the widths, else Triton; any other forced backend is passed over. Layers of one width select."""
    node = cls.attention
    want = wants(rules, model, deployment, cls, "auto", cache_dtype)
    if node.d_v in (None, node.d_h):
        return select(rules, deployment, want, [])
    forced = forced_backend(deployment)
    if forced in (FLASH, TRITON):
        return forced
    version = fa_version(want, head_size=node.d_h, head_size_v=node.d_v, sinks=node.sinks)
    return FLASH if version in (3, 4) else TRITON


def layer_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """As for every attention layer."""
    return rules.specs["Attention"](rules, model, deployment, cls, part, settings)


MODEL_BACKENDS: Final = {ATTENTION: attention_backend}
SPECS: Final[Mapping[str, Builder]] = {ATTENTION: layer_spec}
