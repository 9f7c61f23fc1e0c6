"""What a question can end in besides a plan: a refusal, or an error of the question itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rulespack.kv.plan import Plan

By = Literal["engine", "pack"]


class RulespackError(Exception):
    """The question cannot be used. The class name is the ``type`` a JSON answer carries.

    ``unmodelled`` where the question is right and only we cannot answer it: a plan then ends as a pack's refusal.
    """

    unmodelled = False


class BadDeployment(RulespackError):
    """An engine argument that is unknown, or a value that is not of the argument's kind."""


class BadGraph(RulespackError):
    """What was given as a model is no graph."""


class BadLength(RulespackError, ValueError):
    """A length in tokens that no request has, or that the plan does not serve."""


class UnknownRelease(RulespackError):
    """No installed pack answers for the release that was asked for."""


class BadPack(RulespackError):
    """An installed plugin does not do what a pack must."""


class Refused(Exception):
    """No answer, with the reason.

    ``by`` says who refuses: ``engine`` (the release itself would not start; ``type`` is the class of its error and
    ``stage`` where it stops) or ``pack`` (not modelled here). ``rule`` is the stable name of the rule that refused.
    ``plan`` is what had been decided before, where the engine stops only after its groups are made; a pack that had
    fitted the longest request to the memory by then says so in ``max_model_len``, in tokens.
    """

    def __init__(
        self,
        by: By,
        rule: str,
        reason: str,
        *,
        type: str | None = None,  # noqa: A002 - the contract's key
        stage: str | None = None,
        source: str | None = None,
        plan: Plan | None = None,
        max_model_len: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.by = by
        self.rule = rule
        self.reason = reason
        self.type = type
        self.stage = stage
        self.source = source
        self.plan = plan
        self.max_model_len = max_model_len


def meant(word: object, known: Iterable[str], otherwise: str = "") -> str:
    """``; did you mean fp8?`` where one of the known names is like ``word``, else ``otherwise``."""
    from difflib import get_close_matches  # only a mistake pays for it

    close = get_close_matches(str(word), list(known), n=1)
    return f"; did you mean {close[0]}?" if close else otherwise


def engine_refuses(rule: str, type: str, stage: str, reason: str, source: str) -> Refused:  # noqa: A002 - as above
    """A refusal of the release itself: its error class, the stage it stops at, and file and function."""
    return Refused("engine", rule, reason, type=type, stage=stage, source=source)


def not_modelled(rule: str, reason: str) -> Refused:
    """A refusal of the pack: the combination is not modelled, so no answer is given."""
    return Refused("pack", rule, reason)
