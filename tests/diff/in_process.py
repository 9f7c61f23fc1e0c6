"""The command as a test calls it in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Ran(NamedTuple):
    """How a command ended and what it said."""

    status: int
    out: str
    err: str


Command = Callable[..., Ran]
