"""The keys of ``attention_config``: what each takes, and what an indexer's stored dtype makes of its cache.

Source: ``vllm/config/attention.py: AttentionConfig``, ``vllm/v1/attention/selector.py: get_attn_backend``,
``vllm/v1/attention/backends/mla/indexer.py: dsa_indexer_uses_fp4``, the indexers under ``vllm/models``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rulespack.errors import Refused, engine_refuses, meant, not_modelled

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.backend_terms import Want
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Rules

SOURCE: Final = "vllm/config/attention.py: AttentionConfig"

INDEXER_DTYPES: Final = ("auto", "bf16", "fp8", "mxfp4", "nvfp4")
#: ``vllm/v1/kv_cache_interface.py: KVCacheSpecKind``.
KINDS: Final = (
    "full_attention",
    "mla_attention",
    "sliding_window",
    "sliding_window_mla",
    "mamba",
    "chunked_local_attention",
    "sink_full_attention",
    "encoder_only_attention",
    "cross_attention",
    "unknown",
)
#: Words that are read as true or false.
SWITCHES: Final = frozenset("0 1 f false n no off on t true y yes".split())

#: What a key takes: a whole number, a switch, one of a few names, or a value that is read elsewhere.
NUMBER: Final = "number"
SWITCH: Final = "switch"
READ: Final = "read"
Taken = str | tuple[str, ...]

KEYS: Final[Mapping[str, Taken]] = {
    "backend": READ,
    "backend_per_kind": READ,
    "flash_attn_version": READ,
    "mla_prefill_backend": READ,
    "minimax_m3_msa_decode_backend": ("triton", "cutlass"),
    "indexer_kv_dtype": INDEXER_DTYPES,
    "use_fp4_indexer_cache": SWITCH,
    "use_trtllm_attention": SWITCH,
    "use_non_causal": SWITCH,
    "disable_flashinfer_q_quantization": SWITCH,
    "use_prefill_query_quantization": SWITCH,
    "sparse_mla_force_mqa": SWITCH,
    "flash_attn_max_num_splits_for_cuda_graph": NUMBER,
    "tq_max_kv_splits_for_cuda_graph": NUMBER,
    "flex_attn_block_m": NUMBER,
    "flex_attn_block_n": NUMBER,
    "flex_attn_q_block_size": NUMBER,
    "flex_attn_kv_block_size": NUMBER,
}
#: ``vllm/v1/attention/backends/mla/prefill/registry.py: MLAPrefillBackendEnum``.
PREFILL_BACKENDS: Final = frozenset(
    "FLASH_ATTN FLASHINFER TRTLLM_RAGGED TOKENSPEED_MLA ROCM_AITER_FA CPU CUSTOM".split()
)


#: Those that run on compute-capability family 10 alone, those that serve the widths of DeepSeek R1, and these.
PREFILL_ON_FAMILY_10: Final = frozenset({"FLASHINFER", "TRTLLM_RAGGED", "TOKENSPEED_MLA"})
SERVING_R1: Final = frozenset({"FLASH_ATTN", "FLASHINFER", "TRTLLM_RAGGED"})
R1_WIDTHS: Final = (128, 64)


def check_attention_config(rules: Rules, model: Model, deployment: Deployment) -> None:
    """Every key is one the release has, with a value it takes."""
    config = deployment.attention_config
    if not config:
        return
    for key, value in config.items():
        taken = rules.attention_keys.get(key)
        if taken is None:
            raise invalid(
                "attention-config-known",
                f"vLLM {rules.release} has no attention_config.{key}{meant(key, rules.attention_keys)}",
            )
        _check_value(key, value, taken)
    if config.get("hisparse_config") is not None:
        _check_hisparse(model)
    if config.get("indexer_sparse_logits"):
        _check_sparse_logits(model, deployment)
    _check_kinds(rules, model, config)
    _check_prefill(rules, model, deployment, config)
    _check_alias(config)


def invalid(rule: str, reason: str) -> Refused:
    """A refusal of the release's own reading of ``attention_config``."""
    return engine_refuses(rule, "ValidationError", "config", reason, SOURCE)


def _check_value(key: str, value: object, taken: Taken) -> None:
    if taken == READ or value is None:
        return
    if isinstance(taken, tuple):
        if value not in taken:
            raise invalid("attention-config-value", f"attention_config.{key} {value!r} is none of {', '.join(taken)}")
        return
    if type(value) is (bool if taken == SWITCH else int):
        return
    if isinstance(value, str) and not (value.lower() in SWITCHES if taken == SWITCH else value.strip().isdecimal()):
        raise invalid("attention-config-value", f"attention_config.{key} {value!r} is no {taken}")
    raise not_modelled("attention-config-modelled", f"attention_config.{key} {value!r}: state a {taken} as such")


def _check_hisparse(model: Model) -> None:
    if not any(cls.cache.kind == "index" for cls in model.classes) and not model.sparse:
        raise engine_refuses(
            "connector-needs-sparse-attention",
            "ValidationError",
            "config",
            "attention_config.hisparse_config serves latent attention to chosen tokens alone",
            "vllm/config/vllm.py: VllmConfig.__post_init__",
        )
    raise not_modelled("attention-config-modelled", "attention_config.hisparse_config is not modelled")


def _check_sparse_logits(model: Model, deployment: Deployment) -> None:
    """DeepSeek V4.1 alone looks at it, and then needs keys in mxfp4."""
    if all(cls.layer_class != "DeepseekV41Indexer" for cls in model.classes):
        return
    if indexer_dtype(deployment) != "mxfp4":
        raise engine_refuses(
            "indexer-dtype-served",
            "ValueError",
            "construct",
            "attention_config.indexer_sparse_logits needs indexer_kv_dtype mxfp4",
            "vllm/models/deepseek_v41/attention.py: DeepseekV4Indexer.__init__",
        )
    raise not_modelled("attention-config-modelled", "attention_config.indexer_sparse_logits is not modelled")


def _check_kinds(rules: Rules, model: Model, config: Mapping[str, Any]) -> None:
    kinds = config.get("backend_per_kind")
    if not kinds:
        return
    if not isinstance(kinds, Mapping) or model.draft is not None:
        raise not_modelled(
            "attention-config-modelled", "attention_config.backend_per_kind is modelled as a mapping, without drafts"
        )
    for kind, name in kinds.items():
        if kind not in KINDS:
            raise invalid("attention-config-value", f"backend_per_kind.{kind} is none of {', '.join(KINDS)}")
        if str(name).upper() not in rules.backend_names:
            raise invalid(
                "attention-config-value",
                f"backend_per_kind.{kind} {name!r} is no attention backend{meant(name, rules.backend_names)}",
            )


def _check_prefill(rules: Rules, model: Model, deployment: Deployment, config: Mapping[str, Any]) -> None:
    """A prefill backend changes no cache. Whether it serves a latent one is modelled for attention to all tokens in the
    widths of DeepSeek R1, and where the GPU is none of its."""
    name = config.get("mla_prefill_backend")
    if name is None:
        return
    if str(name).upper() not in rules.prefill_backends:
        raise invalid("attention-config-value", f"mla_prefill_backend {name!r} is none of the release's")
    if not model.mla:
        return
    if not model.sparse and str(name).upper() in PREFILL_ON_FAMILY_10 and deployment.gpu.family != 10:
        raise engine_refuses(
            "prefill-backend-valid",
            "ValueError",
            "construct",
            f"the prefill backend {name} runs on compute-capability family 10 alone",
            "vllm/v1/attention/backends/mla/prefill/selector.py: get_mla_prefill_backend",
        )
    attending = [cls.attention for cls in model.classes if cls.layer_class == "MLAAttention"]
    known = all((node.qk_nope_head_dim, node.qk_rope_head_dim) == R1_WIDTHS for node in attending)
    if model.sparse or not known or str(name).upper() not in SERVING_R1:
        raise not_modelled(
            "attention-config-modelled",
            f"attention_config.mla_prefill_backend {name} is not modelled for this latent cache",
        )


def forced_for(want: Want, deployment: Deployment, forced: str | None) -> str | None:
    """The backend forced on a layer: the one of its kind, else the one forced on all."""
    kinds = (deployment.attention_config or {}).get("backend_per_kind")
    if not kinds:
        return forced
    if want.cross:
        kind = "cross_attention"
    elif want.mla:
        kind = "sliding_window_mla" if want.window else "mla_attention"
    else:
        kind = "sliding_window" if want.window else "full_attention"
    named = kinds.get(kind)
    return forced if named is None else str(named).upper()


def indexer_dtype(deployment: Deployment) -> str:
    """The dtype an indexer's keys are asked to be stored in, ``auto`` where nothing is."""
    config = deployment.attention_config or {}
    return "mxfp4" if config.get("use_fp4_indexer_cache") else str(config.get("indexer_kv_dtype") or "auto")


def _check_alias(config: Mapping[str, Any]) -> None:
    if config.get("use_fp4_indexer_cache") and config.get("indexer_kv_dtype") not in (None, "auto", "mxfp4"):
        raise invalid("attention-config-value", "use_fp4_indexer_cache and another indexer_kv_dtype are both stated")


def check_indexer(rules: Rules, model: Model, deployment: Deployment) -> None:
    """An indexer's dtype is one its class stores. Not modelled where only its kernels would refuse it."""
    asked = indexer_dtype(deployment)
    if asked == "auto":
        return
    for cls in model.classes:
        if cls.cache.kind == "index":
            _check_stored(rules, cls, asked, deployment.gpu.family)


def _check_stored(rules: Rules, cls: CacheClass, asked: str, family: int) -> None:
    stored = rules.indexers.get(cls.layer_class)
    if stored is None:
        if asked != "fp8" and not (asked == "mxfp4" and family == 10):
            raise not_modelled(
                "attention-config-modelled",
                f"attention_config.indexer_kv_dtype {asked} is not modelled for this indexer",
            )
        return
    if not stored.names or (asked in stored.names and (asked not in stored.on_family_10 or family == 10)):
        return
    raise engine_refuses(
        "indexer-dtype-served",
        stored.error,
        "construct",
        f"this model's indexer stores {' or '.join(stored.names)}, some on compute-capability family 10 alone, not "
        f"{asked} on family {family}",
        "vllm/v1/attention/backends/mla/indexer.py: dsa_indexer_uses_fp4, and the indexers under vllm/models",
    )


class Indexer(msgspec.Struct, frozen=True):
    """What an indexer's keys can be stored in, those of them that need family 10, and the class of the error for any
    other; no names where what is asked is passed over."""

    names: tuple[str, ...] = ()
    on_family_10: tuple[str, ...] = ()
    error: str = "ValueError"


DEEPSEEK: Final = Indexer(("fp8", "mxfp4"), ("mxfp4",))
#: By the layer class of an index cache. Classes that are not here keep their cache as it is, and leave the rest to
#: their kernels.
INDEXERS: Final[Mapping[str, Indexer]] = {
    "DeepseekV4Indexer": DEEPSEEK,
    "MiniMaxM3IndexerCache": Indexer(("bf16", "fp8"), ("fp8",), "NotImplementedError"),
    "QSACompressedKeyCache": Indexer(),
}
#: Values an mxfp4 scale byte serves.
MXFP4_BLOCK: Final = 32
#: Scale bytes behind a key stored in fp8.
FP8_SCALE: Final = 4


def plain_key(rules: Rules, deployment: Deployment, cls: CacheClass) -> tuple[int, str]:
    """Bytes of one key of an indexer that stores plain values, and torch's name of them; the graph's is in bfloat16."""
    entry = cls.cache.bytes_per_entry
    stored = rules.indexers.get(cls.layer_class)
    if indexer_dtype(deployment) == "fp8" and stored is not None and "fp8" in stored.names:
        return entry // 2, "float8_e4m3fn"
    return entry, "bfloat16"


def packed_key_bytes(deployment: Deployment, entry: int) -> int:
    """Bytes of one key of an indexer that packs them: ``entry``, which is fp8 with a scale, or mxfp4 with its own."""
    if indexer_dtype(deployment) != "mxfp4":
        return entry
    width = entry - FP8_SCALE
    return width // 2 + width // MXFP4_BLOCK
