"""The keys of ``speculative_config``: which there are, and what each takes, whatever method runs.

Source: ``vllm/config/speculative.py: SpeculativeConfig`` and the validation pydantic makes of its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from rulespack.errors import Refused, engine_refuses, meant, not_modelled

if TYPE_CHECKING:
    from vllm_0_29.rules import Rules

SOURCE: Final = "vllm/config/speculative.py: SpeculativeConfig.__post_init__"
FIELDS: Final = "vllm/config/speculative.py: SpeculativeConfig"

#: Keys that take a switch, and those of them that may be null.
SWITCHES: Final = frozenset(
    """
    enforce_eager index_share_for_mtp_iteration disable_padded_drafter_batch use_local_argmax_reduction
    use_heterogeneous_vocab parallel_drafting enable_adaptive_verification
    """.split()
)
#: Keys that take a number of at least 1 or null.
COUNTS: Final = frozenset(
    """
    draft_tensor_parallel_size max_model_len prompt_lookup_max prompt_lookup_min dspark_draft_topk
    """.split()
)
#: Keys that take any number of their kind.
INTEGERS: Final = frozenset({"suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests"})
NUMBERS: Final = frozenset({"suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob"})
TEXTS: Final = frozenset({"revision", "code_revision", "quantization"})
#: Keys the release writes over before it reads them.
OVERWRITTEN: Final = frozenset(
    {"target_model_config", "target_parallel_config", "draft_model_config", "draft_parallel_config"}
)
#: Keys that may be null.
NULLABLE: Final = COUNTS | TEXTS | {"enforce_eager", "index_share_for_mtp_iteration", "draft_load_config"}

#: Every key of the release.
KEYS: Final = (
    SWITCHES
    | COUNTS
    | INTEGERS
    | NUMBERS
    | TEXTS
    | OVERWRITTEN
    | frozenset(
        """
        num_speculative_tokens model method tensor_parallel_size moe_backend attention_backend kv_cache_dtype
        num_speculative_tokens_per_batch_size draft_load_config rejection_sample_method synthetic_acceptance_rates
        synthetic_acceptance_length draft_sample_method
        """.split()
    )
)

#: Names a key takes (``vllm/config/kernel.py: MoEBackend``, ``vllm/config/speculative.py``).
CHOICES: Final[Mapping[str, frozenset[str]]] = {
    "moe_backend": frozenset(
        """
        auto triton batched_triton deep_gemm deep_gemm_mega_moe cutlass flashinfer_trtllm flashinfer_cutlass
        flashinfer_cutedsl flashinfer_b12x b12x flashinfer_moe_ep_mega_deep_gemm flashinfer_moe_ep_mega_cutedsl marlin
        humming triton_unfused aiter flydsl hpc emulation
        """.split()
    ),
    "rejection_sample_method": frozenset({"standard", "synthetic", "block"}),
    "draft_sample_method": frozenset({"greedy", "probabilistic"}),
}

#: Fields of a ``draft_load_config`` (``vllm/config/load.py: LoadConfig``).
LOAD_KEYS: Final = frozenset(
    """
    load_format download_dir safetensors_load_strategy safetensors_prefetch_num_threads
    safetensors_prefetch_block_size model_loader_extra_config device ignore_patterns use_tqdm_on_load
    pt_load_map_location
    """.split()
)


def check_values(rules: Rules, config: Mapping[str, Any]) -> None:
    """Every key is one of the release's, and its value of the key's kind.

    Refused by the engine where it is not; by the pack where pydantic would read it as one all the same, such as a
    number in quotes.
    """
    for key, value in config.items():
        if key in PLAIN:
            continue
        if key not in rules.speculative_keys:
            spelled = key.replace("-", "_")
            if spelled in rules.speculative_keys:
                raise not_modelled("speculative-config-modelled", f"speculative_config.{key}: spell it {spelled}")
            near = meant(key, rules.speculative_keys)
            raise invalid("speculative-key-known", f"vLLM {rules.release} has no speculative_config.{key}{near}")
        if value is None:
            if key in rules.speculative_switches and key not in NULLABLE:
                raise _wrong(key, value, "true or false")
            continue
        if key in rules.speculative_switches:
            if type(value) is not bool:
                raise _unlike(key, value, "true or false", str(value).lower() in _SAID)
        elif key in COUNTS or key in INTEGERS:
            if type(value) is not int:
                raise _unlike(key, value, "an integer", _integral(value))
            if key in COUNTS and value < 1:
                raise _wrong(key, value, "at least 1")
        elif key in NUMBERS:
            if type(value) not in (int, float):
                raise _unlike(key, value, "a number", _numeric(value))
        elif key in TEXTS:
            if not isinstance(value, str):
                raise _wrong(key, value, "a name")
        elif key in rules.speculative_choices:
            _choice(key, value, rules.speculative_choices[key])
        elif key in SHAPED:
            SHAPED[key](rules, key, value)


def invalid(rule: str, reason: str) -> Refused:
    """A refusal of the release's own reading of ``speculative_config``."""
    return engine_refuses(rule, "ValidationError", "config", reason, SOURCE)


def backend_named(config: Mapping[str, Any]) -> str | None:
    """The backend ``attention_backend`` names, in upper case as the release's names are; None for ``auto``."""
    asked = config.get("attention_backend")
    return None if asked is None or asked.lower() == "auto" else str(asked).upper()


def check_tokens(value: object) -> None:
    """Refused where ``num_speculative_tokens`` is no integer: by the pack where pydantic reads it as one all the
    same."""
    if value is not None and type(value) is not int:
        raise _unlike("num_speculative_tokens", value, "an integer", _integral(value))


#: What pydantic reads as a switch beside true and false.
_SAID: Final = frozenset("0 1 off on f t false true n y no yes 0.0 1.0".split())
#: Keys that are read where the method and the draft are known, and need no look here.
PLAIN: Final = frozenset({"method", "model", "num_speculative_tokens"})


def _wrong(key: str, value: object, kind: str) -> Refused:
    reason = f"speculative_config.{key} is {value!r}, and takes {kind}"
    return engine_refuses("speculative-value-accepted", "ValidationError", "config", reason, FIELDS)


def _unlike(key: str, value: object, kind: str, readable: bool) -> Refused:
    """The refusal of a value that is not of its key's kind: the pack's where the release can read it as one."""
    if readable:
        return not_modelled("speculative-config-modelled", f"speculative_config.{key} is {value!r}: state it as {kind}")
    return _wrong(key, value, kind)


def _numeric(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _integral(value: Any) -> bool:
    return _numeric(value) and float(value).is_integer()


def _choice(key: str, value: object, names: frozenset[str]) -> None:
    if not isinstance(value, str) or value not in names:
        near = meant(value, names) if isinstance(value, str) else ""
        raise _wrong(key, value, f"one of {', '.join(sorted(names))}{near}")


def _cache_dtype(rules: Rules, key: str, value: object) -> None:
    _choice(key, value, rules.cache_dtypes)


def _attention_backend(rules: Rules, key: str, value: object) -> None:
    if not isinstance(value, str):
        raise _wrong(key, value, "a backend's name")
    if value.lower() != "auto":
        _choice(key, value.upper(), rules.backend_names)


def _tensor_parallel_size(rules: Rules, key: str, value: object) -> None:
    raise _wrong(key, value, "nothing: state draft_tensor_parallel_size instead")


def _load_config(rules: Rules, key: str, value: object) -> None:
    if not isinstance(value, Mapping) or not LOAD_KEYS.issuperset(value):
        raise _wrong(key, value, f"a mapping of {', '.join(sorted(LOAD_KEYS))}")


def _schedule(rules: Rules, key: str, value: object) -> None:
    kind = "a list of (first batch size, last batch size, tokens)"
    if not isinstance(value, list | tuple):
        raise _wrong(key, value, kind)
    for entry in value:
        if not isinstance(entry, list | tuple) or len(entry) != 3 or not all(map(_integral, entry)):
            raise _wrong(key, value, kind)
        if not all(type(number) is int for number in entry):
            raise _unlike(key, value, "integers", readable=True)


def _rates(rules: Rules, key: str, value: object) -> None:
    if not isinstance(value, list | tuple) or not all(map(_numeric, value)):
        raise _wrong(key, value, "a list of numbers")
    if not all(type(rate) in (int, float) for rate in value):
        raise _unlike(key, value, "numbers", readable=True)


def _length(rules: Rules, key: str, value: object) -> None:
    if type(value) not in (int, float):
        raise _unlike(key, value, "a number", _numeric(value))


#: Keys whose values are looked into.
SHAPED: Final[Mapping[str, Callable[[Rules, str, object], None]]] = {
    "kv_cache_dtype": _cache_dtype,
    "attention_backend": _attention_backend,
    "tensor_parallel_size": _tensor_parallel_size,
    "draft_load_config": _load_config,
    "num_speculative_tokens_per_batch_size": _schedule,
    "synthetic_acceptance_rates": _rates,
    "synthetic_acceptance_length": _length,
}
