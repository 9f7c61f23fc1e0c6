"""Which attention backend serves each class of cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from rulespack.errors import engine_refuses, meant, not_modelled
from rulespack.graph.vocabulary import LATENT_KINDS
from rulespack.hooks import CacheDtype, LayerBackend
from rulespack.kv.plan import Reason
from vllm_0_29.attention_config import forced_for
from vllm_0_29.backend_facts import fa4_built
from vllm_0_29.backend_terms import TURBOQUANT, Backend, Want, objections
from vllm_0_29.draft_layers import AS_TARGET, TAKEN_FOR_STATED, Own
from vllm_0_29.environment import CUBINS, switch
from vllm_0_29.forced_backends import ELSEWHERE
from vllm_0_29.model import is_sparse
from vllm_0_29.scheduler import mm_prefix

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Reasons, Rules

SOURCE = "vllm/platforms/cuda.py: CudaPlatformBase.get_attn_backend_cls"
HOOK_SOURCE = "vllm/model_executor/models/config.py: Gemma4Config.verify_and_update_config"

#: Quantization methods that bring scales for the cache of every ordinary attention layer.
SCALED_METHODS = frozenset({"fp8", "modelopt", "modelopt_fp4", "modelopt_mxfp8"})

#: Names that, as ``attention_config.backend``, choose MiniMax M3's decode kernel and no backend.
MSA_ALIASES: Final = ("CUTLASS_MSA", "TRITON_MSA")

#: Layer classes that select by the engine's cache dtype, before they look whether they are skipped.
SELECT_AT_FIRST = frozenset({"ChunkedLocalAttention", "CrossAttention"})
#: Layer classes that ask the selector; any other is handed its backend by the model.
SELECTING = frozenset({"Attention", "ChunkedLocalAttention", "MLAAttention"})

#: Layer classes that read a compressed-tensors checkpoint's cache scheme.
SCHEME_READERS = frozenset({"Attention", "ChunkedLocalAttention"})


def select_backends(
    rules: Rules, model: Model, deployment: Deployment, dtype: CacheDtype, reasons: Reasons
) -> tuple[LayerBackend, ...]:
    """One entry for each class of cache in registration order; a class whose layers are partly skipped is two.

    A chunked layer selects by the engine's cache dtype even where it is skipped
    (``chunked_local_attention.py: ChunkedLocalAttention.__init__``).
    """
    skipped = rules.skip_layers(model, deployment)
    drafts = AS_TARGET if model.draft is None else settled(rules, model, deployment)
    chosen = []
    for cls, caches in zip(model.classes, model.members, strict=True):
        own = drafts if cls.draft else AS_TARGET
        value = dtype.value if own.cache_dtype is None else own.cache_dtype
        layers = dtype.layers if own.cache_dtype is None else own.cache_dtype
        if cls.layer_class not in rules.skippable:
            parts = [(caches, "auto" if model.architecture.cache_dtype_ignored else layers)]
        elif not skipped or (model.architecture.latent_ignores_skips and cls.layer_class == "MLAAttention"):
            parts = [(caches, layers)]
        else:
            parts = _parted(model, cls, caches, skipped, layers)
        for part, kept in parts:
            layer_dtype = kept
            selecting = value if cls.layer_class in SELECT_AT_FIRST else layer_dtype
            name = serving(rules, model, deployment, cls, selecting, value, reasons, own)
            if skipped and kept == "auto" and is_sparse(cls):  # what a skipped layer's backend makes of it
                layer_dtype = rules.backends[name].canonical(kept, deployment.gpu.capability)
            if cls.layer_class in SELECTING:
                _check_packed(name, layer_dtype)
                _check_scales(rules, model, deployment, cls, layer_dtype)
            else:
                handed = {"layer": cls.layer_class}
                reasons.append(Reason("attention-backend", name, handed, "the model hands it to the layer", SOURCE))
            chosen.append(LayerBackend(part, name, layer_dtype))
    return tuple(sorted(chosen, key=lambda part: part.caches[0])) if len(chosen) > 1 else tuple(chosen)


def settled(rules: Rules, model: Model, deployment: Deployment) -> Own:
    """What a draft's layers are built with, its own cache dtype as they leave it: a cache scheme of the checkpoint
    turns ``auto`` into fp8, sparse layers turn what they find into the record their backend keeps."""
    draft, config = model.draft, deployment.speculative_config or {}
    if draft is None or not (_apart(config, deployment) or _takes_fa4(model)):
        return AS_TARGET
    own = rules.draft_layers(rules, model, deployment)
    if own.cache_dtype is None and own.backend is None:
        return own
    if own.cache_dtype is not None:
        _check_validated(model, own.cache_dtype)
    drafts = [cls for cls in model.classes if cls.draft]
    # A module in the target's checkpoint is built of the target's layers, also where it keeps but some of their caches.
    sparse = [cls for cls in drafts if is_sparse(cls)] if draft.separate else model.sparse
    if own.backend is not None and any(cls.layer_class in rules.model_backends for cls in sparse):
        _check_handed(rules, model, deployment, own.backend, sparse)
    if own.cache_dtype == "auto" and not draft.separate:
        scheme = model.quantization is not None and model.quantization.kv_cache_scheme
        if scheme and any(cls.layer_class in SCHEME_READERS for cls in drafts):
            own = msgspec.structs.replace(own, cache_dtype="fp8")
    if own.cache_dtype is not None:
        for cls in sparse:
            value = own.cache_dtype
            name = serving(rules, model, deployment, cls, value, value, [], own)
            kept = rules.backends[name].canonical(value, deployment.gpu.capability)
            own = msgspec.structs.replace(own, cache_dtype=kept)
    return own


def _check_validated(model: Model, cache_dtype: str) -> None:
    """Refused by the engine: the configuration is validated again where a draft's own cache dtype is laid over it."""
    if model.mla and cache_dtype.startswith("nvfp4") and not cache_dtype.endswith("_ds_mla"):
        raise engine_refuses(
            "nvfp4-without-mla",
            "ValidationError",
            "construct",
            f"a draft's kv_cache_dtype {cache_dtype} is not supported beside latent attention",
            "vllm/config/vllm.py: VllmConfig.validate_nvfp4_kv_cache_with_mla",
        )


def _apart(config: Mapping[str, object], deployment: Deployment) -> bool:
    """Whether anything is stated that a draft's layers may be built otherwise for."""
    return (
        "kv_cache_dtype" in config
        or "attention_backend" in config
        or deployment.decode_context_parallel_size > 1
        or forced_backend(deployment) is not None
    )


def _check_handed(
    rules: Rules, model: Model, deployment: Deployment, backend: str, sparse: Sequence[CacheClass]
) -> None:
    """Refused by the pack: a draft whose model class would hand its layers another backend than the target's."""
    stated = {name: value for name, value in deployment.stated.items() if name != "attention_config"}
    other = type(deployment)(**{**stated, "attention_backend": backend})
    for cls in sparse:
        handed = rules.model_backends.get(cls.layer_class)
        if handed is None:
            continue
        names = {handed(rules, model, asked, cls, "fp8") for asked in (deployment, other)}
        if len(names) > 1:
            raise not_modelled(
                "backend-modelled", f"{model.architecture_name} beside a draft on {backend} of its own is not modelled"
            )


def _check_scales(rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, layer_dtype: str) -> None:
    """Refused by the engine: a cache in fp8_e5m2 where the checkpoint's method brings scales for the cache, as an
    ordinary layer's does unless it is compressed-tensors without a cache scheme or a mix without a cache format.

    Weights that are made fp8 while they are loaded count as such a checkpoint's in 0.29.0 alone.
    """
    if layer_dtype != "fp8_e5m2" or cls.layer_class == "MLAAttention":
        return
    quantization, asked = model.quantization, deployment.quantization
    if cls.draft and model.draft is not None:
        quantization = model.draft.quantization
        if model.draft.separate:
            asked = (deployment.speculative_config or {}).get("quantization")
    method = quantization.method if quantization is not None else asked if rules.loaded_fp8_scales else None
    if method is None:
        return
    scaled = method in SCALED_METHODS
    if quantization is not None and not scaled:
        scaled = (method == "compressed-tensors" and bool(quantization.kv_cache_scheme)) or (
            method == "modelopt_mixed" and quantization.kv_cache_algorithm == "FP8"
        )
    if scaled:
        raise engine_refuses(
            "e5m2-without-scales",
            "ValueError",
            "construct",
            f"an fp8_e5m2 cache takes no scales, and a {method} checkpoint brings them",
            "vllm/model_executor/layers/attention/attention.py: _init_kv_cache_quant",
        )


def _check_packed(name: str, layer_dtype: str) -> None:
    """Refused by the engine: turboquant's kernel over a layer that keeps the model's own dtype."""
    if name == "TURBOQUANT" and layer_dtype not in TURBOQUANT:
        raise engine_refuses(
            "backend-constructed",
            "ValueError",
            "construct",
            f"TURBOQUANT was chosen by the engine's cache dtype for a layer that stores {layer_dtype}",
            "vllm/v1/attention/backends/turboquant_attn.py: TurboQuantAttentionImpl.__init__",
        )


def _parted(
    model: Model, cls: CacheClass, caches: tuple[int, ...], skipped: frozenset[str], value: str
) -> list[tuple[tuple[int, ...], str]]:
    """A class's caches parted into those that keep the cache dtype and those that are skipped."""
    if cls.window is not None and "sliding_window" in skipped:
        return [(caches, "auto")]
    plain = tuple(i for i in caches if named_layer(model.names[i]) in skipped)
    rest = tuple(i for i in caches if i not in plain)
    return [(part, kept) for part, kept in ((rest, value), (plain, "auto")) if part]


def named_layer(name: str) -> str | None:
    """The number in a layer's name, by which the release skips layers (``models/utils.py: extract_layer_index``)."""
    return next((part for part in name.split(".") if part.isdecimal()), None)


def serving(
    rules: Rules,
    model: Model,
    deployment: Deployment,
    cls: CacheClass,
    layer_dtype: str,
    value: str,
    reasons: Reasons,
    own: Own = AS_TARGET,
) -> str:
    """The backend of a class whose layers carry ``layer_dtype`` while the engine's cache dtype is ``value``: the one
    the model hands to it, else the one that is selected; ``own`` is what a draft's layers are built with. Refused by
    the engine where there is none."""
    handed = rules.model_backends.get(cls.layer_class)
    if handed is not None:
        if own.cache_dtype is not None and deployment.block_size is None:
            deployment = type(deployment)(**{**deployment.stated, "block_size": TAKEN_FOR_STATED})
        return handed(rules, model, deployment, cls, layer_dtype if cls.layer_class in rules.skippable else value)
    want = wants(rules, model, deployment, cls, layer_dtype, value)
    if own.cache_dtype is not None and want.block_size is None:
        want = msgspec.structs.replace(want, block_size=TAKEN_FOR_STATED)
    if own.alone:
        want = msgspec.structs.replace(want, dcp=False)
    hooked = hooked_backend(model, deployment)
    return constructed(rules.backends[select(rules, deployment, want, reasons, own=own, hooked=hooked)], want)


def wants(rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, layer_dtype: str, value: str) -> Want:
    """What a layer of this class asks of a backend (``selector.py: get_attn_backend``)."""
    node = cls.attention
    tp = deployment.tensor_parallel_size
    config = deployment.attention_config or {}
    return Want(
        head_size=node.d_h,
        head_size_v=node.d_v or node.d_h,
        dtype=model_dtype(model, deployment),
        cache_dtype=layer_dtype,
        block_size=deployment.block_size,
        mla=node.kind in LATENT_KINDS,
        sparse=node.kind == "sparse_mla",
        cross=False,
        sinks=node.sinks,
        soft_cap=model.soft_cap,
        mm_prefix=mm_prefix(model, deployment),
        window=node.window is not None,
        capability=deployment.gpu.capability,
        query_heads=node.n_q // tp,
        model_heads=model.heads // tp,
        model_kv_heads=max(1, model.kv_heads // tp),
        model_head_size=model.head_size,
        model_cache_dtype=value,
        qk_nope_head_dim=node.qk_nope_head_dim,
        qk_rope_head_dim=node.qk_rope_head_dim,
        kv_lora_rank=node.kv_lora_rank,
        index_topk=node.index_topk,
        flash_attn_version=rules.flash_attn_version(model, deployment, value),
        downloaded_kernels=switch(deployment, CUBINS) is not False,
        dcp=deployment.decode_context_parallel_size > 1,
        pcp=deployment.prefill_context_parallel_size > 1,
        non_causal=cls.non_causal or bool(config.get("use_non_causal")),
        trtllm=config.get("use_trtllm_attention") is not False,
    )


def select(
    rules: Rules,
    deployment: Deployment,
    want: Want,
    reasons: Reasons,
    *,
    own: Own = AS_TARGET,
    hooked: str | None = None,
) -> str:
    """The backend's name: the one that was forced where it can serve the layer, else the first that can.

    ``own`` is what a draft's layers are built with; ``hooked`` is what the model's class forces where nothing was.
    Refused by the engine where the forced one cannot, or none can.
    """
    asked = own.backend or (None if own.free else forced_backend(deployment))
    if deployment.attention_config and not own.free:
        asked = forced_for(want, deployment, asked)
    forced = asked or (None if own.free else hooked)
    inputs = {"head_size": want.head_size, "cache_dtype": want.cache_dtype, "block_size": want.block_size}
    if forced is not None:
        backend = rules.backends.get(forced)
        if backend is None:
            against = ["no layer that selects its backend can have it"]
        else:
            against = list(objections(backend, want, asks_dcp=rules.selector_asks_dcp))
        if against:
            raise engine_refuses(
                "forced-backend-valid",
                "ValueError",
                "construct",
                f"{forced} cannot serve layers of head size {want.head_size}: {', '.join(against)}",
                SOURCE,
            )
        if forced in ELSEWHERE:
            raise not_modelled("backend-modelled", f"the attention backend {forced} on this GPU is not modelled")
        because = "as asked" if asked else "the model's class asks for it where FlashAttention 4 does not run"
        reasons.append(Reason("attention-backend", forced, inputs, because, SOURCE if asked else HOOK_SOURCE))
        return forced
    passed: list[tuple[str, str]] = []
    for name in rules.priorities(want):
        against_first = next(objections(rules.backends[name], want, asks_dcp=rules.selector_asks_dcp), None)
        if against_first is None:
            because = "the first in order for this GPU"
            if passed:
                because = "the first that can; before it " + ", ".join(
                    f"{other} cannot ({why})" for other, why in passed
                )
            reasons.append(Reason("attention-backend", name, inputs, because, SOURCE))
            return name
        passed.append((name, against_first))
    raise engine_refuses(
        "backend-found",
        "ValueError",
        "construct",
        f"no attention backend serves head size {want.head_size} with cache dtype {want.cache_dtype} on compute "
        f"capability {want.capability[0]}.{want.capability[1]}: "
        + "; ".join(f"{name} ({why})" for name, why in passed),
        SOURCE,
    )


def constructed(backend: Backend, want: Want) -> str:
    """The chosen backend's name. Refused by the engine where its implementation then refuses the layer."""
    reason = backend.construction(want)
    if reason is not None:
        raise engine_refuses(
            "backend-constructed",
            backend.construction_error,
            "construct",
            f"{backend.name} was chosen and refuses the layer: {reason}",
            f"vllm/v1/attention/backends: the implementation class of {backend.name}",
        )
    return backend.name


def forced_backend(deployment: Deployment) -> str | None:
    """The backend the arguments force, in upper case as the release's names are; None for ``auto``."""
    asked = deployment.attention_backend
    if asked is None and deployment.attention_config is not None:
        asked = deployment.attention_config.get("backend")
        if asked is not None and not isinstance(asked, str):
            raise engine_refuses(
                "attention-config-value",
                "ValidationError",
                "config",
                f"attention_config.backend {asked!r} is no backend's name",
                "vllm/config/attention.py: AttentionConfig.validate_backend_before",
            )
        if asked is not None and asked.upper() in MSA_ALIASES:
            return None
    if asked is None or asked.lower() == "auto":
        return None
    return asked.upper()


def hooked_backend(model: Model, deployment: Deployment) -> str | None:
    """The backend the model's class forces where none was asked: Triton, for layers that differ in head size, on GPUs
    without FlashAttention 4."""
    return "TRITON_ATTN" if _takes_fa4(model) and not fa4_built(deployment.gpu.capability) else None


def _takes_fa4(model: Model) -> bool:
    return model.architecture.wide_heads_take_fa4 and len(model.head_sizes) > 1


def flash_attn_version(model: Model, deployment: Deployment, value: str) -> int | None:
    """The FlashAttention version the configuration forces: 2 at most under turboquant, what was asked, else 4 for an
    architecture whose layers differ in head size, where it is built and no other backend was asked for."""
    asked = (deployment.attention_config or {}).get("flash_attn_version")
    if deployment.kv_cache_dtype.startswith("turboquant_"):
        return 2
    if asked is not None:
        return int(asked)
    if _takes_fa4(model) and fa4_built(deployment.gpu.capability):
        return 4 if forced_backend(deployment) in (None, "FLASH_ATTN") else None
    return None


def model_dtype(model: Model, deployment: Deployment) -> str:
    """The dtype the model runs in, by torch's name: ``--dtype`` where stated, else the checkpoint's, but bfloat16 for
    float32, and for float16 where the model is not run in it."""
    asked = deployment.dtype
    if asked == "auto":
        unstable = model.dtype == "float16" and not model.architecture.takes_float16
        return "bfloat16" if model.dtype == "float32" or unstable else model.dtype
    return {"half": "float16", "float": "float32"}.get(asked, asked)


def check_backend_arguments(rules: Rules, deployment: Deployment) -> None:
    """The backend named by the arguments exists in the release; whether it serves the layers is asked of each."""
    config = deployment.attention_config or {}
    if deployment.attention_backend is not None and config.get("backend") is not None:
        raise engine_refuses(
            "one-attention-backend",
            "ValueError",
            "config",
            "attention_backend and attention_config.backend are both given",
            "vllm/engine/arg_utils.py: EngineArgs.create_engine_config",
        )
    forced = forced_backend(deployment)
    if forced is None or forced in rules.backend_names:
        return
    raise engine_refuses(
        "backend-known",
        "ValueError" if deployment.attention_backend is not None else "ValidationError",
        "config",
        f"vLLM {rules.release} has no attention backend {forced}; there are: {', '.join(sorted(rules.backend_names))}"
        f"{meant(forced, rules.backend_names)}",
        "vllm/v1/attention/backends/registry.py: AttentionBackendEnum",
    )
