"""A plan compared with the file it is pinned in, and the failure that says what changed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import pytest

from rulespack.deployment import Deployment
from rulespack.diff import TOKENS, Answer, Comparison, Pair, Question, compare_questions
from rulespack.diff.comparison import answer as answered
from rulespack.engine import Engine, engine
from rulespack.errors import RulespackError
from rulespack.graph.model import ModelGraph
from rulespack.kv.plan import read_length
from rulespack.releases import resolve
from rulespack.shelf import asked_graph
from rulespack.testing.files import PinFile
from rulespack.testing.text import Line, chosen, heading, lines, root, under, written

if TYPE_CHECKING:
    from syrupy.assertion import SnapshotAssertion


class Pin:
    """What the fixture ``rulespack_pin`` is: called once for each plan to pin.

    ``model`` is a catalog name, a graph, or a file or folder beside the test's file. ``deployment`` is a
    :class:`~rulespack.Deployment`, a mapping of vLLM's arguments, or a ``vllm serve`` command line. ``part`` narrows
    the pin to parts of the plan by their keys in its JSON, such as ``"groups"`` or ``["resolved.cache_dtype",
    "bytes_per_block"]``. ``tokens`` are lengths of requests to pin besides. ``release`` is said here, by a marker or
    by the ini setting ``rulespack_release``. ``name`` tells the files of several pins in one test apart.

    What the engine refuses is an answer and can be pinned; what is not modelled cannot. Fails the test where the
    answer is not the pinned one, or the question cannot be used.
    """

    def __init__(
        self, snapshot: SnapshotAssertion, *, folder: Path, release: str | None, other: str | None, width: int
    ) -> None:
        self._snapshot = snapshot.use_extension(PinFile)
        self._folder = folder
        self._release = release
        self._other = other
        self._width = width

    def __call__(
        self,
        model: str | Path | ModelGraph,
        deployment: Deployment | Mapping[str, Any] | str | None = None,
        *,
        release: str | None = None,
        part: str | Sequence[str] = (),
        tokens: Sequence[int] = (),
        name: str | None = None,
    ) -> None:
        """Compare one plan with its file, or write the file under ``--snapshot-update``."""
        __tracebackhide__ = True
        parts = (part,) if isinstance(part, str) else tuple(part)
        try:
            home = engine(resolve(self._stated(release)))
            asked, served = _deployment(deployment)
            question = Question(self._graph(model, asked), asked)
            if served is not None and self._graph(served, asked).name != question.model.name:
                raise ValueError(f"the command line serves {served}, and what is pinned is {question.model.name}")
            other = home if self._other is None else engine(resolve(self._other))
            lengths = tuple(read_length("tokens", length) for length in tokens)
            self._compare(home, other, question, parts, lengths, name)
        except (RulespackError, ValueError) as error:
            _fail(str(error))

    def _stated(self, release: str | None) -> str:
        stated = release or self._release
        if stated is None:
            _fail(
                "which release is this pinned for? Say rulespack_release = 0.31.0 in pytest's ini file, mark the test "
                'with pytest.mark.rulespack_release("0.31.0"), or pass release="0.31.0"'
            )
        return stated

    def _graph(self, model: str | Path | ModelGraph, deployment: Deployment) -> ModelGraph:
        if isinstance(model, ModelGraph):
            return model
        beside = self._folder / model
        is_path = isinstance(model, Path) or os.sep in model or "/" in model
        return asked_graph(beside if is_path and beside.exists() else model, deployment)

    def _compare(
        self,
        home: Engine,
        other: Engine,
        question: Question,
        parts: tuple[str, ...],
        tokens: tuple[int, ...],
        name: str | None,
    ) -> None:
        __tracebackhide__ = True
        before = answered(home, question)
        _usable(before)
        found = chosen(self._lines(home, question, before, tokens, parts), parts)
        for part in parts:
            if before.plan is not None and not chosen(found, (part,)):
                raise ValueError(f"this plan has no {part}: there is nothing to pin")
        title = heading(question.model.name, home.engine, home.release, question.deployment)
        after = before if other is home else named_alike(before, answered(other, question))
        now = f"{title}\n{written(chosen(self._lines(other, question, after, tokens, parts), parts))}"
        said = f"{title}\n{written(found)}"
        snapshot = self._snapshot if name is None else self._snapshot(name=name)
        same = snapshot == now and not _is_unmodelled(after)
        if same:
            return
        result = list(snapshot.executions.values())[-1]
        file = os.path.relpath(result.snapshot_location)
        pinned = result.recalled_data
        if not isinstance(pinned, str):
            _fail(f"nothing is pinned in {file} yet: run pytest --snapshot-update (without --rulespack-release)")
        what = f"{file}\n{question.model.name} is pinned there for {home.engine} {home.release}"
        if pinned != said:
            _fail(f"{what}, and that is not what it answers:\n\n{changed(pinned, said)}\n\n{self._accept()}")
        told = [f"{what}, and {other.release} answers otherwise:", ""]
        if parts:
            told += [changed(said, now), ""]
        told.append(self._report(compare_questions(home, other, [question], tokens=tokens or TOKENS), parts))
        _fail("\n".join(told))

    @staticmethod
    def _lines(
        asked: Engine, question: Question, answer: Answer, tokens: tuple[int, ...], parts: tuple[str, ...]
    ) -> list[Line]:
        """The facts of an answer, weights only where they are asked for: a plan costs less without."""
        weighed = answer.plan is not None and any(root(part) == "weights" for part in parts)
        return lines(answer, tokens, asked.weights(question.model, question.deployment) if weighed else None)

    def _accept(self) -> str:
        if self._other is None:
            return "If it is to be pinned like this from now on: pytest --snapshot-update"
        return "Pin what it does answer first (pytest --snapshot-update, without --rulespack-release)."

    def _report(self, comparison: Comparison, parts: tuple[str, ...]) -> str:
        """The report of ``rulespack diff`` on this one question, on the pinned parts alone where some are named; what
        the releases accept is no matter of a pin."""
        from rulespack.report.diff_text import diff_text
        from rulespack.report.style import Style

        pairs = tuple(narrowed(pair, parts) for pair in comparison.pairs) if parts else comparison.pairs
        alone = msgspec.structs.replace(comparison, accepts=(), pairs=pairs)
        return diff_text(alone, style=Style(width=min(self._width, 100))).rstrip()


def changed(old: str, new: str) -> str:
    """The lines that differ, old ones after a minus sign, new ones after a plus sign."""
    from difflib import unified_diff  # only a failure pays for it

    return "\n".join(
        line
        for line in unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
        if not line.startswith(("---", "+++", "@@"))
    )


def narrowed(pair: Pair, parts: Sequence[str]) -> Pair:
    """A pair with what differs in these parts of a plan, and the reasons whole: they are what explains it."""
    roots = {root(part) for part in parts}
    return msgspec.structs.replace(
        pair,
        changes=tuple(change for change in pair.changes if any(under(change.key, part) for part in parts)),
        caches=pair.caches if roots & {"specs", "caches"} else (),
        groups=pair.groups if "groups" in roots else (),
        requests=pair.requests if "requests" in roots else (),
    )


def _deployment(deployment: Deployment | Mapping[str, Any] | str | None) -> tuple[Deployment, str | None]:
    """The deployment, and the model that a command line serves."""
    if isinstance(deployment, Deployment):
        return deployment, None
    if isinstance(deployment, str):
        from rulespack.cli.deployments import read_command_line
        from rulespack.cli.terminal import Usage

        try:
            stated = read_command_line(deployment)
        except Usage as error:
            raise ValueError(str(error)) from None
        served = stated.pop("model", None)
        return Deployment.of(stated), served
    return Deployment.of(deployment or {}), None


def _usable(answer: Answer) -> None:
    """Raise where there is no answer to pin."""
    if answer.refusal is None or answer.refusal.by == "engine":
        return
    if answer.refusal.by == "arguments":
        raise ValueError(answer.refusal.reason)
    raise ValueError(f"{answer.release} has no answer to pin, since this is not modelled: {answer.refusal.reason}")


def _is_unmodelled(answer: Answer) -> bool:
    return answer.refusal is not None and answer.refusal.by == "pack"


def named_alike(old: Answer, new: Answer) -> Answer:
    """``new`` with the old release's layer names where as many caches stand in the same order: a new name alone is no
    change."""
    if old.plan is None or new.plan is None or len(old.plan.caches) != len(new.plan.caches):
        return new
    caches = tuple((name, spec) for (name, _), (_, spec) in zip(old.plan.caches, new.plan.caches, strict=True))
    return msgspec.structs.replace(new, plan=msgspec.structs.replace(new.plan, caches=caches))


def _fail(message: str) -> NoReturn:
    __tracebackhide__ = True
    raise pytest.fail.Exception(message, pytrace=False) from None
