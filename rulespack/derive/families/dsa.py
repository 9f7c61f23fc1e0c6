"""DeepSeek sparse attention over latents with a mixture of experts: DeepSeek V3.2, GLM 5, 5.1, 5.2, 5.3.

Source: 0.31.0, models/deepseek_v32/{attention,nvidia/model,nvidia/mtp}.py, model_executor/models/deepseek_v2.py (the
MoE); class defaults from transformers' GlmMoeDsaConfig and DeepseekV3Config, which V3.2 is read with.
"""

from __future__ import annotations

from rulespack.derive.blocks import MoE, dense_mlp, embedding, experts, head, norm, read_top_k
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.latent import read_indexer, read_latent, sparse_attention
from rulespack.derive.layers import Layer
from rulespack.derive.predictor import module_count, predictor, predictor_layer

#: The first layers that always select for themselves where the file does not say.
SKIP_OFFSET = 2
SELECTS, SHARES = "F", "S"


def build(config: Config) -> Parts:
    """The first layers dense, the others experts with shared ones beside them; some layers share a selection."""
    text = config.text
    shape, indexer = read_latent(config), read_indexer(config)
    if shape.query_rank is None:
        text.refuse("q_lora_rank", "is null, and the indexer's queries come from the low-rank ones; state the rank")
    count = text.integer("n_routed_experts")
    top_k = read_top_k(config, "num_experts_per_tok", count)
    width = text.integer("moe_intermediate_size")
    shared = text.optional_integer("n_shared_experts", minimum=0) or 0
    first = text.integer("first_k_dense_replace", minimum=0)
    step = text.integer("moe_layer_freq", default=1)

    def add_layer(layer: Layer, index: int, selects: bool) -> Layer:
        layer.add(norm("input_norm"))
        sparse_attention(layer, config, f"layers.{index}.self_attn", shape, indexer.topk, indexer if selects else None)
        layer.add(norm("post_attn_norm"))
        module = f"layers.{index}.mlp"
        if sparse(index):
            moe = MoE(module=module, count=count, top_k=top_k, width=width, shared_width=shared * width)
            experts(layer, config, moe)
        else:
            dense_mlp(layer, config, module, text.integer("intermediate_size"))
        return layer

    def sparse(index: int) -> bool:
        return index >= first and index % step == 0

    def label(index: int, selects: bool) -> str:
        return f"{'moe' if sparse(index) else 'dense'}{'' if selects else '_shared_index'}"

    selecting = _selecting(config)
    modules = module_count(config, default=1 if config.architecture == "DeepseekV32ForCausalLM" else 0)
    past = range(config.layers, config.layers + modules)
    # A draft layer selects for itself, whatever the pattern.
    draft = predictor(config, [add_layer(predictor_layer(config, label(index, True)), index, True) for index in past])
    return Parts(
        layers=[add_layer(Layer(label(index, selects)), index, selects) for index, selects in enumerate(selecting)],
        embedding=embedding(config),
        head=head(config),
        draft_kinds=draft.kinds,
        speculator=draft.speculator,
    )


def _selecting(config: Config) -> list[bool]:
    """Whether each layer has an indexer of its own: by a pattern, else by a frequency and an offset.

    ``indexer_types``, which Transformers reads, is not read by the engine; where it says otherwise it is refused.
    """
    text = config.text
    pattern = text.optional_string("index_topk_pattern")
    if pattern is None:
        every = text.integer("index_topk_freq", default=1)
        offset = text.integer("index_skip_topk_offset", minimum=0, default=SKIP_OFFSET)
        selecting = [max(index - offset + 1, 0) % every == 0 for index in range(config.layers)]
    else:
        if set(pattern) - {SELECTS, SHARES}:
            text.refuse("index_topk_pattern", f"is {pattern[:40]!r}; its letters are {SELECTS} and {SHARES}")
        # A layer past the pattern's end selects for itself.
        selecting = [pattern[index : index + 1] != SHARES for index in range(config.layers)]
    if not selecting[0]:
        text.refuse("index_topk_pattern", "lets the first layer share a selection, and there is none before it")
    types = text.optional_strings("indexer_types")
    if types is not None and [kind == "full" for kind in types] != selecting:
        text.refuse("indexer_types", "differs from the pattern the engine reads; state index_topk_pattern to match it")
    return selecting


FAMILY = Family(serves={"DeepseekV32ForCausalLM": Served(), "GlmMoeDsaForCausalLM": Served()}, build=build)
