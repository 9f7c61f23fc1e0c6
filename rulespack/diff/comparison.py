"""Each model under each deployment asked of two releases, and what differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rulespack.catalog import names
from rulespack.deployment import Deployment
from rulespack.diff.accepts import accepts_changes
from rulespack.diff.groups import group_changes
from rulespack.diff.model import Answer, Change, Comparison, Pair, Refusal, Status
from rulespack.diff.plans import cache_changes, changes, renamed, requests
from rulespack.diff.reasons import reason_changes
from rulespack.engine import Engine, engine
from rulespack.errors import BadDeployment, Refused, RulespackError
from rulespack.graph.model import ModelGraph
from rulespack.kv.plan import read_length
from rulespack.releases import DEFAULT_ENGINE, resolve
from rulespack.shelf import asked_graph, shelf

if TYPE_CHECKING:
    from rulespack.hooks import Accepts

#: Lengths of the requests that are compared, in tokens, besides the longest that both releases serve.
TOKENS: Final = (1_024, 8_192, 32_768, 131_072)

#: How far two releases' weights may differ and still be the same, as a part of the older one's.
WEIGHT_TOLERANCE: Final = 0.005


class Question(msgspec.Struct, frozen=True):
    """One deployment of one model, under a name of the asker's."""

    model: ModelGraph
    deployment: Deployment
    name: str = "default"


def compare(
    old_release: str | Engine,
    new_release: str | Engine,
    models: Iterable[str | Path | ModelGraph] | None = None,
    deployments: Mapping[str, Deployment | Mapping[str, Any]] | Deployment | None = None,
    *,
    engine: str = DEFAULT_ENGINE,
    tokens: Sequence[int] = TOKENS,
) -> Comparison:
    """What changes between two releases for ``models``, each under each of ``deployments``.

    ``models`` are names, files or graphs; None is the whole catalog, but for models that draft for another.

    A release is a version such as ``0.31.0`` or an :class:`~rulespack.Engine` with plugins of its own; ``deployments``
    are names with what each states (the engine's defaults if None). ``tokens`` are the lengths of requests to compare.

    ``hf_overrides`` of a deployment are laid over the configuration of every model that is a name or a file; a graph
    must have been loaded with them (``load_model(model, hf_overrides=...)``).

    Raises UnknownRelease, UnknownModel, InvalidGraph or InvalidConfig for what cannot be used, BadDeployment for
    arguments that neither release has.
    """
    named = _named(deployments)
    asked: Iterable[str | Path | ModelGraph]
    if models is None:
        asked = catalog_models()
    else:
        asked = models if isinstance(models, Iterable) and not isinstance(models, str) else [models]
    graph_of = catalog_graph if models is None else asked_graph
    questions = [
        Question(model if isinstance(model, ModelGraph) else graph_of(model, deployment), deployment, name)
        for model in asked
        for name, deployment in named.items()
    ]
    return compare_questions(old_release, new_release, questions, engine=engine, tokens=tokens)


def catalog_models() -> list[str]:
    """The names of the catalog's models that are served by themselves: all but those that draft for another."""
    return [name for name in names() if shelf().get(name).globals_.draft is None]


def catalog_graph(model: str | Path, deployment: Deployment) -> ModelGraph:
    """As :func:`~rulespack.shelf.asked_graph`, but a model that no family translates under the deployment's
    ``hf_overrides`` comes as it stands, which packs refuse: one of many does not stop a comparison of all."""
    try:
        return asked_graph(model, deployment)
    except RulespackError as error:
        if not error.unmodelled:
            raise
        return shelf().get(model)


def compare_questions(
    old_release: str | Engine,
    new_release: str | Engine,
    questions: Iterable[Question],
    *,
    engine: str = DEFAULT_ENGINE,
    tokens: Sequence[int] = TOKENS,
) -> Comparison:
    """As :func:`compare`, for pairs of model and deployment that are chosen one by one."""
    lengths = tuple(read_length("tokens", length) for length in tokens)
    old, new = _engine(old_release, engine), _engine(new_release, engine)
    accepted = old.accepts(), new.accepts()
    return Comparison(
        engine=new.engine,
        old=old.release,
        new=new.release,
        tokens=lengths,
        accepts=accepts_changes(*accepted),
        pairs=tuple(_pair(old, new, accepted, question, lengths) for question in questions),
    )


def _engine(release: str | Engine, name: str) -> Engine:
    return release if isinstance(release, Engine) else engine(resolve(release, name), engine=name)


def _named(
    deployments: Mapping[str, Deployment | Mapping[str, Any]] | Deployment | None,
) -> Mapping[str, Deployment]:
    if deployments is None:
        return {"default": Deployment()}
    if isinstance(deployments, Deployment):
        return {"default": deployments}
    if not isinstance(deployments, Mapping):
        raise BadDeployment(
            f"deployments: expected a Deployment, or names with the arguments of each, got {deployments!r}"
        )
    for name, stated in deployments.items():
        if not isinstance(stated, (Deployment, Mapping)):
            raise BadDeployment(
                f"deployments: expected the arguments of the deployment {name!r}, got {stated!r}; one alone is "
                "Deployment(...)"
            )
    return {
        str(name): stated if isinstance(stated, Deployment) else Deployment.of(stated)
        for name, stated in deployments.items()
    }


def _pair(
    old: Engine, new: Engine, accepted: tuple[Accepts, Accepts], question: Question, tokens: Sequence[int]
) -> Pair:
    was, is_now = answer(old, question), answer(new, question)
    if _is_mistake(was) and _is_mistake(is_now) and is_now.refusal is not None:
        raise BadDeployment(is_now.refusal.reason)
    status = _status(was, is_now, accepted, question.model.globals_.architecture or "")
    weighed = was.plan is not None and is_now.plan is not None and status != "not-modelled"
    weights = _weights(old, new, question) if weighed else ()
    return paired_answers(question, was, is_now, status, tokens, weights)


def _weights(old: Engine, new: Engine, question: Question) -> tuple[Change, ...]:
    """What the first rank holds of the model, where the releases lay weights out otherwise and it comes to more.

    As agreement counts it: nothing where either is not modelled, nor for half a per cent.
    """
    layouts = [engine.weight_layout(question.model, question.deployment) for engine in (old, new)]
    if None in layouts or layouts[0] == layouts[1]:
        return ()
    was, is_now = (engine.weights(question.model, question.deployment) for engine in (old, new))
    if was is None or is_now is None:
        return ()
    if abs(was.target.elements - is_now.target.elements) <= WEIGHT_TOLERANCE * was.target.elements:
        return ()
    return tuple(
        Change(f"weights.{key}", getattr(was.target, key), getattr(is_now.target, key)) for key in ("elements", "bytes")
    )


def paired_answers(
    question: Question,
    was: Answer,
    is_now: Answer,
    status: Status,
    tokens: Sequence[int] = TOKENS,
    weights: tuple[Change, ...] = (),
) -> Pair:
    """Two answers with all that differs between their plans; a status ``same`` becomes ``changed`` where any does.

    ``weights`` are changes besides the plans', of what a rank holds of the model.
    """
    pair = Pair(
        model=question.model.name,
        name=question.name,
        deployment=dict(question.deployment.stated),
        status=status,
        old=was,
        new=is_now,
    )
    if was.plan is None or is_now.plan is None or status == "not-modelled":
        return pair
    pair = msgspec.structs.replace(
        pair,
        changes=changes(was.plan, is_now.plan),
        caches=cache_changes(was.plan, is_now.plan),
        groups=group_changes(was.plan, is_now.plan),
        weights=weights,
        requests=requests(was.plan, is_now.plan, tokens),
        renamed=renamed(was.plan, is_now.plan),
    )
    if not (pair.changes or pair.caches or pair.groups or pair.weights):
        return pair
    return msgspec.structs.replace(
        pair,
        status="changed" if status == "same" else status,
        reasons=reason_changes(was.plan.reasons, is_now.plan.reasons),
    )


def answer(asked: Engine, question: Question) -> Answer:
    """What one release answers."""
    try:
        return Answer(asked.release, asked.plan(question.model, question.deployment))
    except Refused as refused:
        return Answer(asked.release, refused.plan, Refusal.of(refused))
    except BadDeployment as error:  # an argument or a name this release does not have; the other one may
        return Answer(asked.release, None, Refusal.of(error))


def _is_mistake(answer: Answer) -> bool:
    return answer.refusal is not None and answer.refusal.by == "arguments"


def _status(was: Answer, is_now: Answer, accepted: tuple[Accepts, Accepts], architecture: str) -> Status:
    """The status as far as refusals say it; two plans are ``same`` until a difference is found."""
    before, after = was.refusal, is_now.refusal
    if any(refusal is not None and refusal.by == "pack" for refusal in (before, after)):
        return "not-modelled"
    if before is None and after is None:
        return "same"
    loaded = [architecture in accepts.architectures for accepts in accepted]
    if before is None:
        return "no-longer-served" if loaded == [True, False] else "newly-refused"
    if after is None:
        return "newly-served" if loaded == [False, True] else "newly-accepted"
    alike = (before.by, before.type, before.stage) == (after.by, after.type, after.stage)
    return "same" if alike and (was.plan is None) == (is_now.plan is None) else "refusal-changed"
