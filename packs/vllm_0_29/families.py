"""The model families with rules of their own, joined: one line a family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from vllm_0_29 import (
    deepseek_v4,
    dots3_note,
    encoders,
    hidden_states,
    hy_v4,
    inkling,
    mimo_v2,
    minimax_m3,
    qwen4_exp,
    sparse_mla,
    whisper,
)
from vllm_0_29.backend_terms import Backend
from vllm_0_29.backends import SELECTING
from vllm_0_29.model import Architecture
from vllm_0_29.specs import Builder

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Rules

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    **sparse_mla.ARCHITECTURES,
    **deepseek_v4.ARCHITECTURES,
    **dots3_note.ARCHITECTURES,
    **hy_v4.ARCHITECTURES,
    **minimax_m3.ARCHITECTURES,
    **inkling.ARCHITECTURES,
    **mimo_v2.ARCHITECTURES,
    **qwen4_exp.ARCHITECTURES,
    **whisper.ARCHITECTURES,
    **encoders.ARCHITECTURES,
}
BACKENDS: Final[Mapping[str, Backend]] = {
    **sparse_mla.BACKENDS,
    **deepseek_v4.BACKENDS,
    **dots3_note.BACKENDS,
    **minimax_m3.BACKENDS,
    **inkling.BACKENDS,
    **qwen4_exp.BACKENDS,
    **hidden_states.BACKENDS,
}
MODEL_BACKENDS: Final[Mapping[str, Callable[[Rules, Model, Deployment, CacheClass, str], str]]] = {
    **sparse_mla.MODEL_BACKENDS,
    **deepseek_v4.MODEL_BACKENDS,
    **dots3_note.MODEL_BACKENDS,
    **hy_v4.MODEL_BACKENDS,
    **minimax_m3.MODEL_BACKENDS,
    **inkling.MODEL_BACKENDS,
    **mimo_v2.MODEL_BACKENDS,
    **qwen4_exp.MODEL_BACKENDS,
    **whisper.MODEL_BACKENDS,
    **hidden_states.MODEL_BACKENDS,
}
SPECS: Final[Mapping[str, Builder]] = {
    **sparse_mla.SPECS,
    **deepseek_v4.SPECS,
    **dots3_note.SPECS,
    **hy_v4.SPECS,
    **minimax_m3.SPECS,
    **inkling.SPECS,
    **mimo_v2.SPECS,
    **qwen4_exp.SPECS,
    **whisper.SPECS,
    **hidden_states.SPECS,
}

#: Layer classes that keep the model's own dtype where they are skipped: the ordinary ones, and a model's own that are
#: made of those.
SKIPPABLE: Final = SELECTING | {dots3_note.LATENT, hy_v4.LATENT, whisper.CROSS}

#: Layer classes that read the block size of the configuration they were built with: with a cache dtype of its own, a
#: draft's is a copy that no later alignment reaches.
CONFIGURED_BLOCKS: Final = frozenset(
    {sparse_mla.INDEXER, deepseek_v4.INDEX, qwen4_exp.RAW_KEY, qwen4_exp.COMPRESSED_KEY}
)
