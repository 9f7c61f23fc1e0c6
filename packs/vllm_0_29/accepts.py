"""What a release takes and serves whatever the model: the table's facts as names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rulespack.deployment import READERS
from rulespack.hooks import Accepts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_0_29.rules import Rules

#: Attributes of a deployment that are no arguments of the engine.
NOT_ARGUMENTS: Final = frozenset({"gpu", "env", "usage_context"})


def accepts(rules: Rules) -> Accepts:
    """Every name the release knows, from its own tables."""
    modelled = READERS.keys() - NOT_ARGUMENTS - rules.absent_arguments
    return Accepts(
        cache_dtypes=_sorted(rules.cache_dtypes),
        speculative_methods=_sorted(rules.speculative_methods),
        connectors={name: rules.connectors[name].hybrid for name in _sorted(rules.connectors)},
        attention_backends=_sorted(rules.backend_names),
        layouts=_sorted(rules.layout_names),
        architectures=_sorted(rules.architectures.keys() - rules.unserved.keys()),
        arguments=_sorted({*modelled, *rules.arguments}),
        environment=_sorted(rules.environment | rules.environment_unmodelled | rules.environment_inert),
    )


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names))
