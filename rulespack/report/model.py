"""What a model is, from its graph alone: layers, caches, parameters."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rulespack.graph.caches import context_bytes_per_token
from rulespack.graph.model import Attention, ModelGraph, RecurrentUpdate
from rulespack.graph.stack import layers, owned_caches
from rulespack.graph.weights import Amount, parameters
from rulespack.report.style import Style, count, pairs, size


def model_document(graph: ModelGraph) -> dict[str, Any]:
    """A summary with keys for programs. Sizes are bytes, weights whole (before any division over ranks)."""
    whole = graph.globals_
    weights = parameters(graph)
    document: dict[str, Any] = {
        "name": graph.name,
        "architecture": whole.architecture,
        "modality": graph.modality,
        "hidden_size": whole.hidden_size,
        "vocab_size": whole.vocab_size,
        "context_window": whole.context_window,
        "layers": Counter(kind.id for kind in layers(graph)),
        "attention": _readers(graph),
        "caches": _caches(graph),
        "context_bytes_per_token": context_bytes_per_token(graph),
        "parameters": {"target": _amount(weights.target), "by_dtype": _amounts(weights.by_dtype())},
    }
    if weights.host.elements:
        document["parameters"]["host"] = _amount(weights.host)
    if graph.speculator is not None:
        document["speculator"] = {
            "method": graph.speculator.method,
            "num_spec_tokens": graph.speculator.num_spec_tokens,
            "layers": Counter(kind.id for kind in layers(graph, graph.speculator.stack)),
            "parameters": _amount(weights.speculator),
        }
    if graph.base_capability_families:
        overridden = [override.capability_family for override in graph.arch_overrides]
        document["capability_families"] = sorted({*graph.base_capability_families, *overridden})
    return document


def _readers(graph: ModelGraph) -> list[dict[str, Any]]:
    """The distinct attention and recurrent nodes of the target's layers, and how many layers run each."""
    seen = Counter(
        _facts(node) for kind in layers(graph) for node in kind.nodes if isinstance(node, (Attention, RecurrentUpdate))
    )
    return [{"layers": times, **dict(facts)} for facts, times in seen.items()]


def _facts(node: Attention | RecurrentUpdate) -> tuple[tuple[str, Any], ...]:
    names = (
        ("kind", "n_q", "n_kv", "d_h", "window", "attention_chunk_size", "index_topk", "compress_ratio")
        if isinstance(node, Attention)
        else ("recurrent_kind", "n_heads", "state_size")
    )
    return tuple((name, value) for name in names if (value := getattr(node, name)) is not None)


def _caches(graph: ModelGraph) -> list[dict[str, Any]]:
    alike = Counter(
        (cache.name, cache.kind, cache.bytes_per_entry, cache.tokens_per_entry, cache.window, cache.entries)
        for use in owned_caches(graph)
        for cache in (use.cache,)
    )
    names = ("name", "kind", "bytes_per_entry", "tokens_per_entry", "window", "entries")
    return [
        {"layers": times, **{name: value for name, value in zip(names, facts, strict=True) if value is not None}}
        for facts, times in alike.items()
    ]


def _amount(amount: Amount) -> dict[str, int]:
    return {"elements": amount.elements, "bytes": amount.bytes}


def _amounts(amounts: dict[str, Amount]) -> dict[str, dict[str, int]]:
    return {name: _amount(amount) for name, amount in amounts.items()}


def model_text(graph: ModelGraph, style: Style) -> str:
    """The same summary for people."""
    said = model_document(graph)
    target = said["parameters"]["target"]
    window = said["context_window"]
    rows = [
        ("serves", said["architecture"] or "an architecture the graph does not name"),
        ("width", f"{count(said['hidden_size'])}, with {count(said['vocab_size'])} tokens in the vocabulary"),
        ("context", f"{count(window)} tokens" if window else "not stated"),
        ("layers", _counted(said["layers"])),
        *(("attention", _attention(reader)) for reader in said["attention"]),
        *(("cache", _cache(cache)) for cache in said["caches"]),
        ("grows by", f"{size(said['context_bytes_per_token'])} a token as the graph stores it, before paging"),
        ("parameters", _weights(target)),
        *(("", f"{dtype}: {_weights(amount)}") for dtype, amount in said["parameters"]["by_dtype"].items()),
    ]
    host = said["parameters"].get("host")
    if host is not None:
        rows.append(("in host memory", _weights(host)))
    draft = said.get("speculator")
    if draft is not None:
        drafts = f"{draft['method']}, {count(draft['num_spec_tokens'])} tokens a step, {_counted(draft['layers'])}"
        rows += [("drafts", drafts), ("", _weights(draft["parameters"]))]
    if "capability_families" in said:
        rows.append(
            ("GPUs", "compute capability " + ", ".join(f"{family}.x" for family in said["capability_families"]))
        )
    return "\n".join([style.strong(graph.name), *pairs(rows, style)]) + "\n"


def _counted(layers: Counter[str]) -> str:
    return ", ".join(f"{count(times)} x {kind}" for kind, times in layers.items())


def _weights(amount: dict[str, int]) -> str:
    return f"{count(amount['elements'])}, in bytes {size(amount['bytes'])}"


def _attention(facts: dict[str, Any]) -> str:
    if "recurrent_kind" in facts:
        kind = f"{facts['recurrent_kind']}: {count(facts['n_heads'])} heads, state {count(facts['state_size'])}"
    else:
        kind = f"{facts['kind']}: {count(facts['n_q'])} query heads, {count(facts['n_kv'])} KV of {count(facts['d_h'])}"
    bounds = {
        "window": "window",
        "attention_chunk_size": "chunk",
        "index_topk": "picks",
        "compress_ratio": "compressed by",
    }
    said = [f"{words} {count(facts[name])}" for name, words in bounds.items() if name in facts]
    return ", ".join([f"{count(facts['layers'])} x {kind}", *said])


def _cache(facts: dict[str, Any]) -> str:
    covered = facts["tokens_per_entry"]
    entry = f"{count(facts['bytes_per_entry'])} bytes"
    if "entries" in facts:
        entry += f", {count(facts['entries'])} entries a request"
    else:
        entry += " a token" if covered == 1 else f" for {count(covered)} tokens"
    if "window" in facts:
        entry += f", the last {count(facts['window'])} kept"
    named = facts["name"] if facts["name"] == facts["kind"] else f"{facts['name']} ({facts['kind']})"
    return f"{count(facts['layers'])} x {named}: {entry}"
