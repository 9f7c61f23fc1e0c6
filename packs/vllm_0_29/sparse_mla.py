"""Latent attention over the tokens an indexer chose: its backends, and the indexer's key cache.

DeepSeek V3.2 and GLM 5 to 5.3. Source: ``vllm/v1/attention/backends/mla/*_sparse*.py``, ``indexer.py``,
``vllm/model_executor/layers/attention/mla_attention.py: _canonicalize_sparse_mla_kv_cache_dtype``,
``vllm/model_executor/models/deepseek_v2.py: DeepseekV32IndexerCache``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rulespack.kv.specs import Spec
from vllm_0_29.backend_terms import FP8, PLAIN, Backend, Kernel, Want, handed, is_quantized
from vllm_0_29.model import Architecture, CacheName
from vllm_0_29.specs import Builder, scaled_keys

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import LayerBackend
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Rules, Settings

INDEXER: Final = "DeepseekV32IndexerCache"

#: In the order a layer registers its caches.
CACHES: Final = {"index": CacheName(".self_attn.indexer.k_cache", INDEXER), "kv": CacheName(".self_attn.attn")}
ARCHITECTURES: Final = {
    "DeepseekV32ForCausalLM": Architecture(caches=CACHES, bfloat16_cache_is_auto=True),
    "GlmMoeDsaForCausalLM": Architecture(caches=CACHES),
}

#: The packed record of 656 bytes: 512 values in fp8, their scales, and the rotary part in bf16.
PACKED: Final = "fp8_ds_mla"
#: The one number of chosen tokens FlashInfer's kernel for family 12 is built for.
SM120_TOPK: Final = 2048


def flash_attn_combination(want: Want) -> str | None:
    """The kernel does not share a request over ranks."""
    if want.dcp:
        return "decode context parallelism"
    return None if want.index_topk is not None else "no index_topk"


def flashinfer_combination(want: Want) -> str | None:
    """The widths the kernel is built for."""
    if want.qk_nope_head_dim not in (128, 192):
        return f"qk_nope_head_dim {want.qk_nope_head_dim}"
    return None if want.index_topk is not None else "no index_topk"


def sm120_combination(want: Want) -> str | None:
    """The number of chosen tokens the kernel is built for."""
    return None if want.index_topk == SM120_TOPK else f"index_topk {want.index_topk}"


def flashmla_construction(want: Want) -> str | None:
    """Only packed records can be shared over ranks."""
    if want.dcp and not want.quantized:
        return f"decode context parallelism needs a packed cache, and this one is {want.cache_dtype}"
    return None


def flashmla_canonical(cache_dtype: str, capability: tuple[int, int]) -> str:
    """Every quantized cache is kept as packed records."""
    return PACKED if is_quantized(cache_dtype) else cache_dtype


def sm120_canonical(cache_dtype: str, capability: tuple[int, int]) -> str:
    """The kernel reads nothing but packed records."""
    return PACKED if cache_dtype in ("auto", *FP8) else cache_dtype


BACKENDS: Final = {
    backend.name: backend
    for backend in (
        Backend(
            name="FLASH_ATTN_MLA_SPARSE",
            mla=True,
            sparse=True,
            admits_capability=lambda capability: capability[0] == 9,
            admits_head=lambda want: True,
            admits_cache_dtype=lambda want: want.cache_dtype in PLAIN,
            kernel=lambda want: Kernel((64,)),
            dcp=False,
            pcp=True,
            combination=flash_attn_combination,
        ),
        Backend(
            name="FLASHMLA_SPARSE",
            mla=True,
            sparse=True,
            admits_capability=lambda capability: capability[0] in (9, 10),
            admits_head=lambda want: want.head_size == 576,
            admits_cache_dtype=lambda want: want.cache_dtype in ("auto", "bfloat16", "fp8", PACKED),
            kernel=lambda want: Kernel((64,)),
            dtypes=frozenset({"bfloat16"}),
            pcp=True,
            construction=flashmla_construction,
            construction_error="NotImplementedError",
            canonical=flashmla_canonical,
        ),
        Backend(
            name="FLASHINFER_MLA_SPARSE",
            mla=True,
            sparse=True,
            admits_capability=lambda capability: capability[0] == 10,
            admits_head=lambda want: want.head_size == 576,
            admits_cache_dtype=lambda want: want.cache_dtype in PLAIN or want.cache_dtype in FP8,
            kernel=lambda want: Kernel((32, 64)),
            pcp=True,
            combination=flashinfer_combination,
        ),
        Backend(
            name="FLASHINFER_MLA_SPARSE_SM120",
            mla=True,
            sparse=True,
            admits_capability=lambda capability: capability[0] == 12,
            admits_head=lambda want: want.head_size == 576,
            admits_cache_dtype=lambda want: want.cache_dtype in ("auto", PACKED, *FP8),
            kernel=lambda want: Kernel((64, 256)),
            dtypes=frozenset({"bfloat16"}),
            dcp=False,
            pcp=True,
            combination=sm120_combination,
            canonical=sm120_canonical,
        ),
        handed("DEEPSEEK_V32_INDEXER", lambda want: Kernel((64,)), pcp=True),
    )
}


def index_backend(rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, cache_dtype: str) -> str:
    """The indexer's own backend."""
    return "DEEPSEEK_V32_INDEXER"


def index_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """The indexer's keys."""
    return scaled_keys(cls, settings.block_size)


MODEL_BACKENDS: Final = {INDEXER: index_backend}
SPECS: Final[Mapping[str, Builder]] = {INDEXER: index_spec}
