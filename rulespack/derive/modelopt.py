"""ModelOpt checkpoints: what ``hf_quant_config.json``, or its newer form inside ``config.json``, says.

Source: 0.31.0, model_executor/layers/quantization/modelopt.py; the cache format from utils/torch_utils.py,
resolve_kv_cache_dtype_string.
"""

from __future__ import annotations

from typing import Final

from rulespack.derive.section import Section
from rulespack.derive.weights import Format, Weights
from rulespack.graph.model import Quantization

#: ModelOpt's algorithm -> the engine's name of the method, and the format of its weights.
ALGORITHMS: Final = {"FP8": ("modelopt", Format("fp8")), "NVFP4": ("modelopt_fp4", Format("nvfp4"))}


def is_modelopt(section: Section) -> bool:
    """Whether a quantization comes from ModelOpt: it says so, or its producer does beside its own object."""
    producer = section.optional_section("producer")
    named = producer is not None and producer.optional_string("name") == "modelopt"
    method = section.optional_string("quant_method") or ""
    return method.lower().startswith("modelopt") or (named and section.has("quantization"))


def read_modelopt(section: Section, plain: Format) -> Weights:
    """The formats of weights and cache. Raises InvalidConfig for an algorithm that is not translated."""
    inner = section.optional_section("quantization")
    owner = section if inner is None else inner
    algorithm = owner.string("quant_algo").upper()
    if algorithm not in ALGORITHMS:
        owner.refuse("quant_algo", f"{algorithm!r} is not translated; known are {', '.join(ALGORITHMS)}")
    method, stored = ALGORITHMS[algorithm]
    excluded = owner.optional_strings("ignore" if inner is None else "exclude_modules") or ()
    return Weights(
        facts=Quantization(method=method, kv_cache_algorithm=_cache_algorithm(section, inner)),
        plain=plain,
        linear=stored,
        experts=stored,
        stored=stored,
        ignored=excluded,
    )


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
