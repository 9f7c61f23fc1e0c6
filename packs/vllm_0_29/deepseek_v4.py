"""DeepSeek V4: windows, two compressed caches, their compressors' states and an indexer's keys.

Source: ``vllm/models/deepseek_v4/attention.py``, ``compressor.py``, ``nvidia/model.py: _select_dsv4_attn_cls``,
``nvidia/flashinfer_sparse.py``, ``vllm/v1/attention/backends/mla/sparse_swa.py`` and ``indexer.py``. Records, windows,
entries and block sizes are the graph's; a compressor's state is a sliding window to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from rulespack.errors import engine_refuses, not_modelled
from rulespack.kv.specs import DTYPE_BYTES, Spec, attention_spec
from vllm_0_29.attention_config import packed_key_bytes
from vllm_0_29.backend_terms import BLHNC, BLNHC, Kernel, handed
from vllm_0_29.backends import forced_backend
from vllm_0_29.model import Architecture, CacheName, DraftNames
from vllm_0_29.sparse_mla import PACKED
from vllm_0_29.specs import Builder, scaled_keys

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import LayerBackend
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Rules, Settings

SELECT_SOURCE: Final = "vllm/models/deepseek_v4/nvidia/model.py: _select_dsv4_attn_cls"
DTYPE_SOURCE: Final = "vllm/models/deepseek_v4/attention.py: _resolve_dsv4_kv_cache_dtype"

MAIN, INDEX, WINDOW, STATE = "DeepseekV4Main", "DeepseekV4Indexer", "DeepseekV4Window", "DeepseekV4CompressorState"

#: In the order a layer registers its caches.
ARCHITECTURE: Final = Architecture(
    marks_last_group=True,
    rounds_shared_experts=True,
    draft_names=DraftNames(mtp_layers=1),
    caches={
        "index": CacheName(".attn.indexer.k_cache", INDEX),
        "index_compressor_state": CacheName(".attn.indexer.compressor.state_cache", STATE),
        "swa": CacheName(".attn.swa_cache", WINDOW),
        "compressed": CacheName(".attn", MAIN),
        "compressor_state": CacheName(".attn.compressor.state_cache", STATE),
    },
)
ARCHITECTURES: Final = {"DeepseekV4ForCausalLM": ARCHITECTURE}

FLASHMLA, FLASHINFER = "FLASHMLA_SPARSE_DSV4", "FLASHINFER_MLA_SPARSE_DSV4"
#: Forced names that select the FlashMLA class.
FLASHMLA_NAMES: Final = ("FLASHMLA_SPARSE", FLASHMLA)
#: Forced names the model turns down.
REFUSED_NAMES: Final = ("FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM120")

#: Bytes a page is rounded up to: under packed records, and under plain rows.
PACKED_ALIGNMENT, PLAIN_ALIGNMENT = 576, 512


def attention_class(deployment: Deployment) -> str:
    """The backend of the compressed caches: what was forced, else FlashInfer on family 12 and FlashMLA elsewhere.

    Any other forced backend is passed over. Refused by the engine for the sparse FlashInfer kernels of other models.
    """
    forced, family = forced_backend(deployment), deployment.gpu.family
    if forced in REFUSED_NAMES:
        raise engine_refuses(
            "deepseek-v4-backend",
            "ValueError",
            "construct",
            f"{forced} does not serve DeepSeek V4; {FLASHINFER} does",
            SELECT_SOURCE,
        )
    if forced == FLASHINFER or (family == 12 and forced not in FLASHMLA_NAMES):
        return FLASHINFER
    return FLASHMLA


def keeps_records(backend: str, family: int) -> bool:
    """Whether the class keeps packed records; FlashInfer keeps plain rows off family 12."""
    return backend == FLASHMLA or family == 12


def record(takes: Callable[[str], bool], backend: str) -> Callable[[str, tuple[int, int]], str]:
    """A cache dtype that the class takes becomes its record, where it keeps records."""
    return lambda cache_dtype, capability: (
        PACKED if keeps_records(backend, capability[0]) and takes(cache_dtype) else cache_dtype
    )


def main_backend(error: str) -> Callable[[Rules, Model, Deployment, CacheClass, str], str]:
    """The attention class that holds the layer; a cache dtype it keeps no record of is an error of class ``error``."""

    def backend(rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, cache_dtype: str) -> str:
        served = attention_class(deployment)
        capability = deployment.gpu.capability
        kept = rules.backends[served].canonical(cache_dtype, capability)
        if kept != PACKED and keeps_records(served, capability[0]):
            raise engine_refuses(
                "deepseek-v4-record",
                error,
                "construct",
                f"kv_cache_dtype {cache_dtype} is no fp8 one, and {served} keeps {PACKED} records; ask for fp8",
                DTYPE_SOURCE,
            )
        return served

    return backend


MODEL_BACKENDS: Final[Mapping[str, Callable[[Rules, Model, Deployment, CacheClass, str], str]]] = {
    MAIN: main_backend("AssertionError"),
    INDEX: lambda rules, model, deployment, cls, cache_dtype: "DEEPSEEK_V4_INDEXER",
    WINDOW: lambda rules, model, deployment, cls, cache_dtype: "DEEPSEEK_SPARSE_SWA",
    STATE: lambda rules, model, deployment, cls, cache_dtype: "CompressorBackend",
}


def is_fp8(cache_dtype: str) -> bool:
    """The names the packed classes take."""
    return cache_dtype.startswith("fp8")


BACKENDS: Final = {
    backend.name: backend
    for backend in (
        *(handed(name, lambda want: Kernel((256,)), canonical=record(is_fp8, name)) for name in (FLASHMLA, FLASHINFER)),
        handed("DEEPSEEK_V4_INDEXER", lambda want: Kernel((256,)), lambda capability: (BLHNC, BLNHC)),
        msgspec.structs.replace(
            handed("DEEPSEEK_SPARSE_SWA", lambda want: Kernel((64,), multiples=True)),
            preferred_floor=lambda want: 256,
        ),
        handed("CompressorBackend"),
    )
}


def _alignment(cache_dtype: str) -> int:
    return PACKED_ALIGNMENT if cache_dtype == PACKED else PLAIN_ALIGNMENT


def _row(cls: CacheClass, part: LayerBackend, deployment: Deployment, served: str) -> tuple[str, int]:
    """torch's name of what a window or compressed cache is stored in, and bytes of one entry."""
    cache, stored = cls.cache, part.cache_dtype
    if keeps_records(served, deployment.gpu.family):
        return "uint8", cache.bytes_per_entry
    dtype = "float8_e4m3fn" if is_fp8(stored) else "bfloat16"
    return dtype, cache.bytes_per_entry if stored == PACKED else cls.attention.d_h * DTYPE_BYTES[dtype]


def main_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """A compressed cache: one entry for every 4 or 128 tokens."""
    dtype, entry = _row(cls, part, deployment, part.backend)
    return attention_spec(
        "MLAAttentionSpec",
        block_size=settings.block_size,
        head_slots=1,
        content_bytes=entry,
        dtype="uint8" if part.cache_dtype == PACKED else dtype,
        num_kv_heads=1,
        head_size=cls.attention.d_h,
        tokens_per_state=cls.cache.tokens_per_entry,
        alignment=_alignment(part.cache_dtype),
        cache_dtype=part.cache_dtype,
    )


def window_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """The sliding window of every layer, in blocks the model fixes."""
    dtype, entry = _row(cls, part, deployment, attention_class(deployment))
    return attention_spec(
        "SlidingWindowMLASpec",
        block_size=block_size(cls),
        head_slots=1,
        content_bytes=entry,
        dtype=dtype,
        num_kv_heads=1,
        head_size=cls.attention.d_h,
        sliding_window=cls.cache.window,
        alignment=_alignment(part.cache_dtype),
        cache_dtype=part.cache_dtype,
    )


def index_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """The indexer's keys."""
    entry = packed_key_bytes(deployment, cls.cache.bytes_per_entry)
    return scaled_keys(cls, settings.block_size, _alignment(part.cache_dtype), entry=entry)


def state_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """A compressor's float32 states: a window of as many tokens as it still reads, in blocks the model fixes."""
    entry = cls.cache.bytes_per_entry
    return attention_spec(
        "SlidingWindowMLASpec",
        block_size=block_size(cls),
        head_slots=1,
        content_bytes=entry,
        dtype="float32",
        num_kv_heads=1,
        head_size=entry // DTYPE_BYTES["float32"],
        sliding_window=cls.cache.entries,
        alignment=_alignment(part.cache_dtype),
    )


def block_size(cls: CacheClass) -> int:
    """The block of a cache whose size the model fixes, in tokens; refused where the graph does not say it."""
    if cls.cache.block_size is None:
        raise not_modelled("fact-stated", f"the cache {cls.cache.name} lacks its block_size")
    return cls.cache.block_size


SPECS: Final[Mapping[str, Builder]] = {MAIN: main_spec, INDEX: index_spec, WINDOW: window_spec, STATE: state_spec}
