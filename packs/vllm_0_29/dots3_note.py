"""dots3.note: sparse latent layers whose rows are padded to the windows' width, and windows of a latent.

Source: ``vllm/models/dots3_note/nvidia/model.py``, ``attention.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rulespack.errors import engine_refuses
from rulespack.kv.specs import DTYPE_BYTES, Spec, attention_spec
from vllm_0_29.backend_terms import BLHNC, PLAIN, Kernel, handed
from vllm_0_29.backends import constructed, select, wants
from vllm_0_29.model import Architecture, CacheName
from vllm_0_29.sparse_mla import INDEXER, PACKED
from vllm_0_29.specs import Builder, stored_dtype

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import LayerBackend
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Rules, Settings

LATENT, WINDOW = "Dots3NotePaddedMLAAttention", "Dots3NoteSlidingAttention"

#: In the order a layer registers its caches.
ARCHITECTURES: Final = {
    "Dots3NoteForCausalLM": Architecture(
        caches={
            "index": CacheName(".self_attn.indexer.k_cache", INDEXER),
            "kv": CacheName(".self_attn.attn", LATENT),
            "swa": CacheName(".self_attn.attn", WINDOW),
        }
    ),
}


def latent_backend(rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, cache_dtype: str) -> str:
    """The model's own kernel over padded rows, in place of the sparse backend that was selected first.

    Refused by the engine where that one is, or where it leaves a quantized cache to the kernel.
    """
    want = wants(rules, model, deployment, cls, cache_dtype, cache_dtype)
    first = constructed(rules.backends[select(rules, deployment, want, [])], want)
    kept = rules.backends[first].canonical(cache_dtype, deployment.gpu.capability)
    if kept not in PLAIN:
        raise engine_refuses(
            "padded-rows-plain",
            "NotImplementedError",
            "construct",
            f"rows padded to the windows' width are kept in the model's own dtype, and the cache dtype is {kept}",
            "vllm/v1/attention/backends/mla/flashattn_mla_sparse.py: FlashAttnMLASparseImpl.__init__",
        )
    return "DOTS3_NOTE_PADDED_MLA_SPARSE"


MODEL_BACKENDS: Final = {
    LATENT: latent_backend,
    WINDOW: lambda rules, model, deployment, cls, cache_dtype: "TRITON_MLA",
}
BACKENDS: Final = {
    "DOTS3_NOTE_PADDED_MLA_SPARSE": handed(
        "DOTS3_NOTE_PADDED_MLA_SPARSE", lambda want: Kernel((64,)), lambda capability: (BLHNC,)
    )
}


def _latent(type_name: str, cls: CacheClass, block_size: int, width: int, dtype: str) -> Spec:
    return attention_spec(
        type_name,
        block_size=block_size,
        head_slots=1,
        content_bytes=width * DTYPE_BYTES[dtype],
        dtype=dtype,
        num_kv_heads=1,
        head_size=width,
        sliding_window=cls.cache.window,
    )


def latent_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """A latent row as wide as the windows' rows."""
    dtype = stored_dtype(part.cache_dtype, settings.model_dtype)
    width = cls.cache.bytes_per_entry // DTYPE_BYTES["bfloat16"]
    return _latent("MLAAttentionSpec", cls, settings.block_size, width, dtype)


def window_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """A window of latent rows, in fp8 where the sparse layers keep packed records."""
    kept = "fp8" if part.cache_dtype == PACKED else part.cache_dtype
    dtype = stored_dtype(kept, settings.model_dtype)
    return _latent("SlidingWindowMLASpec", cls, settings.block_size, cls.attention.d_h, dtype)


SPECS: Final[Mapping[str, Builder]] = {LATENT: latent_spec, WINDOW: window_spec}
