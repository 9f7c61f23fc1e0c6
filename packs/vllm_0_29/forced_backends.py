"""Attention backends no layer is given unless they are forced: those for values narrower than keys, and those that run
on another platform or with another package.

Source: ``vllm/v1/attention/backends/flash_attn_diffkv.py``, ``triton_attn_diffkv.py``, ``hpc_attn.py``,
``cpu_attn.py``, ``rocm_attn.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from vllm_0_29.backend_terms import FP8, LBHNC, LBNHC, PLAIN, Backend, Kernel, Want

#: Backends whose layers would run on another platform or with another package: what they refuse is known, what becomes
#: of a layer they take is not modelled.
ELSEWHERE: Final = frozenset(
    """
    HPC_ATTN CPU_ATTN ROCM_ATTN ROCM_AITER_UNIFIED_ATTN CPU_MLA AMX_MLA ROCM_AITER_MLA ROCM_AITER_TRITON_MLA
    ROCM_AITER_MLA_SPARSE XPU_MLA_SPARSE ROCM_FLASHMLA_SPARSE_DSV4
    """.split()
)

CPU_HEADS: Final = frozenset({32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512})
ROCM_HEADS: Final = frozenset({32, 64, 80, 96, 128, 160, 192, 224, 256})


def of_other_widths(backends: Mapping[str, Backend]) -> dict[str, Backend]:
    """The backends for values narrower than keys: the release's FlashAttention, without the kernel for heads of 256
    whose values are as wide, and Triton on the model's own dtype."""
    triton = msgspec.structs.replace(
        backends["TRITON_ATTN"],
        name="TRITON_ATTN_DIFFKV",
        admits_cache_dtype=lambda want: want.cache_dtype in ("auto", "bfloat16"),
        cross=False,
    )
    equal = backends["FLASH_ATTN"]
    flash = msgspec.structs.replace(
        equal,
        name="FLASH_ATTN_DIFFKV",
        kernel=lambda want: equal.kernel(_of_other_values(want)),
        preferred_floor=lambda want: equal.preferred_floor(_of_other_values(want)),
    )
    return {backend.name: backend for backend in (flash, triton)}


def _of_other_values(want: Want) -> Want:
    return msgspec.structs.replace(want, model_head_size=0) if want.model_head_size == 256 else want


def _elsewhere(
    name: str,
    *,
    mla: bool = True,
    sparse: bool = False,
    admits_head: Callable[[Want], bool] = lambda want: True,
) -> Backend:
    """A backend of another platform, of which nothing is said but the kind of layer it serves."""
    return Backend(
        name=name,
        mla=mla,
        sparse=sparse,
        admits_capability=lambda capability: True,
        admits_head=admits_head,
        admits_cache_dtype=lambda want: True,
        kernel=lambda want: Kernel((1,), multiples=True),
        dtypes=frozenset({"float16", "bfloat16", "float32"}),
        admits_sinks=lambda want: True,
        admits_mm_prefix=True,
        cross=True,
        pcp=True,
    )


BACKENDS: Final = {
    backend.name: backend
    for backend in (
        *(_elsewhere(name) for name in ("CPU_MLA", "AMX_MLA", "ROCM_AITER_MLA", "ROCM_AITER_TRITON_MLA")),
        *(_elsewhere(name, sparse=True) for name in ("ROCM_AITER_MLA_SPARSE", "XPU_MLA_SPARSE")),
        _elsewhere("ROCM_FLASHMLA_SPARSE_DSV4", sparse=True, admits_head=lambda want: want.head_size == 512),
        _elsewhere("ROCM_AITER_UNIFIED_ATTN", mla=False),
        Backend(
            name="HPC_ATTN",
            admits_capability=lambda capability: capability == (9, 0),
            admits_head=lambda want: want.head_size == 128,
            admits_cache_dtype=lambda want: want.cache_dtype in ("auto", "bfloat16", "fp8_e4m3"),
            kernel=lambda want: Kernel((64,)),
            layouts=lambda capability: (LBNHC,),
            windows=False,
        ),
        Backend(
            name="CPU_ATTN",
            admits_capability=lambda capability: True,
            admits_head=lambda want: want.head_size in CPU_HEADS,
            admits_cache_dtype=lambda want: True,
            kernel=lambda want: Kernel((32,), multiples=True),
            layouts=lambda capability: (LBHNC,),
            dtypes=frozenset({"float16", "bfloat16", "float32"}),
        ),
        Backend(
            name="ROCM_ATTN",
            admits_capability=lambda capability: True,
            admits_head=lambda want: want.head_size in ROCM_HEADS,
            admits_cache_dtype=lambda want: (
                want.cache_dtype in PLAIN or want.cache_dtype in FP8 or want.cache_dtype == "fp8_e5m2"
            ),
            kernel=lambda want: Kernel((16,), multiples=True),
            dtypes=frozenset({"float16", "bfloat16", "float32"}),
            admits_mm_prefix=True,
        ),
    )
}
