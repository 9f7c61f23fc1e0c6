"""Grouped-query attention, dense layers at first, then experts with shared ones: GLM 4.5 to 4.7, ERNIE 4.5, Hunyuan 3.

Source: 0.31.0, model_executor/models/glm4_moe.py, ernie45_moe.py, hy_v3.py, and glm4_moe_mtp.py, ernie_mtp.py,
hy_v3_mtp.py for the draft modules, of which ERNIE's are dense Llama layers; class defaults from transformers'
Glm4MoeConfig and Ernie4_5_MoeConfig, and from transformers_utils/configs/hy_v3.py.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import msgspec

from rulespack.derive.blocks import (
    TENSOR_PARALLEL,
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
from rulespack.derive.predictor import module_count, predictor, predictor_layer
from rulespack.derive.weights import Format
from rulespack.derive.windows import layer_windows
from rulespack.graph.model import Attention

#: The inner width of one expert where Hunyuan's configuration leaves it out.
HUNYUAN_WIDTH = 1536


def build(config: Config) -> Parts:
    """Routers are float32, and the classes sum after their experts whatever the MoE's parallelism."""
    text = config.text
    dialect = DIALECTS[config.architecture]
    count = text.integer(dialect.count)
    top_k = read_top_k(config, dialect.top_k, count)
    width = _hunyuan_width(config) if dialect is HUNYUAN else text.integer("moe_intermediate_size")
    shared = text.optional_integer(dialect.shared, minimum=0) if text.states(dialect.shared) else dialect.shared_count
    sparse_layers, windows = dialect.sparse(config), layer_windows(config)
    head_dim = config.head_dim()

    def add_layer(layer: Layer, index: int, window: int | None, sparse: bool) -> Layer:
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
        module = f"layers.{index}.mlp"
        if sparse:
            moe = MoE(
                module=module,
                count=count,
                top_k=top_k,
                width=width,
                shared_width=(shared or 0) * width,
                shared_module=dialect.shared_module,
                router=Format("fp32"),
                reduce=TENSOR_PARALLEL,
            )
            experts(layer, config, moe)
        else:
            dense_mlp(layer, config, module, text.integer("intermediate_size"))
        return layer

    def label(sparse: bool) -> str:
        return "moe" if sparse else "dense"

    past = range(config.layers, config.layers + module_count(config, default=dialect.modules))
    if past and len(set(windows)) > 1:
        text.untranslated("layer_types", "mixes windows with full attention, and does not say which the draft has")
    drafts = [
        add_layer(predictor_layer(config, label(dialect.sparse_draft)), index, windows[0], dialect.sparse_draft)
        for index in past
    ]
    draft = predictor(config, drafts)
    return Parts(
        layers=[
            add_layer(Layer(label(index in sparse_layers)), index, window, index in sparse_layers)
            for index, window in enumerate(windows)
        ],
        embedding=embedding(config),
        head=head(config),
        draft_kinds=draft.kinds,
        speculator=draft.speculator,
    )


def _after_the_first(config: Config) -> range:
    """Every layer but the first ones. A list of types beside that number is not read by the engine, and must agree."""
    text = config.text
    sparse = range(text.integer("first_k_dense_replace", minimum=0, default=1), config.layers)
    types = text.optional_strings("mlp_layer_types")
    if types is not None:
        listed = per_layer(config, "mlp_layer_types", types, ("dense", "sparse"))
        if any((kind == "sparse") != (index in sparse) for index, kind in enumerate(listed)):
            text.refuse("mlp_layer_types", f"is not dense in the first {sparse.start} layers, which the engine runs")
    return sparse


def _between_two(config: Config) -> frozenset[int]:
    """ERNIE: every so many layers from the first to the last one named; -1 names the model's last."""
    text = config.text
    if not text.boolean("use_moe", default=True):
        return frozenset()
    start = text.integer("moe_layer_start_index", minimum=0, default=1)
    end = text.integer("moe_layer_end_index", minimum=-1, default=-1)
    interval = text.integer("moe_layer_interval", default=1)
    last = config.layers - 1 if end == -1 else min(end, config.layers - 1)
    return frozenset(index for index in range(start, last + 1) if (index + 1) % interval == 0)


def _hunyuan_width(config: Config) -> int:
    """The engine reads one spelling of the width, Transformers the other."""
    text = config.text
    width = text.integer("expert_hidden_dim", default=HUNYUAN_WIDTH)
    if text.has("moe_intermediate_size") and text.integer("moe_intermediate_size") != width:
        text.refuse("moe_intermediate_size", f"is not {width}, the expert_hidden_dim that the engine reads")
    return width


class Dialect(msgspec.Struct, frozen=True):
    """Where the classes differ: the keys of the experts, and which layers have them.

    ``shared_count`` and ``modules`` are how many shared experts and draft modules the class supplies where the keys are
    left out; ``sparse_draft`` tells whether a draft module has experts.
    """

    count: str
    top_k: str
    shared: str
    shared_count: int
    sparse: Callable[[Config], Container[int]]
    shared_module: str = "shared_experts"
    modules: int = 0
    sparse_draft: bool = True


GLM = Dialect("n_routed_experts", "num_experts_per_tok", "n_shared_experts", 1, _after_the_first, modules=1)
ERNIE = Dialect("moe_num_experts", "moe_k", "moe_num_shared_experts", 2, _between_two, sparse_draft=False)
HUNYUAN = Dialect("num_experts", "num_experts_per_tok", "num_shared_experts", 1, _after_the_first, "shared_mlp")
DIALECTS = {
    "Ernie4_5_MoeForCausalLM": ERNIE,
    "Glm4MoeForCausalLM": GLM,
    "HYV3ForCausalLM": HUNYUAN,
}

FAMILY = Family(
    serves={
        "Ernie4_5_MoeForCausalLM": Served(kv_heads=4, tie_word_embeddings=True),
        "Glm4MoeForCausalLM": Served(kv_heads=8),
        "HYV3ForCausalLM": Served(kv_heads=8, head_dim=128),
    },
    build=build,
)
