"""vLLM's command line, read the way its own parser reads it: flags -> the deployment's arguments.

Every modelled argument is a flag of its kind, from :class:`~rulespack.deployment.Deployment`'s own annotations. Other
flags a release has are taken by their shape. The facts are 0.29.0's and 0.31.0's alike: ``engine/arg_utils.py`` (short
names, which lengths may be written ``32k``) and ``utils/argparse_utils.py`` (underscores, dotted JSON keys, suffixes).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rulespack.cli.flag_kinds import OTHER_KINDS
from rulespack.cli.terminal import Usage
from rulespack.deployment import Deployment

#: vLLM's short names, and the long ones whose argument has another name.
ALIASES: Final = {
    "-ac": "attention_config",
    "-cc": "compilation_config",
    "-dc": "diffusion_config",
    "-dcp": "decode_context_parallel_size",
    "-dp": "data_parallel_size",
    "-dpa": "data_parallel_address",
    "-dpb": "data_parallel_backend",
    "-dpe": "data_parallel_external_lb",
    "-dph": "data_parallel_hybrid_lb",
    "-dpl": "data_parallel_size_local",
    "-dpm": "data_parallel_multi_port_external_lb",
    "-dpn": "data_parallel_rank",
    "-dpp": "data_parallel_rpc_port",
    "-dpr": "data_parallel_start_rank",
    "-ep": "enable_expert_parallel",
    "-n": "nnodes",
    "-O": "optimization_level",
    "-pcp": "prefill_context_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-q": "quantization",
    "-r": "node_rank",
    "-sc": "speculative_config",
    "-tp": "tensor_parallel_size",
    "--device-memory-utilization": "gpu_memory_utilization",
}
#: Integers that may be written with a suffix: k, m, g, t are powers of 1000; K, M, G, T powers of 1024.
SUFFIXED: Final = frozenset(
    """
    max_model_len max_num_batched_tokens max_num_scheduled_tokens max_num_queued_tokens kv_cache_memory_bytes
    safetensors_prefetch_block_size
    """.split()
)
#: JSON arguments in which bare numbers may carry such a suffix, too.
SUFFIXED_JSON: Final = frozenset({"attention_config", "kv_transfer_config"})
#: Arguments that are not flags of vLLM but options of ours.
OURS: Final = frozenset({"gpu", "env"})

_NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_NEGATIVE: Final = re.compile(r"-\d+|-\d*\.\d+")
_BARE_NUMBER: Final = re.compile(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt])i?(?:b|bytes?)?", re.IGNORECASE)
_QUOTED: Final = re.compile(r'("(?:[^"\\]|\\.)*")')


def modelled_flags() -> dict[str, str]:
    """The modelled arguments as flags -> the kind of value each takes."""
    return {f"--{name.replace('_', '-')}": kind for name, kind in _kinds().items()}


def split(words: Sequence[str], options: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The engine arguments a command line states, and the words that are not theirs.

    ``options`` are the command's own: option -> how many values follow it, as ``0``, ``1`` or ``+``. Of two statements
    of one argument the later holds. Raises :class:`Usage` for a flag no release has, and a value that cannot be read.
    """
    return _Split(words, options).run()


class _Split:
    def __init__(self, words: Sequence[str], options: Mapping[str, str]) -> None:
        self._words = list(words)
        self._options = options
        self._at = 0
        self._stated: dict[str, Any] = {}
        self._dotted: dict[str, dict[str, Any]] = {}
        self._rest: list[str] = []
        self._placed = False

    def run(self) -> tuple[dict[str, Any], list[str]]:
        while self._at < len(self._words):
            word = self._next()
            if word == "--":
                self._rest += ["--", *self._words[self._at :]]
                break
            if not _is_flag(word):
                self._placed = True
                self._rest.append(word)
            elif word.partition("=")[0] in self._options:
                self._own(word)
            else:
                self._engine(word)
        return self._stated | self._dotted, self._rest

    def _next(self) -> str:
        self._at += 1
        return self._words[self._at - 1]

    def _values(self) -> list[str]:
        """The words that follow, up to the next flag."""
        found = []
        while self._at < len(self._words) and not _is_flag(self._words[self._at]):
            found.append(self._next())
        return found

    def _value(self, flag: str, given: str | None) -> str:
        if given is not None:
            return given
        if self._at < len(self._words) and not _is_flag(self._words[self._at]):
            return self._next()
        raise Usage(f"{flag}: a value must follow")

    def _own(self, word: str) -> None:
        option, equals, _ = word.partition("=")
        self._rest.append(word)
        self._placed = self._placed or option == "--model"
        if not equals and self._options[option] == "+":
            self._rest += self._values()
        elif not equals and self._options[option] == "1" and self._at < len(self._words):
            self._rest.append(self._next())

    def _engine(self, word: str) -> None:
        flag, given = _parted(word)
        base, dot, keys = flag.partition(".")
        name = ALIASES.get(base) or base.lstrip("-").replace("-", "_")
        if dot:
            self._expect_known(base, name)
            self._merge(flag, name, keys, self._value(flag, given))
            return
        positive = name.removeprefix("no_")
        kind = _kind(name)
        if "bool" in (kind, _kind(positive)):
            self._expect_known(flag, positive)
            if given is not None:
                raise Usage(f"{flag}: a switch takes no value; say --{_dashed(positive)} or --no-{_dashed(positive)}")
            self._stated[positive] = kind is not None
        elif kind is None:
            self._unread(flag, name, given)
        else:
            self._expect_known(flag, name)
            if kind == "tuple[str, ...]" or kind.startswith("list"):
                self._stated[name] = self._several(flag, name, kind, given)
            else:
                self._stated[name] = _read(flag, name, kind, self._value(flag, given))

    def _several(self, flag: str, name: str, kind: str, given: str | None) -> list[Any]:
        """The values of a flag that takes one or more."""
        values = [given] if given is not None else self._following(modelled=name in _kinds())
        if not values:
            raise Usage(f"{flag}: at least one value must follow")
        return [_read(flag, name, "int", value) if kind == "list[int]" else value for value in values]

    def _following(self, *, modelled: bool) -> list[str]:
        """The words that follow; of a flag that is not modelled one alone while the model is still to come."""
        if self._placed or modelled:
            return self._values()
        return [self._next()] if self._at < len(self._words) and not _is_flag(self._words[self._at]) else []

    def _unread(self, flag: str, name: str, given: str | None) -> None:
        """A flag whose kind is not known here: taken by its shape."""
        positive = name.removeprefix("no_")
        if positive != name and _kind(positive) is None and not _known(name) and _known(positive):
            self._stated[positive] = False
            return
        self._expect_known(flag, name)
        read = [_guess(value) for value in ([given] if given is not None else self._following(modelled=False))]
        self._stated[name] = True if not read else read[0] if len(read) == 1 else read

    def _expect_known(self, flag: str, name: str) -> None:
        if name == "config":
            raise Usage("--config: a vLLM configuration file is not read here; state its flags on the command line")
        if not _known(name):
            near = _nearest(flag, name, [option for option in self._options if option.startswith("--")])
            raise Usage(f"{flag}: no release there is a pack for has this flag{near}")

    def _merge(self, flag: str, name: str, keys: str, value: str) -> None:
        """A dotted key: ``--kv-transfer-config.kv_connector X``; a final ``+`` adds to a list, split at commas."""
        adds = keys.endswith("+")
        path = keys.removesuffix("+").split(".")
        if not all(path):
            raise Usage(f"{flag}: a key is missing around a dot")
        said: Any = value.split(",") if adds else _dotted_value(value)
        below = self._dotted.setdefault(name, {})
        for key in path[:-1]:
            inner = below.get(key)
            if not isinstance(inner, dict):
                inner = below[key] = {}
            below = inner
        before = below.get(path[-1])
        below[path[-1]] = before + said if adds and isinstance(before, list) else said


def whole_number(text: str) -> int:
    """An integer, or one with a suffix: ``32k`` is 32,000 and ``32K`` 32,768. Raises ValueError."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return int(text)
    number, suffix = match.groups()
    power = "kmgt".index(suffix.lower())
    if suffix.islower():
        return int(float(number) * (1000, 1000**2, 1000**3, 1000**4)[power])
    if "." in number:
        raise ValueError(f"decimals go with the suffix {suffix.lower()} (powers of 1000), not with {suffix}")
    return int(number) << 10 * (power + 1)


def _suffix_hint(name: str, text: str) -> str:
    """What to write for a size such as 64GB or 64 GiB; the engine's suffixes are one letter, and not everywhere."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return ""
    number, letter = match[1], match[2]
    binary, decimal = f"{number}{letter.upper()}", f"{number}{letter.lower()}"
    if name not in SUFFIXED:
        return "; this flag takes no suffix: write the number out"
    powers_of_1024 = "" if "." in number else f"{binary} (powers of 1024) or "
    return f"; write {powers_of_1024}{decimal} (powers of 1000)"


def read_json(flag: str, text: str) -> Any:
    """The JSON value of an argument. Raises :class:`Usage` where it is not JSON."""
    try:
        return _strict_json(text)
    except (ValueError, RecursionError) as error:
        raise Usage(f"{flag}: not JSON ({error}); give an object, or its keys one by one as {flag}.KEY VALUE") from None


def _strict_json(text: str) -> Any:
    return json.loads(text, parse_constant=lambda name: _finite(float(name)), parse_float=lambda x: _finite(float(x)))


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError(f"{number} is no number to plan with")
    return number


def _kinds() -> Mapping[str, str]:
    return {
        name: annotation.removesuffix(" | None")
        for name, annotation in Deployment.__annotations__.items()
        if name not in OURS
    }


def _annotation(name: str) -> str | None:
    """What an argument is, as its class or :data:`OTHER_KINDS` annotates it."""
    return None if name in OURS else Deployment.__annotations__.get(name) or OTHER_KINDS.get(name)


def _kind(name: str) -> str | None:
    annotation = _annotation(name)
    return None if annotation is None else annotation.removesuffix(" | None")


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-" and not _NEGATIVE.fullmatch(word)


def _parted(word: str) -> tuple[str, str | None]:
    """A word as its flag, in vLLM's own spelling of it, and the value that is joined to it."""
    if word.startswith("-O") and word != "-O":
        return "-O", word[2:].removeprefix("=")
    flag, equals, value = word.partition("=")
    if flag.startswith("--"):
        base, dot, keys = flag.partition(".")
        flag = base.replace("_", "-") + dot + keys
    return flag, value if equals else None


def _read(flag: str, name: str, kind: str, text: str) -> Any:
    if text in ("", "None") and (_annotation(name) or "").endswith("| None"):
        return None
    if name == "max_model_len" and (text.strip() == "-1" or text.strip().lower() == "auto"):
        return -1
    try:
        if kind == "int":
            return whole_number(text) if name in SUFFIXED else int(text)
        if kind == "float":
            return _finite(float(text))
    except ValueError as error:
        hint = f": {error}" if "suffix" in str(error) else _suffix_hint(name, text)
        raise Usage(f"{flag}: expected {'an integer' if kind == 'int' else 'a number'}, got {text!r}{hint}") from None
    if kind == "json":
        return read_json(flag, _without_suffixes(text))
    if kind == "Mapping[str, Any]":
        return read_json(flag, _without_suffixes(text) if name in SUFFIXED_JSON else text)
    return text


def _without_suffixes(text: str) -> str:
    parts = _QUOTED.split(text)
    parts[::2] = [_BARE_NUMBER.sub(lambda match: str(whole_number(match.group())), part) for part in parts[::2]]
    return "".join(parts)


def _dotted_value(text: str) -> Any:
    try:
        return _strict_json(text)
    except (ValueError, RecursionError):
        pass
    try:
        return whole_number(text)
    except ValueError:
        return text


def _guess(text: str) -> Any:
    """The value of an argument whose kind is not known here: JSON where it is JSON, else the text itself."""
    try:
        return _strict_json(text)
    except (ValueError, RecursionError):
        return text


def _known(name: str) -> bool:
    from rulespack.releases import known_arguments

    return name in _kinds() or name in known_arguments()


def _nearest(flag: str, name: str, options: Sequence[str]) -> str:
    """The flag or the command's own option that was probably meant."""
    from difflib import get_close_matches

    from rulespack.releases import known_arguments

    names = [*(option[2:] for option in options), *map(_dashed, [*_kinds(), *known_arguments()])]
    word = _dashed(name)
    close = get_close_matches(word, names, n=1) or [found for found in names if found.startswith(word)][:1]
    if close:
        return f"; did you mean --{close[0]}?"
    short = get_close_matches(flag, ALIASES, n=1)
    return f"; did you mean {short[0]}?" if short else ""


def _dashed(name: str) -> str:
    return name.replace("_", "-")
