"""The KV cache layout: the physical order of layer, block, head, token and content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rulespack.errors import engine_refuses
from rulespack.kv.plan import Reason
from vllm_0_29.connectors import wanted_layout
from vllm_0_29.stages import parts_of_stages

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import LayerBackend
    from rulespack.kv.specs import Spec
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Reasons, Rules

SOURCE = "vllm/v1/attention/backends/utils.py: resolve_kv_cache_layout"

#: Every layout, in the release's own order.
LAYOUTS: Final = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
#: What is preferred where no backend declares anything.
PREFERENCE: Final = ("LBNHC", "LBHNC", "BLNHC", "BLHNC", "BHLNC", "LHBNC")
#: Older names the environment may use.
OLD_NAMES: Final = {"NHD": "LBNHC", "HND": "LBHNC"}
BLOCK_COMPACT: Final = frozenset({"LBHNC", "LBNHC", "BLHNC", "BLNHC"})
BLOCK_OUTERMOST: Final = frozenset({"BLHNC", "BLNHC", "BHLNC"})


def layout(
    rules: Rules,
    model: Model,
    deployment: Deployment,
    layers: Sequence[LayerBackend],
    specs: Sequence[Spec],
    reasons: Reasons,
) -> str:
    """The layout every backend can use: what the environment asks, else what the connector prefers, else the first.

    Refused by the engine where no layout is left, where pipeline stages differ in what they support, or where the
    environment asks for one that is not among them.
    """
    declared = [_declared(rules, deployment, held) for held in parts_of_stages(model, deployment, layers)]
    supported = [_common(layouts) for layouts in declared]
    if any(layouts != supported[0] for layouts in supported):
        raise engine_refuses(
            "layouts-of-stages-agree",
            "AssertionError",
            "groups",
            f"the pipeline stages support different KV cache layouts: {'; '.join(map(', '.join, supported))}",
            SOURCE,
        )
    candidates = list(rules.layouts_of_shapes(specs, supported[0]))
    asked = deployment.env.get("VLLM_KV_CACHE_LAYOUT")
    wanted = wanted_layout(rules, model, deployment) if asked is None else None
    if asked is not None:
        chosen, because = OLD_NAMES.get(asked, asked), "VLLM_KV_CACHE_LAYOUT says so"
        if chosen not in candidates:
            raise engine_refuses(
                "layout-supported",
                "ValueError",
                "groups",
                f"VLLM_KV_CACHE_LAYOUT {asked} is none that every backend supports: {', '.join(candidates)}",
                SOURCE,
            )
    elif wanted is not None and wanted in candidates:
        chosen, because = wanted, "the KV connector prefers it"
    else:
        chosen = candidates[0]
        because = "the first every backend supports" if declared[0] else "the default, as no backend declares any"
    reasons.append(Reason("kv-cache-layout", chosen, {"candidates": candidates, "connector": wanted}, because, SOURCE))
    return chosen


def _declared(rules: Rules, deployment: Deployment, layers: Sequence[LayerBackend]) -> list[tuple[str, ...]]:
    """What each backend declares that does not take any layout."""
    names = dict.fromkeys(part.backend for part in layers)
    layouts = [rules.backends[name].layouts(deployment.gpu.capability) for name in names]
    return [each for each in layouts if each is not None]


def layouts_of_shapes(specs: Sequence[Spec], candidates: Sequence[str]) -> Sequence[str]:
    """The layouts caches of these shapes can have: of several shapes, those that keep a block of a layer together.

    Refused by the engine where that leaves none.
    """
    if len({(spec.head_slots, spec.states, spec.page_size_bytes) for spec in specs}) > 1:
        candidates = [name for name in candidates if name in BLOCK_COMPACT]
        if not candidates:
            raise engine_refuses(
                "layout-block-compact",
                "ValueError",
                "groups",
                "caches of several shapes need a block-compact layout",
                SOURCE,
            )
    return candidates


def _common(declared: list[tuple[str, ...]]) -> Sequence[str]:
    """The layouts all declarations share; where they differ, those put first most often come first."""
    if not declared:
        return PREFERENCE
    if all(layouts == declared[0] for layouts in declared):
        return declared[0]
    firsts = Counter(layouts[0] for layouts in declared)
    shared = [name for name in LAYOUTS if all(name in layouts for layouts in declared)]
    if not shared:
        raise engine_refuses(
            "layout-common", "ValueError", "specs", f"no KV cache layout serves every backend: {declared}", SOURCE
        )
    return sorted(shared, key=lambda name: -firsts[name])
