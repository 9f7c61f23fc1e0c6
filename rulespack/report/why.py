"""A plan explained to somebody it surprises: what was asked and what that does, and what each decision cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from rulespack.deployment import Deployment, Gpu
from rulespack.diff import Answer, Pair
from rulespack.diff.effects import Effect, effects, turned
from rulespack.engine import Engine
from rulespack.graph.model import ModelGraph
from rulespack.kv.plan import Plan, Reason
from rulespack.report.changes import brief, capacity_text, decided, percent, refusal_text, row
from rulespack.report.style import count, size

#: What an argument changes is told by so many values at most, the costs first.
TOLD: Final = 4


class Decision(msgspec.Struct, frozen=True):
    """One decision in words; ``cost`` is empty where it costs nothing that can be told."""

    rule: str
    value: str
    because: str
    cost: str
    saw: str
    source: str


class Explanation(msgspec.Struct, frozen=True):
    """What was asked, each argument with what it does, and the decisions in order."""

    asked: tuple[tuple[str, str], ...]
    decisions: tuple[Decision, ...]


def explain(
    asked: Engine, graph: ModelGraph, deployment: Deployment, answer: Answer, plain: Callable[[], ModelGraph]
) -> Explanation:
    """The explanation of a plan; the release is asked again for what each argument and decision is compared to.

    ``plain`` loads the graph without the deployment's ``hf_overrides``, to tell what those do.
    """
    plan = answer.plan
    if plan is None:
        return Explanation((), ())
    other = turned(asked, graph, deployment, answer)
    return Explanation(
        tuple(_effect(effect) for effect in effects(asked, graph, deployment, answer, plain)),
        tuple(_decision(plan, reason, other) for reason in plan.reasons),
    )


def _decision(plan: Plan, reason: Reason, other: Mapping[str, Pair]) -> Decision:
    cost = COSTS.get(reason.rule)
    said = [cost(plan, reason)] if cost is not None else []
    if reason.rule in other:
        said.append(_difference(other[reason.rule]))
    saw = ", ".join(f"{key} {decided(value)}" for key, value in reason.inputs.items() if value is not None)
    return Decision(
        reason.rule, decided(reason.value), reason.because, "; ".join(filter(None, said)), saw, reason.source
    )


def _difference(pair: Pair) -> str:
    """What a request would take with the other decision, which is the old side of the pair; empty if as much."""
    longest = pair.requests[-1]
    if longest.old_bytes == longest.new_bytes:
        return ""
    return (
        f"decided otherwise, a request of {count(longest.tokens)} tokens would take {size(longest.old_bytes)}, not "
        f"{size(longest.new_bytes)}"
    )


def _effect(effect: Effect) -> tuple[str, str]:
    value = effect.value.name if isinstance(effect.value, Gpu) else effect.value
    return f"{effect.argument}={brief(value)}", _effect_text(effect.pair)


def _effect_text(pair: Pair | None) -> str:
    if pair is None:
        return "cannot change the plan"
    if pair.old.refusal is not None and pair.new.refusal is None:
        return f"without it, {refusal_text(pair.old.refusal)}"
    if pair.new.refusal is not None and pair.old.refusal is None:
        return "without it, the release has a plan"
    if not (pair.changes or pair.caches or pair.groups):
        return "changes nothing of the plan"
    said = []
    held = percent(pair.capacity)
    if held:
        more = "more" if held.startswith("+") else "less"
        said.append(f"holds {held.lstrip('+-')} {more} in the same memory, {capacity_text(pair)}")
    rows = [(one.label, one.old, one.new) for one in map(row, pair.changes)]
    said += [f"{label} {old} -> {new}" for label, old, new in rows[:TOLD]]
    if len(rows) > TOLD:
        said.append(f"and {len(rows) - TOLD} values more")
    return "; ".join(said) or "changes the caches or groups alone"


def _of_the_longest(plan: Plan) -> str:
    return f"a request of {count(plan.resolved.max_model_len)} tokens"


def _in_flight(plan: Plan, reason: Reason) -> str:
    """Blocks that windows and chunks keep for tokens in flight."""
    kept = blocks = 0
    for group in plan.groups:
        pages = group.pages
        if pages.bound and isinstance(reason.value, int) and pages.bound > reason.value:
            alone = msgspec.structs.replace(pages, bound=pages.bound - reason.value)
            longest = plan.resolved.max_model_len
            blocks += pages.at(longest) - alone.at(longest)
            kept += 1
    if not kept:
        return ""
    groups = "1 group that keeps" if kept == 1 else f"{kept} groups that keep"
    return (
        f"{count(blocks)} blocks, {size(blocks * plan.bytes_per_block)}, of {_of_the_longest(plan)}, "
        f"in {groups} a window or a chunk"
    )


def _last_blocks(plan: Plan, reason: Reason) -> str:
    """What the unfilled ends of a request's blocks can come to."""
    growing = sum(group.pages.grows for group in plan.groups)
    if not growing or reason.value != plan.resolved.block_size:
        return ""
    return f"up to {size(growing * plan.bytes_per_block)} of any request, the unfilled end of its last blocks"


def _page(plan: Plan, reason: Reason) -> str:
    """What a kind of cache comes to over all its layers."""
    number = reason.inputs.get("caches")
    if not isinstance(number, int) or not isinstance(reason.value, int):
        return ""
    return f"{size(number * reason.value)} for a block of each of its {count(number)} caches"


def _padding(plan: Plan, reason: Reason) -> str:
    """What groups leave unused of the blocks a request pins."""
    longest = plan.request(plan.resolved.max_model_len)
    lost = sum(group.padding_bytes * group.blocks_per_request for group in plan.groups)
    if not lost or not longest.bytes:
        return "nothing: no group leaves bytes of a block unused"
    return f"{size(lost)} of padding in {_of_the_longest(plan)}, {lost / longest.bytes:.1%} of it"


def _whole(plan: Plan, reason: Reason) -> str:
    longest = plan.request(plan.resolved.max_model_len)
    return f"{size(longest.bytes)} for the {count(longest.blocks)} blocks of {_of_the_longest(plan)}"


#: What a decision costs, by its rule. Rules that are not here cost nothing by themselves.
COSTS: Final[Mapping[str, Callable[[Plan, Reason], str]]] = {
    "max-in-flight-tokens": _in_flight,
    "block-size": _last_blocks,
    "hybrid-block-size": _last_blocks,
    "cache-spec": _page,
    "one-group": _padding,
    "one-type-group": _padding,
    "packed-groups": _padding,
    "equal-page-groups": _padding,
    "aliased-groups": _padding,
    "bytes-per-block": _whole,
}
