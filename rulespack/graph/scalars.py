"""What a plain (unquoted) YAML scalar says, read so that no two versions of YAML disagree about it.

YAML 1.1 takes ``on``, ``0123``, ``1_000`` and ``1:30`` for a boolean and three integers, YAML 1.2 does not. Such a text
never becomes a value here: it is kept as an :class:`Odd` scalar, which no key of the schema accepts, so that its author
is asked to say what was meant.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


class Odd(msgspec.Struct, frozen=True, eq=False):
    """A plain scalar that is no value of the schema: ``text`` as written, ``reads`` what it could be read as."""

    text: str
    reads: str


_WORDS: Final[dict[str, bool | None]] = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
}
_SWITCHES: Final = frozenset(
    spelling for word in ("yes", "no", "on", "off") for spelling in (word, word.capitalize(), word.upper())
)
_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_ODDITIES: Final = (
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"), "a date"),
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt]|[ \t]+)[0-9].*"), "a time"),
    (re.compile(r"[-+]?0[0-7_]+"), "an octal number or a decimal one"),
    (re.compile(r"[-+]?0o[0-7]+"), "an octal number"),
    (re.compile(r"[-+]?0[xX][0-9a-fA-F_]+"), "a hexadecimal number"),
    (re.compile(r"[-+]?0b[01_]+"), "a binary number"),
    (re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"), "a number in base 60"),
    (re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"), "a number that is not finite"),
    (re.compile(r"[-+]?[0-9_]*\.?[0-9_]+(?:[eE][-+]?[0-9]+)?|[-+]?[0-9_]+\.[0-9_]*(?:[eE][-+]?[0-9]+)?"), "a number"),
    (re.compile(r"[=]"), "a YAML 1.1 special value"),
)
_NUMERIC_START: Final = frozenset("0123456789+-._=")


def plain(text: str) -> object:
    """The value of a plain scalar: text, an integer, a float, a boolean, None, or :class:`Odd`."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] in _NUMERIC_START:
        return _number(text)
    if text in _SWITCHES:
        return Odd(text, "a boolean or a word")
    return text


def _number(text: str) -> object:
    if _INTEGER.fullmatch(text):
        # No 64-bit integer has more digits; int() of a very long text is refused by Python itself.
        value = int(text) if len(text) <= 20 else INT64_MAX + 1
        return value if INT64_MIN <= value <= INT64_MAX else Odd(text, "an integer outside 64 bits")
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if number - number == 0 else Odd(text, "a number that is not finite")
    for pattern, reads in _ODDITIES:
        if pattern.fullmatch(text):
            return Odd(text, reads)
    return text


def is_date(value: object) -> bool:
    """Whether a scalar is an unquoted date such as ``2026-09-16``."""
    return isinstance(value, Odd) and value.reads == "a date"
