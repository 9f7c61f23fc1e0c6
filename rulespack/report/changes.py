"""A comparison in words: what every report of it says, whatever it is drawn on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from rulespack.deployment import Gpu
from rulespack.diff import (
    STATUSES,
    AcceptsChange,
    Answer,
    Change,
    Comparison,
    GroupChange,
    Pair,
    ReasonChange,
    Refusal,
    Status,
)
from rulespack.kv.plan import Plan, Reason
from rulespack.report.style import count, layer_names, size

#: What a status is called.
STATUS_WORDS: Final[Mapping[Status, str]] = {
    "same": "same",
    "changed": "changed",
    "newly-served": "newly served",
    "no-longer-served": "no longer served",
    "newly-accepted": "newly accepted",
    "newly-refused": "newly refused",
    "refusal-changed": "refused otherwise",
    "not-modelled": "not modelled",
}
#: Statuses that are told model by model.
TOLD: Final[tuple[Status, ...]] = tuple(status for status in STATUSES if status not in ("not-modelled", "same"))
#: How many of the largest gains and losses are listed.
RANKED: Final = 5
#: What a key of a plan is called; a key that is not here is called by its last part.
LABELS: Final = {
    "resolved.cache_dtype": "cache dtype",
    "resolved.block_size": "block size",
    "resolved.kv_cache_layout": "layout",
    "resolved.hybrid_kv_cache_manager": "hybrid manager",
    "resolved.scheduler_block_size": "scheduler block size",
    "resolved.hash_block_size": "hash block size",
    "resolved.mamba_block_size": "state block size",
    "resolved.mamba_cache_mode": "state cache mode",
    "bytes_per_block": "bytes per block",
    "blocks_per_request": "blocks per request",
    "growth_bytes_per_token": "growth per token",
    "fixed_bytes": "fixed part of a request",
    "padding_bytes": "padding of a request",
    "capacity.num_blocks": "blocks in memory",
    "capacity.tokens": "tokens in memory",
    "capacity.max_concurrency": "requests in memory",
    "weights.elements": "parameters of a rank",
    "weights.bytes": "weights of a rank",
    "caches": "caches",
    "groups": "groups",
    "block_size": "block size",
    "page_size_bytes": "page",
    "type": "class",
    "pages.bound": "tokens kept",
    "pages.extra": "further blocks",
    "pages.shards": "ranks that share it",
}
#: Keys that are bytes, and keys whose change is worth a percentage.
BYTES: Final = frozenset(
    {"bytes_per_block", "growth_bytes_per_token", "fixed_bytes", "padding_bytes", "page_size_bytes", "bytes"}
)
AMOUNTS: Final = BYTES | {
    "blocks_per_request",
    "capacity.num_blocks",
    "capacity.tokens",
    "capacity.max_concurrency",
    "resolved.max_model_len",
    "weights.elements",
    "weights.bytes",
}
#: What kinds of name a release accepts are called.
KINDS: Final = {
    "cache_dtypes": "cache dtypes",
    "speculative_methods": "speculative methods",
    "connectors": "KV connectors",
    "attention_backends": "attention backends",
    "layouts": "cache layouts",
    "architectures": "architectures",
    "arguments": "arguments",
    "environment": "environment variables",
}


class Row(msgspec.Struct, frozen=True):
    """One value that changed, as text; ``delta`` is its change in per cent where that says something."""

    label: str
    old: str
    new: str
    delta: str = ""


def accepts_sentences(change: AcceptsChange) -> list[str]:
    """What came, went and changed of one kind of name."""
    said = [f"new: {', '.join(change.new)}"] if change.new else []
    said += [f"gone: {', '.join(change.gone)}"] if change.gone else []
    for moved in change.changed:
        what = f"{moved.key} keeps the hybrid manager" if change.kind == "connectors" else moved.key
        said.append(f"{what}: {_yes(moved.old)} -> {_yes(moved.new)}")
    return said


def _yes(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else brief(value)


class Section(msgspec.Struct, frozen=True):
    """Pairs with one status that can be told together: the same refusals, or one pair that changed."""

    status: Status
    pairs: tuple[Pair, ...]


def label(key: str) -> str:
    """What a key is called: ``resolved.block_size`` is the block size, ``backends.FLASH_ATTN`` layers on FLASH_ATTN."""
    if key.startswith("backends."):
        return f"layers on {key.removeprefix('backends.')}"
    if key.startswith("stages["):
        number, _, below = key.removeprefix("stages[").partition("].")
        return f"stage {number} {label(below)}"
    return LABELS.get(key) or key.rpartition(".")[2].replace("_", " ")


def value_text(key: str, value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    last = key.rpartition(".")[2]
    if isinstance(value, (int, float)):
        return size(value) if last in BYTES else count(round(value, 2))
    if isinstance(value, (tuple, list)):
        return ", ".join(value_text(key, item) for item in value)
    return f"not counted ({value['error']})" if isinstance(value, dict) and "error" in value else str(value)


def percent(ratio: float | None) -> str:
    """A ratio as a change in per cent with its sign; empty without one, or where it rounds to nothing."""
    if ratio is None:
        return ""
    change = (ratio - 1) * 100
    digits = 1 if abs(change) >= 1 else 2
    said = f"{change:+,.{digits}f} %"
    return "" if float(f"{change:.{digits}f}") == 0 else said


def row(change: Change) -> Row:
    """A change as one row."""
    last = change.key.rpartition(".")[2] if change.key.startswith("stages[") else change.key
    delta = percent(change.ratio) if last in AMOUNTS or last.removeprefix("group.") in AMOUNTS else ""
    return Row(label(change.key), value_text(change.key, change.old), value_text(change.key, change.new), delta)


def rows(pair: Pair) -> list[Row]:
    """All that changed of one pair, requests of several lengths at the end."""
    return [*map(row, pair.changes), *map(row, pair.weights), *_request_rows(pair)]


def short(number: float) -> str:
    """Bytes in the largest fitting binary unit alone, for where exact numbers stand elsewhere."""
    said = size(number)
    return said.partition("(")[2].rstrip(")") or f"{said} bytes"


def _request_rows(pair: Pair) -> Iterator[Row]:
    if all(r.old_blocks == r.new_blocks and r.old_bytes == r.new_bytes for r in pair.requests):
        return
    for r in pair.requests:
        blocks = Change("blocks_per_request", r.old_blocks, r.new_blocks)
        yield Row(
            f"request of {count(r.tokens)} tokens",
            f"{count(r.old_blocks)} blocks, {short(r.old_bytes)}",
            f"{count(r.new_blocks)} blocks, {short(r.new_bytes)}",
            percent(r.new_bytes / r.old_bytes) if r.old_bytes else percent(blocks.ratio),
        )


def sentence(change: Change) -> str:
    """A change of a cache or a group in a few words: ``block size 16 -> 64``."""
    if change.key == "caches" and isinstance(change.old, tuple):
        return "its caches stand in another order"
    said = row(change)
    called = "padding" if change.key == "padding_bytes" else said.label
    return f"{called} {said.old} -> {said.new}"


def cache_sentences(pair: Pair) -> list[tuple[str, str]]:
    """Which caches changed, and how: layer names, and what differs of their specs."""
    return [
        (f"{len(change.caches)} x {layer_names(change.caches)}", ", ".join(map(sentence, change.changes)))
        for change in pair.caches
    ]


def group_sentences(pair: Pair) -> list[tuple[str, str]]:
    """What became of which groups, those that changed alike together."""
    kept: dict[tuple[Change, ...], list[GroupChange]] = {}
    said: list[tuple[str, str]] = []
    for change in pair.groups:
        if change.kind == "kept":
            kept.setdefault(change.changes, []).append(change)
    for changes, alike in kept.items():
        numbers = [number for change in alike for number in change.old]
        said.append((group_numbers(numbers), ", ".join(map(sentence, changes))))
    return said + [_moved(change) for change in pair.groups if change.kind != "kept"]


def _moved(change: GroupChange) -> tuple[str, str]:
    held = f"{len(change.caches)} caches: {layer_names(change.caches)}"
    old, new = group_numbers(change.old), group_numbers(change.new)
    if change.kind == "split":
        return old, f"split into {new} ({held})"
    if change.kind == "merged":
        return old, f"merged into {new} ({held})"
    if change.kind == "added":
        return new, f"new ({held})"
    if change.kind == "removed":
        return old, f"gone ({held})"
    if change.kind == "renumbered":
        more = "; " + ", ".join(map(sentence, change.changes)) if change.changes else ""
        return old, f"now {new} ({held}){more}"
    return old, f"regrouped as {new} ({held})"


def group_numbers(numbers: Sequence[int]) -> str:
    """``group 3``, ``groups 0 and 1``, ``groups 0 to 4``, ``groups 0, 2``."""
    if len(numbers) == 1:
        return f"group {numbers[0]}"
    if len(numbers) == 2:
        return f"groups {numbers[0]} and {numbers[1]}"
    whole = numbers[-1] - numbers[0] == len(numbers) - 1
    return f"groups {numbers[0]} to {numbers[-1]}" if whole else f"groups {', '.join(map(str, numbers))}"


def reason_text(reason: Reason | None) -> str:
    """A decision with its reason: ``FLASH_ATTN: the first in order for this GPU``."""
    if reason is None:
        return "not decided"
    return f"{decided(reason.value)}: {reason.because}"


def decided(value: object) -> str:
    """What a decision came to, as people read it: numbers with separators, a switch on or off."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return count(value) if isinstance(value, (int, float)) else brief(value)


def reason_rows(pair: Pair) -> list[tuple[str, ReasonChange]]:
    """The decisions that differ, each once, under the rule's name: both where the releases go by different rules."""
    found: dict[tuple[str, str, str], tuple[str, ReasonChange]] = {}
    for change in pair.reasons:
        names = list(dict.fromkeys(reason.rule for reason in (change.old, change.new) if reason is not None))
        rule = " / ".join(names)
        found.setdefault((rule, reason_text(change.old), reason_text(change.new)), (rule, change))
    return list(found.values())


def brief(value: object) -> str:
    """A value of a reason, as it stands in its JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def refusal_text(refusal: Refusal) -> str:
    """How a release stops, or why nothing is said."""
    if refusal.by == "engine":
        return f"refused, {refusal.type} at stage {refusal.stage}: {refusal.reason}"
    return refusal.reason if refusal.by == "arguments" else f"not modelled: {refusal.reason}"


def answer_text(answer: Answer) -> str:
    """What one release answers, in one sentence."""
    if answer.refusal is not None:
        return refusal_text(answer.refusal)
    return plan_sentence(answer.plan) if answer.plan is not None else ""


def plan_sentence(plan: Plan) -> str:
    """A plan in one sentence: what is stored, in how many groups, and what a block and the longest request cost."""
    whole = plan.request(plan.resolved.max_model_len)
    groups = "1 group" if len(plan.groups) == 1 else f"{count(len(plan.groups))} groups"
    return (
        f"cache dtype {plan.resolved.cache_dtype}, {count(len(plan.caches))} caches in {groups}, "
        f"{size(plan.bytes_per_block)} a block, {size(whole.bytes)} for a request of {count(whole.tokens)} tokens"
    )


def title(pair: Pair, comparison: Comparison) -> str:
    """The model, and the deployment's name where there are several."""
    names = {other.name for other in comparison.pairs}
    return pair.model if len(names) <= 1 else f"{pair.model}, {pair.name}"


def sections(comparison: Comparison, statuses: Iterable[Status]) -> list[Section]:
    """Pairs of these statuses, the gravest status first; pairs that are refused for one reason are one section."""
    found: dict[object, list[Pair]] = {}
    wanted = set(statuses)
    for number, pair in enumerate(comparison.pairs):
        if pair.status in wanted:
            alike: object = number
            if pair.status != "changed":
                alike = (pair.status, _alike(pair.old), _alike(pair.new))
            found.setdefault(alike, []).append(pair)
    told = [Section(pairs[0].status, tuple(pairs)) for pairs in found.values()]
    return sorted(told, key=lambda section: STATUSES.index(section.status))


def _alike(answer: Answer) -> object:
    if answer.refusal is None:
        return None
    return answer.refusal.by, answer.refusal.rule, answer.refusal.type, answer.refusal.stage, answer.refusal.reason


def answers(section: Section, comparison: Comparison) -> list[tuple[str, str]]:
    """What each release answers for a section; where there is a plan for each of several pairs, how to see them."""
    said = []
    for release, found in (
        (comparison.old, [pair.old for pair in section.pairs]),
        (comparison.new, [pair.new for pair in section.pairs]),
    ):
        if found[0].refusal is not None or len(found) == 1:
            said.append((release, answer_text(found[0])))
        else:
            said.append((release, f"a plan for each; rulespack plan MODEL --release {release} prints it"))
    return said


def share(part: int, whole: int) -> str:
    """A part of a whole in per cent, never rounded to nothing while it is something."""
    if not part or not whole:
        return "none"
    return f"{part / whole:.1%}" if part / whole >= 0.0005 else "less than 0.1%"


def unmodelled(comparison: Comparison) -> list[tuple[str, str]]:
    """The pairs nothing can be said of, and why; for both releases at once where neither is modelled."""
    said = []
    for pair in comparison.pairs:
        if pair.status == "not-modelled":
            sides = {answer.release: answer for answer in (pair.old, pair.new)}
            both = [answer for answer in sides.values() if answer.refusal is not None and answer.refusal.by == "pack"]
            if len(both) == 2 and both[1].refusal is not None:
                said.append((title(pair, comparison), f"in neither release: {both[1].refusal.reason}"))
            else:
                text = "; ".join(f"{release}: {answer_text(answer)}" for release, answer in sides.items())
                said.append((title(pair, comparison), text))
    return said


def many(number: int, what: str) -> str:
    """``1 model``, ``2 models``."""
    return f"{count(number)} {what}" if number == 1 else f"{count(number)} {what}s"


def asked(deployment: Mapping[str, Any]) -> str:
    """What was stated, in one line."""
    said = []
    if "gpu" not in deployment:
        said.append("GPU H200 (default)")
    for key, value in deployment.items():
        if key == "gpu":
            said.append(f"GPU {value.name if isinstance(value, Gpu) else value}")
        else:
            said.append(f"{key}={brief(value)}")
    return ", ".join(said)


def capacity_text(pair: Pair) -> str:
    """What the same memory holds, old and new, with the change in per cent."""
    old, new = pair.old.plan, pair.new.plan
    if old is not None and new is not None and old.capacity is not None and new.capacity is not None:
        return f"{count(old.capacity.tokens)} -> {count(new.capacity.tokens)} tokens in the stated memory"
    longest = pair.requests[-1]
    return f"{size(longest.old_bytes)} -> {size(longest.new_bytes)} for a request of {count(longest.tokens)} tokens"
