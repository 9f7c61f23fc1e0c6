"""What a comparison of two releases is made of, frozen. Sizes are bytes, lengths and block sizes tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from rulespack.errors import Refused, RulespackError
from rulespack.kv.plan import Plan, Reason

Status: TypeAlias = Literal[
    "same",
    "changed",
    "newly-served",
    "no-longer-served",
    "newly-accepted",
    "newly-refused",
    "refusal-changed",
    "not-modelled",
]
#: Every status, in the order reports list them.
STATUSES: Final[tuple[Status, ...]] = (
    "no-longer-served",
    "newly-refused",
    "changed",
    "refusal-changed",
    "newly-accepted",
    "newly-served",
    "not-modelled",
    "same",
)
assert set(STATUSES) == set(get_args(Status))

#: How the caches of some groups of the old release are grouped in the new one.
Regrouped: TypeAlias = Literal["kept", "renumbered", "split", "merged", "regrouped", "added", "removed"]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a release has no plan.

    ``by`` is ``engine`` (the release itself stops), ``pack`` (not modelled, so nothing is known) or ``arguments`` (the
    release has no such argument or variable). ``type`` and ``stage`` are the engine's class of error and its place.
    """

    by: Literal["engine", "pack", "arguments"]
    rule: str
    reason: str
    type: str | None = None
    stage: str | None = None
    source: str | None = None

    @classmethod
    def of(cls, refused: Refused | RulespackError) -> Refusal:
        """A refusal as it was raised; an error of the question is one of the arguments."""
        if not isinstance(refused, Refused):
            return cls(by="arguments", rule="argument-known", reason=str(refused), type=type(refused).__name__)
        return cls(
            by=refused.by,
            rule=refused.rule,
            reason=refused.reason,
            type=refused.type,
            stage=refused.stage,
            source=refused.source,
        )


class Answer(msgspec.Struct, frozen=True):
    """What one release answers: a plan, a refusal, or a refusal with the plan as far as it was made."""

    release: str
    plan: Plan | None = None
    refusal: Refusal | None = None

    @property
    def served(self) -> bool:
        """Whether the release runs the deployment."""
        return self.refusal is None


class Change(msgspec.Struct, frozen=True):
    """One value that differs, by its key: ``resolved.block_size``. None where a release has no such value."""

    key: str
    old: Any
    new: Any

    @property
    def ratio(self) -> float | None:
        """The new number over the old one; None where they are no numbers, or the old one is zero."""
        if isinstance(self.old, bool) or isinstance(self.new, bool):
            return None
        if not isinstance(self.old, (int, float)) or not isinstance(self.new, (int, float)) or not self.old:
            return None
        return float(self.new / self.old)


class CacheChange(msgspec.Struct, frozen=True):
    """Caches, by the engine's layer names, whose spec changed in the same way."""

    caches: tuple[str, ...]
    changes: tuple[Change, ...]


class GroupChange(msgspec.Struct, frozen=True):
    """What became of some groups: ``old`` and ``new`` are their numbers, ``caches`` all that they hold by name.

    ``kept`` is one group with the same caches whose numbers changed, ``renumbered`` one at another place; ``split`` and
    ``merged`` are whole groups; ``regrouped`` is anything between; ``added`` and ``removed`` have one side only.
    """

    kind: Regrouped
    old: tuple[int, ...]
    new: tuple[int, ...]
    caches: tuple[str, ...]
    changes: tuple[Change, ...] = ()


class RequestChange(msgspec.Struct, frozen=True, kw_only=True):
    """What one request of ``tokens`` tokens pins in each release; ``fixed`` is the part that has stopped growing."""

    tokens: int
    old_blocks: int
    new_blocks: int
    old_bytes: int
    new_bytes: int
    old_fixed_bytes: int
    new_fixed_bytes: int

    @property
    def capacity(self) -> float:
        """How many such requests the same memory holds in the new release, over how many in the old."""
        return self.old_bytes / self.new_bytes if self.new_bytes else 1.0


class ReasonChange(msgspec.Struct, frozen=True):
    """A decision whose value, reason or inputs differ; None where a release does not make it."""

    old: Reason | None
    new: Reason | None

    @property
    def rule(self) -> str:
        """The rule's name; the new release's where it has another."""
        said = self.new or self.old
        return said.rule if said is not None else ""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One model under one deployment, in both releases.

    ``changes``, ``caches`` and ``groups`` are empty exactly where the plans are the same on every key that recordings
    of the releases state. ``weights`` is what a rank holds of the model, where that differs. ``requests`` compares
    lengths that both serve, the longest last. ``renamed`` pairs layer names that differ, which alone is no difference.
    ``reasons`` are the decisions that differ, in order.
    """

    model: str
    name: str
    deployment: Mapping[str, Any]
    status: Status
    old: Answer
    new: Answer
    changes: tuple[Change, ...] = ()
    caches: tuple[CacheChange, ...] = ()
    groups: tuple[GroupChange, ...] = ()
    weights: tuple[Change, ...] = ()
    requests: tuple[RequestChange, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    reasons: tuple[ReasonChange, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether anything but ``same`` can be said; what is not modelled cannot be said to be the same."""
        return self.status != "same"

    @property
    def capacity(self) -> float | None:
        """What the same memory holds in the new release over what it holds in the old, None where one has no plan.

        Of the capacity the engine logs where the deployment states a memory, else of requests of the longest length
        that both serve.
        """
        old, new = self.old.plan, self.new.plan
        if old is None or new is None or not (self.old.served and self.new.served):
            return None
        if old.capacity is not None and new.capacity is not None and old.capacity.tokens:
            return new.capacity.tokens / old.capacity.tokens
        return self.requests[-1].capacity if self.requests else None


class AcceptsChange(msgspec.Struct, frozen=True, kw_only=True):
    """What came and went of one kind of name, such as ``cache_dtypes``; ``changed`` are names whose fact differs."""

    kind: str
    gone: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    changed: tuple[Change, ...] = ()


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two releases compared: what they accept, and each model under each deployment, in the order they were asked."""

    engine: str
    old: str
    new: str
    tokens: tuple[int, ...]
    accepts: tuple[AcceptsChange, ...]
    pairs: tuple[Pair, ...]

    @property
    def differs(self) -> bool:
        """Whether any pair differs or could not be compared."""
        return any(pair.differs for pair in self.pairs)

    @property
    def counts(self) -> dict[Status, int]:
        """How many pairs have each status, those with none left out, in the order of :data:`STATUSES`."""
        found: dict[Status, int] = dict.fromkeys(STATUSES, 0)
        for pair in self.pairs:
            found[pair.status] += 1
        return {status: number for status, number in found.items() if number}

    def gains(self, most: int = 5) -> tuple[Pair, ...]:
        """The pairs that hold most more in the same memory, the largest gain first."""
        return self._ranked(most, gains=True)

    def losses(self, most: int = 5) -> tuple[Pair, ...]:
        """The pairs that hold least in the same memory, the largest loss first."""
        return self._ranked(most, gains=False)

    def _ranked(self, most: int, *, gains: bool) -> tuple[Pair, ...]:
        found = [(pair.capacity, pair) for pair in self.pairs]
        kept = [(ratio, pair) for ratio, pair in found if ratio is not None and (ratio > 1 if gains else ratio < 1)]
        return tuple(pair for _, pair in sorted(kept, key=lambda item: -item[0] if gains else item[0])[:most])
