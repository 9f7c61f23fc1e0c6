"""What a graph says that the release does not know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rulespack.graph.model import Attention, Gather, ModelGraph, RecurrentUpdate
from rulespack.graph.problems import Problem

if TYPE_CHECKING:
    from vllm_0_29.rules import Rules

#: What the plan cannot be made without, by the graph's key.
REQUIRED_FACTS = ("dtype", "positions")


def check_graph(rules: Rules, graph: ModelGraph) -> list[Problem]:
    """Every problem of the graph for this release, as named errors; empty for an architecture it cannot load at all,
    which the release refuses by itself."""
    if graph.globals_.architecture in rules.unserved:
        return []
    return [
        *_architecture(rules, graph),
        *_facts(graph),
        *_speculator(rules, graph),
        *_caches(rules, graph),
        *_gathers(rules.residencies, graph),
    ]


def _problem(rule: str, path: str, message: str) -> Problem:
    return Problem(rule=rule, severity="error", path=path, message=message, line=None)


def _architecture(rules: Rules, graph: ModelGraph) -> Iterator[Problem]:
    name = graph.globals_.architecture
    if name is None:
        yield _problem(
            "architecture-stated", "global.architecture", "is not stated, and the engine's rules are keyed on it"
        )
    elif name not in rules.architectures and name not in rules.draft_architectures:
        yield _problem(
            "architecture-modelled", "global.architecture", f"{name} is not modelled for vLLM {rules.release}"
        )
    elif graph.globals_.positions is not None:
        known = (rules.architectures.get(name) or rules.draft_architectures[name]).caches
        for kind in graph.layer_kinds:
            for node in kind.nodes:
                for cache in node.caches or () if isinstance(node, Attention) else ():
                    if cache.owned and cache.name not in known:
                        yield _problem(
                            "cache-modelled",
                            f"layer_kinds.{kind.id}",
                            f"the cache {cache.name!r} is not one that {name} keeps; it keeps {', '.join(known)}",
                        )


def _facts(graph: ModelGraph) -> Iterator[Problem]:
    attends = any(isinstance(node, Attention) for kind in graph.layer_kinds for node in kind.nodes)
    for key in REQUIRED_FACTS if attends else ("dtype",):
        if getattr(graph.globals_, key) is None:
            yield _problem("fact-stated", f"global.{key}", "is not stated, and the plan depends on it")
    for kind in graph.layer_kinds:
        for node in kind.nodes:
            if isinstance(node, Attention) and node.kind == "mla" and node.qk_nope_head_dim is None:
                yield _problem("fact-stated", f"layer_kinds.{kind.id}", "an mla node lacks qk_nope_head_dim")


def _speculator(rules: Rules, graph: ModelGraph) -> Iterator[Problem]:
    if graph.speculator is not None and graph.speculator.method not in rules.speculative_methods:
        yield _problem(
            "speculative-method-known",
            "speculator.method",
            f"vLLM {rules.release} has no speculative method {graph.speculator.method!r}",
        )
    elif graph.speculator is not None and graph.speculator.method == "mtp":
        tokens, modules = graph.speculator.num_spec_tokens, graph.speculator.modules
        if tokens > modules and tokens % modules:
            yield _problem(
                "speculative-tokens-divide",
                "speculator.num_spec_tokens",
                f"{tokens} drafted tokens are no multiple of {modules} prediction modules",
            )


def _caches(rules: Rules, graph: ModelGraph) -> Iterator[Problem]:
    for kind in graph.layer_kinds:
        path = f"layer_kinds.{kind.id}"
        for node in kind.nodes:
            if isinstance(node, RecurrentUpdate):
                yield from _state_facts(node, path)
            if not isinstance(node, Attention):
                continue
            for cache in node.caches or ():
                for name in cache.bytes_by_cache_dtype or {}:
                    if name not in rules.cache_dtypes and name not in rules.later_cache_dtypes:
                        yield _problem(
                            "cache-dtype-known",
                            f"{path}.caches.{cache.name}.bytes_by_cache_dtype",
                            f"vLLM {rules.release} has no cache dtype {name!r}",
                        )
                if cache.kind == "state" and cache.page_alignment is not None:
                    yield _problem(
                        "ring-unpadded",
                        f"{path}.caches.{cache.name}.page_alignment",
                        "the engine never pads a ring, so an alignment on one cannot be honoured",
                    )


#: What a state's shape cannot be told without, by kind.
STATE_FACTS = {
    "mamba1": ("conv_kernel", "intermediate_size"),
    "mamba2": ("conv_kernel", "intermediate_size", "n_groups"),
    "gdn": ("conv_kernel", "n_key_heads", "head_dim"),
    "kda": ("conv_kernel",),
    "short_conv": ("conv_kernel", "intermediate_size"),
}


def _state_facts(node: RecurrentUpdate, path: str) -> Iterator[Problem]:
    for key in STATE_FACTS.get(node.recurrent_kind, ()):
        if getattr(node, key) is None:
            yield _problem(
                "fact-stated", path, f"a {node.recurrent_kind} node lacks {key}, a part of its state's shape"
            )


def _gathers(residencies: Mapping[str, str], graph: ModelGraph) -> Iterator[Problem]:
    lists = [("embedding", graph.embedding), ("head", graph.head)]
    lists += [(f"layer_kinds.{kind.id}", kind.nodes) for kind in graph.layer_kinds]
    for path, nodes in lists:
        for node in nodes:
            if not isinstance(node, Gather) or node.residency_control is None:
                continue
            control, stated = node.residency_control, node.residency or "device"
            if control not in residencies:
                yield _problem("residency-control-known", path, f"vLLM has no setting {control!r} in this release")
            elif residencies[control] != stated:
                yield _problem(
                    "residency-default",
                    path,
                    f"{control} puts the table on the {residencies[control]} by default, and the graph says {stated}",
                )
