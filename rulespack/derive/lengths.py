"""What a configuration says about length: position limits, rotary scaling, and the window the engine derives."""

from __future__ import annotations

from typing import Final

import msgspec

from rulespack.derive.section import Section
from rulespack.graph.model import Positions, Rope

#: The keys the engine takes a model's length from, the smallest stated one winning
#: (0.31.0, transformers_utils/model_arch_config_convertor.py, derive_max_model_len_and_key).
LENGTH_KEYS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
#: What the engine takes where a configuration states none of them.
UNSTATED_LENGTH: Final = 2048
#: Rotary types whose position limit already includes their scaling (0.31.0, config/model.py, _get_and_verify_max_len).
SCALED_ROPES: Final = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
ROPE_TYPES: Final = (*SCALED_ROPES, "default", "linear", "dynamic", "mrope", "proportional")


class Window(msgspec.Struct, frozen=True):
    """The longest context the engine admits, in tokens, and the shorter one it starts from where that differs."""

    longest: int
    default: int | None = None


def read_positions(text: Section, supplied: int | None = None, beside: int | None = None) -> Positions:
    """The length facts of the text configuration. Raises InvalidConfig for a rotary type that is not known.

    ``supplied`` is the position limit the configuration class fills in where the file states no length, ``beside`` the
    ``max_seq_len`` it fills in whatever other lengths the file states.
    """
    stated = [value for key in LENGTH_KEYS if (value := text.optional_integer(key)) is not None]
    if beside is not None and not text.has("max_seq_len"):
        stated.append(beside)
    return Positions(
        max_position_embeddings=min(stated, default=supplied),
        original_max_position_embeddings=text.optional_integer("original_max_position_embeddings"),
        model_max_length=text.optional_integer("model_max_length"),
        rope=_ropes(text),
    )


def _ropes(text: Section) -> tuple[Rope, ...]:
    """Rotary entries in the file's order: ``rope_parameters``, flat or by layer type, else ``rope_scaling``."""
    for key in ("rope_parameters", "rope_scaling"):
        section = text.optional_section(key)
        if section is None:
            continue
        if section.has("rope_type") or section.has("type"):
            return (_rope(section),)
        nested = [
            (layer_type, entry)
            for layer_type in section.names()
            if layer_type.endswith("attention") and (entry := section.optional_section(layer_type)) is not None
        ]
        if nested:
            return tuple(_rope(entry, layer_type) for layer_type, entry in nested)
        if section.has("factor"):
            section.refuse("rope_type", "is missing beside a factor; state which kind of scaling it is")
    return ()


def _rope(section: Section, layer_type: str | None = None) -> Rope:
    key = "rope_type" if section.has("rope_type") else "type"
    kind = section.string(key)
    if kind not in ROPE_TYPES:
        section.refuse(key, f"the rotary type {kind!r} is not known; known are {', '.join(ROPE_TYPES)}")
    return Rope(
        type=kind,
        factor=section.optional_number("factor"),
        original_max_position_embeddings=section.optional_integer("original_max_position_embeddings"),
        layer_type=layer_type,
    )


def context_window(positions: Positions, model_type: str) -> Window:
    """The ``max_model_len`` vLLM 0.31.0 derives (config/model.py, _get_and_verify_max_len).

    ``model_max_length`` goes before any other key. A rotary factor lengthens the limit only for the types that do not
    already include it; Gemma 3 states a factor for its full layers and is left alone. LongRoPE starts from the length
    it was trained at.
    """
    longest = positions.model_max_length or positions.max_position_embeddings or UNSTATED_LENGTH
    factor = 1.0
    if "gemma3" not in model_type:
        for rope in positions.rope:
            if rope.type not in SCALED_ROPES and rope.factor is not None:
                factor = rope.factor
    derived = int(longest * factor)
    original = positions.original_max_position_embeddings
    if any(rope.type == "longrope" for rope in positions.rope) and original is not None and original < derived:
        return Window(derived, original)
    return Window(derived)
