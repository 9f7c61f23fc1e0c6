"""The command as a user runs it: a process of its own."""

from __future__ import annotations

from typing import Protocol


class Outcome:
    """How a command ended."""

    def __init__(self, status: int, out: bytes, err: bytes) -> None:
        self.status = status
        self.out = out.decode()
        self.err = err.decode()


class Run(Protocol):
    """Runs ``rulespack`` with these words; ``env`` is added to the environment."""

    def __call__(self, *words: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Outcome: ...
