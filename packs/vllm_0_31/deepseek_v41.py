"""DeepSeek V4.1 in vLLM 0.31.0: its caches, the attention class that serves them, and the record they store.

Source: ``vllm/models/deepseek_v41/attention.py``, ``compressor.py``, ``nvidia/model.py: _select_dsv4_attn_cls``,
``vllm/v1/attention/backends/mla/sparse_swa.py``. Record sizes, windows, rings and alignments are the graph's, as its
overlay for the GPU states them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rulespack.errors import Refused, engine_refuses, not_modelled
from rulespack.kv.pages import cdiv
from rulespack.kv.specs import DTYPE_BYTES, Spec, attention_spec
from vllm_0_29.attention_config import packed_key_bytes
from vllm_0_29.backend_terms import BLHNC, BLNHC, Kernel, handed
from vllm_0_29.backends import forced_backend
from vllm_0_29.drafts import speculative_tokens
from vllm_0_29.model import Architecture, CacheName
from vllm_0_29.specs import Builder, without_record
from vllm_0_31.groups import BOUNDED_REPLAY

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import LayerBackend
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Rules, Settings

NAME: Final = "DeepseekV41ForCausalLM"
SELECT_SOURCE: Final = "vllm/models/deepseek_v41/nvidia/model.py: _select_dsv4_attn_cls"
DTYPE_SOURCE: Final = "vllm/models/deepseek_v41/attention.py: _resolve_dsv4_kv_cache_dtype"

MAIN, INDEX, WINDOW, RING = "DeepseekV41Main", "DeepseekV41Indexer", "DeepseekV41Window", "DeepseekV41Ring"


def check(model: Model, deployment: Deployment) -> None:
    """Refused by the engine where a rank has no head of the n-gram table, unless the attention class crashes before
    for want of an output group; ranks that split one are not modelled, nor are tables over several replicas, whose
    number on a node decides."""
    ranks, replicas = deployment.tensor_parallel_size, deployment.data_parallel_size
    if deployment.gpu.family != 10 or ranks <= model.output_groups:
        if _leaves_ranks_bare(model.hash_heads, ranks):
            raise engine_refuses(
                "deepseek-v41-hash-heads",
                "AssertionError",
                "construct",
                f"{model.hash_heads} heads of the n-gram table leave some of {ranks} ranks none",
                "vllm/models/deepseek_v41/common/engram.py: ParallelEngramEmbedding.__init__",
            )
        if replicas > 1 and _leaves_ranks_bare(model.hash_heads, ranks * replicas):
            raise not_modelled(
                "deepseek-v41-hash-heads-modelled",
                f"{model.hash_heads} heads of the n-gram table over {replicas} replicas of {ranks} ranks: how many "
                "share a node decides, and is not modelled",
            )
    if model.output_groups % ranks == 0 or (ranks > model.output_groups and deployment.gpu.family == 10):
        return
    raise not_modelled(
        "deepseek-v41-output-groups", f"{model.output_groups} output groups over {ranks} ranks are not modelled"
    )


def _leaves_ranks_bare(heads: int, shards: int) -> bool:
    """Whether heads that are parted evenly, rounded up, run out before the last shard."""
    return heads > 0 and (shards - 1) * cdiv(heads, shards) >= heads


def check_stages(model: Model, stage_of_layer: Sequence[int]) -> None:
    """Refused by the engine where a pipeline boundary parts a reader from the layer that owns its cache."""
    for reader, owner in model.shared:
        if stage_of_layer[reader] != stage_of_layer[owner]:
            raise engine_refuses(
                "deepseek-v41-stage-boundary",
                "NotImplementedError",
                "construct",
                f"layer {reader} reads the cache of layer {owner}, which is on another pipeline stage",
                "vllm/models/deepseek_v41/nvidia/model.py",
            )


#: In the order a layer registers its caches.
ARCHITECTURE: Final = Architecture(
    prefix="language_model.model.layers.",
    marks_last_group=True,
    leading_class=MAIN,
    caches={
        "compressed": CacheName(".attn", MAIN),
        "index": CacheName(".attn.indexer.k_cache", INDEX),
        "swa": CacheName(".attn.swa_cache", WINDOW),
        "compressor_ring": CacheName(".attn.compressor.state_cache", RING),
    },
    check=check,
    check_stages=check_stages,
)

#: The record a cache states as its own entry, and every packed one.
BASE_RECORD: Final = "fp8_ds_mla"
PACKED: Final = (BASE_RECORD, "nvfp4_ds_mla")
#: The heads of one output group that the mega attention kernel is built for.
MEGA_GROUP_HEADS: Final = 8
#: Forced names that select the FlashMLA class.
FLASHMLA_NAMES: Final = ("FLASHMLA_SPARSE", "FLASHMLA_SPARSE_DSV4", "FLASHMLA_SPARSE_DSV41")
MEGA_NAME: Final = "FLASHMLA_MEGA_ATTN_DSV41"
FLASHINFER: Final = "FLASHINFER_MLA_SPARSE_DSV41"
FLASHINFER_NAMES: Final = (FLASHINFER, "FLASHINFER_MLA_SPARSE_DSV4")
#: Forced names the model turns down.
REFUSED_NAMES: Final = ("FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM120")
#: Bytes a page of plain rows is rounded up to, and one of the keys beside them.
PLAIN_ALIGNMENT: Final = 512


def attention_class(model: Model, deployment: Deployment) -> str:
    """The backend of the main caches: the class that was forced, else FlashInfer on family 12, mega attention on family
    10 where the heads of every output group stay together on a rank, and FlashMLA elsewhere. Any other forced backend
    is passed over.

    Refused by the engine for the sparse FlashInfer kernels of other models.
    """
    forced, family = forced_backend(deployment), deployment.gpu.family
    if forced in REFUSED_NAMES:
        raise engine_refuses(
            "deepseek-v41-backend",
            "ValueError",
            "construct",
            f"{forced} does not serve DeepSeek V4.1; {FLASHINFER} does",
            SELECT_SOURCE,
        )
    if forced in FLASHINFER_NAMES:
        return FLASHINFER
    if forced in FLASHMLA_NAMES:
        return "FLASHMLA_SPARSE_DSV41"
    if forced == MEGA_NAME or (family == 10 and mega_available(model, deployment.tensor_parallel_size)):
        return MEGA_NAME
    return FLASHINFER if family == 12 else "FLASHMLA_SPARSE_DSV41"


def keeps_rows(served: str, family: int) -> bool:
    """Whether the class keeps plain rows rather than packed records: FlashInfer off family 12."""
    return served == FLASHINFER and family != 12


def mega_available(model: Model, tensor_parallel_size: int) -> bool:
    """Whether every rank holds whole output groups of the size the kernel is built for."""
    return model.output_groups % tensor_parallel_size == 0 and model.heads == model.output_groups * MEGA_GROUP_HEADS


def main_backend(rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, cache_dtype: str) -> str:
    """The attention class that holds the layer.

    Refused by the engine for a cache dtype that is no record, and for nvfp4 records off family 10.
    """
    served, family = attention_class(model, deployment), deployment.gpu.family
    if keeps_rows(served, family):
        if cache_dtype in PACKED:
            raise engine_refuses(
                "deepseek-v41-record",
                "ValueError",
                "construct",
                f"kv_cache_dtype {cache_dtype} is a packed record, and {served} keeps plain rows",
                DTYPE_SOURCE,
            )
        if deployment.tensor_parallel_size > model.output_groups:
            raise _without_group(model, deployment)
        return served
    kept = rules.backends[served].canonical(cache_dtype, deployment.gpu.capability)
    if kept not in PACKED:
        raise engine_refuses(
            "deepseek-v41-record",
            "ValueError",
            "construct",
            f"kv_cache_dtype {cache_dtype} is no record of DeepSeek V4.1; it takes auto, fp8, {', '.join(PACKED)}",
            DTYPE_SOURCE,
        )
    if kept == "nvfp4_ds_mla" and family != 10:
        raise engine_refuses(
            "deepseek-v41-nvfp4-record",
            "ValueError",
            "construct",
            "nvfp4_ds_mla records are decoded on compute-capability family 10 alone",
            DTYPE_SOURCE,
        )
    if deployment.tensor_parallel_size > model.output_groups:
        raise _without_group(model, deployment)
    return served


def _without_group(model: Model, deployment: Deployment) -> Refused:
    return engine_refuses(
        "deepseek-v41-output-groups",
        "ZeroDivisionError",
        "construct",
        f"{model.output_groups} output groups leave some of {deployment.tensor_parallel_size} ranks none, and the "
        "attention class divides by those it has",
        "vllm/models/deepseek_v41/attention.py: DeepseekV4Attention.__init__",
    )


MODEL_BACKENDS: Final = {
    MAIN: main_backend,
    INDEX: lambda rules, model, deployment, cls, cache_dtype: "DEEPSEEK_V41_INDEXER",
    WINDOW: lambda rules, model, deployment, cls, cache_dtype: "DEEPSEEK_SPARSE_SWA",
    RING: lambda rules, model, deployment, cls, cache_dtype: "CompressorBackend",
}


def record(preferred: str) -> Callable[[str, tuple[int, int]], str]:
    """``auto`` and ``fp8`` become the record the attention class prefers; a record's name is kept."""
    return lambda cache_dtype, capability: preferred if cache_dtype in ("auto", "fp8") else cache_dtype


#: ``vllm/models/deepseek_v41/sparse_mla.py`` and, in ``vllm/v1/attention/backends/mla/``, ``indexer.py``,
#: ``sparse_swa.py`` and ``compressor_utils.py``.
BACKENDS: Final = {
    backend.name: backend
    for backend in (
        handed(
            "FLASHMLA_SPARSE_DSV41",
            lambda want: Kernel((64 if want.family == 9 else 128,)),
            canonical=record(BASE_RECORD),
        ),
        handed(
            FLASHINFER,
            lambda want: Kernel((128,)),
            canonical=lambda cache_dtype, capability: (
                BASE_RECORD if capability[0] == 12 and cache_dtype in ("auto", "fp8") else cache_dtype
            ),
        ),
        handed("FLASHMLA_MEGA_ATTN_DSV41", lambda want: Kernel((128,)), canonical=record("nvfp4_ds_mla")),
        handed(
            "DEEPSEEK_V41_INDEXER",
            lambda want: Kernel((64 if want.family == 9 else 128,)),
            lambda capability: (BLHNC, BLNHC),
        ),
    )
}


def _latent(
    type_name: str,
    model: Model,
    deployment: Deployment,
    cls: CacheClass,
    part: LayerBackend,
    *,
    block_size: int,
    head_size: int,
    keys: bool = False,
    labels: tuple[tuple[str, object], ...] = (),
) -> Spec:
    """One cache of a layer: packed records as the graph states them, or plain rows; ``keys`` are an indexer's."""
    cache, stored = cls.cache, part.cache_dtype
    entry = (cache.bytes_by_cache_dtype or {}).get(stored, cache.bytes_per_entry)
    if keys:
        entry = head_size
    alignment, dtype = cache.page_alignment, "uint8"
    if keeps_rows(attention_class(model, deployment), deployment.gpu.family):
        alignment = PLAIN_ALIGNMENT
        if not keys:
            dtype = "float8_e4m3fn" if stored.startswith("fp8") else "bfloat16"
            entry = cls.attention.d_h * DTYPE_BYTES[dtype]
    return attention_spec(
        type_name,
        block_size=block_size,
        head_slots=1,
        content_bytes=entry,
        dtype=dtype,
        num_kv_heads=1,
        head_size=head_size,
        sliding_window=cache.window,
        tokens_per_state=cache.tokens_per_entry,
        alignment=alignment,
        cache_dtype=stored,
        labels=labels,
    )


def main_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """The compressed cache: one packed record for every ``compress_ratio`` tokens, the base one or a listed one; or
    plain rows."""
    if not keeps_rows(attention_class(model, deployment), deployment.gpu.family):
        if part.cache_dtype not in (BASE_RECORD, *(cls.cache.bytes_by_cache_dtype or ())):
            raise without_record(cls, part.cache_dtype)
    return _latent(
        "MLAAttentionSpec",
        model,
        deployment,
        cls,
        part,
        block_size=settings.block_size,
        head_size=cls.attention.d_h,
    )


def index_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """The indexer's keys; the engine counts the scale bytes into the head size."""
    return _latent(
        "MLAAttentionSpec",
        model,
        deployment,
        cls,
        part,
        block_size=settings.block_size,
        head_size=packed_key_bytes(deployment, cls.cache.bytes_per_entry),
        keys=True,
    )


def window_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """The sliding window in blocks the model fixes; replayed rather than reused under the second model runner."""
    block_size = cls.cache.block_size
    if block_size is None:
        raise not_modelled("fact-stated", f"the cache {cls.cache.name} of DeepSeek V4.1 lacks its block_size")
    replayed = deployment.swa_bounded_replay and settings.model_runner == 2
    return _latent(
        "SlidingWindowMLASpec",
        model,
        deployment,
        cls,
        part,
        block_size=block_size,
        head_size=cls.attention.d_h,
        labels=((BOUNDED_REPLAY, True),) if replayed else (),
    )


def ring_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """The compressor's ring of float32 states: at least eight rows, and a power of two above the tokens of a step."""
    entry = cls.cache.bytes_per_entry
    return attention_spec(
        "CircularBufferSpec",
        block_size=max(8, 1 << (speculative_tokens(model, deployment) + 1).bit_length()),
        head_slots=1,
        content_bytes=entry,
        dtype="float32",
        num_kv_heads=1,
        head_size=entry // DTYPE_BYTES["float32"],
    )


SPECS: Final[Mapping[str, Builder]] = {MAIN: main_spec, INDEX: index_spec, WINDOW: window_spec, RING: ring_spec}
