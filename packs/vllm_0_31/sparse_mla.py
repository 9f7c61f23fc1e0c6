"""Sparse latent attention in vLLM 0.31.0: a backend for Hopper's fp8 rows, nvfp4 records, layers without a rotary part.

Rows that a kernel addresses by their number keep every block a multiple of one row. Source: as for
:mod:`vllm_0_29.sparse_mla`, and ``flashinfer_mla_sparse_sm90.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from rulespack.kv.specs import Spec
from vllm_0_29 import sparse_mla as earlier
from vllm_0_29 import specs
from vllm_0_29.backend_terms import FP8, LBHNC, Backend, Kernel, Want, is_quantized
from vllm_0_29.specs import Builder
from vllm_0_31 import backend_facts
from vllm_0_31.groups import BLOCK_STRIDE

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import LayerBackend
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Rules, Settings

NVFP4_PACKED: Final = "nvfp4_ds_mla"
RECORDS: Final = (earlier.PACKED, NVFP4_PACKED)

#: Latent widths with a rotary part of 64 values and without one.
HEADS: Final = (512, 576)


def flashmla_combination(want: Want) -> str | None:
    """A latent without a rotary part is kept in bf16 on Hopper alone, nvfp4 records on family 10 alone."""
    if want.head_size == 512:
        if is_quantized(want.cache_dtype) or want.family != 9:
            return f"head size 512 with cache dtype {want.cache_dtype} on compute capability family {want.family}"
        if want.qk_rope_head_dim != 0:
            return "head size 512 with a rotary part"
    if want.cache_dtype == NVFP4_PACKED and want.family != 10:
        return f"cache dtype {want.cache_dtype} off family 10"
    return None


def flashmla_canonical(cache_dtype: str, capability: tuple[int, int]) -> str:
    """As before, but nvfp4 records are records already."""
    return cache_dtype if cache_dtype == NVFP4_PACKED else earlier.flashmla_canonical(cache_dtype, capability)


def flashinfer_combination(want: Want) -> str | None:
    """As before; without a rotary part one width is built."""
    if want.pcp and want.dcp:
        return "prefill and decode context parallelism together"
    if want.qk_rope_head_dim == 0:
        if want.qk_nope_head_dim != 256 or want.kv_lora_rank != 512:
            return f"qk_nope_head_dim {want.qk_nope_head_dim} without a rotary part"
        return None if want.index_topk is not None else "no index_topk"
    return earlier.flashinfer_combination(want)


def sm90_combination(want: Want) -> str | None:
    """The widths the kernel is built for."""
    if want.kv_lora_rank != 512 or want.qk_rope_head_dim not in (0, 64):
        return f"kv_lora_rank {want.kv_lora_rank} and qk_rope_head_dim {want.qk_rope_head_dim}"
    return None


def _widened(name: str, **changed: object) -> Backend:
    backend = earlier.BACKENDS[name]
    return msgspec.structs.replace(backend, admits_head=lambda want: want.head_size in HEADS, **changed)


BACKENDS: Final = {
    backend.name: backend
    for backend in (
        _widened(
            "FLASHMLA_SPARSE",
            admits_cache_dtype=lambda want: want.cache_dtype in ("auto", "bfloat16", "fp8", *RECORDS),
            combination=flashmla_combination,
            canonical=flashmla_canonical,
        ),
        _widened("FLASHINFER_MLA_SPARSE", combination=flashinfer_combination),
        _widened("FLASHINFER_MLA_SPARSE_SM120"),
        Backend(
            name="FLASHINFER_MLA_SPARSE_SM90",
            mla=True,
            sparse=True,
            admits_capability=lambda capability: capability[0] == 9,
            admits_head=lambda want: want.head_size in HEADS,
            admits_cache_dtype=lambda want: want.cache_dtype in ("auto", "bfloat16", *FP8),
            kernel=lambda want: Kernel((64,), multiples=True),
            layouts=lambda capability: (LBHNC,),
            dtypes=frozenset({"bfloat16"}),
            dcp=False,
            pcp=True,
            combination=sm90_combination,
        ),
    )
}


def priorities(want: Want) -> tuple[str, ...]:
    """Off families 10 and 12 the new backend comes last, and first for latents without a rotary part."""
    order = backend_facts.priorities(want)
    if not want.sparse or want.family in (10, 12):
        return order
    if want.head_size == 512:
        return ("FLASHINFER_MLA_SPARSE_SM90", *order)
    return (*order, "FLASHINFER_MLA_SPARSE_SM90")


def mla_attention(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """As before, and every block a multiple of one row where the kernel counts rows over blocks."""
    spec = specs.mla_attention(rules, model, deployment, cls, part, settings)
    packed = part.cache_dtype in RECORDS
    counts_rows = part.backend == "FLASHINFER_MLA_SPARSE" or (
        part.backend == "FLASHMLA_SPARSE" and (not packed or deployment.gpu.family == 10)
    )
    if not counts_rows:
        return spec
    return msgspec.structs.replace(spec, labels=((BLOCK_STRIDE, spec.content_bytes),))


SPECS: Final[Mapping[str, Builder]] = {"MLAAttention": mla_attention}
