"""The pieces families share: attention, gated MLP, experts, norms, collectives, embedding and head.

Each follows the engine's own modules (0.31.0, model_executor/models and layers/linear.py): fused where the engine
fuses, column or row parallel where it splits, all-reduced after a row-parallel layer. Rotary embedding, query and key
norms and activations run inside or beside the launches stated here and are not nodes of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from rulespack.derive.config import Config
from rulespack.derive.layers import Layer
from rulespack.derive.weights import Format
from rulespack.graph.model import (
    GEMM,
    All2All,
    AllReduce,
    AnyNode,
    Attention,
    Elementwise,
    Gather,
    GroupedGEMM,
    WeightScale,
)
from rulespack.graph.vocabulary import DTYPE_BITS

TENSOR_PARALLEL: Final = "tensor_parallel"
#: The reduction of an MoE that the engine-wide sequence-parallel MoE turns into a gather along tokens.
UNLESS_SP_MOE: Final = "tensor_parallel_unless_sp_moe"
#: The engine pads a vocabulary to a multiple of this (layers/vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE).
VOCAB_PADDING: Final = 64


def own_format(config: Config, form: Format) -> tuple[str | None, WeightScale | None]:
    """A node's weight keys: nothing where the weight is stored as the graph says all are."""
    return (None, None) if form == config.weights.stored else (form.dtype, form.scale)


def gemm(config: Config, role: str, n: int, k: int, tp: str, form: Format, split: str | None = None) -> GEMM:
    """A linear layer of the engine with an ``n`` x ``k`` weight stored as ``form``."""
    dtype, scale = own_format(config, form)
    return GEMM(role=role, n=n, k=k, tp=tp, weight_dtype=dtype, weight_scale=scale, under_sequence_parallel=split)


def norm(role: str) -> Elementwise:
    """A norm over the residual stream, fused with the addition before it."""
    return Elementwise(role=role)


def norm_of(role: str, width: int, config: Config) -> Elementwise:
    """A norm over ``width`` values that are not the residual stream: each is read and written once."""
    return Elementwise(role=role, bytes_per_token=2 * width * DTYPE_BITS[config.dtype] // 8)


def gate(role: str, width: int, config: Config) -> Elementwise:
    """A result of ``width`` values times its gate, normed where the model norms it: two reads and one write."""
    return Elementwise(role=role, bytes_per_token=3 * width * DTYPE_BITS[config.dtype] // 8)


def all_reduce(role: str, emit: str = TENSOR_PARALLEL) -> AllReduce:
    """The sum after a row-parallel layer."""
    return AllReduce(role=role, emit=emit)


def projected_attention(
    layer: Layer, config: Config, module: str, node: Attention, *, gated: bool = False, inputs: int = 1
) -> None:
    """Fused query, key and value projection, attention, output projection and its reduction.

    ``gated``: the projection gives a gate for each query head too, and what attention gives is multiplied with it.
    ``inputs``: streams side by side that the projection reads.
    """
    value = node.d_v or node.d_h
    width = (node.n_q * (2 if gated else 1) + node.n_kv) * node.d_h + node.n_kv * value
    form = config.weights.of_linear
    layer.add(gemm(config, "qkv_proj", width, inputs * config.hidden_size, "column", form(f"{module}.qkv_proj")))
    layer.add(node)
    if gated:
        layer.add(gate("attn_gate", node.n_q * value, config))
    layer.add(gemm(config, "o_proj", config.hidden_size, node.n_q * value, "row", form(f"{module}.o_proj")))
    layer.add(all_reduce("attn_out"))


def dense_mlp(
    layer: Layer, config: Config, module: str, width: int, *, gated: bool = True, after: Sequence[int] | None = None
) -> None:
    """An MLP of inner ``width``, its gate fused with the up projection where it has one, and its reduction."""
    form, hidden = config.weights.of_linear, config.hidden_size
    name, inner = ("gate_up_proj", 2 * width) if gated else ("up_proj", width)
    layer.add(gemm(config, name, inner, hidden, "column", form(f"{module}.{name}")), after)
    layer.add(gemm(config, "down_proj", hidden, width, "row", form(f"{module}.down_proj")))
    layer.add(all_reduce("mlp_out"))


class LatentExperts(msgspec.Struct, frozen=True, kw_only=True):
    """Routed experts that work on a narrower stream: ``width`` of it, and the projections into and out of it.

    ``down`` and ``up`` are their modules, on every rank whole. ``summed_first``: the ranks' narrow results are summed
    (and normed, where ``normed`` says so) before ``up`` widens them, and the shared experts' are summed after; else
    ``up`` runs before the one sum.
    """

    width: int
    down: str
    up: str
    summed_first: bool = False
    normed: bool = False


class MoE(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of experts: ``count`` routed experts of inner ``width``, ``top_k`` of them for each token.

    ``module`` is its name in the checkpoint. ``gated`` is whether an expert multiplies an up projection with a gate.
    ``shared_width`` is the inner width of all shared experts together, 0 where there are none, and ``shared_gate``
    whether each token weighs them. ``latent`` is where the routed experts work on a narrower stream. ``router`` is the
    gate's format where it is not the model's own dtype. ``reduce`` is the emit condition of the sum after it,
    ``split`` how its nodes divide under the model's own sequence parallelism.
    """

    module: str
    count: int
    top_k: int
    width: int
    gated: bool = True
    shared_width: int = 0
    shared_module: str = "shared_experts"
    shared_gate: bool = False
    latent: LatentExperts | None = None
    router: Format | None = None
    reduce: str = UNLESS_SP_MOE
    reduce_role: str = "mlp_out"
    split: str | None = None


def read_top_k(config: Config, key: str, count: int) -> int:
    """Experts for each token, at most as many as there are."""
    top_k = config.text.integer(key)
    if top_k > count:
        config.text.refuse(key, f"is {top_k} of {count} experts; state at most as many as there are")
    return top_k


def read_gated_moe(config: Config, module: str, reduce: str) -> MoE:
    """Experts beside a shared one behind a gate of its own, as Qwen's configurations state them."""
    text = config.text
    count = text.integer("num_experts")
    return MoE(
        module=module,
        count=count,
        top_k=read_top_k(config, "num_experts_per_tok", count),
        width=text.integer("moe_intermediate_size"),
        shared_width=text.integer("shared_expert_intermediate_size", minimum=0),
        shared_module="shared_expert",
        shared_gate=True,
        reduce=reduce,
    )


def experts(layer: Layer, config: Config, moe: MoE) -> None:
    """Router, routed experts and their dispatch, shared experts beside them where there are any, and the sum.

    The experts' two grouped multiplies are two nodes: up, with the gate fused where there is one, then down.
    """
    hidden, split, latent = config.hidden_size, moe.split, moe.latent
    entry = layer.last
    router = gemm(config, "router", moe.count, hidden, "replicated", moe.router or config.weights.plain, split)
    before = [layer.add(router)]
    if latent is not None:
        form = config.weights.of_linear(f"{moe.module}.{latent.down}")
        before.append(layer.add(gemm(config, latent.down, latent.width, hidden, "replicated", form, split), [entry]))
    name = "gate_up" if moe.gated else "up"
    inner = 2 * moe.width if moe.gated else moe.width
    dtype, scale = own_format(config, config.weights.of_experts(f"{moe.module}.experts"))
    narrow = hidden if latent is None else latent.width
    for role, n, k in ((f"experts_{name}", inner, hidden), ("experts_down", narrow, moe.width)):
        grouped = GroupedGEMM(
            role=role,
            n=n,
            k=k,
            experts=moe.count,
            top_k=moe.top_k,
            latent_size=narrow if latent is not None and k == hidden else None,
            weight_dtype=dtype,
            weight_scale=scale,
            under_sequence_parallel=split,
        )
        before = [layer.add(grouped, before)]
    ends = [layer.add(All2All(role="moe_dispatch_combine", emit="expert_parallel"))]
    if latent is not None:
        ends = [_widened(layer, config, moe, latent)]
    if moe.shared_width:
        ends.append(_shared_experts(layer, config, moe, name, entry))
    layer.add(all_reduce(moe.reduce_role, moe.reduce), ends)


def _widened(layer: Layer, config: Config, moe: MoE, latent: LatentExperts) -> int:
    """The routed experts' narrow result brought back to the model's width."""
    if latent.summed_first:
        width = latent.width * DTYPE_BITS[config.dtype] // 8
        layer.add(AllReduce(role="latent_out", emit=moe.reduce, bytes_per_token=width))
    if latent.normed:
        layer.add(norm_of("latent_norm", latent.width, config))
    form = config.weights.of_linear(f"{moe.module}.{latent.up}")
    return layer.add(gemm(config, latent.up, config.hidden_size, latent.width, "replicated", form, moe.split))


def _shared_experts(layer: Layer, config: Config, moe: MoE, name: str, entry: int) -> int:
    """The experts every token passes through, as one plain MLP."""
    form, hidden, split = config.weights.of_linear, config.hidden_size, moe.split
    module = f"{moe.module}.{moe.shared_module}"
    inner = 2 * moe.shared_width if moe.gated else moe.shared_width
    up = form(f"{module}.{name}_proj")
    layer.add(gemm(config, f"shared_{name}_proj", inner, hidden, "column", up, split), [entry])
    down = form(f"{module}.down_proj")
    end = layer.add(gemm(config, "shared_down_proj", hidden, moe.shared_width, "row", down, split))
    if not moe.shared_gate:
        return end
    weigh = gemm(config, f"{moe.shared_module}_gate", 1, hidden, "replicated", config.weights.plain, split)
    return layer.add(weigh, [entry, end])


def padded_vocab(config: Config, tokens: int | None = None) -> int:
    """Rows of the vocabulary table as the engine allocates it; of a table of ``tokens`` where it is another."""
    return -(-(tokens or config.vocab_size) // VOCAB_PADDING) * VOCAB_PADDING


def embedding(config: Config) -> tuple[AnyNode, ...]:
    """The vocabulary lookup: each rank looks up the rows it holds and the results are summed."""
    row = config.hidden_size * DTYPE_BITS[config.dtype] // 8
    rows = padded_vocab(config)
    table = Gather(
        role="embed_tokens", rows=rows, row_bytes=row, rows_per_token=1, out_bytes_per_token=row, shard="rows"
    )
    return (table, all_reduce("embed_out"))


def head(config: Config) -> tuple[AnyNode, ...]:
    """The final norm and the LM head, which reads the vocabulary table where the two are tied."""
    n, k = padded_vocab(config), config.hidden_size
    if config.tie_word_embeddings:
        lm_head = GEMM(role="lm_head", n=n, k=k, tp="column", aliases="embedding.embed_tokens")
    else:
        lm_head = gemm(config, "lm_head", n, k, "column", config.weights.of_head())
    return (norm("final_norm"), lm_head)


def per_layer(config: Config, key: str, stated: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """One type for each layer, checked: as many as there are layers, and each of the ``known`` ones."""
    if len(stated) != config.layers:
        config.text.refuse(key, f"lists {len(stated)} layers and num_hidden_layers is {config.layers}; list each layer")
    for position, name in enumerate(stated):
        if name not in known:
            config.text.refuse(key, f"entry {position} is {name!r}; known are {', '.join(known)}")
    return tuple(stated)
