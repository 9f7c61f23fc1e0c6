"""``max_model_len``: what the configuration admits and what was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rulespack.errors import engine_refuses, not_modelled
from rulespack.graph.model import Positions
from rulespack.kv.plan import Reason

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Reasons, Rules

SOURCE = "vllm/config/model.py: _get_and_verify_max_len"

#: The length of a model whose configuration states none.
DEFAULT_LENGTH = 2048

#: Rope types whose length keys are already scaled.
ALREADY_SCALED = frozenset({"su", "longrope", "llama3"})


def stated_length(positions: Positions) -> tuple[int, str]:
    """The length the configuration states before rope scaling, in tokens, and by which key.

    ``model_max_length`` goes before any other, longer or shorter (Command R).
    """
    if positions.model_max_length is not None:
        return positions.model_max_length, "model_max_length"
    if positions.max_position_embeddings is not None:
        return positions.max_position_embeddings, "max_position_embeddings"
    return DEFAULT_LENGTH, "no length key in the configuration"


def states_length(positions: Positions) -> bool:
    """Whether the configuration states a length at all; where it does not, any that is asked for is taken."""
    return positions.model_max_length is not None or positions.max_position_embeddings is not None


def scaled_length(positions: Positions) -> tuple[float, str]:
    """The derived length in tokens after rope scaling, and why.

    A yarn entry starts again from its original length; every entry that is not already scaled multiplies by its
    factor, the last stated factor standing for all.
    """
    length: float
    length, said = stated_length(positions)
    factor = 1.0
    for rope in positions.rope:
        if rope.type in ALREADY_SCALED:
            continue
        if rope.factor is not None:
            factor = rope.factor
        if rope.type == "yarn":
            if rope.original_max_position_embeddings is None:
                raise not_modelled("rope-original-length", "a yarn rope entry without its original length")
            length, said = rope.original_max_position_embeddings, "yarn's original length"
    return length * factor, said if factor == 1.0 else f"{said} x {factor:g}"


def derived_length(rules: Rules, model: Model, positions: Positions) -> tuple[float, str]:
    """The length in tokens that the configuration comes to, and by what."""
    if model.architecture.rope_already_applied:
        stated, key = stated_length(positions)
        return stated, f"{key}, which this model family states already scaled"
    return rules.scaled_length(positions)


def max_model_len(rules: Rules, model: Model, deployment: Deployment, reasons: Reasons) -> int:
    """The longest request in tokens; -1 asked for means the derived length until memory says less (auto-fit).

    Refused by the engine where more is asked than the configuration admits, unless ``model_max_length`` or
    ``VLLM_ALLOW_LONG_MAX_MODEL_LEN`` admits it, and where auto-fit has no length to start from.
    """
    positions = model.positions
    if model.disabled_window is not None:
        positions = _within(positions, model.disabled_window)
    derived, why = derived_length(rules, model, positions)
    asked = deployment.max_model_len
    if asked == -1 and not states_length(positions):
        raise engine_refuses(
            "max-model-len-derivable",
            "ValidationError",
            "config",
            "max_model_len auto starts from the length the configuration states, and it states none: ask for a length",
            SOURCE,
        )
    if asked is None or asked == -1:
        original = positions.original_max_position_embeddings
        if original is not None and any(rope.type == "longrope" for rope in positions.rope):
            length, why = original, "longrope starts from the original length unless more is asked for"
        else:
            length = int(derived)
    elif not states_length(positions):
        length, why = asked, "as asked, for the configuration states no length"
    else:
        length, why = asked, "as asked"
        check_admitted(asked, derived, model.positions.model_max_length, deployment)
    reasons.append(Reason("max-model-len", length, {"derived": int(derived), "asked": asked}, why, SOURCE))
    return length


def _within(positions: Positions, window: int) -> Positions:
    """Lengths bounded by a window that was taken out, before rope scaling."""
    length = min(stated_length(positions)[0], window)
    return msgspec.structs.replace(positions, max_position_embeddings=length, model_max_length=None)


def check_admitted(asked: int, derived: float, model_max_length: int | None, deployment: Deployment) -> None:
    """Refused by the engine where a length is asked that the configuration does not admit."""
    if asked <= derived or (model_max_length is not None and asked <= model_max_length):
        return
    if deployment.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0").strip().lower() in ("1", "true"):
        return
    raise engine_refuses(
        "max-model-len-admitted",
        "ValidationError",
        "config",
        f"max_model_len {asked} is more than the {int(derived)} tokens the configuration admits; "
        "set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 in env to insist",
        SOURCE,
    )
