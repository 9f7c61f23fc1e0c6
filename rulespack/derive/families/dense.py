"""Dense decoders with grouped or plain multi-head attention: Llama and its kin, Mistral, Phi 3 and 4, Qwen 2.5 and 3.

Hunyuan and SmolLM 3 run through the engine's Transformers backend, which fuses as the others do.

Source: 0.31.0, model_executor/models/llama.py, ernie45.py, mimo.py, mistral.py, mistral3.py, phi3.py, qwen2.py,
qwen3.py, qwen3_vl.py, transformers/base.py; class defaults from transformers' configuration classes of the same names.
"""

from __future__ import annotations

from rulespack.derive.blocks import dense_mlp, embedding, head, norm, projected_attention
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.derive.predictor import module_count, predictor, predictor_layer
from rulespack.derive.windows import layer_windows, no_windows
from rulespack.graph.model import Attention

#: The window of transformers' MistralConfig where a config.json leaves the key out.
MISTRAL_WINDOW = 4096
MISTRAL = ("MistralForCausalLM", "Mistral3ForConditionalGeneration")
#: The one class here whose checkpoints carry draft modules (mimo_mtp.py).
MIMO = "MiMoForCausalLM"
#: Classes that use a window they state only where ``use_sliding_window`` says so.
OPTIONAL_WINDOWS = (
    MIMO,
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3VLForConditionalGeneration",
    "SmolLM3ForCausalLM",
)


def build(config: Config) -> Parts:
    """Layers alike but for their windows."""
    width = config.text.integer("intermediate_size")
    head_dim = config.head_dim()
    windows = _windows(config)
    mixed = len(set(windows)) > 1

    def add_layer(layer: Layer, index: int, window: int | None) -> Layer:
        node = Attention(
            kind="gqa" if window is None else "swa",
            n_q=config.heads,
            n_kv=config.kv_heads,
            d_h=head_dim,
            window=window,
        )
        layer.add(norm("input_norm"))
        projected_attention(layer, config, f"layers.{index}.self_attn", node)
        layer.add(norm("post_attn_norm"))
        dense_mlp(layer, config, f"layers.{index}.mlp", width)
        return layer

    def label(window: int | None) -> str:
        return ("full" if window is None else "sliding") if mixed else "dense"

    modules = module_count(config) if config.architecture == MIMO else 0
    past = range(config.layers, config.layers + modules)
    draft = predictor(config, [add_layer(predictor_layer(config, "dense"), index, None) for index in past])
    return Parts(
        layers=[add_layer(Layer(label(window)), index, window) for index, window in enumerate(windows)],
        embedding=embedding(config),
        head=head(config),
        draft_kinds=draft.kinds,
        speculator=draft.speculator,
    )


def _windows(config: Config) -> tuple[int | None, ...]:
    if config.architecture in OPTIONAL_WINDOWS:
        no_windows(config)
        return (None,) * config.layers
    native = config.format == "mistral_params_json"
    supplied = config.architecture in MISTRAL and not native
    return layer_windows(config, MISTRAL_WINDOW if supplied else None)


FAMILY = Family(
    serves={
        "Ernie4_5ForCausalLM": Served(kv_heads=2, head_dim=128, tie_word_embeddings=True),
        "HunYuanDenseV1ForCausalLM": Served(),
        "LlamaForCausalLM": Served(),
        MIMO: Served(kv_heads=32, divides_width=True),
        "Mistral3ForConditionalGeneration": Served(kv_heads=8, tie_word_embeddings=True, multimodal=True),
        "MistralForCausalLM": Served(kv_heads=8),
        "Phi3ForCausalLM": Served(),
        "Qwen2ForCausalLM": Served(kv_heads=32, divides_width=True),
        "Qwen3ForCausalLM": Served(kv_heads=32, head_dim=128),
        "Qwen3VLForConditionalGeneration": Served(kv_heads=32, head_dim=128, multimodal=True),
        "SmolLM3ForCausalLM": Served(kv_heads=4, tie_word_embeddings=True),
    },
    build=build,
)
