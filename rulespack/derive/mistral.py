"""Mistral's own format, ``params.json``, in the vocabulary of ``config.json``.

Source: 0.31.0, transformers_utils/configs/mistral.py, adapt_config_dict: which key stands for which, the model class
each combination is served by, and the FP8 quantization Mistral states in a word.
"""

from __future__ import annotations

from typing import Final

from rulespack.derive.errors import NotTranslated
from rulespack.derive.section import Section
from rulespack.derive.weights import Format, Weights
from rulespack.graph.model import Positions, Quantization, Rope

#: Our vocabulary -> the key of params.json, dotted where it is nested.
NAMES: Final = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "intermediate_size": "hidden_dim",
    "tie_word_embeddings": "tied_embeddings",
    "n_routed_experts": "moe.num_experts",
    "num_experts_per_tok": "moe.num_experts_per_tok",
    "moe_intermediate_size": "moe.expert_hidden_dim",
    "first_k_dense_replace": "moe.first_k_dense_replace",
    "moe_layer_freq": "moe.route_every_n",
    "n_shared_experts": "moe.num_shared_experts",
}
MODEL_TYPES: Final = {"MistralLarge3ForCausalLM": "deepseek_v3", "MistralForCausalLM": "mistral"}


def architecture(section: Section, file: str) -> str:
    """The class the engine serves a params.json with. Raises InvalidConfig for the ones that are not translated."""
    for key in ("multimodal", "vision_encoder"):
        if section.has(key):
            section.untranslated(key, "a Mistral model with encoders is not translated")
    if not section.has("moe"):
        if section.has("qk_nope_head_dim"):
            section.untranslated("qk_nope_head_dim", "latent attention without experts is not translated")
        return "MistralForCausalLM"
    moe = section.section("moe")
    if not moe.integer("num_shared_experts", minimum=0, default=0):
        raise NotTranslated(file, "moe.num_shared_experts", "Mistral experts without a shared one are not translated")
    scaling = section.section("llama_4_scaling")
    scaling.integer("original_max_position_embeddings")
    scaling.optional_number("beta")
    return "MistralLarge3ForCausalLM"


def read_positions(section: Section) -> Positions:
    """Length facts. The engine would take a missing limit from a config.json beside the file, so it must be stated."""
    limit = section.integer("max_position_embeddings")
    other = section.optional_integer("max_seq_len")
    yarn = section.optional_section("yarn")
    rope: tuple[Rope, ...] = ()
    if yarn is not None:
        original = yarn.optional_integer("original_max_position_embeddings")
        rope = (Rope(type="yarn", factor=yarn.optional_number("factor"), original_max_position_embeddings=original),)
    return Positions(max_position_embeddings=limit if other is None else min(limit, other), rope=rope)


def read_weights(section: Section, dtype: str) -> Weights:
    """``quantization``: FP8 with one scale for each tensor, or none at all."""
    plain = Format(dtype)
    quantization = section.optional_section("quantization")
    if quantization is None:
        return Weights(facts=None, plain=plain, linear=plain, experts=plain, stored=plain)
    form = quantization.string("qformat_weight")
    if form != "fp8_e4m3":
        quantization.untranslated("qformat_weight", f"{form!r} is not translated; known is fp8_e4m3")
    scheme = quantization.optional_string("qscheme_act")
    if scheme not in (None, "TENSOR", "NO_SCALES"):
        quantization.refuse("qscheme_act", f"{scheme!r} is not known to the engine; it takes TENSOR and NO_SCALES")
    stored = Format("fp8")
    return Weights(facts=Quantization(method="fp8"), plain=plain, linear=stored, experts=stored, stored=stored)
