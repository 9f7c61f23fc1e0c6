"""DeepSeek V4.1 in vLLM 0.31.0: its caches, the attention class that serves them, and the record they store.

Source: ``vllm/models/deepseek_v41/attention.py``, ``compressor.py``, ``nvidia/model.py: _select_dsv4_attn_cls``,
``vllm/v1/attention/backends/mla/sparse_swa.py``. Record sizes, windows, rings and alignments are the graph's, as its
overlay for the GPU states them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rulespack.errors import engine_refuses, not_modelled
from rulespack.kv.specs import DTYPE_BYTES, Spec, attention_spec
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
    """Decode context parallelism and ranks that split an output group are not modelled here."""
    if deployment.decode_context_parallel_size > 1:
        raise not_modelled("deepseek-v41-dcp", "decode context parallelism is not modelled for DeepSeek V4.1")
    if model.output_groups % deployment.tensor_parallel_size:
        raise not_modelled(
            "deepseek-v41-output-groups",
            f"{model.output_groups} output groups over {deployment.tensor_parallel_size} ranks are not modelled",
        )


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


def attention_class(model: Model, deployment: Deployment) -> str:
    """The backend of the main caches: what was forced, else mega attention on family 10 where the heads of every
    output group stay together on a rank, else FlashMLA."""
    forced = forced_backend(deployment)
    if forced in FLASHMLA_NAMES:
        return "FLASHMLA_SPARSE_DSV41"
    available = deployment.gpu.family == 10 and mega_available(model, deployment.tensor_parallel_size)
    if forced is not None and not (forced == MEGA_NAME and available):
        raise not_modelled("backend-modelled", f"{forced} is not modelled for DeepSeek V4.1 on this deployment")
    return MEGA_NAME if available else "FLASHMLA_SPARSE_DSV41"


def mega_available(model: Model, tensor_parallel_size: int) -> bool:
    """Whether every rank holds whole output groups of the size the kernel is built for."""
    return model.output_groups % tensor_parallel_size == 0 and model.heads == model.output_groups * MEGA_GROUP_HEADS


def main_backend(rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, cache_dtype: str) -> str:
    """The attention class that holds the layer.

    Refused by the engine for a cache dtype that is no record, and for nvfp4 records off family 10.
    """
    served = attention_class(model, deployment)
    if rules.backends[served].canonical(cache_dtype, deployment.gpu.capability) not in PACKED:
        raise engine_refuses(
            "deepseek-v41-record",
            "ValueError",
            "construct",
            f"kv_cache_dtype {cache_dtype} is no record of DeepSeek V4.1; it takes auto, fp8, {', '.join(PACKED)}",
            DTYPE_SOURCE,
        )
    if cache_dtype == "nvfp4_ds_mla" and deployment.gpu.family != 10:
        raise engine_refuses(
            "deepseek-v41-nvfp4-record",
            "ValueError",
            "construct",
            "nvfp4_ds_mla records are decoded on compute-capability family 10 alone",
            DTYPE_SOURCE,
        )
    return served


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
    cls: CacheClass,
    part: LayerBackend,
    *,
    block_size: int,
    head_size: int,
    labels: tuple[tuple[str, object], ...] = (),
) -> Spec:
    cache = cls.cache
    entry = (cache.bytes_by_cache_dtype or {}).get(part.cache_dtype, cache.bytes_per_entry)
    return attention_spec(
        type_name,
        block_size=block_size,
        head_slots=1,
        content_bytes=entry,
        dtype="uint8",
        num_kv_heads=1,
        head_size=head_size,
        sliding_window=cache.window,
        tokens_per_state=cache.tokens_per_entry,
        alignment=cache.page_alignment,
        cache_dtype=part.cache_dtype,
        labels=labels,
    )


def main_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """The compressed cache: one packed record for every ``compress_ratio`` tokens, the base one or a listed one."""
    if part.cache_dtype not in (BASE_RECORD, *(cls.cache.bytes_by_cache_dtype or ())):
        raise without_record(cls, part.cache_dtype)
    return _latent("MLAAttentionSpec", cls, part, block_size=settings.block_size, head_size=cls.attention.d_h)


def index_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """The indexer's keys; the engine counts the scale bytes into the head size."""
    return _latent("MLAAttentionSpec", cls, part, block_size=settings.block_size, head_size=cls.cache.bytes_per_entry)


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
