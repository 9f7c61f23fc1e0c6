"""Words for a person who is told that something is not as the release has it."""

from __future__ import annotations

from collections.abc import Iterable


def meant_variable(name: str, known: Iterable[str]) -> str:
    """As :func:`meant` for an environment variable: what all of them begin with makes none of them alike."""
    from difflib import get_close_matches

    parts = {one.removeprefix("VLLM_"): one for one in known}
    close = get_close_matches(name.removeprefix("VLLM_"), parts, n=1, cutoff=0.75)
    return f"; did you mean {parts[close[0]]}?" if close else ""


def many(number: int, what: str) -> str:
    """``1 batch``, ``2 caches``: with the plural's ending where there is not one."""
    return f"{number} {what}" if number == 1 else f"{number} {what}{'es' if what.endswith('ch') else 's'}"
