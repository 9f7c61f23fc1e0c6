"""MiniCPM 3: latent projections as DeepSeek has them, and plain attention over every head's whole keys and values.

Source: 0.31.0, model_executor/models/minicpm3.py, minicpm.py; class defaults from transformers' MiniCPM3Config.
"""

from __future__ import annotations

from rulespack.derive.blocks import all_reduce, dense_mlp, embedding, gemm, head, norm, norm_of
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.graph.model import Attention


def build(config: Config) -> Parts:
    """Layers alike."""
    text = config.text
    if text.has("num_experts"):
        text.untranslated("num_experts", "is stated; the mixture of experts of this class is not translated")
    width = text.integer("intermediate_size")
    layers = []
    for index in range(config.layers):
        layer = Layer("dense")
        layer.add(norm("input_norm"))
        _attention(layer, config, f"layers.{index}.self_attn")
        layer.add(norm("post_attn_norm"))
        dense_mlp(layer, config, f"layers.{index}.mlp", width)
        layers.append(layer)
    return Parts(layers=layers, embedding=embedding(config), head=head(config))


def _attention(layer: Layer, config: Config, module: str) -> None:
    """Each projection by itself; values are padded to the width of the keys, which is what the cache holds."""
    text, hidden, heads = config.text, config.hidden_size, config.heads
    form = config.weights.of_linear
    rank, query_rank = text.integer("kv_lora_rank"), text.integer("q_lora_rank")
    rope, nope = text.integer("qk_rope_head_dim"), text.integer("qk_nope_head_dim")
    value = text.optional_integer("v_head_dim") or hidden // heads
    if value > nope + rope:
        text.refuse("v_head_dim", f"is {value}, wider than the {nope + rope} of a key it is padded to")
    entry = layer.last

    def project(name: str, n: int, k: int, tp: str, after: int) -> int:
        return layer.add(gemm(config, name, n, k, tp, form(f"{module}.{name}")), [after])

    low = project("q_a_proj", query_rank, hidden, "replicated", entry)
    normed = layer.add(norm_of("q_a_norm", query_rank, config), [low])
    query = project("q_b_proj", heads * (nope + rope), query_rank, "column", normed)
    latent = project("kv_a_proj_with_mqa", rank + rope, hidden, "replicated", entry)
    kv_normed = layer.add(norm_of("kv_a_norm", rank, config), [latent])
    keys = project("kv_b_proj", heads * (nope + value), rank, "column", kv_normed)
    mixed = layer.add(Attention(kind="gqa", n_q=heads, n_kv=heads, d_h=nope + rope), [query, keys])
    project("o_proj", hidden, heads * value, "row", mixed)
    layer.add(all_reduce("attn_out"))


FAMILY = Family(
    serves={"MiniCPM3ForCausalLM": Served(tie_word_embeddings=True)},
    build=build,
)
