"""What stays the same in words."""

from __future__ import annotations

import re
from typing import Final

from rulespack.diff import Comparison, Pair, Refusal
from rulespack.report.changes import title

#: What pairs are under that have plans, and the beginning of what those are under that have none.
_PLAIN: Final = "same"
#: Where the details of a reason begin.
_DETAILS: Final = re.compile(r"[:;] |\. ")


def same(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """The pairs nothing differs for: those with plans under ``same``, those without under what both refuse them for."""
    found: dict[str, list[str]] = {}
    for pair in comparison.pairs:
        if pair.status == "same":
            found.setdefault(_heading(pair), []).append(title(pair, comparison))
    return sorted(found.items(), key=lambda entry: entry[0] != _PLAIN)


def _heading(pair: Pair) -> str:
    old, new = pair.old.refusal, pair.new.refusal
    if old is None or new is None:
        return _PLAIN
    reasons = [_short(refusal) for refusal in (old, new)]
    if reasons[0] == reasons[1]:
        return f"{_PLAIN} (both refuse: {reasons[0]})"
    return f"{_PLAIN} (both refuse, {pair.old.release}: {reasons[0]}; {pair.new.release}: {reasons[1]})"


def _short(refusal: Refusal) -> str:
    """A reason without its details, which ``rulespack plan`` tells."""
    return _DETAILS.split(refusal.reason, maxsplit=1)[0].rstrip(".")
