"""A plan as text for people. Plain characters, readable numbers, as wide as the terminal and no wider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rulespack.kv.plan import Group, Plan, Request
from rulespack.kv.specs import Spec
from rulespack.report.style import Style, count, layer_names, pairs, size, table, wrap

if TYPE_CHECKING:
    from rulespack.report.why import Explanation


def plan_text(
    plan: Plan,
    requests: Sequence[Request] = (),
    *,
    style: Style,
    explanation: Explanation | None = None,
    undrafted: Plan | None = None,
) -> str:
    """The whole report: what was asked, what it came to, the groups, the totals, and where it is given, why.

    ``undrafted`` is the plan of the same deployment without its drafter: what the drafter costs is told beside it.
    """
    parts = [_header(plan, style)]
    if plan.groups:
        parts += [_groups(plan, style), _totals(plan, style)]
    else:
        parts.append(wrap("This model keeps no KV cache: no groups, no blocks, no bytes.", style.width))
    if undrafted is not None:
        parts.append(_draft_cost(plan, undrafted, style))
    if requests:
        parts.append(_requests(requests, style))
    if explanation is not None:
        parts += _why(explanation, style)
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _header(plan: Plan, style: Style) -> list[str]:
    resolved = plan.resolved
    stored = sorted(
        {spec.dtype for spec in plan.specs if spec.dtype} | {d for spec in plan.specs for d in spec.dtypes or ()}
    )
    cache = [f"dtype {resolved.cache_dtype}" + (f" (stored as {', '.join(stored)})" if stored else "")]
    cache.append(f"block {count(resolved.block_size)} tokens")
    if resolved.kv_cache_layout is not None:
        cache.append(f"layout {resolved.kv_cache_layout}")
    cache.append(f"hybrid manager {_on(resolved.hybrid_kv_cache_manager)}")
    cache.append(f"prefix caching {_on(resolved.enable_prefix_caching)}")
    lengths = [
        f"max_model_len {count(resolved.max_model_len)}",
        f"max_num_batched_tokens {count(resolved.max_num_batched_tokens)}",
        f"max_num_seqs {count(resolved.max_num_seqs)}",
        f"async scheduling {_on(resolved.async_scheduling)}",
    ]
    if resolved.num_speculative_tokens:
        lengths.append(f"{count(resolved.num_speculative_tokens)} speculative tokens")
    rows = [
        ("asked", _asked(plan.deployment)),
        ("serves", plan.architecture + _backends(plan.backends)),
        ("cache", ", ".join(cache)),
        ("lengths", ", ".join(lengths)),
    ]
    if resolved.mamba_block_size is not None:
        rows.append(("state", f"mode {resolved.mamba_cache_mode}, block {count(resolved.mamba_block_size)} tokens"))
    title = f"{plan.model} on {plan.engine} {plan.release}"
    if plan.nearest is not None:
        title += f" (nearest lower to {plan.nearest}, which there is no pack for)"
    return [*map(style.strong, wrap(title, style.width)), *pairs(rows, style)]


def _on(switch: bool) -> str:
    return "on" if switch else "off"


def _asked(deployment: Mapping[str, Any]) -> str:
    stated = dict(deployment)
    gpu = stated.pop("gpu", None)
    name = "H200 (default)" if gpu is None else gpu.upper() if isinstance(gpu, str) else _custom_gpu(gpu)
    return ", ".join([f"GPU {name}", *(f"{key}={_brief(value)}" for key, value in stated.items())])


def _custom_gpu(gpu: Any) -> str:
    return str(gpu.get("name", gpu.get("capability")) if isinstance(gpu, Mapping) else gpu.name)


def _brief(value: object) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, default=str)


def _backends(backends: Mapping[str, int]) -> str:
    return f", {', '.join(f'{layers} layers on {name}' for name, layers in backends.items())}" if backends else ""


def _groups(plan: Plan, style: Style) -> list[str]:
    rows = []
    for number, group in enumerate(plan.groups):
        used = 1 - group.padding_bytes / plan.bytes_per_block if plan.bytes_per_block else 1.0
        rows.append(
            (
                str(number),
                count(group.block_size),
                count(group.page_size_bytes),
                count(group.blocks_per_request),
                f"{used:.1%}",
                count(group.padding_bytes),
                _holds(plan, group),
            )
        )
    headings = ("group", "block", "page bytes", "blocks/req", "used", "padding", "holds")
    return table(headings, rows, style)


def _holds(plan: Plan, group: Group) -> str:
    """What is in a group: how many caches of which class, and which layers they are."""
    kinds: dict[str, list[str]] = {}
    drafted = frozenset(plan.draft_caches)
    for index in group.caches:
        name, spec = plan.caches[index]
        kind = _describe(plan.specs[spec])
        kinds.setdefault(f"{kind} of the draft" if index in drafted else kind, []).append(name)
    said = [f"{len(names)} x {kind}: {layer_names(names)}" for kind, names in kinds.items()]
    return "; ".join(said) + (" (the engine's draft group)" if group.draft else "")


def _describe(spec: Spec) -> str:
    if spec.sliding_window is not None:
        return f"{spec.type} (window {count(spec.sliding_window)})"
    if spec.attention_chunk_size is not None:
        return f"{spec.type} (chunk {count(spec.attention_chunk_size)})"
    return spec.type


def _totals(plan: Plan, style: Style) -> list[str]:
    length = plan.resolved.max_model_len
    whole = plan.request(length)
    rows = [
        ("bytes per block", size(plan.bytes_per_block)),
        ("blocks per request", f"{count(plan.blocks_per_request)} at {count(length)} tokens"),
        ("bytes per request", size(whole.bytes)),
        ("growth per token", f"{size(whole.growth_bytes_per_token)}"),
        ("fixed part", size(whole.fixed_bytes)),
    ]
    if plan.stages is not None:
        for number, stage in enumerate(plan.stages):
            held = sum(map(len, stage.groups))
            rows.append((f"stage {number}", f"{size(stage.bytes_per_block)} a block, {count(held)} caches"))
    if plan.capacity is not None:
        pool = plan.capacity
        rows.append(
            (
                "capacity",
                f"{count(pool.num_blocks)} blocks, {count(pool.tokens)} tokens, "
                f"{count(round(pool.max_concurrency, 2))} requests of {count(length)} tokens",
            )
        )
    return pairs(rows, style, indent=0)


def _draft_cost(plan: Plan, undrafted: Plan, style: Style) -> list[str]:
    """A block, the blocks of a request and their bytes, with the drafter and without."""
    length = min(plan.resolved.max_model_len, undrafted.resolved.max_model_len)
    taken, bare = plan.request(length), undrafted.request(length)
    rows = [
        ("caches", count(len(plan.caches)), count(len(undrafted.caches))),
        ("block size", count(plan.resolved.block_size), count(undrafted.resolved.block_size)),
        ("bytes per block", count(plan.bytes_per_block), count(undrafted.bytes_per_block)),
        (f"blocks at {count(length)} tokens", count(taken.blocks), count(bare.blocks)),
        ("bytes of them", size(taken.bytes), size(bare.bytes)),
    ]
    if plan.capacity is not None and undrafted.capacity is not None:
        rows.append(("tokens that fit", count(plan.capacity.tokens), count(undrafted.capacity.tokens)))
    said = [(name, f"{drafted} with it, {alone} without") for name, drafted, alone in rows]
    return [style.strong("what the drafter costs"), *pairs(said, style)]


def _requests(requests: Sequence[Request], style: Style) -> list[str]:
    rows = [(count(r.tokens), count(r.blocks), count(r.fixed_bytes), size(r.bytes)) for r in requests]
    return table(("request tokens", "blocks", "fixed bytes", "bytes"), rows, style)


def _why(explanation: Explanation, style: Style) -> list[list[str]]:
    """What was asked and what that does; every decision in order with its cost; where the release makes it."""
    parts = []
    if explanation.asked:
        parts.append([style.strong("what was asked, and what it does"), *pairs(explanation.asked, style)])
    lines = [style.strong("why")]
    for number, said in enumerate(explanation.decisions, 1):
        first, *more = wrap(f"{said.rule}: {said.value}", style.width - 4)
        lines += [f"{number:>2}  {first}", *(f"    {line}" for line in more)]
        rows = [("because", said.because), ("costs", said.cost), ("saw", said.saw), ("source", said.source)]
        lines += pairs([(name, text) for name, text in rows if text], style, indent=4)
    return [*parts, lines]
