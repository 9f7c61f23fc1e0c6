"""What a family is: the architectures it serves and how it builds a model's layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from rulespack.derive.config import Config, Served
from rulespack.derive.layers import Layer
from rulespack.graph.model import AnyNode, ArchOverride, DraftFacts, LayerKind, Speculator


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What a family makes of a configuration; ``layers`` in the order they run."""

    layers: Sequence[Layer]
    embedding: tuple[AnyNode, ...]
    head: tuple[AnyNode, ...]
    draft_kinds: tuple[LayerKind, ...] = ()
    speculator: Speculator | None = None
    draft: DraftFacts | None = None
    arch_overrides: tuple[ArchOverride, ...] = ()
    base_capability_families: tuple[int, ...] = ()
    prefix_lm: bool = False
    max_item_tokens: int | None = None


class Family(msgspec.Struct, frozen=True):
    """``serves``: for each architecture, what its configuration class supplies; ``build``: the translation."""

    serves: Mapping[str, Served]
    build: Callable[[Config], Parts]
