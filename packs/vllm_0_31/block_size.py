"""Block sizes in vLLM 0.31.0: every backend of the model has a say, and a window may take the whole cache block."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import lcm
from typing import TYPE_CHECKING

from rulespack.errors import engine_refuses
from vllm_0_29.backend_terms import Backend, Want
from vllm_0_29.block_size import DEFAULT_BLOCK_SIZE, SOURCE, preferred

if TYPE_CHECKING:
    from vllm_0_29.rules import Rules


def preferred_block_size(rules: Rules, served: Sequence[tuple[Backend, Want]]) -> int:
    """One backend's preference; for several 16 where all run it, else the smallest common multiple all run.

    Refused by the engine where there is none.
    """
    distinct = {backend.name: (backend, want) for backend, want in served}
    if len(distinct) == 1:
        return preferred(*served[0])
    kernels = [backend.kernel(want) for backend, want in distinct.values()]
    candidates = sorted({lcm(*sizes) for sizes in product(*(kernel.sizes for kernel in kernels))})
    for size in (DEFAULT_BLOCK_SIZE, *candidates):
        if all(kernel.supports(size) for kernel in kernels):
            return size
    raise engine_refuses(
        "common-block-size",
        "ValueError",
        "construct",
        f"the attention backends {', '.join(distinct)} share no KV cache block size",
        SOURCE,
    )


def window_block_size(backend: Backend, want: Want, block_size: int, token_bytes: int, page: int | None) -> int:
    """A window layer's own block in tokens: the largest kernel block whose page fits the padded page, or the page of
    a whole cache block; the smallest where none does (``attention.py: _largest_kernel_block_within``)."""
    budget = page if page is not None else token_bytes * block_size
    kernel = (backend.layer_kernel or backend.kernel)(want)
    sizes: Sequence[int] = kernel.sizes
    if kernel.multiples:
        sizes = [max(base, budget // token_bytes // base * base) for base in kernel.sizes]
    fitting = [size for size in sizes if size * token_bytes <= budget]
    return max(fitting) if fitting else min(sizes)
