"""Typed reading of one object of a configuration, with every key that was read on record.

The record is what makes the extract: a fact the deriver looked at is kept, anything else is left out, so an extract
derives to the same graph as the file it was taken from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import msgspec

from rulespack.derive.document import describe
from rulespack.derive.errors import Inconsistent, InvalidConfig, NotTranslated

_ABSENT: Final = object()
#: No count or size in a model configuration is anywhere near this.
MAX_INTEGER: Final = 2**40
#: Counts of things (layers, heads, experts) with their own ceilings: beyond them it is a slip, not a model.
CEILINGS: Final = {
    "num_hidden_layers": 1024,
    "num_attention_heads": 65536,
    "num_key_value_heads": 65536,
    "head_dim": 65536,
    "num_experts": 65536,
    "num_local_experts": 65536,
    "n_routed_experts": 65536,
    "hidden_size": 2**24,
    "intermediate_size": 2**26,
    "vocab_size": 2**31,
    "num_nextn_predict_layers": 64,
    "mtp_num_hidden_layers": 64,
    "num_mtp_modules": 64,
    "n_mtp_layers": 64,
}


class Origin(msgspec.Struct, frozen=True):
    """What the sections of one file share: its name for messages, the model class, and the record of keys read."""

    file: str
    architecture: str | None
    reads: set[tuple[str, ...]]


class Section:
    """One JSON object of a configuration. ``names`` maps our vocabulary to a dialect's own (dotted) key."""

    __slots__ = ("_data", "_names", "_origin", "_path")

    def __init__(
        self,
        data: Mapping[str, Any],
        origin: Origin,
        path: tuple[str, ...] = (),
        names: Mapping[str, str] | None = None,
    ) -> None:
        self._data = data
        self._origin = origin
        self._path = path
        self._names = names or {}

    def _locate(self, key: str) -> tuple[str, ...]:
        return tuple(self._names.get(key, key).split("."))

    def _get(self, key: str) -> object:
        keys = self._locate(key)
        value: object = self._data
        for depth, part in enumerate(keys):
            if not isinstance(value, Mapping):
                if value is None:
                    return _ABSENT
                self._fail(keys[:depth], f"is {describe(value)}; state an object")
            if part not in value:
                return _ABSENT
            value = value[part]
        self._origin.reads.add(self._path + keys)
        return value

    def _fail(self, keys: tuple[str, ...], problem: str, error: type[InvalidConfig] = InvalidConfig) -> NoReturn:
        path = ".".join(self._path + keys)
        raise error(self._origin.file, path, problem, self._origin.architecture)

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Raise Inconsistent, an InvalidConfig, about ``key`` of this object."""
        self._get(key)
        self._fail(self._locate(key), problem, Inconsistent)

    def untranslated(self, key: str, problem: str) -> NoReturn:
        """Raise NotTranslated about ``key`` of this object: right as it stands, and beyond us."""
        self._get(key)
        self._fail(self._locate(key), problem, NotTranslated)

    def states(self, key: str) -> bool:
        """Whether ``key`` is there at all, null included."""
        return self._get(key) is not _ABSENT

    def has(self, key: str) -> bool:
        """Whether ``key`` is stated and not null."""
        value = self._get(key)
        return value is not _ABSENT and value is not None

    def _typed(self, key: str, default: Any, check: type | tuple[type, ...], wanted: str) -> Any:
        value = self._get(key)
        if value is _ABSENT:
            if default is _ABSENT:
                self._fail(self._locate(key), f"is missing; state {wanted}")
            return default
        if value is None and default is None:
            return None
        if not isinstance(value, check) or (isinstance(value, bool) and check is not bool):
            self._fail(self._locate(key), f"is {describe(value)}; state {wanted}")
        return value

    def _bounded(self, key: str, value: int, minimum: int) -> int:
        ceiling = CEILINGS.get(key, MAX_INTEGER)
        if not minimum <= value <= ceiling:
            self._fail(self._locate(key), f"is {str(value)[:40]}; state an integer from {minimum} to {ceiling}")
        return value

    def integer(self, key: str, *, minimum: int = 1, default: Any = _ABSENT) -> int:
        """A required integer, or ``default`` where the key is absent."""
        return self._bounded(key, self._typed(key, default, int, "an integer"), minimum)

    def optional_integer(self, key: str, *, minimum: int = 1) -> int | None:
        """An integer, or None where the key is absent or null."""
        value: int | None = self._typed(key, None, int, "an integer, or leave it out")
        return None if value is None else self._bounded(key, value, minimum)

    def optional_number(self, key: str) -> float | None:
        """A finite number, or None where the key is absent or null."""
        value = self._typed(key, None, (int, float), "a number, or leave it out")
        if value is None:
            return None
        if not -1e18 < value < 1e18:
            self._fail(self._locate(key), f"is {str(value)[:40]}; state a sensible number")
        return float(value)

    def boolean(self, key: str, *, default: Any = _ABSENT) -> bool:
        """``true`` or ``false``, or ``default`` where the key is absent."""
        value: bool = self._typed(key, default, bool, "true or false")
        return value

    def string(self, key: str, *, default: Any = _ABSENT) -> str:
        """A string, or ``default`` where the key is absent."""
        value: str = self._typed(key, default, str, "a string")
        return value

    def optional_string(self, key: str) -> str | None:
        """A string, or None where the key is absent or null."""
        value: str | None = self._typed(key, None, str, "a string, or leave it out")
        return value

    def _list(self, key: str, default: Any, element: type, wanted: str) -> Any:
        value = self._typed(key, default, list, f"a list of {wanted}")
        if value is None:
            return None
        for position, item in enumerate(value):
            if not isinstance(item, element) or (isinstance(item, bool) and element is not bool):
                where = (*self._locate(key)[:-1], f"{self._locate(key)[-1]}[{position}]")
                self._fail(where, f"is {describe(item)}; the list holds {wanted}")
        return tuple(value)

    def optional_strings(self, key: str) -> tuple[str, ...] | None:
        """A list of strings, or None where the key is absent or null."""
        value: tuple[str, ...] | None = self._list(key, None, str, "strings")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """A required list of integers."""
        value: tuple[int, ...] = self._list(key, _ABSENT, int, "integers")
        return value

    def optional_integers(self, key: str) -> tuple[int, ...] | None:
        """A list of integers, or None where the key is absent or null."""
        value: tuple[int, ...] | None = self._list(key, None, int, "integers")
        return value

    def is_text(self, key: str) -> bool:
        """Whether ``key`` holds a string."""
        return isinstance(self._get(key), str)

    def is_object(self, key: str) -> bool:
        """Whether ``key`` holds a nested object."""
        return isinstance(self._get(key), Mapping)

    def is_list(self, key: str) -> bool:
        """Whether ``key`` holds a list."""
        return isinstance(self._get(key), list)

    def section(self, key: str) -> Section:
        """A required nested object."""
        found = self.optional_section(key)
        if found is None:
            self._fail(self._locate(key), "is missing; state an object")
        return found

    def optional_section(self, key: str) -> Section | None:
        """A nested object, or None where the key is absent or null."""
        value = self._typed(key, None, dict, "an object, or leave it out")
        return None if value is None else Section(value, self._origin, self._path + self._locate(key))

    def sections(self, key: str) -> tuple[Section, ...]:
        """A required list of objects."""
        *above, last = self._path + self._locate(key)
        return tuple(
            Section(value, self._origin, (*above, f"{last}[{position}]"))
            for position, value in enumerate(self._list(key, _ABSENT, dict, "objects"))
        )

    def names(self) -> tuple[str, ...]:
        """The keys the object states, in its order."""
        return tuple(self._data)

    def entry(self, name: str) -> Section:
        """The object under ``name``, one of the keys the object states, dots in it and all."""
        value = self._data[name]
        path = (*self._path, name)
        self._origin.reads.add(path)
        if not isinstance(value, Mapping):
            raise InvalidConfig(
                self._origin.file, ".".join(path), f"is {describe(value)}; state an object", self._origin.architecture
            )
        return Section(value, self._origin, path)
