"""What a question is asked for: the engine arguments, by vLLM's own names, and the GPU.

A :class:`Deployment` has one attribute for each argument that can change a plan, at the engine's default where it was
not stated. Arguments that some installed release knows and that cannot change a plan are accepted and echoed; a name
that no release knows is an error with the nearest right one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self, dataclass_transform

import msgspec

from rulespack.errors import BadDeployment, meant

if TYPE_CHECKING:
    from rulespack.graph.model import ModelGraph

MIB: Final = 1 << 20


class Gpu(msgspec.Struct, frozen=True):
    """A GPU as the planner sees it: compute capability and total memory of device 0 in bytes."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int

    @property
    def family(self) -> int:
        """The capability's major version."""
        return self.capability[0]


#: GPUs by name; the memory is what NVML reports as total.
GPUS: Final = {
    gpu.name: gpu
    for gpu in (
        Gpu("A100", (8, 0), 81920 * MIB),
        Gpu("L40S", (8, 9), 46068 * MIB),
        Gpu("H100", (9, 0), 81559 * MIB),
        Gpu("H200", (9, 0), 143771 * MIB),
        Gpu("B200", (10, 0), 183359 * MIB),
        Gpu("B300", (10, 3), 275040 * MIB),
        Gpu("RTXPRO6000", (12, 0), 97887 * MIB),
    )
}
DEFAULT_GPU: Final = GPUS["H200"]


@dataclass_transform(kw_only_default=True, frozen_default=True)
class _Arguments:
    """Keyword arguments checked against the subclass's annotations; attributes are read-only."""

    stated: Mapping[str, Any]

    def __init__(self, *given: object, **arguments: Any) -> None:
        if given:
            raise BadDeployment(
                f"arguments are stated by name, as in Deployment(tensor_parallel_size=2), not as {_named(given[0])}; a "
                "mapping of them goes to Deployment.of"
            )
        values = self.__dict__
        values["stated"] = MappingProxyType(arguments)
        for name, value in arguments.items():
            if isinstance(value, (Mapping, list)):
                value = arguments[name] = _own(value)
            reader = READERS.get(name)
            if reader is None:
                _check_known(name)
            elif value is not None:
                values[name] = reader(name, value)

    @property
    def draft(self) -> ModelGraph | None:
        """The graph of the draft model, loaded where it is first asked for; None where none was given or named."""
        given = self.__dict__.get("_draft")
        if callable(given):
            given = self.__dict__["_draft"] = given()
        return given

    def with_draft(self, draft: ModelGraph | Callable[[], ModelGraph | None] | None) -> Self:
        """The same arguments beside a draft model's graph, or beside what loads it."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _draft=draft)
        return other

    def keep_draft(self, draft: ModelGraph | None) -> None:
        """Remember the draft that was loaded by the name these arguments state, so that it is loaded once."""
        self.__dict__["_draft"] = draft

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Deployment is frozen: make another with {name} as you want it")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Deployment is frozen: {name} cannot be removed")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Arguments) and self.stated == other.stated

    def __hash__(self) -> int:
        return _hash(self.stated)

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.stated.items())
        return f"{type(self).__name__}({inside})"


def _own(value: Any) -> Any:
    """A copy of what lists and mappings hold, so that whoever stated them cannot change a question already asked."""
    if isinstance(value, Mapping):
        return {key: _own(below) for key, below in value.items()}
    return [_own(below) for below in value] if isinstance(value, list) else value


def _hash(value: Any) -> int:
    """Equal values have one hash, in whatever order a mapping states its keys."""
    if isinstance(value, Mapping):
        return hash(frozenset((key, _hash(below)) for key, below in value.items()))
    return hash(tuple(map(_hash, value))) if isinstance(value, (list, tuple)) else hash(value)


class Deployment(_Arguments):
    """The engine arguments and the GPU a question is asked for, by the names of vLLM's ``EngineArgs``.

    Only what was stated is in ``stated``, by which deployments are compared; every attribute has the engine's default
    otherwise (None: the release decides). ``gpu`` is a name of :data:`GPUS` in any case, or a mapping of
    ``capability``, ``memory_bytes`` and optionally ``name``. Raises BadDeployment for an unknown argument or a value
    that is not of the argument's kind. Whether a *value* is one the release accepts is the release's to say, when the
    plan is made.
    """

    gpu: Gpu = DEFAULT_GPU
    env: Mapping[str, str] = {}
    usage_context: str = "OPENAI_API_SERVER"
    # parallelism
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    enable_expert_parallel: bool = False
    all2all_backend: str | None = None
    cp_kv_cache_interleave_size: int | None = None
    distributed_executor_backend: str | None = None
    # the cache
    kv_cache_dtype: str = "auto"
    kv_cache_dtype_skip_layers: tuple[str, ...] = ()
    block_size: int | None = None
    enable_prefix_caching: bool | None = None
    prefix_match_unit: int | None = None
    disable_hybrid_kv_cache_manager: bool | None = None
    disable_sliding_window: bool = False
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float | None = None
    mamba_cache_mode: str | None = None
    mamba_block_size: int | None = None
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    swa_bounded_replay: bool = True
    kv_transfer_config: Mapping[str, Any] | None = None
    kv_offloading_size: float | None = None
    kv_offloading_backend: str | None = None
    # attention
    attention_backend: str | None = None
    attention_config: Mapping[str, Any] | None = None
    # the model
    dtype: str = "auto"
    quantization: str | None = None
    max_model_len: int | None = None
    hf_overrides: Mapping[str, Any] | None = None
    config_format: str | None = None
    language_model_only: bool = False
    limit_mm_per_prompt: Mapping[str, Any] | None = None
    speculative_config: Mapping[str, Any] | None = None
    enforce_eager: bool = False
    # the scheduler
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    enable_chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    performance_mode: str | None = None

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Deployment:
        """A deployment from a mapping, such as the ``deployment`` of a JSON question."""
        if not isinstance(arguments, Mapping):
            raise BadDeployment(f"deployment: expected a mapping of engine arguments, got {_named(arguments)}")
        return cls(**{str(name): value for name, value in arguments.items()})


def parse_gpu(name: str, value: object) -> Gpu:
    """A :class:`Gpu` from its name, or from a mapping of capability and memory."""
    if isinstance(value, Gpu):
        return value
    if isinstance(value, str):
        gpu = GPUS.get(value.upper())
        if gpu is None:
            raise BadDeployment(
                f"{name}: no GPU named {value!r}; known are {', '.join(GPUS)}, and any other is stated as "
                f'{{"capability": "9.0", "memory_bytes": N}}{meant(value.upper(), GPUS)}'
            )
        return gpu
    if isinstance(value, Mapping):
        extra = set(value) - {"name", "capability", "memory_bytes"}
        if extra:
            raise BadDeployment(
                f"{name}.{min(map(str, extra))}: unknown key; a GPU is capability, memory_bytes and name"
            )
        memory = value.get("memory_bytes")
        if isinstance(memory, bool) or not isinstance(memory, int) or memory <= 0:
            raise BadDeployment(f"{name}.memory_bytes: expected a positive number of bytes, got {_named(memory)}")
        major, dot, minor = str(value.get("capability")).partition(".")
        if not isinstance(value.get("capability"), str) or not (major.isdecimal() and dot and minor.isdecimal()):
            raise BadDeployment(
                f'{name}.capability: expected a string such as "9.0", got {_named(value.get("capability"))}'
            )
        called = value.get("name", "custom")
        if not isinstance(called, str):
            raise BadDeployment(f"{name}.name: expected a string, got {_named(called)}")
        return Gpu(called, (int(major), int(minor)), memory)
    raise BadDeployment(f"{name}: expected a GPU's name or its capability and memory_bytes, got {_named(value)}")


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadDeployment(f"{name}: expected an integer, got {_named(value)}")
    return value


def _count(name: str, value: object) -> int:
    number = _integer(name, value)
    if number < 1:
        raise BadDeployment(f"{name}: expected an integer of at least 1, got {number}")
    return number


def _length(name: str, value: object) -> int:
    if value == "auto":
        raise BadDeployment(f"{name}: auto is a word of the command line alone; state -1, which it stands for there")
    return -1 if _integer(name, value) == -1 else _count(name, value)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadDeployment(f"{name}: expected a number, got {_named(value)}")
    return float(value)


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadDeployment(f"{name}: expected true or false, got {_named(value)}")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadDeployment(f"{name}: expected a string, got {_named(value)}")
    return value


def _texts(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise BadDeployment(f"{name}: expected a list of strings, got {_named(value)}")
    return tuple(_text(f"{name}[{i}]", str(x) if type(x) is int else x) for i, x in enumerate(value))


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadDeployment(f"{name}: expected a mapping, got {_named(value)}")
    return value


def _environment(name: str, value: object) -> Mapping[str, str]:
    variables = _mapping(name, value)
    for key, said in variables.items():
        if not isinstance(said, (str, int)) or isinstance(said, bool):
            raise BadDeployment(f"{name}.{key}: an environment variable is a string, got {_named(said)}")
    return {str(key): str(said) for key, said in variables.items()}


def _json_mapping(name: str, value: object) -> Mapping[str, Any]:
    """A mapping that JSON can state: what is laid over a configuration, which is JSON."""
    stated = _mapping(name, value)
    for key, below in stated.items():
        if not isinstance(key, str):
            raise BadDeployment(f"{name}: a key is a string, got {_named(key)}")
        _check_json(f"{name}.{key}", below)
    return stated


def _check_json(path: str, value: object) -> None:
    if isinstance(value, Mapping):
        _json_mapping(path, value)
    elif isinstance(value, (list, tuple)):
        for position, below in enumerate(value):
            _check_json(f"{path}[{position}]", below)
    elif value is not None and not isinstance(value, (str, int, float)):
        raise BadDeployment(f"{path}: expected a value of JSON, got {_named(value)}")


#: How a kind of value is read.
_READ: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "count": _count,
    "environment": _environment,
    "gpu": parse_gpu,
    "integer": _integer,
    "json": _json_mapping,
    "length": _length,
    "mapping": _mapping,
    "number": _number,
    "switch": _switch,
    "text": _text,
    "texts": _texts,
}
_BY_ANNOTATION: Final = {
    "int": "count",
    "float": "number",
    "bool": "switch",
    "str": "text",
    "tuple[str, ...]": "texts",
    "Mapping[str, Any]": "mapping",
}
#: What kind of value each modelled argument takes, from the class's own annotations but for those named here.
KINDS: Final[Mapping[str, str]] = {
    name: {
        "gpu": "gpu",
        "env": "environment",
        "hf_overrides": "json",
        "max_model_len": "length",
        "num_gpu_blocks_override": "integer",
        "kv_cache_memory_bytes": "integer",
    }.get(name)
    or _BY_ANNOTATION[annotation.removesuffix(" | None")]
    for name, annotation in Deployment.__annotations__.items()
}
#: How each modelled argument is read.
READERS: Final = {name: _READ[kind] for name, kind in KINDS.items()}


def _check_known(name: str) -> None:
    """Pass an argument some installed release knows; raise BadDeployment for any other."""
    from rulespack.releases import known_arguments

    known = known_arguments()
    if name not in known:
        raise BadDeployment(
            f"{name}: no release there is a pack for has this argument{meant(name, [*READERS, *known])}"
        )


def _named(value: object) -> str:
    return "nothing" if value is None else f"{value!r} ({type(value).__name__})"
