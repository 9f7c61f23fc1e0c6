"""Nemotron-H and Nemotron 3: every layer is one of Mamba-2, attention, MLP or experts, as a pattern says.

Source: 0.31.0, model_executor/models/nemotron_h.py, nemotron_h_mtp.py; the dtype of the recurrent state in
model_executor/models/config.py, NemotronHForCausalLMConfig; class defaults from transformers' NemotronHConfig.
"""

from __future__ import annotations

from rulespack.derive.blocks import (
    UNLESS_SP_MOE,
    LatentExperts,
    MoE,
    dense_mlp,
    embedding,
    experts,
    head,
    norm,
    per_layer,
    projected_attention,
    read_top_k,
)
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.derive.predictor import COUNT, module_count, predictor, predictor_layer
from rulespack.derive.recurrent import Mamba2, mamba2, state_dtype
from rulespack.graph.model import Attention

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
#: What the configuration class supplies for the draft module.
DRAFT_KINDS = ("attention", "moe")
#: The names of a list, old and new.
NAMES = {
    **{name: name for name in LETTERS.values()},
    "linear_attention": "mamba",
    "full_attention": "attention",
}


def build(config: Config) -> Parts:
    """One norm and one mixer for each layer. The head has weights of its own, whatever the file says."""
    text = config.text
    if config.tie_word_embeddings:
        text.refuse("tie_word_embeddings", "is true, and this class gives its head weights of its own; state false")
    if text.has("sliding_window"):
        text.untranslated("sliding_window", "is stated; windows are not translated for this class")
    layers = [
        _add_layer(Layer(kind), config, kind, f"layers.{index}.mixer") for index, kind in enumerate(_kinds(config))
    ]
    draft = predictor(config, _draft_layers(config), modules=1)
    return Parts(
        layers=layers,
        embedding=embedding(config),
        head=head(config),
        draft_kinds=draft.kinds,
        speculator=draft.speculator,
    )


def _add_layer(layer: Layer, config: Config, kind: str, module: str) -> Layer:
    layer.add(norm("input_norm"))
    if kind == "mamba":
        mamba2(layer, config, module, _mixer(config))
    elif kind == "attention":
        node = Attention(kind="gqa", n_q=config.heads, n_kv=config.kv_heads, d_h=config.head_dim())
        projected_attention(layer, config, module, node)
    elif kind == "mlp":
        dense_mlp(layer, config, module, config.text.integer("intermediate_size"), gated=False)
    else:
        experts(layer, config, _moe(config, module))
    return layer


def _draft_layers(config: Config) -> list[Layer]:
    """The layers of the one draft module a checkpoint may carry, its two inputs joined before the first."""
    text = config.text
    modules = module_count(config)
    if not modules:
        return []
    if modules > 1:
        text.untranslated(COUNT, f"is {modules}, and the engine's draft class runs one module")
    layers = []
    for index, kind in enumerate(_draft_kinds(config)):
        form = config.weights.of_linear(f"mtp.layers.{index}.eh_proj")
        layer = Layer(f"mtp_{kind}") if index else predictor_layer(config, kind, form, gathered=True)
        layers.append(_add_layer(layer, config, kind, f"mtp.layers.{index}.mixer"))
    return layers


def _draft_kinds(config: Config) -> tuple[str, ...]:
    """A list of names, else the older pattern of letters, else what the class supplies."""
    text, key = config.text, "mtp_layers_block_type"
    kinds: tuple[str, ...] = DRAFT_KINDS
    listed = text.optional_strings(key)
    pattern = text.optional_string("mtp_hybrid_override_pattern")
    if listed is not None:
        kinds = tuple(NAMES.get(name, name) for name in listed)
    # The pattern counts where the list is what the class would supply.
    if pattern is not None and kinds == DRAFT_KINDS:
        key, kinds = "mtp_hybrid_override_pattern", tuple(LETTERS.get(letter, letter) for letter in pattern)
    if not kinds or set(kinds) - set(DRAFT_KINDS):
        text.untranslated(key, "names a layer the engine's draft class does not run; it runs attention and moe")
    return kinds


def _kinds(config: Config) -> tuple[str, ...]:
    """What each layer is: a list of names, else a pattern of letters."""
    text, key = config.text, "layers_block_type"
    listed = text.optional_strings(key)
    if listed is None:
        key = "hybrid_override_pattern"
        pattern = text.string(key)
        return tuple(LETTERS[letter] for letter in per_layer(config, key, tuple(pattern), tuple(LETTERS)))
    return tuple(NAMES[name] for name in per_layer(config, key, listed, tuple(NAMES)))


def _mixer(config: Config) -> Mamba2:
    text = config.text
    heads = text.integer("mamba_num_heads", default=128)
    return Mamba2(
        inner=heads * text.integer("mamba_head_dim", default=64),
        heads=heads,
        groups=text.integer("mamba_n_groups", default=text.integer("n_groups", default=8)),
        state=text.integer("ssm_state_size", default=128),
        kernel=text.integer("mamba_d_conv", default=text.integer("conv_kernel", default=4)),
        chunk=text.integer("mamba_chunk_size", default=text.integer("chunk_size", default=128)),
        state_dtype=state_dtype(config, "mamba_ssm_cache_dtype", "float32"),
    )


def _moe(config: Config, module: str) -> MoE:
    """Experts without a gate, the shared ones beside them; in some models on a narrower stream."""
    text = config.text
    count = text.integer("n_routed_experts")
    latent = text.optional_integer("moe_latent_size")
    shared = text.integer("n_shared_experts", minimum=0, default=1)
    return MoE(
        module=module,
        count=count,
        top_k=read_top_k(config, "num_experts_per_tok", count),
        width=text.integer("moe_intermediate_size"),
        gated=False,
        shared_width=shared * text.integer("moe_shared_expert_intermediate_size") if shared else 0,
        latent=None if latent is None else LatentExperts(width=latent, down="fc1_latent_proj", up="fc2_latent_proj"),
        reduce=UNLESS_SP_MOE,
    )


FAMILY = Family(
    serves={
        "NemotronHForCausalLM": Served(kv_heads=8, head_dim=128, layer_list="layers_block_type", max_positions=4096)
    },
    build=build,
)
