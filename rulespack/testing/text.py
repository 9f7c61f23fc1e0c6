"""An answer as the text of a pin: one fact on a line, each line under its path in the public JSON.

Reasons are left out unless they are asked for, since their wording is this project's and not the engine's; so are the
weights, which are no part of the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rulespack.diff import Answer
from rulespack.errors import meant
from rulespack.report.json import OPTIONAL_SPEC_KEYS, stated
from rulespack.report.style import layer_names

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.graph.weights import Parameters
    from rulespack.kv.plan import Group, Plan

#: What a pin can be narrowed to; each may go on with a dot and a key, or a place in brackets.
PARTS: Final = (
    "refused",
    "architecture",
    "backends",
    "resolved",
    "specs",
    "caches",
    "draft_caches",
    "groups",
    "stages",
    "bytes_per_block",
    "blocks_per_request",
    "growth_bytes_per_token",
    "capacity",
    "requests",
    "weights",
    "reasons",
)
#: What is pinned only where a test names it.
ON_REQUEST: Final = ("weights", "reasons")

Line = tuple[str, str]


def heading(model: str, engine: str, release: str, deployment: Deployment) -> str:
    """What was asked: the first paragraph of a pin."""
    asked = [f"  {key}: {_shown(value)}" for key, value in stated(deployment.stated).items()]
    return "\n".join([f"{model} on {engine} {release}", *asked]) + "\n"


def lines(answer: Answer, tokens: Sequence[int] = (), weights: Parameters | None = None) -> list[Line]:
    """Every fact of an answer as its path and its value; ``weights`` are what the first rank holds."""
    return [*_lines(answer, tokens), *(_weights(weights) if weights is not None else ())]


def chosen(found: Sequence[Line], parts: Sequence[str]) -> list[Line]:
    """The lines under any of ``parts``; without parts, all but those that must be named. What is refused always stays.

    Raises ValueError for a part that plans do not have.
    """
    for part in parts:
        _check(part)
    if not parts:
        return [line for line in found if root(line[0]) not in ON_REQUEST]
    return [line for line in found if root(line[0]) == "refused" or any(under(line[0], part) for part in parts)]


def written(found: Sequence[Line]) -> str:
    """Lines as text."""
    return "".join(f"{path}: {value}\n" for path, value in found)


def _lines(answer: Answer, tokens: Sequence[int]) -> Iterator[Line]:
    refusal, plan = answer.refusal, answer.plan
    if refusal is not None:
        for key in ("by", "type", "stage"):
            if getattr(refusal, key) is not None:
                yield f"refused.{key}", _shown(getattr(refusal, key))
    if plan is not None:
        yield from _plan(plan, tokens)


def _plan(plan: Plan, tokens: Sequence[int]) -> Iterator[Line]:
    yield "architecture", plan.architecture
    for name, layers in plan.backends.items():
        yield f"backends.{name}", _shown(layers)
    for key, value in msgspec.structs.asdict(plan.resolved).items():
        yield f"resolved.{key}", _shown(value)
    for number, spec in enumerate(plan.specs):
        facts = {key: getattr(spec, key) for key in ("block_size", "page_size_bytes", *OPTIONAL_SPEC_KEYS)}
        yield f"specs[{number}]", f"{spec.type} {_facts(facts)}"
        held = [name for name, index in plan.caches if index == number]
        yield f"caches[{number}]", f"{len(held)} x {layer_names(held, ' ')}"
    if plan.draft_caches:
        yield "draft_caches", layer_names((plan.caches[index][0] for index in plan.draft_caches), " ")
    for number, group in enumerate(plan.groups):
        yield f"groups[{number}]", _group(group)
        yield f"groups[{number}].caches", layer_names((plan.caches[index][0] for index in group.caches), " ")
    for number, stage in enumerate(plan.stages or ()):
        counts = " + ".join(str(len(caches)) for caches in stage.groups)
        yield f"stages[{number}]", f"{counts} caches bytes_per_block={stage.bytes_per_block}"
    yield "bytes_per_block", _shown(plan.bytes_per_block)
    yield "blocks_per_request", _shown(plan.blocks_per_request)
    yield "growth_bytes_per_token", f"{plan.growth_bytes_per_token:.10g}"
    if plan.capacity is not None:
        for key, value in msgspec.structs.asdict(plan.capacity).items():
            yield f"capacity.{key}", _shown(value)
    for length in tokens:
        if length > plan.resolved.max_model_len:
            yield f"requests[{length}]", f"not served: max_model_len is {plan.resolved.max_model_len}"
        else:
            request = plan.request(length)
            facts = {"blocks": request.blocks, "bytes": request.bytes, "fixed_bytes": request.fixed_bytes}
            yield f"requests[{length}]", _facts(facts)
    for reason in plan.reasons:
        yield f"reasons.{reason.rule}", f"{_shown(reason.value)}: {reason.because}"


def _weights(weights: Parameters) -> Iterator[Line]:
    yield "weights.model", _facts({"elements": weights.target.elements, "bytes": weights.target.bytes})
    for dtype, amount in weights.by_dtype().items():
        yield f"weights.model.by_format.{dtype}", _facts({"elements": amount.elements, "bytes": amount.bytes})


def _group(group: Group) -> str:
    facts: dict[str, Any] = {
        key: getattr(group, key) for key in ("block_size", "page_size_bytes", "blocks_per_request")
    }
    facts["padding_bytes"] = group.padding_bytes
    facts["most_tokens_kept"] = group.pages.bound
    facts["extra_blocks"] = group.pages.extra or None
    facts["shards"] = group.pages.shards if group.pages.shards > 1 else None
    return f"{len(group.caches)} x {group.type} {_facts(facts)}{' draft' if group.draft else ''}"


def _facts(facts: dict[str, Any]) -> str:
    return " ".join(f"{key}={_shown(value)}" for key, value in facts.items() if value is not None)


def _shown(value: Any) -> str:
    """A value as JSON has it, strings bare."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def root(path: str) -> str:
    """The top-level key of a path: ``groups`` of ``groups[0].caches``."""
    return path.partition(".")[0].partition("[")[0]


def under(path: str, part: str) -> bool:
    """Whether a path is a part, or lies below it."""
    return path.startswith(part) and path[len(part) :][:1] in ("", ".", "[")


def _check(part: str) -> None:
    if root(part) in PARTS:
        return
    raise ValueError(f"no part of a plan is called {part!r}{meant(part, PARTS)} (parts: {', '.join(PARTS)})")
