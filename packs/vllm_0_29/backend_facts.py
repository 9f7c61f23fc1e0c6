"""The CUDA attention backends of vLLM 0.29.0: what each can run, as data and small predicates.

Source: ``vllm/v1/attention/backends/`` (one file a backend; MLA in ``mla/``), ``vllm/v1/attention/backend.py:
AttentionBackend.validate_configuration``. A predicate takes a :class:`Want`, one layer's wishes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Final

import msgspec

from vllm_0_29.backend_terms import (
    BLHNC,
    FP8,
    LBHNC,
    LBNHC,
    NVFP4,
    PER_TOKEN_HEAD,
    PLAIN,
    TURBOQUANT,
    Backend,
    Kernel,
    Want,
    handed,
    is_quantized,
)

# --- FlashAttention ---------------------------------------------------------------------------------------------------


def fa4_built(capability: tuple[int, int]) -> bool:
    """Whether FlashAttention 4 runs on this GPU (``fa_utils.py: is_fa_version_supported``)."""
    return capability[0] in (9, 10)


def fa_built(version: int, capability: tuple[int, int]) -> bool:
    """Whether a version of FlashAttention runs on this GPU (``flash_attn_interface.py: is_fa_version_supported``)."""
    if version == 4:
        return fa4_built(capability)
    return capability[0] == 9 if version == 3 else True


def fa_version(
    want: Want,
    *,
    head_size: int | None = None,
    head_size_v: int | None = None,
    sinks: bool = False,
    own_hd256: bool = False,
) -> int | None:
    """FlashAttention's version for a layer, None where it would not run: ``fa_utils.py: get_flash_attn_version``.

    Hopper takes 3 and family 10 takes 4, everything else 2; a version the configuration forces comes before, and what
    a version cannot do moves it. ``head_size`` None asks for the version before any layer is known; ``own_hd256`` says
    that the caller can run FlashAttention 4's own kernel for heads of 256.
    """
    family = want.family
    version = {9: 3, 10: 4}.get(family, 2)
    if want.flash_attn_version is not None:
        version = want.flash_attn_version
    if family >= 10 and version == 3:
        version = 4 if fa4_built(want.capability) else 2
    if version == 3 and family == 9 and head_size is not None:
        if head_size > 256 or (sinks and head_size_v is not None and head_size_v != head_size):
            version = 4
    if version == 4 and head_size == 256 and head_size_v in (None, 256) and family in (10, 11):
        if not own_hd256 or _hd256_falls_back(want, sinks):
            version = 2
    if version == 4 and family >= 10 and head_size is not None and head_size > 128:
        if not (head_size == 256 and head_size_v in (None, 256)) and not (head_size == 192 and head_size_v == 128):
            version = 2
    return version if fa_built(version, want.capability) else None


def _hd256_falls_back(want: Want, sinks: bool) -> bool:
    """What FlashAttention 4's kernel for heads of 256 on family 10 cannot do (``_fa4_hd256_fallback_reason``)."""
    return (
        sinks
        or want.soft_cap
        or is_quantized(want.model_cache_dtype)
        or (want.block_size is not None and want.block_size % 128 != 0)
        or want.mm_prefix
        or want.dcp
    )


def fa_stores_fp8(want: Want, *, head_size: int | None = None, sinks: bool = False, own_hd256: bool = False) -> bool:
    """Whether FlashAttention keeps an fp8 cache: version 3 on Hopper, 4 on family 10."""
    version = fa_version(want, head_size=head_size, head_size_v=head_size, sinks=sinks, own_hd256=own_hd256)
    return (version == 3 and want.family == 9) or (version == 4 and want.family == 10)


def fa_head(want: Want) -> bool:
    """Multiples of 8 up to 256, up to 512 where FlashAttention 4 is built."""
    return want.head_size % 8 == 0 and want.head_size <= (512 if fa4_built(want.capability) else 256)


def fa_cache_dtype(want: Want, stores_fp8: Callable[[Want], bool] = fa_stores_fp8) -> bool:
    """The model's own formats, and fp8 where the version can store it."""
    return want.cache_dtype in PLAIN or (want.cache_dtype in FP8 and stores_fp8(want))


def fa_sinks(want: Want) -> bool:
    """FlashAttention 3 and 4."""
    return fa_version(want) in (3, 4)


def fa_combination(want: Want) -> str | None:
    """What FlashAttention refuses only in combination."""
    if want.sinks and want.capability < (9, 0):
        return "attention sinks below compute capability 9.0"
    if want.quantized and not fa_stores_fp8(want, head_size=want.head_size, sinks=want.sinks, own_hd256=True):
        return f"cache dtype {want.cache_dtype} at head size {want.head_size}"
    if want.mm_prefix and fa_version(want, head_size=want.head_size, sinks=want.sinks, own_hd256=True) != 4:
        return f"bidirectional attention within an image at head size {want.head_size}"
    return None


def fa_hd256_block(want: Want) -> int | None:
    """128 where the model's heads run on FlashAttention 4's kernel for heads of 256, whatever block was asked for."""
    model_head, want = want.model_head_size, msgspec.structs.replace(want, block_size=None)
    if model_head != 256 or want.family not in (10, 11):
        return None
    return 128 if fa_version(want, head_size=256, own_hd256=True) == 4 else None


def fa_kernel(want: Want) -> Kernel:
    """Any multiple of 16, but 128-token pages for FlashAttention 4's kernel for heads of 256."""
    fixed = fa_hd256_block(want)
    return Kernel((16,), multiples=True) if fixed is None else Kernel((fixed,))


def fa_layer_kernel(want: Want) -> Kernel:
    """A window layer asks outside the engine's configuration, where no head size is known: any multiple of 16."""
    return Kernel((16,), multiples=True)


# --- FlashInfer -------------------------------------------------------------------------------------------------------


def flashinfer_sinks(want: Want) -> bool:
    """With the downloadable kernels, on families 10 and 12."""
    return want.trtllm and want.downloaded_kernels and want.family in (10, 12)


def flashinfer_cache_dtype(want: Want) -> bool:
    """Plain and fp8 formats; whatever is called nvfp4 on family 10 with the downloadable kernels."""
    if want.cache_dtype.startswith("nvfp4"):
        return want.family == 10 and want.downloaded_kernels
    return want.cache_dtype in PLAIN or want.cache_dtype in FP8 or want.cache_dtype == "fp8_e5m2"


def flashinfer_kernel(want: Want) -> Kernel:
    """16, 32 and 64; also 128 to 1024 on family 10 for grouped queries with the downloadable kernels."""
    heads, kv_heads = want.model_heads, want.model_kv_heads
    large = (
        want.family == 10
        and want.trtllm
        and want.downloaded_kernels
        and heads // kv_heads > 1
        and heads % kv_heads == 0
    )
    return Kernel((16, 32, 64, 128, 256, 512, 1024) if large else (16, 32, 64))


def flashinfer_layer_kernel(want: Want) -> Kernel:
    """A window layer asks outside the engine's configuration, where the large pages are never offered."""
    return Kernel((16, 32, 64))


def nvfp4_content(cache_dtype: str, k: int, v: int, element: int) -> int:
    """nvfp4: each of K and V is a slot of packed halves and one scale byte for every 16 values."""
    return k // 2 + k // 16 if cache_dtype in NVFP4 else (k + v) * element


# --- other packings ---------------------------------------------------------------------------------------------------


def per_token_head_content(cache_dtype: str, k: int, v: int, element: int) -> int:
    """Per-token-head formats store two fp32 scales behind each head's K and V; int4 stores two values in a byte."""
    if cache_dtype not in PER_TOKEN_HEAD:
        return (k + v) * element
    if cache_dtype == "int4_per_token_head":
        k, v = k // 2, v // 2
    return (k + v) * element + 8


def turboquant_content(cache_dtype: str, k: int, v: int, element: int) -> int:
    """One slot a head: K packed with a 2-byte norm (or fp8 without), V packed with two 2-byte factors; even in size.

    Any other dtype, as a skipped layer keeps it, is stored as it is.
    """
    if cache_dtype not in TURBOQUANT:
        return (k + v) * element
    key_bits, value_bits = {
        "turboquant_k8v4": (8, 4),
        "turboquant_4bit_nc": (4, 4),
        "turboquant_k3v4_nc": (3, 4),
        "turboquant_3bit_nc": (3, 3),
    }[cache_dtype]
    key = k if key_bits == 8 else ceil(k * key_bits / 8) + 2
    value = ceil(v * value_bits / 8) + 4
    return (key + value + 1) // 2 * 2


# --- MLA --------------------------------------------------------------------------------------------------------------

DENSE_MLA_HEADS: Final = frozenset({320, 576})


def mla_head(want: Want) -> bool:
    """The latent widths the MLA kernels are built for."""
    return want.head_size in DENSE_MLA_HEADS


def triton_fp8(want: Want) -> str | None:
    """Triton's kernels cannot convert fp8 below compute capability 8.9; the selector does not ask."""
    if want.cache_dtype.startswith("fp8") and want.capability < (8, 9):
        return f"cache dtype {want.cache_dtype} needs compute capability 8.9"
    return None


def flex_soft_cap(want: Want) -> str | None:
    """FlexAttention applies no soft cap to the scores; the selector does not ask."""
    return "a soft cap on the scores" if want.soft_cap else None


def flashinfer_mla_combination(want: Want) -> str | None:
    """FlashInfer's MLA kernels are built for non-rotary widths of 64, 128 and 192."""
    if want.qk_nope_head_dim not in (64, 128, 192):
        return f"qk_nope_head_dim {want.qk_nope_head_dim}"
    return None


def tokenspeed_combination(want: Want) -> str | None:
    """DeepSeek R1's widths alone."""
    if want.qk_nope_head_dim != 128 or want.qk_rope_head_dim != 64:
        return f"qk_nope_head_dim {want.qk_nope_head_dim} and qk_rope_head_dim {want.qk_rope_head_dim}"
    return None


def flashmla_combination(want: Want) -> str | None:
    """The dense FlashMLA kernel is Hopper's."""
    return None if want.family == 9 else "the dense kernel off Hopper"


def _plain_and_fp8(want: Want) -> bool:
    return want.cache_dtype in PLAIN or want.cache_dtype in FP8


def _sixteens(want: Want) -> Kernel:
    return Kernel((16,), multiples=True)


#: Backends of recurrent layers: they take any block and any layout.
STATE_BACKENDS: Final = tuple(
    handed(name, mla=False)
    for name in ("MAMBA1_ATTN", "MAMBA2_ATTN", "GDN_ATTN", "LINEAR_ATTN", "SHORT_CONV_ATTN", "KIMI_K3_KDA")
)

BACKENDS: Final = {
    backend.name: backend
    for backend in (
        *STATE_BACKENDS,
        Backend(
            name="FLASH_ATTN",
            admits_capability=lambda capability: capability >= (8, 0),
            admits_head=fa_head,
            admits_cache_dtype=fa_cache_dtype,
            kernel=fa_kernel,
            layer_kernel=fa_layer_kernel,
            preferred_floor=lambda want: fa_hd256_block(want) or 0,
            admits_sinks=fa_sinks,
            admits_mm_prefix=True,
            cross=True,
            combination=fa_combination,
        ),
        Backend(
            name="FLASHINFER",
            admits_capability=lambda capability: (8, 0) <= capability <= (12, 1),
            admits_head=lambda want: want.head_size in (64, 128, 256, 512),
            admits_cache_dtype=flashinfer_cache_dtype,
            kernel=flashinfer_kernel,
            layer_kernel=flashinfer_layer_kernel,
            layouts=lambda capability: (LBHNC, BLHNC) if capability[0] == 10 else None,
            admits_sinks=flashinfer_sinks,
            head_slots=lambda cache_dtype, heads: 2 * heads if cache_dtype in NVFP4 else heads,
            content_bytes=nvfp4_content,
        ),
        Backend(
            name="TRITON_ATTN",
            admits_capability=lambda capability: True,
            admits_head=lambda want: want.head_size >= 32,
            admits_cache_dtype=lambda want: (
                _plain_and_fp8(want) or want.cache_dtype == "fp8_e5m2" or want.cache_dtype in PER_TOKEN_HEAD
            ),
            kernel=_sixteens,
            dtypes=frozenset({"float16", "bfloat16", "float32"}),
            admits_sinks=lambda want: True,
            admits_mm_prefix=True,
            cross=True,
            dcp=False,
            construction=triton_fp8,
            content_bytes=per_token_head_content,
        ),
        Backend(
            name="FLEX_ATTENTION",
            admits_capability=lambda capability: True,
            admits_head=lambda want: True,
            admits_cache_dtype=lambda want: want.cache_dtype in PLAIN,
            kernel=_sixteens,
            layouts=lambda capability: (LBNHC,),
            dtypes=frozenset({"float16", "bfloat16", "float32"}),
            admits_mm_prefix=True,
            dcp=False,
            construction=flex_soft_cap,
            construction_error="NotImplementedError",
        ),
        Backend(
            name="TURBOQUANT",
            non_causal=False,
            admits_capability=lambda capability: True,
            admits_head=lambda want: want.head_size > 0,
            admits_cache_dtype=lambda want: want.cache_dtype in TURBOQUANT,
            kernel=lambda want: Kernel((16, 32, 64, 128)),
            layouts=lambda capability: (LBNHC,),
            windows=False,
            dcp=False,
            content_bytes=turboquant_content,
        ),
        Backend(
            name="FLASH_ATTN_MLA",
            non_causal=False,
            mla=True,
            admits_capability=lambda capability: capability[0] == 9,
            admits_head=mla_head,
            admits_cache_dtype=lambda want: want.cache_dtype in PLAIN,
            kernel=_sixteens,
            pcp=True,
        ),
        Backend(
            name="FLASHMLA",
            non_causal=False,
            mla=True,
            admits_capability=lambda capability: capability[0] in (9, 10),
            admits_head=mla_head,
            admits_cache_dtype=_plain_and_fp8,
            kernel=lambda want: Kernel((64,)),
            pcp=True,
            combination=flashmla_combination,
        ),
        Backend(
            name="FLASHINFER_MLA",
            non_causal_dcp=True,
            mla=True,
            admits_capability=lambda capability: capability[0] == 10,
            admits_head=mla_head,
            admits_cache_dtype=_plain_and_fp8,
            kernel=lambda want: Kernel((32, 64)),
            pcp=True,
            combination=flashinfer_mla_combination,
        ),
        Backend(
            name="TOKENSPEED_MLA",
            non_causal_dcp=True,
            mla=True,
            admits_capability=lambda capability: capability[0] == 10,
            admits_head=mla_head,
            admits_cache_dtype=lambda want: want.cache_dtype in FP8,
            kernel=lambda want: Kernel((32, 64)),
            pcp=True,
            combination=tokenspeed_combination,
        ),
        Backend(
            name="CUTLASS_MLA",
            non_causal=False,
            mla=True,
            admits_capability=lambda capability: capability[0] == 10,
            admits_head=mla_head,
            admits_cache_dtype=_plain_and_fp8,
            kernel=lambda want: Kernel((128,)),
            pcp=True,
        ),
        Backend(
            name="TRITON_MLA",
            mla=True,
            admits_capability=lambda capability: True,
            admits_head=lambda want: True,
            admits_cache_dtype=_plain_and_fp8,
            kernel=_sixteens,
            pcp=True,
            construction=triton_fp8,
        ),
    )
}

#: ``vllm/v1/attention/backends/registry.py: AttentionBackendEnum``.
NAMES: Final = frozenset(
    """
    FLASH_ATTN FLASH_ATTN_DIFFKV TRITON_ATTN TRITON_ATTN_DIFFKV ROCM_ATTN ROCM_AITER_MLA ROCM_AITER_TRITON_MLA
    ROCM_AITER_FA ROCM_AITER_MLA_SPARSE XPU_MLA_SPARSE TORCH_SDPA FLASHINFER FLASHINFER_MLA TOKENSPEED_MLA
    FLASHINFER_MLA_SPARSE FLASHINFER_MLA_SPARSE_SM120 TRITON_MLA CUTLASS_MLA FLASHMLA FLASHMLA_SPARSE
    FLASHMLA_SPARSE_DSV4 FLASHINFER_MLA_SPARSE_DSV4 ROCM_FLASHMLA_SPARSE_DSV4 FLASH_ATTN_MLA FLASH_ATTN_MLA_SPARSE
    MINIMAX_M3_SPARSE CUTLASS_MSA TRITON_MSA NO_ATTENTION FLEX_ATTENTION HPC_ATTN ROCM_AITER_UNIFIED_ATTN CPU_ATTN
    CPU_MLA AMX_MLA TURBOQUANT CUSTOM
    """.split()
)


def sparse_priorities(want: Want) -> tuple[str, ...]:
    """The backends for sparse layers, which the release tries behind the dense ones that cannot have them."""
    if want.family == 10:
        # FlashMLA pads few heads to many, and keeps fp8 in a wider record.
        if want.quantized or want.query_heads <= 16:
            return ("FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE")
        return ("FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE")
    if want.family == 12:
        return ("FLASHINFER_MLA_SPARSE_SM120",)
    return ("FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE")


def priorities(want: Want) -> tuple[str, ...]:
    """The order backends are tried in: ``vllm/platforms/cuda.py: _get_backend_priorities``."""
    if want.sparse:
        return sparse_priorities(want)
    if want.mla:
        if want.family == 10:
            return ("FLASHINFER_MLA", "TOKENSPEED_MLA", "CUTLASS_MLA", "FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA")
        if want.family == 12:
            return ("TRITON_MLA",)
        return ("FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "TRITON_MLA")
    if want.family == 10 and not want.non_causal:
        return ("FLASHINFER", "FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT")
    return ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT")
