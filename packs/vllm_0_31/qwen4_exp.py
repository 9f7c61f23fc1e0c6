"""Qwen 4 (experimental) in vLLM 0.31.0: the main cache is also kept in fp8."""

from __future__ import annotations

from typing import Final

from vllm_0_29 import qwen4_exp as earlier
from vllm_0_29.backend_terms import FP8

MODEL_BACKENDS: Final = {earlier.MAIN: earlier.main_backend((*earlier.PLAIN, *sorted(FP8)))}
