"""Hunyuan 4: sparse latent attention with learnable sinks, on the one sparse backend that can apply them.

Source: ``vllm/models/hy_v4/nvidia/attention.py: HYV4Attention._resolve_sink_backend``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from rulespack.errors import Refused, engine_refuses
from rulespack.kv.specs import Spec
from vllm_0_29.backend_terms import objections
from vllm_0_29.backends import constructed, select, wants
from vllm_0_29.model import Architecture, CacheName
from vllm_0_29.sparse_mla import CACHES
from vllm_0_29.specs import Builder

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import LayerBackend
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Rules, Settings

SOURCE: Final = "vllm/models/hy_v4/nvidia/attention.py: HYV4Attention"

LATENT: Final = "HYV4Attention"
ARCHITECTURES: Final = {
    "HYV4ForCausalLM": Architecture(caches=CACHES | {"kv": CacheName(".self_attn.attn", LATENT)}),
}

#: The backend with a subclass of the model's own that applies sinks.
SINK_BACKEND: Final = "FLASHMLA_SPARSE"


def latent_backend(rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, cache_dtype: str) -> str:
    """FlashMLA's sparse backend where it can run, even over one that was forced, for only it applies the sinks; else
    what is selected, the sinks left out.

    Refused by the engine where no sparse backend can be selected.
    """
    want = wants(rules, model, deployment, cls, cache_dtype, cache_dtype)
    want = msgspec.structs.replace(want, sinks=False)
    try:
        name = select(rules, deployment, want, [])
    except Refused as refused:
        raise engine_refuses("sparse-backend-found", "RuntimeError", "construct", refused.reason, SOURCE) from None
    sinks = rules.backends[SINK_BACKEND]
    if cls.attention.sinks and not any(objections(sinks, want, asks_dcp=False)):
        name = SINK_BACKEND
    return constructed(rules.backends[name], want)


def latent_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """As for every latent cache."""
    return rules.specs["MLAAttention"](rules, model, deployment, cls, part, settings)


MODEL_BACKENDS: Final = {LATENT: latent_backend}
SPECS: Final[Mapping[str, Builder]] = {LATENT: latent_spec}
