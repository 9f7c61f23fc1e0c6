"""MiniMax M3: block-sparse layers with an indexer after a few dense ones, experts.

Source: 0.31.0, models/minimax_m3/nvidia/{model,mtp}.py, models/minimax_m3/common/indexer.py,
model_executor/layers/linear.py (the projection that holds the indexer's).
"""

from __future__ import annotations

from rulespack.derive.blocks import (
    TENSOR_PARALLEL,
    MoE,
    all_reduce,
    dense_mlp,
    embedding,
    experts,
    gemm,
    head,
    norm,
    projected_attention,
    read_top_k,
)
from rulespack.derive.config import Config, Served
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.derive.predictor import module_count, predictor, predictor_layer
from rulespack.derive.section import Section
from rulespack.derive.weights import Format
from rulespack.graph.model import Attention, Cache, Context, Elementwise

MULTIMODAL = "MiniMaxM3SparseForConditionalGeneration"
FP32 = 4
BF16 = 2


def build(config: Config) -> Parts:
    """Each layer by two lists: which attend to selected blocks, and which have experts."""
    text = config.text
    count = text.integer("num_local_experts")
    top_k = read_top_k(config, "num_experts_per_tok", count)
    width = text.integer("intermediate_size")
    shared = text.optional_integer("n_shared_experts", minimum=0) or 0
    selection = text.optional_section("sparse_attention_config")
    node = Attention(kind="gqa", n_q=config.heads, n_kv=config.kv_heads, d_h=text.integer("head_dim"))

    def add_layer(layer: Layer, module: str, selects: bool, sparse: bool) -> Layer:
        layer.add(norm("input_norm"))
        if selection is not None and selects:
            _sparse_attention(layer, config, f"{module}.self_attn", node, selection)
        else:
            projected_attention(layer, config, f"{module}.self_attn", node)
        layer.add(norm("post_attn_norm"))
        if sparse:
            moe = MoE(
                module=f"{module}.block_sparse_moe",
                count=count,
                top_k=top_k,
                width=width,
                shared_width=shared * width,
                router=Format("fp32"),
                reduce=TENSOR_PARALLEL,
            )
            experts(layer, config, moe)
        else:
            dense_mlp(layer, config, f"{module}.mlp", text.integer("dense_intermediate_size"))
        return layer

    def label(selects: bool, sparse: bool) -> str:
        return f"{'sparse' if selects else 'full'}_{'moe' if sparse else 'dense'}"

    layers = [
        add_layer(Layer(label(selects, sparse)), f"layers.{index}", selects, sparse)
        for index, (selects, sparse) in enumerate(zip(_selecting(config, selection), _moe(config), strict=True))
    ]
    drafts = []
    for index in range(_modules(config, selection)):
        module = f"mtp.layers.{index}"
        form = config.weights.of_linear(f"{module}.eh_proj")
        drafts.append(add_layer(predictor_layer(config, label(True, True), form), module, True, True))
    draft = predictor(config, drafts)
    return Parts(
        layers=layers,
        embedding=embedding(config),
        head=head(config),
        draft_kinds=draft.kinds,
        speculator=draft.speculator,
    )


def _modules(config: Config, selection: Section | None) -> int:
    """Draft modules of the multimodal class, each a layer that selects, with experts."""
    if config.architecture != MULTIMODAL or selection is None:
        return 0
    return module_count(config, "num_mtp_modules", default=1)


def _selecting(config: Config, selection: Section | None) -> list[bool]:
    stated = None if selection is None else selection.optional_integers("sparse_attention_freq")
    listed = set() if stated is None else {index for index, flag in enumerate(stated) if flag}
    return [index in listed for index in range(config.layers)]


def _moe(config: Config) -> tuple[bool, ...]:
    stated = config.text.optional_integers("moe_layer_freq")
    if stated is None:
        return (True,) * config.layers
    if len(stated) < config.layers:
        problem = f"lists {len(stated)} layers and num_hidden_layers is {config.layers}; list each layer"
        config.text.refuse("moe_layer_freq", problem)
    return tuple(flag != 0 for flag in stated[: config.layers])


def _sparse_attention(layer: Layer, config: Config, module: str, node: Attention, selection: Section) -> None:
    """One projection for queries, keys, values and the indexer's; scores of blocks; attention to the best of them.

    The indexer has as many query heads as there are KV heads, and one key head.
    """
    heads, width = selection.integer("sparse_num_index_heads"), selection.integer("sparse_index_dim")
    if heads != node.n_kv:
        selection.refuse("sparse_num_index_heads", f"is {heads} beside {node.n_kv} KV heads; the engine has them equal")
    if width != node.d_h:
        selection.refuse("sparse_index_dim", f"is {width} beside heads of {node.d_h}; the engine has them equal")
    form = config.weights.of_linear
    projected = (node.n_q + 2 * node.n_kv) * node.d_h + (heads + 1) * width
    layer.add(gemm(config, "qkv_index_proj", projected, config.hidden_size, "column", form(f"{module}.qkv_proj")))
    # Norms, rotates, and writes keys and values; the index key is written in the same launch.
    moved = (node.n_q + 2 * node.n_kv) * node.d_h * 2 * BF16
    layer.add(Elementwise(role="qk_norm_rope_store", bytes_per_token=moved, writes_cache="kv"))
    moved = (2 * heads + 1) * width * BF16
    layer.add(Elementwise(role="index_norm_rope_store", bytes_per_token=moved, writes_cache="index"))
    block = selection.integer("sparse_block_size")
    cache = Cache(name="index", kind="index", owned=True, bytes_per_entry=width * BF16)
    scores = Attention(
        role="block_index_scores",
        kind="sparse_mla",
        n_q=heads,
        n_kv=1,
        d_h=width,
        index_topk=selection.integer("sparse_topk_blocks") * block,
        caches=(cache,),
    )
    layer.add(scores)
    scored = Context(bytes_per_entry=FP32, per="query_token", tokens_per_entry=block)
    layer.add(Elementwise(role="index_topk", context=scored))
    layer.add(node)
    layer.add(gemm(config, "o_proj", config.hidden_size, node.n_q * node.d_h, "row", form(f"{module}.o_proj")))
    layer.add(all_reduce("attn_out"))


FAMILY = Family(
    serves={
        "MiniMaxM3SparseForCausalLM": Served(),
        MULTIMODAL: Served(multimodal=True),
    },
    build=build,
)
