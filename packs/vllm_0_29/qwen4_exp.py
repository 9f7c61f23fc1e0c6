"""Qwen 4 (experimental): gated delta nets, an n-gram embedding with a short convolution, and grouped attention to the
tokens an indexer chose over compressed keys.

Source: ``vllm/models/qwen4_exp/nvidia/qsa.py``, ``ple_layer.py``, ``common/qsa_cache.py``,
``vllm/model_executor/models/config.py: Qwen4ExpForConditionalGenerationConfig``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from rulespack.errors import Refused, engine_refuses, not_modelled
from rulespack.kv.pages import cdiv
from rulespack.kv.specs import DTYPE_BYTES, Spec, attention_spec
from vllm_0_29.backend_terms import BLHNC, BLNHC, Kernel, handed
from vllm_0_29.backends import model_dtype
from vllm_0_29.block_size import DEFAULT_BLOCK_SIZE
from vllm_0_29.drafts import speculative_tokens
from vllm_0_29.model import REPLICATED_STATE, Architecture, CacheName, DraftNames, StateFacts
from vllm_0_29.shards import splits_tokens
from vllm_0_29.specs import Builder, plain_index, plain_keys_values
from vllm_0_29.state import state_spec

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import LayerBackend
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Rules, Settings

QSA_SOURCE: Final = "vllm/models/qwen4_exp/nvidia/qsa.py: Qwen4ExpQSAAttention.__init__"

CONFIG_SOURCE: Final = "vllm/model_executor/models/config.py: Qwen4ExpForConditionalGenerationConfig"

STATE_BACKEND: Final = "QWEN4_EXP_EXP_QSA_STATE"

RAW_KEY, COMPRESSED_KEY, MAIN = "QSAKeyStateCache", "QSACompressedKeyCache", "Qwen4ExpQSA"

#: What 0.29.0 keeps the main cache in.
PLAIN: Final = ("auto", "bfloat16")


#: Methods the model drafts by.
DRAFTS_BY: Final = frozenset({"mtp", "ngram", "ngram_gpu"})


def check(model: Model, deployment: Deployment) -> None:
    """Refused by the engine: pipeline stages beyond the first do not see the tokens an n-gram embedding needs, and the
    model drafts by its own predictor or by n-grams alone."""
    if deployment.pipeline_parallel_size > 1 and any(cls.layer_class == REPLICATED_STATE for cls in model.classes):
        raise engine_refuses(
            "ngram-embedding-one-stage",
            "NotImplementedError",
            "config",
            "the n-gram embedding needs the tokens themselves, which only the first pipeline stage has",
            CONFIG_SOURCE,
        )
    if splits_tokens(deployment):
        if deployment.all2all_backend == "deepep_v2":  # the releases differ in it
            raise not_modelled("qwen4-whole-tokens-modelled", "deepep_v2 is not modelled for Qwen4Exp")
        raise engine_refuses(
            "qwen4-whole-tokens",
            "NotImplementedError",
            "construct",
            "the hyper-connections of Qwen4Exp do not go with tokens split over the ranks of its experts",
            "vllm/models/qwen4_exp/nvidia/model.py: Qwen4ExpDecoderLayer.__init__",
        )
    if model.draft is not None and model.draft.method not in DRAFTS_BY:
        raise engine_refuses(
            "qwen4-drafts",
            "NotImplementedError",
            "config",
            f"Qwen4Exp drafts by its own predictor or by n-grams, not by {model.draft.method}",
            CONFIG_SOURCE,
        )


#: In the order a layer registers its caches.
ARCHITECTURES: Final = {
    "Qwen4ExpForConditionalGeneration": Architecture(
        prefix="language_model.model.layers.",
        caches={
            "ple": CacheName(".ple", REPLICATED_STATE),
            "state": CacheName(".linear_attn"),
            "raw_key": CacheName(".self_attn.indexer.raw_key_cache", RAW_KEY),
            "index": CacheName(".self_attn.indexer.compressed_key_cache", COMPRESSED_KEY),
            "kv": CacheName(".self_attn.attn", MAIN),
        },
        state=StateFacts(backend="GDN_ATTN"),
        draft_names=DraftNames(prefix="mtp.layers."),
        check=check,
    ),
}


def main_backend(takes: tuple[str, ...]) -> Callable[[Rules, Model, Deployment, CacheClass, str], str]:
    """The model's own kernel, for main caches of the dtypes it takes."""

    def backend(rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, cache_dtype: str) -> str:
        if model_dtype(model, deployment) != "bfloat16":
            raise _refused(f"the layers run in bfloat16, and the model in {model_dtype(model, deployment)}")
        if cache_dtype not in takes:
            raise _refused(f"the main cache is kept as {', '.join(takes)}, and {cache_dtype} was asked for")
        if deployment.decode_context_parallel_size > 1:
            raise _refused("the layers do not support decode context parallelism")
        return "QWEN4_EXP_QSA_TRITON"

    return backend


def _refused(reason: str) -> Refused:
    return engine_refuses("qsa-supported", "NotImplementedError", "construct", reason, QSA_SOURCE)


def raw_key_backend(rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, cache_dtype: str) -> str:
    """The indexer's own, for blocks of whole compressed keys.

    The size is what was asked or the default: the layers are constructed before a release aligns it.
    """
    ratio, size = cls.attention.compress_ratio or 1, deployment.block_size or DEFAULT_BLOCK_SIZE
    if size % ratio:
        raise engine_refuses(
            "qsa-block-holds-keys",
            "ValueError",
            "construct",
            f"one compressed key covers {ratio} tokens, which does not divide the block of {size}",
            "vllm/models/qwen4_exp/common/qsa_cache.py: QSACompressedKeyCache.__init__",
        )
    return STATE_BACKEND


MODEL_BACKENDS: Final[Mapping[str, Callable[[Rules, Model, Deployment, CacheClass, str], str]]] = {
    REPLICATED_STATE: lambda rules, model, deployment, cls, cache_dtype: "PLE_SHORT_CONV_ATTN",
    RAW_KEY: raw_key_backend,
    COMPRESSED_KEY: lambda rules, model, deployment, cls, cache_dtype: STATE_BACKEND,
    MAIN: main_backend(PLAIN),
}
BACKENDS: Final = {
    backend.name: backend
    for backend in (
        handed("PLE_SHORT_CONV_ATTN", mla=False),
        handed(STATE_BACKEND, layouts=lambda capability: (BLNHC, BLHNC), mla=False),
        handed("QWEN4_EXP_QSA_TRITON", lambda want: Kernel((16,), multiples=True), mla=False),
    )
}


def raw_key_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """The raw keys of tokens that no compressed key covers yet and of drafted ones, with their positions where images
    have some: a ring of whole groups."""
    node, dtype = cls.attention, "bfloat16"
    ratio = node.compress_ratio or 1
    ring = ratio * cdiv(ratio + speculative_tokens(model, deployment), ratio)
    if settings.block_size % ring:
        raise engine_refuses(
            "qsa-block-holds-groups",
            "AssertionError",
            "specs",
            f"a ring of {ring} keys does not divide the block of {settings.block_size} tokens",
            "vllm/models/qwen4_exp/common/qsa_cache.py: QSAKeyStateCache.get_kv_cache_spec",
        )
    bytes_per_key = cls.cache.bytes_per_entry
    if deployment.language_model_only and not cls.draft:  # the predictor's configuration is left as it is
        bytes_per_key = node.d_h * DTYPE_BYTES[dtype]
    return attention_spec(
        "CircularBufferSpec",
        block_size=ring,
        head_slots=1,
        content_bytes=bytes_per_key,
        dtype=dtype,
        num_kv_heads=1,
        head_size=bytes_per_key // DTYPE_BYTES[dtype],
    )


SPECS: Final[Mapping[str, Builder]] = {
    REPLICATED_STATE: state_spec,
    RAW_KEY: raw_key_spec,
    COMPRESSED_KEY: plain_index,
    MAIN: plain_keys_values,
}
