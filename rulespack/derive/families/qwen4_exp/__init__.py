"""Qwen4-exp: gated delta nets, sparse attention over compressed keys, n-gram embeddings, gated hyper-connections.

Source: 0.31.0, models/qwen4_exp/config.py, models/qwen4_exp/nvidia/{model,mtp,qsa,indexer_qsa,hyperconnection,
ple_layer,ngram_embedding}.py, common/qsa_cache.py; class defaults from models/qwen4_exp/config.py and
transformers_utils/configs/qwen3_next.py.
"""

from __future__ import annotations

from typing import Final

from rulespack.derive.blocks import (
    TENSOR_PARALLEL,
    dense_mlp,
    embedding,
    experts,
    gemm,
    head,
    norm_of,
    per_layer,
    read_gated_moe,
)
from rulespack.derive.config import Config, Served
from rulespack.derive.families.qwen4_exp.attention import full_attention, read_indexer
from rulespack.derive.families.qwen4_exp.ngrams import ngram_embedding, read_ngrams
from rulespack.derive.family import Family, Parts
from rulespack.derive.layers import Layer
from rulespack.derive.predictor import module_count, predictor
from rulespack.derive.recurrent import delta_net, read_delta_net, state_dtype
from rulespack.graph.model import AllGather, AnyNode, Elementwise
from rulespack.graph.vocabulary import DTYPE_BITS

LINEAR: Final = "linear_attention"
FULL: Final = ("full_attention", "qwen_sparse_attention")
INTERVAL: Final = 4
STREAMS, LOW_RANK = 4, 320
#: What the rows of the fused mixing projection are padded to.
ALIGNMENT: Final = 16


def build(config: Config) -> Parts:
    """Each layer by its type; listed ones begin with an n-gram embedding."""
    text = config.text
    streams = text.integer("hc_count", minimum=2, default=STREAMS)
    shape = read_delta_net(config, state_dtype(config, "mamba_ssm_dtype", None))
    indexer, ngrams = read_indexer(config), read_ngrams(config, streams)

    def add_layer(layer: Layer, index: int, kind: str, module: str) -> Layer:
        if index in ngrams:
            layer.add(_combined(config, streams, "ngram"))
            ngram_embedding(layer, config, ngrams[index], f"{module}.ple")
        _mixed(layer, config, streams, "attn")
        if kind == LINEAR:
            delta_net(layer, config, f"{module}.linear_attn", shape)
        else:
            full_attention(layer, config, f"{module}.self_attn", indexer)
        _mixed(layer, config, streams, "mlp")
        if _is_sparse(config, index):
            # The engine refuses its sequence-parallel MoE for this class, so the sum always follows.
            experts(layer, config, read_gated_moe(config, f"{module}.mlp", TENSOR_PARALLEL))
        else:
            dense_mlp(layer, config, f"{module}.mlp", text.integer("intermediate_size"))
        return layer

    def label(index: int, kind: str) -> str:
        name = f"{'gdn' if kind == LINEAR else 'full'}_{'moe' if _is_sparse(config, index) else 'dense'}"
        return f"{name}_ngram" if index in ngrams else name

    layers = [
        add_layer(Layer(label(index, kind)), index, kind, f"layers.{index}")
        for index, kind in enumerate(_types(config))
    ]
    drafts = [
        add_layer(Layer(f"mtp_{label(index, FULL[0])}"), index, FULL[0], f"mtp.layers.{index - config.layers}")
        for index in range(config.layers, config.layers + module_count(config, "mtp_num_hidden_layers", default=1))
    ]
    draft = predictor(
        config,
        drafts,
        before_layers=_draft_inputs(config, streams),
        after_layers=_collapsed(config, streams, "mtp_final"),
    )
    return Parts(
        layers=layers,
        embedding=embedding(config),
        head=(*_collapsed(config, streams, "final"), head(config)[-1]),
        draft_kinds=draft.kinds,
        speculator=draft.speculator,
    )


def _draft_inputs(config: Config, streams: int) -> tuple[AnyNode, ...]:
    """What the draft's layers start from: the target's streams, each projected, and the token's projection in all."""
    hidden, form = config.hidden_size, config.weights.of_linear
    row = hidden * DTYPE_BITS[config.dtype] // 8
    return (
        norm_of("mtp_enorm", hidden, config),
        gemm(config, "mtp_fc_embedding", hidden, hidden, "column", form("mtp.fc_embedding")),
        AllGather(role="mtp_fc_embedding_out", emit=TENSOR_PARALLEL, bytes_per_token=row),
        norm_of("mtp_hnorm", streams * hidden, config),
        gemm(config, "mtp_fc_hidden", hidden, hidden, "column", form("mtp.fc_hidden")),
        AllGather(role="mtp_fc_hidden_out", emit=TENSOR_PARALLEL, bytes_per_token=streams * row),
        Elementwise(role="mtp_streams_in", bytes_per_token=(1 + 2 * streams) * row),
    )


def _types(config: Config) -> tuple[str, ...]:
    listed = config.text.optional_strings("layer_types")
    if listed is not None:
        return per_layer(config, "layer_types", listed, (LINEAR, *FULL))
    interval = config.text.integer("full_attention_interval", default=INTERVAL)
    if interval != INTERVAL:
        config.text.refuse(
            "full_attention_interval", f"is {interval}, and the engine takes {INTERVAL}; list layer_types"
        )
    return tuple(LINEAR if (index + 1) % interval else FULL[0] for index in range(config.layers))


def _is_sparse(config: Config, index: int) -> bool:
    text = config.text
    step = text.integer("decoder_sparse_step", default=1)
    listed = text.optional_integers("mlp_only_layers") or ()
    return bool(text.optional_integer("num_experts", minimum=0)) and index not in listed and (index + 1) % step == 0


def _combined(config: Config, streams: int, half: str) -> Elementwise:
    """The half before added to every stream, each stream normed."""
    moved = (1 + 3 * streams) * config.hidden_size * DTYPE_BITS[config.dtype] // 8
    return Elementwise(role=f"hc_{half}_combine_norm", bytes_per_token=moved)


def _mixed(layer: Layer, config: Config, streams: int, half: str, *, last: bool = False) -> None:
    """Before a half: gates of every stream from a low rank of them all, and their gated mean.

    The weights the half's output is added with come from the same projection; after the last half there are none.
    """
    rank, width = config.text.integer("hc_lowrank", default=LOW_RANK), streams * config.hidden_size
    plain, element = config.weights.plain, DTYPE_BITS[config.dtype] // 8
    layer.add(_combined(config, streams, half))
    rows = rank if last else -(-(rank + streams) // ALIGNMENT) * ALIGNMENT
    layer.add(gemm(config, f"hc_{half}_down", rows, width, "replicated", plain))
    layer.add(gemm(config, f"hc_{half}_up", width, rank, "replicated", plain))
    moved = (2 * streams + 1) * config.hidden_size * element
    layer.add(Elementwise(role=f"hc_{half}_gate_mix", bytes_per_token=moved))


def _collapsed(config: Config, streams: int, half: str) -> tuple[AnyNode, ...]:
    """The streams mixed once more, which takes the final norm's place."""
    layer = Layer(half)
    _mixed(layer, config, streams, half, last=True)
    return tuple(layer.nodes)


FAMILY = Family(
    serves={
        "Qwen4ExpForCausalLM": Served(kv_heads=2, head_dim=256, max_positions=32768),
        "Qwen4ExpForConditionalGeneration": Served(kv_heads=2, head_dim=256, multimodal=True, max_positions=32768),
    },
    build=build,
)
