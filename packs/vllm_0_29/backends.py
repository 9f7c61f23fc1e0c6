"""Which attention backend serves each class of cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulespack.errors import engine_refuses, not_modelled
from rulespack.graph.vocabulary import LATENT_KINDS
from rulespack.hooks import CacheDtype, LayerBackend
from rulespack.kv.plan import Reason
from vllm_0_29.backend_facts import NOT_MODELLED, fa4_built
from vllm_0_29.backend_terms import TURBOQUANT, Backend, Want, objections
from vllm_0_29.drafts import chooses_backend
from vllm_0_29.environment import CUBINS, switch
from vllm_0_29.scheduler import mm_prefix
from vllm_0_29.words import meant

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Reasons, Rules

SOURCE = "vllm/platforms/cuda.py: CudaPlatformBase.get_attn_backend_cls"
HOOK_SOURCE = "vllm/model_executor/models/config.py: Gemma4Config.verify_and_update_config"

#: Quantization methods that bring scales for the cache of every ordinary attention layer.
SCALED_METHODS = frozenset({"fp8", "modelopt", "modelopt_fp4", "modelopt_mxfp8"})

#: Layer classes that ask the selector; any other is handed its backend by the model.
SELECTING = frozenset({"Attention", "ChunkedLocalAttention", "MLAAttention"})


def select_backends(
    rules: Rules, model: Model, deployment: Deployment, dtype: CacheDtype, reasons: Reasons
) -> tuple[LayerBackend, ...]:
    """One entry for each class of cache in registration order; a class whose layers are partly skipped is two.

    A chunked layer selects by the engine's cache dtype even where it is skipped
    (``chunked_local_attention.py: ChunkedLocalAttention.__init__``).
    """
    skipped = rules.skip_layers(model, deployment, dtype.layers)
    chosen = []
    for cls, caches in zip(model.classes, model.members, strict=True):
        if cls.layer_class not in SELECTING:
            kept = "auto" if model.architecture.cache_dtype_ignored else dtype.layers
            name = serving(rules, model, deployment, cls, kept, dtype.value, reasons)
            reasons.append(
                Reason("attention-backend", name, {"layer": cls.layer_class}, "the model hands it to the layer", SOURCE)
            )
            chosen.append(LayerBackend(caches, name, kept))
            continue
        if not skipped:
            parts = [(caches, dtype.layers)]
        else:
            parts = _parted(model, cls, caches, skipped, dtype.layers)
        for part, layer_dtype in parts:
            selecting = dtype.value if cls.layer_class == "ChunkedLocalAttention" else layer_dtype
            name = serving(rules, model, deployment, cls, selecting, dtype.value, reasons)
            _check_packed(name, layer_dtype)
            _check_scales(model, cls, layer_dtype)
            chosen.append(LayerBackend(part, name, layer_dtype))
    return tuple(sorted(chosen, key=lambda part: part.caches[0])) if len(chosen) > 1 else tuple(chosen)


def _check_scales(model: Model, cls: CacheClass, layer_dtype: str) -> None:
    """Refused by the engine: a cache in fp8_e5m2 where the checkpoint's method brings scales for the cache, as an
    ordinary layer's does unless it is compressed-tensors without a cache scheme or a mix without a cache format."""
    quantization = model.quantization
    if layer_dtype != "fp8_e5m2" or quantization is None or cls.layer_class == "MLAAttention":
        return
    method = quantization.method
    scaled = (
        method in SCALED_METHODS
        or (method == "compressed-tensors" and quantization.kv_cache_scheme)
        or (method == "modelopt_mixed" and quantization.kv_cache_algorithm == "FP8")
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
    plain = tuple(i for i in caches if str(model.layer_of[i]) in skipped)
    rest = tuple(i for i in caches if str(model.layer_of[i]) not in skipped)
    return [(part, kept) for part, kept in ((rest, value), (plain, "auto")) if part]


def serving(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, layer_dtype: str, value: str, reasons: Reasons
) -> str:
    """The backend of a class whose layers carry ``layer_dtype`` while the engine's cache dtype is ``value``: the one
    the model hands to it, else the one that is selected. Refused by the engine where there is none."""
    handed = rules.model_backends.get(cls.layer_class)
    if handed is not None:
        return handed(rules, model, deployment, cls, value)
    want = wants(rules, model, deployment, cls, layer_dtype, value)
    free = chooses_backend(rules, model, cls)
    hooked = hooked_backend(model, deployment)
    return constructed(rules.backends[select(rules, deployment, want, reasons, free=free, hooked=hooked)], want)


def wants(rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, layer_dtype: str, value: str) -> Want:
    """What a layer of this class asks of a backend (``selector.py: get_attn_backend``)."""
    node = cls.attention
    tp = deployment.tensor_parallel_size
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
        non_causal=cls.non_causal,
    )


def select(
    rules: Rules,
    deployment: Deployment,
    want: Want,
    reasons: Reasons,
    *,
    free: bool = False,
    hooked: str | None = None,
) -> str:
    """The backend's name: the one that was forced where it can serve the layer, else the first that can.

    A ``free`` layer is not bound by what was forced; ``hooked`` is what the model's class forces where nothing was.
    Refused by the engine where the forced one cannot, or none can.
    """
    asked = forced_backend(deployment)
    forced = None if free else asked or hooked
    inputs = {"head_size": want.head_size, "cache_dtype": want.cache_dtype, "block_size": want.block_size}
    if forced is not None:
        backend = rules.backends.get(forced)
        if forced in NOT_MODELLED:
            raise not_modelled("backend-modelled", f"the attention backend {forced} is not modelled for these layers")
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
    modelled = {"backend", "flash_attn_version"}
    for key in config:
        if key not in modelled:
            raise not_modelled("attention-config-modelled", f"attention_config.{key} is not modelled")
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
