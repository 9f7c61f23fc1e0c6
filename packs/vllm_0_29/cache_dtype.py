"""Which cache dtype really runs, and which layers are left out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rulespack.errors import Refused
from rulespack.hooks import CacheDtype
from rulespack.kv.plan import Reason
from vllm_0_29.backends import SCHEME_READERS, named_layer, serving

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Rules

HOOK_SOURCE = "vllm/model_executor/models/config.py: MODELS_CONFIG_MAP"
MODELOPT_SOURCE = "vllm/utils/torch_utils.py: resolve_kv_cache_dtype_string"
SCHEME_SOURCE = "vllm/model_executor/layers/attention/attention.py: Attention.__init__"
CANONICAL_SOURCE = "vllm/model_executor/layers/attention/mla_attention.py: _canonicalize_sparse_mla_kv_cache_dtype"
SKIP_SOURCE = "vllm/model_executor/layers/attention/attention.py: Attention.__init__"

#: What a ModelOpt checkpoint's cache format makes of ``auto``.
MODELOPT_FORMATS: Final = {"FP8": "fp8_e4m3", "NVFP4": "nvfp4"}

#: Layers kept in the model's own format at each end of the model under turboquant.
BOUNDARY_LAYERS: Final = 2


def cache_dtype(rules: Rules, model: Model, deployment: Deployment) -> CacheDtype:
    """The engine's string after every rewrite: what was asked, or what the checkpoint says where nothing was.

    A ModelOpt checkpoint that names its cache format turns ``auto`` into it; a compressed-tensors checkpoint that
    carries a cache scheme turns it into fp8 when the first ordinary attention layer is built; a sparse layer turns what
    it finds into the record its backend keeps.
    """
    asked = deployment.kv_cache_dtype
    value, because, source = asked, "as asked" if asked != "auto" else "left to the model's own dtype", MODELOPT_SOURCE
    quantization = model.quantization
    if asked == "auto" and quantization is not None:
        algorithm = (quantization.kv_cache_algorithm or "").upper()
        if quantization.method.startswith("modelopt") and algorithm in MODELOPT_FORMATS:
            value, because = MODELOPT_FORMATS[algorithm], f"the ModelOpt checkpoint names {algorithm} for its cache"
        elif quantization.kv_cache_scheme and any(cls.layer_class in SCHEME_READERS for cls in model.classes):
            value, because, source = "fp8", "the checkpoint carries a cache scheme of its own", SCHEME_SOURCE
    if value == "bfloat16" and model.architecture.bfloat16_cache_is_auto:
        value, because, source = "auto", "the model takes bfloat16 for its own dtype", HOOK_SOURCE
    if model.sparse:
        kept, backend = canonical(rules, model, deployment, value)
        if kept != value:
            value, because, source = kept, f"the record {backend} keeps where {value} was asked for", CANONICAL_SOURCE
    inputs = {"asked": asked, "quantization": None if quantization is None else quantization.method}
    return CacheDtype(value, value, (Reason("cache-dtype", value, inputs, because, source),))


def canonical(rules: Rules, model: Model, deployment: Deployment, value: str) -> tuple[str, str | None]:
    """What the sparse layers make of the engine's cache dtype while they are built, and the backend that did so last.

    Where a layer is refused the string stays: the same refusal comes when the backends are chosen. A first layer that
    is skipped is built before any other, and what it makes of the model's own dtype holds for all.
    """
    changed = None
    skipped = rules.skip_layers(model, deployment)
    built = [(cls, False) for cls in model.sparse]
    if skipped and built and _skips_first(rules, model, model.sparse[0], skipped):
        built.insert(0, (model.sparse[0], True))
    for cls, plain in built:
        dtype = "auto" if plain else value
        try:
            name = serving(rules, model, deployment, cls, dtype, dtype, [])
        except Refused:
            break
        kept = rules.backends[name].canonical(dtype, deployment.gpu.capability)
        if kept != dtype:
            value, changed = kept, name
    return value, changed


def _skips_first(rules: Rules, model: Model, cls: CacheClass, skipped: frozenset[str]) -> bool:
    """Whether the first layer of a class keeps the model's own dtype."""
    first = model.members[model.classes.index(cls)][0]
    return cls.layer_class in rules.skippable and named_layer(model.names[first]) in skipped


def skip_layers(model: Model, deployment: Deployment) -> frozenset[str]:
    """What keeps the model's own dtype under ``kv_cache_dtype_skip_layers``: layer indices, or ``sliding_window``.

    Under turboquant the two layers at each end of the model are added, at most half of them, but none of a hybrid's
    (``turboquant/config.py: get_boundary_skip_layers``).
    """
    skipped = frozenset(deployment.kv_cache_dtype_skip_layers)
    if deployment.kv_cache_dtype.startswith("turboquant_") and not model.hybrid:
        count = model.num_layers
        ends = min(BOUNDARY_LAYERS, count // 2)
        skipped |= {str(i) for i in (*range(ends), *range(count - ends, count))}
    return skipped
