"""A plan or a refusal as text that reads well in a diff: one decision, one fact, one cache or group on a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import msgspec

from rulespack import Group, Plan, Refused, Spec, Stage
from rulespack.report.json import OPTIONAL_SPEC_KEYS


def answer_text(title: str, answer: Plan | Refused, known: Collection[str] = ()) -> str:
    """The whole answer under a title. What was resolved, and the reasons, leave out lines that are ``known``."""
    lines = [f"== {title}"]
    if isinstance(answer, Plan):
        lines += plan_lines(answer, known)
    else:
        lines += refusal_lines(answer)
        if answer.plan is not None:
            lines += ["-- the plan as far as it was made", *plan_lines(answer.plan, known)]
    return "\n".join(lines) + "\n"


def refusal_lines(refused: Refused) -> list[str]:
    """Who refuses, as what, where and why."""
    engine = f" with {refused.type} at {refused.stage}" if refused.by == "engine" else ""
    return [f"refused by the {refused.by}{engine}", f"  {refused.rule}: {refused.reason}"]


def plan_lines(plan: Plan, known: Collection[str] = ()) -> list[str]:
    """What was resolved, the specs, the groups, what a block and a request cost, and why."""
    held = Counter(index for _, index in plan.caches)
    longest = plan.request(plan.resolved.max_model_len)
    growth = f"{longest.growth_bytes_per_token:.10g}"
    return [
        *section("resolved:", [line for line in resolved_lines(plan) if line not in known]),
        *section("specs:", [f"  {held[index]} x {spec_text(spec)}" for index, spec in enumerate(plan.specs)]),
        *section("groups:", [f"  {group_text(plan, group)}" for group in plan.groups]),
        f"bytes_per_block: {plan.bytes_per_block}",
        f"blocks_per_request: {plan.blocks_per_request}",
        f"longest request: {longest.bytes} bytes, {growth} a token, {longest.fixed_bytes} fixed",
        *section("stages:", [f"  {stage_text(stage)}" for stage in plan.stages or ()]),
        *section("reasons:", [line for line in reason_lines(plan) if line not in known]),
    ]


def section(title: str, lines: list[str]) -> list[str]:
    """Lines under a title, and nothing where there are none."""
    return [title, *lines] if lines else []


def resolved_lines(plan: Plan) -> list[str]:
    """The model class, the backends and what the arguments came to."""
    backends = ", ".join(f"{name} x {count}" for name, count in plan.backends.items())
    facts = {"architecture": plan.architecture, "backends": backends, **msgspec.structs.asdict(plan.resolved)}
    return [f"  {key}: {shown(value)}" for key, value in facts.items()]


def reason_lines(plan: Plan) -> list[str]:
    """Each decision once, with its rule, its value and why."""
    lines = (f"  {reason.rule} = {shown(reason.value)}: {reason.because}" for reason in plan.reasons)
    return list(dict.fromkeys(lines))


def spec_text(spec: Spec) -> str:
    """One cache as the engine sees it."""
    facts = {"block_size": spec.block_size, "page_size_bytes": spec.page_size_bytes}
    facts |= {key: value for key in OPTIONAL_SPEC_KEYS if (value := getattr(spec, key)) is not None}
    return f"{spec.type} " + " ".join(f"{key}={shown(value)}" for key, value in facts.items())


def group_text(plan: Plan, group: Group) -> str:
    """One group: how many caches, the first and the last by name, and what a block of it is."""
    first, last = plan.caches[group.caches[0]][0], plan.caches[group.caches[-1]][0]
    facts = {
        "block_size": group.block_size,
        "page_size_bytes": group.page_size_bytes,
        "blocks_per_request": group.blocks_per_request,
        "padding_bytes": group.padding_bytes,
    }
    said = " ".join(f"{key}={value}" for key, value in facts.items())
    return f"{len(group.caches)} x {group.type} {first} .. {last} {said}{' draft' if group.draft else ''}"


def stage_text(stage: Stage) -> str:
    """How many caches of each group one pipeline stage holds, and its block."""
    counts = " + ".join(str(len(caches)) for caches in stage.groups)
    return f"{counts} caches, bytes_per_block={stage.bytes_per_block}"


def shown(value: object) -> str:
    """A value as YAML has it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
