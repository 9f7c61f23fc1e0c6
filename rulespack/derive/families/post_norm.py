"""Dense decoders that norm what each half of a layer gives, not what it takes: EXAONE 4, OLMo 3.

OLMo 3 runs through the engine's Transformers backend, which fuses as EXAONE's own class does.

Source: 0.31.0, model_executor/models/exaone4.py, transformers/base.py; transformers, models/olmo3/modeling_olmo3.py;
class defaults from transformers' Exaone4Config and Olmo3Config.
"""

from __future__ import annotations

from rulespack.derive.blocks import dense_mlp, embedding, head, norm, projected_attention
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.derive.windows import layer_windows, periodic_types
from rulespack.graph.model import Attention

EXAONE = "Exaone4ForCausalLM"
#: Of both configuration classes: the window, and the layers in one period of windows and one full layer.
WINDOW = 4096
PERIOD = 4


def build(config: Config) -> Parts:
    """Windows by layer type; a model without windows has rotary embedding everywhere, which no shape shows."""
    width = config.text.integer("intermediate_size")
    head_dim = config.head_dim()
    windows = layer_windows(config, WINDOW, _types(config))
    mixed = len(set(windows)) > 1
    layers = []
    for index, window in enumerate(windows):
        node = Attention(
            kind="gqa" if window is None else "swa",
            n_q=config.heads,
            n_kv=config.kv_heads,
            d_h=head_dim,
            window=window,
        )
        layer = Layer(("full" if window is None else "sliding") if mixed else "dense")
        projected_attention(layer, config, f"layers.{index}.self_attn", node)
        layer.add(norm("post_attn_norm"))
        dense_mlp(layer, config, f"layers.{index}.mlp", width)
        layer.add(norm("post_mlp_norm"))
        layers.append(layer)
    return Parts(layers=layers, embedding=embedding(config), head=head(config))


def _types(config: Config) -> tuple[str, ...]:
    """The types where the file lists none; EXAONE's class makes them of a pattern that may be a number only."""
    if config.architecture != EXAONE:
        return periodic_types(config.layers, PERIOD)
    text = config.text
    if text.has("layer_types"):
        return ()
    if text.states("sliding_window") and not text.has("sliding_window"):
        text.refuse("sliding_window", "is null beside no layer_types, which the class cannot make layers of")
    return periodic_types(config.layers, text.integer("sliding_window_pattern", default=PERIOD))


FAMILY = Family(
    serves={
        EXAONE: Served(kv_heads=32),
        "Olmo3ForCausalLM": Served(),
    },
    build=build,
)
