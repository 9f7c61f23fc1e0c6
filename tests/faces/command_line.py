"""The command as a user runs it: a process of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parents[2]
#: What ``PYTHONPATH`` says of the checkout.
CHECKOUT = os.pathsep.join((str(ROOT), str(ROOT / "packs")))
#: Variables that change what is printed, or how.
UNSETTLING = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM", "PYTHONUNBUFFERED", "PYTHONIOENCODING")


class Outcome:
    """How a command ended."""

    def __init__(self, status: int, out: bytes, err: bytes) -> None:
        self.status = status
        self.out = out.decode()
        self.err = err.decode()


class Run(Protocol):
    """Runs ``rulespack`` with these words; ``env`` is added to the environment."""

    def __call__(self, *words: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Outcome: ...


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what changes the output, and with the checkout's own modules.

    Whether the project is installed as it stands or as a copy, the command runs what the tests stand beside.
    """
    kept = {key: value for key, value in os.environ.items() if key not in UNSETTLING}
    return kept | {"PYTHONPATH": CHECKOUT} | (extra or {})


#: An environment that does not know the checkout.
AWAY = environment({"PYTHONPATH": ""})
