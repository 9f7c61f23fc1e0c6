"""An input of its own for every layer: rows of a second vocabulary table, joined with a projection of the embedding.

Source: 0.31.0, model_executor/models/gemma3n.py, gemma4.py.
"""

from __future__ import annotations

from rulespack.derive.blocks import TENSOR_PARALLEL, VOCAB_PADDING, gate, gemm, norm
from rulespack.derive.config import Config
from rulespack.derive.layers import Layer
from rulespack.graph.model import AllGather, AllReduce, AnyNode, Elementwise, Gather
from rulespack.graph.vocabulary import DTYPE_BITS


def layer_input_embedding(config: Config, width: int, vocabulary: int) -> tuple[AnyNode, ...]:
    """Before the stack: each token's row holds ``width`` values for every layer."""
    values = config.layers * width
    row = values * DTYPE_BITS[config.dtype] // 8
    table = Gather(
        role="embed_tokens_per_layer",
        rows=-(-vocabulary // VOCAB_PADDING) * VOCAB_PADDING,
        row_bytes=row,
        rows_per_token=1,
        out_bytes_per_token=row,
        shard="rows",
    )
    form = config.weights.of_linear("per_layer_model_projection")
    return (
        table,
        AllReduce(role="embed_per_layer_out", emit=TENSOR_PARALLEL, bytes_per_token=row),
        gemm(config, "per_layer_model_projection", values, config.hidden_size, "column", form),
        AllGather(role="per_layer_inputs", emit=TENSOR_PARALLEL, bytes_per_token=row),
        Elementwise(role="per_layer_norm_add", bytes_per_token=3 * row),
    )


def layer_input(layer: Layer, config: Config, module: str, width: int) -> None:
    """At a layer's end: the stream gates the layer's input, which is projected, normed and added."""
    form, hidden = config.weights.of_linear, config.hidden_size
    name = "per_layer_input_gate"
    layer.add(gemm(config, name, width, hidden, "replicated", form(f"{module}.{name}")))
    layer.add(gate("per_layer_gated", width, config))
    name = "per_layer_projection"
    layer.add(gemm(config, name, hidden, width, "replicated", form(f"{module}.{name}")))
    layer.add(norm("post_per_layer_norm"))
