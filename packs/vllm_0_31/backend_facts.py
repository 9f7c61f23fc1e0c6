"""The CUDA attention backends of vLLM 0.31.0: what moved since 0.29.0.

FlashAttention keeps fp8 caches of 512-wide heads on Hopper, in blocks of 64; FlashInfer serves sinks on Hopper; the
MLA kernels take a latent of 512; two composites serve models with bidirectional images; the selector asks for decode
context parallelism.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from rulespack.errors import engine_refuses
from vllm_0_29 import backend_facts as earlier
from vllm_0_29.backend_terms import BLHNC, FP8, LBHNC, PLAIN, Backend, Kernel, Want
from vllm_0_29.layout import PREFERENCE

#: Latent widths of the dense MLA kernels; TRITON_MLA takes any.
DENSE_MLA_HEADS: Final = earlier.DENSE_MLA_HEADS | {512}
FIXED_WIDTH_MLA: Final = ("FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "TOKENSPEED_MLA", "CUTLASS_MLA")


def fa_stores_fp8(want: Want, *, head_size: int | None = None, sinks: bool = False, own_hd256: bool = False) -> bool:
    """Also FlashAttention 4 on Hopper, for heads of 512 (``fa_utils.py: flash_attn_supports_kv_cache_dtype``)."""
    version = earlier.fa_version(want, head_size=head_size, head_size_v=head_size, sinks=sinks, own_hd256=own_hd256)
    if want.family == 9:
        return version == 3 or (version == 4 and head_size in (None, 512))
    return version == 4 and want.family == 10


def fa_cache_dtype(want: Want) -> bool:
    """As before, with what the version can store now."""
    return earlier.fa_cache_dtype(want, fa_stores_fp8)


def fa_combination(want: Want) -> str | None:
    """What FlashAttention refuses only in combination; bidirectional images over a quantized cache on 9.0 are new."""
    if want.sinks and want.capability < (9, 0):
        return "attention sinks below compute capability 9.0"
    if want.mm_prefix and want.quantized and want.capability == (9, 0):
        return "bidirectional attention within an image over a quantized cache on compute capability 9.0"
    if want.quantized and not fa_stores_fp8(want, head_size=want.head_size, sinks=want.sinks, own_hd256=True):
        return f"cache dtype {want.cache_dtype} at head size {want.head_size}"
    if want.mm_prefix and earlier.fa_version(want, head_size=want.head_size, sinks=want.sinks, own_hd256=True) != 4:
        return f"bidirectional attention within an image at head size {want.head_size}"
    return None


def fa_block(want: Want, head_size: int, cache_dtype: str) -> int | None:
    """The one block size of FlashAttention 4's special kernels: 64 for fp8 heads of 512 on Hopper, 128 for heads of
    256 on family 10; None where any multiple of 16 does. The block that was asked for is not looked at."""
    want = msgspec.structs.replace(want, block_size=None)
    if want.family == 9 and cache_dtype in FP8 and head_size == 512:
        if earlier.fa_version(want, head_size=head_size) == 4:
            return 64
    if head_size == 256 and want.family in (10, 11) and earlier.fa_version(want, head_size=256, own_hd256=True) == 4:
        return 128
    return None


def fa_kernel(want: Want) -> Kernel:
    """Block sizes as the model's widest head and the engine's cache dtype have them."""
    return _fixed_or_sixteens(fa_block(want, want.model_head_size, want.model_cache_dtype))


def fa_layer_kernel(want: Want) -> Kernel:
    """Block sizes as one layer's own head and cache dtype have them, asked outside the engine's configuration: no
    version is forced there, and nothing keeps a version from heads of 256."""
    alone = msgspec.structs.replace(
        want,
        flash_attn_version=None,
        soft_cap=False,
        mm_prefix=False,
        model_cache_dtype="auto",
        dcp=False,
    )
    return _fixed_or_sixteens(fa_block(alone, want.head_size, want.cache_dtype))


def _fixed_or_sixteens(block: int | None) -> Kernel:
    return Kernel((16,), multiples=True) if block is None else Kernel((block,))


def flashinfer_sinks(want: Want) -> bool:
    """With the downloadable kernels, on compute capability 9.0 and families 10 and 12."""
    return want.trtllm and want.downloaded_kernels and (want.capability == (9, 0) or want.family in (10, 12))


FLASH_ATTN: Final = msgspec.structs.replace(
    earlier.BACKENDS["FLASH_ATTN"],
    admits_cache_dtype=fa_cache_dtype,
    combination=fa_combination,
    kernel=fa_kernel,
    layer_kernel=fa_layer_kernel,
    preferred_floor=lambda want: fa_block(want, want.model_head_size, want.model_cache_dtype) or 0,
)
FLASHINFER: Final = msgspec.structs.replace(earlier.BACKENDS["FLASHINFER"], admits_sinks=flashinfer_sinks)
TRITON_ATTN: Final = earlier.BACKENDS["TRITON_ATTN"]


def composite(
    name: str,
    causal: Backend,
    family: int,
    *,
    kernel: Callable[[Want], Kernel],
    layer_kernel: Callable[[Want], Kernel] | None,
    causal_combination: Callable[[Want], str | None],
    layouts: Callable[[tuple[int, int]], tuple[str, ...] | None],
) -> Backend:
    """Triton for the steps with images and ``causal`` for the rest, over one cache: what both can do, on one family.

    Source: ``vllm/v1/attention/backends/composite.py: create_composite_attention_backend``.
    """

    def combination(want: Want) -> str | None:
        plain = msgspec.structs.replace(want, mm_prefix=False)
        return causal_combination(plain)

    def check_packing(cache_dtype: str) -> None:
        parts = (TRITON_ATTN, causal)
        packings = {(part.head_slots(cache_dtype, 1), part.content_bytes(cache_dtype, 256, 256, 1)) for part in parts}
        if cache_dtype not in PLAIN and len(packings) > 1:
            raise engine_refuses(
                "composite-packing",
                "ValueError",
                "construct",
                f"the two parts of {name} lay a {cache_dtype} cache out differently",
                "vllm/v1/attention/backends/composite.py: create_composite_attention_backend",
            )

    return Backend(
        name=name,
        admits_capability=lambda capability: capability[0] == family and causal.admits_capability(capability),
        admits_head=lambda want: want.head_size in (256, 512) and causal.admits_head(want),
        admits_cache_dtype=lambda want: TRITON_ATTN.admits_cache_dtype(want) and causal.admits_cache_dtype(want),
        kernel=kernel,
        layer_kernel=layer_kernel,
        layouts=layouts,
        admits_sinks=lambda want: False,
        admits_mm_prefix=True,
        dcp=False,
        combination=combination,
        check_packing=check_packing,
        content_bytes=TRITON_ATTN.content_bytes,
    )


def _fa_causal(want: Want) -> str | None:
    reason = fa_combination(want)
    if reason is None and earlier.fa_version(want, head_size=want.head_size, own_hd256=True) not in (3, 4):
        return "FlashAttention below version 3"
    return reason


COMPOSITES: Final = (
    composite(
        "TRITON_FLASH_ATTN",
        FLASH_ATTN,
        9,
        kernel=fa_kernel,
        layer_kernel=fa_layer_kernel,
        causal_combination=_fa_causal,
        layouts=lambda capability: PREFERENCE,
    ),
    composite(
        "TRITON_FLASHINFER",
        FLASHINFER,
        10,
        kernel=lambda want: Kernel((64,)),
        layer_kernel=None,
        causal_combination=lambda want: None,
        layouts=lambda capability: (LBHNC, BLHNC),
    ),
)

NAMES: Final = earlier.NAMES | frozenset(
    """
    TRITON_FLASH_ATTN TRITON_FLASHINFER FLASHINFER_MLA_SPARSE_SM90 FLASHMLA_SPARSE_DSV41 FLASHINFER_MLA_SPARSE_DSV41
    FLASHMLA_MEGA_ATTN_DSV41 B12X
    """.split()
)

BACKENDS: Final = {
    **earlier.BACKENDS,
    **{
        name: msgspec.structs.replace(
            earlier.BACKENDS[name], admits_head=lambda want: want.head_size in DENSE_MLA_HEADS
        )
        for name in FIXED_WIDTH_MLA
    },
    **{backend.name: backend for backend in (FLASH_ATTN, FLASHINFER, *COMPOSITES)},
}


def priorities(want: Want) -> tuple[str, ...]:
    """The order backends are tried in, with a composite first where images attend in both directions."""
    order = earlier.priorities(want)
    if want.mm_prefix and not want.mla:
        if want.family == 10:
            return ("TRITON_FLASHINFER", *order)
        if want.family == 9:
            return ("TRITON_FLASH_ATTN", *order)
    return order
