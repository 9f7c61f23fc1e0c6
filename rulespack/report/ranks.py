"""What one rank holds of a model: its weights by role and format, and what each sequence adds to it."""

from __future__ import annotations

from typing import Any

from rulespack.graph.sequence import SequenceState
from rulespack.graph.weights import Amount, Parameters
from rulespack.report.style import Style, count, size, table, wrap


def rank_document(weights: Parameters, state: SequenceState) -> dict[str, Any]:
    """One rank's part with keys for programs. Sizes are bytes; ``weights`` has one entry for each role and format."""
    document: dict[str, Any] = {
        **_amount(weights.target),
        "weights": [
            {"role": role, "dtype": dtype, **_amount(amount)} for (role, dtype), amount in _by_role(weights).items()
        ],
    }
    if weights.host.elements:
        document["host"] = _amount(weights.host)
    if weights.speculator.elements:
        document["speculator"] = _amount(weights.speculator)
    parts = {"recurrent": state.recurrent, "rings": state.rings, "windows": state.windows}
    document["state_bytes_per_sequence"] = {"bytes": state.bytes, **parts}
    return document


def rank_text(weights: Parameters, state: SequenceState, title: str, style: Style) -> str:
    """The same for people, ended by a newline."""
    lines = [(amount, f"{role}, {dtype}") for (role, dtype), amount in _by_role(weights).items()]
    lines.append((weights.target, f"together{_unit(weights.target.bytes)}"))
    if weights.host.elements:
        lines.append((weights.host, f"in host memory{_unit(weights.host.bytes)}"))
    if weights.speculator.elements:
        lines.append((weights.speculator, f"for drafts{_unit(weights.speculator.bytes)}"))
    rows = [(count(amount.elements), count(amount.bytes), said) for amount, said in lines]
    text = [style.strong(title), *table(("parameters", "bytes", "weights"), rows, style)]
    if state.bytes:
        named = {"recurrent states": state.recurrent, "rings": state.rings, "windows": state.windows}
        parts = ", ".join(f"{name} {size(part)}" for name, part in named.items() if part)
        text += wrap(f"each sequence holds {size(state.bytes)} whatever its length: {parts}", style.width)
    return "\n".join(text) + "\n"


def _unit(number: int) -> str:
    """The size in the largest fitting unit, in brackets; nothing where that is bytes."""
    said = size(number)
    return f" {said[said.index('(') :]}" if "(" in said else ""


def _by_role(weights: Parameters) -> dict[tuple[str, str], Amount]:
    """The target's device weights by role and the dtype of their payload, in the graph's order."""
    sums: dict[tuple[str, str], Amount] = {}
    for weight in weights.weights:
        if weight.part == "target" and weight.residency == "device":
            key = weight.role or weight.op, weight.dtype
            sums[key] = sums.get(key, Amount()) + weight.amount
    return sums


def _amount(amount: Amount) -> dict[str, int]:
    return {"elements": amount.elements, "bytes": amount.bytes}
