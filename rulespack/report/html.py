"""Plans and comparisons as pages: one self-contained file each, for screens of any width, dark ones too, and paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rulespack import __version__
from rulespack.diff import Comparison, Pair
from rulespack.diff.plans import dearest_block
from rulespack.kv.plan import Plan
from rulespack.report.changes import asked, many, refusal_text, short
from rulespack.report.pictures import blocks, curves, holds, kinds
from rulespack.report.style import count, size
from rulespack.report.told import Part, told

if TYPE_CHECKING:
    from rulespack.diff import Refusal
    from rulespack.report.why import Explanation

TEMPLATES: Final = Path(__file__).parent / "templates"
#: Lengths of requests the table of a plan's page has, besides its longest.
LENGTHS: Final = (1_024, 8_192, 32_768, 131_072, 1_048_576)


def plan_html(plan: Plan, explanation: Explanation, tokens: Sequence[int] = (), refusal: Refusal | None = None) -> str:
    """The page of one plan; ``tokens`` are lengths of requests for its table, ``refusal`` why it is not served."""
    legend = kinds(plan)
    longest = plan.resolved.max_model_len
    lengths = sorted({length for length in tokens or LENGTHS if length <= longest} | {longest})
    return _page(
        "plan.html.j2",
        title=f"{plan.model} on {plan.engine} {plan.release}",
        asked=asked(plan.deployment),
        nearest=f"The nearest lower to {plan.nearest}, which there is no pack for." if plan.nearest else "",
        serves=_serves(plan),
        refusal=_sentence(refusal_text(refusal)) if refusal is not None else "",
        facts=_facts(plan),
        blocks=blocks(plan, legend),
        kinds=legend.values(),
        curves=curves(plan, legend),
        requests=[
            (count(r.tokens), count(r.blocks), size(r.bytes), size(r.fixed_bytes)) for r in map(plan.request, lengths)
        ],
        groups=[
            (
                str(number),
                count(group.block_size),
                count(group.page_size_bytes),
                count(group.blocks_per_request),
                count(group.padding_bytes),
                f"{holds(plan, group.caches)} ({group.type})",
            )
            for number, group in enumerate(plan.groups)
        ],
        effects=explanation.asked,
        reasons=explanation.decisions,
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _serves(plan: Plan) -> str:
    backends = ", ".join(f"{many(layers, 'layer')} on {name}" for name, layers in plan.backends.items())
    return f"Serves {plan.architecture}, {backends}" if backends else f"Serves {plan.architecture}"


def _facts(plan: Plan) -> list[tuple[str, str, str]]:
    resolved = plan.resolved
    whole = plan.request(resolved.max_model_len)
    stored = sorted(
        {spec.dtype for spec in plan.specs if spec.dtype} | {d for spec in plan.specs for d in spec.dtypes or ()}
    )
    found = [
        ("bytes per block", count(plan.bytes_per_block), short(plan.bytes_per_block)),
        ("block size", f"{count(resolved.block_size)} tokens", many(len(plan.groups), "group")),
        ("cache dtype", resolved.cache_dtype, f"stored as {', '.join(stored)}" if stored else ""),
        ("layout", resolved.kv_cache_layout or "none", _manager(plan)),
        ("longest request", short(whole.bytes), f"{count(whole.blocks)} blocks, {count(whole.tokens)} tokens"),
        ("growth", f"{count(round(whole.growth_bytes_per_token, 2))} bytes", "for each token"),
        ("fixed part", short(whole.fixed_bytes), "of the longest request"),
    ]
    if plan.capacity is not None:
        pool = plan.capacity
        requests = f"{count(pool.num_blocks)} blocks, {count(round(pool.max_concurrency, 2))} longest requests"
        found.append(("capacity", f"{count(pool.tokens)} tokens", requests))
    return found


def _manager(plan: Plan) -> str:
    hybrid, cached = plan.resolved.hybrid_kv_cache_manager, plan.resolved.enable_prefix_caching
    return f"hybrid manager {'on' if hybrid else 'off'}, prefix caching {'on' if cached else 'off'}"


def diff_html(comparison: Comparison, *, only_changed: bool = False) -> str:
    """The page of a comparison."""
    said = told(comparison, only_changed=only_changed)
    return _page(
        "diff.html.j2",
        title=f"{said.engine} {said.old} → {said.new}",
        told=said,
        ranked=[(one, False) for one in said.losses] + [(one, True) for one in said.gains],
        parts_told=[(part, _pictures(part)) for part in said.parts],
    )


def _pictures(part: Part) -> Mapping[str, Any]:
    """Both blocks of one pair at one scale, the old above the new; one alone where the other release has none, or the
    same one."""
    pair = part.pairs[0]
    plans = [(answer.release, answer.plan) for answer in (pair.old, pair.new) if answer.plan is not None]
    if len(part.pairs) > 1 or not plans or (len(plans) == 2 and not _block_changed(pair)):
        return {"pictures": (), "kinds": ()}
    legend = kinds(*(plan for _, plan in plans))
    widest = max(dearest_block(plan) for _, plan in plans)
    return {
        "pictures": [(release, block) for release, plan in plans for block in blocks(plan, legend, widest)],
        "kinds": list(legend.values()),
    }


def _block_changed(pair: Pair) -> bool:
    """Whether anything changed that a picture of the block shows."""
    return bool(pair.caches or pair.groups) or any(change.key == "bytes_per_block" for change in pair.changes)


def _page(template: str, **view: Any) -> str:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        finalize=_arrows,
    )
    css = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    return environment.get_template(template).render(version=__version__, css=Markup(css), **view)


def _arrows(value: object) -> object:
    """Text with arrows as a page has them; what is markup already is left alone."""
    return value.replace(" -> ", " → ") if type(value) is str else value
