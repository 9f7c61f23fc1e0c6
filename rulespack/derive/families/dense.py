"""Dense decoders with grouped or plain multi-head attention: Llama, Mistral, Qwen 2.5, Qwen 3.

Source: 0.31.0, model_executor/models/llama.py, mistral.py, qwen2.py, qwen3.py; class defaults from transformers'
configuration classes of the same names.
"""

from __future__ import annotations

from rulespack.derive.blocks import dense_mlp, embedding, head, norm, projected_attention
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.graph.model import Attention


def build(config: Config) -> Parts:
    """Every layer alike; a Mistral that states a sliding window has it on every layer."""
    width = config.text.integer("intermediate_size")
    window = _window(config)
    node = Attention(
        kind="gqa" if window is None else "swa",
        n_q=config.heads,
        n_kv=config.kv_heads,
        d_h=config.head_dim(),
        window=window,
    )
    layers = []
    for index in range(config.layers):
        layer = Layer("dense")
        layer.add(norm("input_norm"))
        projected_attention(layer, config, f"layers.{index}.self_attn", node)
        layer.add(norm("post_attn_norm"))
        dense_mlp(layer, config, f"layers.{index}.mlp", width)
        layers.append(layer)
    return Parts(layers=layers, embedding=embedding(config), head=head(config))


def _window(config: Config) -> int | None:
    """The window of every layer. Qwen states one it does not use; its mixed layout is not translated."""
    if config.text.has("layer_types"):
        types = set(config.text.optional_strings("layer_types") or ())
        if types != {"full_attention"}:
            config.text.refuse("layer_types", f"holds {', '.join(sorted(types))}; this family has full attention only")
    if config.architecture.startswith("Qwen"):
        if config.text.boolean("use_sliding_window", default=False):
            config.text.refuse("use_sliding_window", "is true; windows on the upper layers only are not translated")
        return None
    if config.architecture == "MistralForCausalLM":
        return config.text.optional_integer("sliding_window")
    return None


FAMILY = Family(
    serves={
        "LlamaForCausalLM": Served(),
        "MistralForCausalLM": Served(kv_heads=8),
        "Qwen2ForCausalLM": Served(kv_heads=32),
        "Qwen3ForCausalLM": Served(kv_heads=32, head_dim=128),
    },
    build=build,
)
