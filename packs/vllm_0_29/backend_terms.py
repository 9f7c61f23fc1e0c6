"""What a layer asks of an attention backend, and what a backend is: the terms the tables of a release are written in.

Source: ``vllm/v1/attention/backend.py: AttentionBackend.validate_configuration``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from rulespack.kv.specs import DTYPE_BYTES

PLAIN: Final = frozenset({"auto", "float16", "bfloat16"})
FP8: Final = frozenset({"fp8", "fp8_e4m3"})
NVFP4: Final = frozenset({"nvfp4", "nvfp4_4over6"})
PER_TOKEN_HEAD: Final = frozenset({"int4_per_token_head", "int8_per_token_head", "fp8_per_token_head"})
TURBOQUANT: Final = frozenset({"turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"})

LBNHC, LBHNC, BLHNC, BLNHC = "LBNHC", "LBHNC", "BLHNC", "BLNHC"


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """What one attention layer asks of a backend.

    ``cache_dtype`` is the layer's string; ``block_size`` is set only where the user gave one. ``capability`` is the
    GPU's. ``query_heads`` are the local ones; ``model_heads`` and ``model_kv_heads`` the local heads of the model as a
    whole, ``model_head_size`` its widest head. ``sparse``: the layer attends the ``index_topk`` tokens an indexer
    chose. ``cross``: it attends an encoder's output. ``flash_attn_version`` is a version forced by the configuration.
    ``downloaded_kernels``: FlashInfer's downloadable kernels are at hand, ``trtllm``: nobody barred them.
    """

    head_size: int
    head_size_v: int
    dtype: str
    cache_dtype: str
    block_size: int | None
    mla: bool
    sparse: bool
    cross: bool
    sinks: bool
    soft_cap: bool
    mm_prefix: bool
    window: bool
    capability: tuple[int, int]
    query_heads: int
    model_heads: int
    model_kv_heads: int
    model_head_size: int
    model_cache_dtype: str
    qk_nope_head_dim: int | None
    qk_rope_head_dim: int | None
    kv_lora_rank: int | None
    index_topk: int | None
    flash_attn_version: int | None
    downloaded_kernels: bool
    dcp: bool
    pcp: bool
    non_causal: bool = False
    trtllm: bool = True

    @property
    def family(self) -> int:
        """The capability's major version."""
        return self.capability[0]

    @property
    def quantized(self) -> bool:
        """Whether the layer's cache is stored in a narrower format than the model's."""
        return is_quantized(self.cache_dtype)


class Kernel(msgspec.Struct, frozen=True):
    """Block sizes a kernel runs on: exactly ``sizes``, or any multiple of one of them."""

    sizes: tuple[int, ...]
    multiples: bool = False

    @property
    def smallest(self) -> int:
        """The smallest of the sizes."""
        return min(self.sizes)

    def supports(self, block_size: int) -> bool:
        """Whether a cache block of this size can be cut into kernel blocks."""
        return any(block_size % size == 0 for size in self.sizes)


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """One backend.

    ``kernel`` gives its block sizes for the model as a whole, ``layer_kernel`` for one layer where that can differ;
    ``construction`` what the chosen backend then refuses, with an error of class ``construction_error``; ``canonical``
    what the layers it serves make of the engine's cache dtype on a compute capability; ``check_packing`` refuses a
    cache dtype it cannot lay out, asked where some layers are skipped; ``layouts`` what its kernels take on a
    capability, most preferred first, None where any will do.
    """

    name: str
    mla: bool = False
    sparse: bool = False
    admits_capability: Callable[[tuple[int, int]], bool]
    admits_head: Callable[[Want], bool]
    admits_cache_dtype: Callable[[Want], bool]
    kernel: Callable[[Want], Kernel]
    layer_kernel: Callable[[Want], Kernel] | None = None
    preferred_floor: Callable[[Want], int] = lambda want: 0
    layouts: Callable[[tuple[int, int]], tuple[str, ...] | None] = lambda capability: None
    dtypes: frozenset[str] = frozenset({"float16", "bfloat16"})
    admits_sinks: Callable[[Want], bool] = lambda want: False
    admits_mm_prefix: bool = False
    cross: bool = False
    windows: bool = True
    non_causal: bool = True
    non_causal_dcp: bool = False
    dcp: bool = True
    pcp: bool = False
    combination: Callable[[Want], str | None] = lambda want: None
    construction: Callable[[Want], str | None] = lambda want: None
    construction_error: str = "ValueError"
    canonical: Callable[[str, tuple[int, int]], str] = lambda cache_dtype, capability: cache_dtype
    check_packing: Callable[[str], None] = lambda cache_dtype: None
    head_slots: Callable[[str, int], int] = lambda cache_dtype, heads: heads
    content_bytes: Callable[[str, int, int, int], int] = lambda cache_dtype, k, v, element: (k + v) * element


def element_bytes(cache_dtype: str, model_dtype: str) -> int:
    """Bytes of one value in a cache of this dtype string: the model's own, those of a stated dtype, or a packed one."""
    stored = model_dtype if cache_dtype == "auto" else cache_dtype
    return DTYPE_BYTES[stored] if cache_dtype in PLAIN else 1


def is_quantized(cache_dtype: str) -> bool:
    """``vllm/utils/torch_utils.py: is_quantized_kv_cache``: the cache dtypes that are a quantized format."""
    return cache_dtype.startswith(("fp8", "nvfp4", "turboquant_")) or cache_dtype.endswith("per_token_head")


def objections(backend: Backend, want: Want, *, asks_dcp: bool) -> Iterator[str]:
    """Why ``backend`` cannot serve ``want``, in the release's order of checks; nothing where it can."""
    if not backend.admits_head(want):
        yield f"head size {want.head_size}"
    if want.dtype not in backend.dtypes:
        yield f"model dtype {want.dtype}"
    if not backend.admits_cache_dtype(want):
        yield f"cache dtype {want.cache_dtype}"
    if want.block_size is not None and not backend.kernel(want).supports(want.block_size):
        yield f"block size {want.block_size}"
    if want.mm_prefix and not backend.admits_mm_prefix:
        yield "bidirectional attention within an image"
    if want.mla != backend.mla:
        yield "latent attention" if want.mla else "attention without a latent"
    if want.sinks and not backend.admits_sinks(want):
        yield "attention sinks"
    if want.sparse != backend.sparse:
        yield "sparse attention" if want.sparse else "attention that is not sparse"
    if not backend.admits_capability(want.capability):
        yield f"compute capability {want.capability[0]}.{want.capability[1]}"
    if want.cross and not backend.cross:
        yield "attention to an encoder's output"
    if want.window and not backend.windows:
        yield "a sliding window"
    if want.non_causal and not backend.non_causal:
        yield "attention over a whole draft block"
    if want.mla and want.non_causal and want.dcp and not backend.non_causal_dcp:
        yield "latent attention over a whole draft block under decode context parallelism"
    if want.pcp and not backend.pcp:
        yield "prefill context parallelism"
    if asks_dcp and want.dcp and not backend.dcp:
        yield "decode context parallelism"
    if (reason := backend.combination(want)) is not None:
        yield reason


def _never(want: Want) -> bool:
    return False


def handed(
    name: str,
    kernel: Callable[[Want], Kernel] = lambda want: Kernel((1,), multiples=True),
    layouts: Callable[[tuple[int, int]], tuple[str, ...] | None] = lambda capability: None,
    *,
    mla: bool = True,
    pcp: bool = False,
    canonical: Callable[[str, tuple[int, int]], str] = lambda cache_dtype, capability: cache_dtype,
) -> Backend:
    """A backend that a model hands to its own layers: no layer that selects one can have it."""
    return Backend(
        name=name,
        mla=mla,
        pcp=pcp,
        admits_capability=lambda capability: True,
        admits_head=_never,
        admits_cache_dtype=_never,
        kernel=kernel,
        layouts=layouts,
        canonical=canonical,
    )
