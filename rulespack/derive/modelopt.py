"""ModelOpt checkpoints: what ``hf_quant_config.json``, or its newer form inside ``config.json``, says.

Source: 0.31.0, model_executor/layers/quantization/modelopt.py; the method from
transformers_utils/model_arch_config_convertor.py, _normalize_quantization_config; the cache format from
utils/torch_utils.py, resolve_kv_cache_dtype_string.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rulespack.derive.section import Section
from rulespack.derive.weights import Format, ModuleFormats, Weights
from rulespack.graph.model import Quantization, WeightScale

FP8: Final = Format("fp8")
NVFP4: Final = Format("nvfp4")
#: ModelOpt's algorithm -> the engine's name of the method, and the format of its weights.
ALGORITHMS: Final = {
    "FP8": ("modelopt", FP8),
    "FP8_PER_CHANNEL_PER_TOKEN": ("modelopt", FP8),
    "FP8_PB_WO": ("modelopt", Format("fp8", WeightScale(elements=128 * 128, bytes=4))),
    "NVFP4": ("modelopt_fp4", NVFP4),
    "W4A16_NVFP4": ("modelopt_fp4", NVFP4),
    "MXFP8": ("modelopt_mxfp8", Format("fp8", WeightScale(elements=32, bytes=1))),
}
#: The algorithm that states another one for each module, and the engine's name of its method.
MIXED: Final = "MIXED_PRECISION"
MIXED_METHOD: Final = "modelopt_mixed"


def is_modelopt(section: Section) -> bool:
    """Whether a quantization comes from ModelOpt: its method says so, or its producer where no other method stands."""
    producer = section.optional_section("producer")
    named = producer is not None and producer.optional_string("name") == "modelopt"
    method = (section.optional_string("quant_method") or "").lower()
    return method.startswith("modelopt") or (named and (not method or section.has("quantization")))


def read_modelopt(section: Section, plain: Format) -> Weights:
    """The formats of weights and cache. Raises InvalidConfig for an algorithm that is not translated.

    In a file of its own (``hf_quant_config.json``) the algorithm stands in a nested object, and the engine infers the
    method from it; which of them a release knows is for the release, so it is stated. Without a nested object and
    without a method the engine finds no quantization at all.
    """
    inner = section.optional_section("quantization")
    owner = section if inner is None else inner
    algorithm = owner.string("quant_algo").upper()
    if inner is None and not section.has("quant_method"):
        return Weights(facts=None, plain=plain, linear=plain, experts=plain, stored=plain)
    listed = None
    if algorithm == MIXED:
        method, stored, listed = MIXED_METHOD, plain, _listed(owner)
    elif algorithm in ALGORITHMS:
        method, stored = ALGORITHMS[algorithm]
    else:
        known = ", ".join((*ALGORITHMS, MIXED))
        owner.untranslated("quant_algo", f"{algorithm!r} is not translated; known are {known}")
    facts = Quantization(
        method=method,
        algorithm=None if inner is None else algorithm,
        kv_cache_algorithm=_cache_algorithm(section, inner),
    )
    return Weights(
        facts=facts,
        plain=plain,
        linear=stored,
        experts=stored,
        stored=stored,
        ignored=owner.optional_strings("ignore" if inner is None else "exclude_modules") or (),
        listed=listed,
    )


def _listed(owner: Section) -> ModuleFormats:
    """The format of each module, one algorithm for each that is listed."""
    layers = owner.section("quantized_layers")

    def read(names: Sequence[str]) -> Format:
        algorithms = {name: layers.entry(name).string("quant_algo").upper() for name in names}
        for name, algorithm in algorithms.items():
            if algorithm not in ALGORITHMS:
                known = ", ".join(ALGORITHMS)
                layers.entry(name).untranslated("quant_algo", f"{algorithm!r} is not translated; known are {known}")
            if algorithm != algorithms[names[0]]:
                problem = f"is {algorithm!r}, and {names[0]}, fused with it, is {algorithms[names[0]]!r}"
                layers.entry(name).refuse("quant_algo", problem)
        return ALGORITHMS[algorithms[names[0]]][1]

    return ModuleFormats(layers.names(), read)


def _cache_algorithm(section: Section, inner: Section | None) -> str | None:
    """The cache format the checkpoint names: a word, or a scheme of bits; None where it names none."""
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        for owner in (inner, section):
            if owner is None or not owner.has(key):
                continue
            if not owner.is_object(key):
                return owner.string(key).upper()
            scheme = owner.section(key)
            kind = (scheme.boolean("dynamic"), scheme.integer("num_bits"), scheme.string("type"))
            return {(False, 8, "float"): "FP8", (False, 4, "float"): "NVFP4"}.get(kind)
    return None
