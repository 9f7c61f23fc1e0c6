"""The decisions of two plans side by side, where they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rulespack.diff.model import ReasonChange
from rulespack.kv.plan import Reason


def reason_changes(old: Sequence[Reason], new: Sequence[Reason]) -> tuple[ReasonChange, ...]:
    """Decisions whose value, inputs or reason differ, in order.

    A rule that decides more than once, for each class of cache, is compared time by time. Where one release takes
    another rule at the same place, such as another way to group, the two stand side by side.
    """
    before, after = dict(_numbered(old)), dict(_numbered(new))
    place = {key: position for position, key in enumerate(after)}
    alone = [key for key in after if key not in before]
    rows: list[tuple[Reason | None, Reason | None]] = []
    for key, reason in before.items():
        while key in after and alone and place[alone[0]] < place[key]:
            rows.append((None, after[alone.pop(0)]))
        rows.append((reason, after.get(key)))
    rows += [(None, after[key]) for key in alone]
    return tuple(ReasonChange(was, is_now) for was, is_now in _joined(rows) if _differs(was, is_now))


def _numbered(reasons: Sequence[Reason]) -> list[tuple[tuple[str, int], Reason]]:
    seen: Counter[str] = Counter()
    found = []
    for reason in reasons:
        found.append(((reason.rule, seen[reason.rule]), reason))
        seen[reason.rule] += 1
    return found


def _joined(rows: list[tuple[Reason | None, Reason | None]]) -> list[tuple[Reason | None, Reason | None]]:
    """Rows with one side each, next to each other, as one row."""
    joined: list[tuple[Reason | None, Reason | None]] = []
    for was, is_now in rows:
        if joined and was is None and joined[-1][1] is None:
            joined[-1] = (joined[-1][0], is_now)
        elif joined and is_now is None and joined[-1][0] is None:
            joined[-1] = (was, joined[-1][1])
        else:
            joined.append((was, is_now))
    return joined


def _differs(old: Reason | None, new: Reason | None) -> bool:
    if old is None or new is None:
        return True
    return (old.rule, old.value, old.because, old.inputs) != (new.rule, new.value, new.because, new.inputs)
