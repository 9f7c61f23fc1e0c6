"""Layers as they are put together, and a sequence of layers folded into layer kinds and a stack."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rulespack.graph.model import AnyNode, LayerKind, Stack


class Layer:
    """The nodes of one layer in launch order. A node follows the one added before it unless ``after`` says which."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.nodes: list[AnyNode] = []
        self.edges: list[tuple[int, int]] = []

    def add(self, node: AnyNode, after: Sequence[int] | None = None) -> int:
        """Append a node, join it to what it follows, and return its index."""
        index = len(self.nodes)
        before = ([index - 1] if index else []) if after is None else after
        self.edges.extend((one, index) for one in before)
        self.nodes.append(node)
        return index

    @property
    def last(self) -> int:
        """The index of the node added last."""
        return len(self.nodes) - 1

    def kind(self, name: str) -> LayerKind:
        """The layer as a layer kind of that id."""
        return LayerKind(id=name, nodes=tuple(self.nodes), edges=tuple(self.edges))


class Folded(msgspec.Struct, frozen=True):
    """The distinct layers of a model and the order they run in."""

    kinds: tuple[LayerKind, ...]
    stack: Stack


def fold(layers: Sequence[Layer]) -> Folded:
    """Equal layers become one kind, named by their label (``label_2`` where layers of one label differ)."""
    kinds: list[LayerKind] = []
    sequence: list[str] = []
    used: dict[str, int] = {}
    for layer in layers:
        same = next((k for k in kinds if k.nodes == tuple(layer.nodes) and k.edges == tuple(layer.edges)), None)
        if same is None:
            used[layer.label] = used.get(layer.label, 0) + 1
            count = used[layer.label]
            same = layer.kind(layer.label if count == 1 else f"{layer.label}_{count}")
            kinds.append(same)
        sequence.append(same.id)
    return Folded(tuple(kinds), fold_sequence(sequence))


def fold_sequence(sequence: Sequence[str]) -> Stack:
    """The shortest way to write a sequence as prologue, repeated pattern and epilogue; of equals, the earliest."""
    total = len(sequence)
    best = (total, 0, total, 0)
    for period in range(1, total // 2 + 1):
        # How far each place onwards agrees with what stands one period later; a whole period of it is one more repeat.
        agreeing = 0
        for start in range(total - period - 1, -1, -1):
            agreeing = agreeing + 1 if sequence[start] == sequence[start + period] else 0
            repeat = 1 + agreeing // period
            if repeat > 1:
                best = min(best, (total - (repeat - 1) * period, start, period, repeat))
    _, start, period, repeat = best
    if not repeat:
        return Stack(pattern=tuple(sequence), repeat=1) if total == 1 else Stack(prologue=tuple(sequence))
    end = start + period * repeat
    return Stack(
        prologue=tuple(sequence[:start]),
        pattern=tuple(sequence[start : start + period]),
        repeat=repeat,
        epilogue=tuple(sequence[end:]),
    )
