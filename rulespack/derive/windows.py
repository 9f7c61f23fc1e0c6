"""Which layers attend to a sliding window, for families that leave it to the engine's general rule.

Source: 0.31.0, engine/arg_utils.py, create_engine_config: without ``layer_types`` a stated ``sliding_window`` is every
layer's; with them each layer goes by its own type. A window of 0 means none (config/model.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rulespack.derive.blocks import per_layer
from rulespack.derive.config import Config

SLIDING: Final = "sliding_attention"
FULL: Final = "full_attention"


def layer_windows(
    config: Config, default: int | None = None, default_types: Sequence[str] | None = None
) -> tuple[int | None, ...]:
    """The window of each layer in tokens, None for full attention.

    ``default`` is the window the configuration class supplies where the key is left out; null always means none.
    ``default_types`` are the layer types it makes where the file lists none.
    """
    text = config.text
    window = text.optional_integer("sliding_window", minimum=0) if text.states("sliding_window") else default
    stated = text.optional_strings("layer_types")
    if stated is not None:
        types: Sequence[str] = per_layer(config, "layer_types", stated, (SLIDING, FULL))
    elif default_types is not None:
        types = default_types
    else:
        return (window or None,) * config.layers
    sliding = [layer_type == SLIDING for layer_type in types]
    if any(sliding) and not window:
        text.refuse("sliding_window", "is not stated, and layers are listed as sliding; state the window")
    return tuple(window if slides else None for slides in sliding)


def periodic_types(layers: int, period: int) -> tuple[str, ...]:
    """Windows but for the last layer of each period."""
    return tuple(SLIDING if (index + 1) % period else FULL for index in range(layers))


def no_windows(config: Config) -> None:
    """Check that a class that states a window it need not use does not use it (Qwen). Raises InvalidConfig."""
    text = config.text
    if text.boolean("use_sliding_window", default=False):
        text.untranslated("use_sliding_window", "is true; windows on some layers of this class are not translated")
    if set(text.optional_strings("layer_types") or ()) - {FULL}:
        text.untranslated("layer_types", "holds more than full_attention, which is not translated for this class")
