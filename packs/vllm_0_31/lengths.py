"""``max_model_len`` in vLLM 0.31.0: yarn models state their lengths already scaled."""

from __future__ import annotations

from rulespack.graph.model import Positions
from vllm_0_29 import lengths as earlier

ALREADY_SCALED = earlier.ALREADY_SCALED | {"yarn", "deepseek_yarn", "deepseek_llama_scaling"}


def scaled_length(positions: Positions) -> tuple[float, str]:
    """The derived length in tokens after rope scaling, and why: only linear and dynamic factors still multiply."""
    length, said = earlier.stated_length(positions)
    factor = 1.0
    for rope in positions.rope:
        if rope.type not in ALREADY_SCALED and rope.factor is not None:
            factor = rope.factor
    return length * factor, said if factor == 1.0 else f"{said} x {factor:g}"
