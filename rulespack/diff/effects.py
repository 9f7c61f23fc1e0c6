"""What each argument of a deployment does to its plan, and what the plan would be had a decision fallen otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rulespack.deployment import READERS, Deployment
from rulespack.diff.comparison import Question, answer, paired_answers
from rulespack.diff.model import Answer, Pair, Refusal
from rulespack.errors import RulespackError

if TYPE_CHECKING:
    from rulespack.engine import Engine
    from rulespack.graph.model import ModelGraph

#: Rules a deployment can turn over: the arguments that ask for the other decision.
TURNED: Final[Mapping[str, Mapping[str, Any]]] = {
    "hybrid-kv-cache-manager": {"disable_hybrid_kv_cache_manager": True},
    "async-scheduling": {"async_scheduling": False},
    "mamba-cache-mode": {"enable_prefix_caching": False},
}


class Effect(msgspec.Struct, frozen=True):
    """One argument as it was stated: ``pair`` is the answer without it and with it, None where it changes no plan."""

    argument: str
    value: Any
    pair: Pair | None


def effects(
    asked: Engine, graph: ModelGraph, deployment: Deployment, given: Answer, plain: Callable[[], ModelGraph]
) -> tuple[Effect, ...]:
    """Each stated argument with the same question asked without it. ``given`` is the answer with all of them.

    ``plain`` loads the graph without the deployment's ``hf_overrides``.
    """
    return tuple(
        Effect(name, value, _pair_without(asked, graph, deployment, name, given, plain) if name in READERS else None)
        for name, value in deployment.stated.items()
    )


def turned(asked: Engine, graph: ModelGraph, deployment: Deployment, given: Answer) -> dict[str, Pair]:
    """For each rule of :data:`TURNED`, the answer with the other decision and the one given; only where they differ."""
    found = {}
    for rule, arguments in TURNED.items():
        if any(deployment.stated.get(name, value) != value for name, value in arguments.items()):
            continue
        other = Deployment(**{**deployment.stated, **arguments}).with_draft(deployment.draft)
        pair = _against(asked, graph, other, given)
        if pair.changes and pair.old.served and pair.new.served:
            found[rule] = pair
    return found


def _pair_without(
    asked: Engine,
    graph: ModelGraph,
    deployment: Deployment,
    name: str,
    given: Answer,
    plain: Callable[[], ModelGraph],
) -> Pair:
    other = _without(deployment, name)
    if name == "hf_overrides" and deployment.hf_overrides:
        try:
            graph = plain()
        except RulespackError as error:  # it takes them to make a graph of this configuration
            return paired_answers(Question(graph, other), Answer(asked.release, None, Refusal.of(error)), given, "same")
    return _against(asked, graph, other, given)


def _without(deployment: Deployment, name: str) -> Deployment:
    kept = {key: value for key, value in deployment.stated.items() if key != name}
    return Deployment(**kept).with_draft(None if name == "speculative_config" else deployment.draft)


def _against(asked: Engine, graph: ModelGraph, other: Deployment, given: Answer) -> Pair:
    question = Question(graph, other)
    return paired_answers(question, answer(asked, question), given, "same")
