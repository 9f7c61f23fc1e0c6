"""What a DeepSeek V4 checkpoint drafts with: DSpark where it holds one, else multi-token prediction.

Source: 0.31.0, models/deepseek_v4/nvidia/{dspark,mtp}.py, model_executor/models/qwen3_dspark.py (the sequential
heads). Draft layers have windows only, whatever ``compress_ratios`` lists past the last layer. A checkpoint with
DSpark can be asked for ``mtp`` too, and then runs one of the same layers; the graph states DSpark.
"""

from __future__ import annotations

from typing import Final

from rulespack.derive.blocks import gemm, norm, norm_of, padded_vocab
from rulespack.derive.config import Config
from rulespack.derive.families.deepseek_v4.layer import SHARDED, draft_streams_folded, whole_layer
from rulespack.derive.families.deepseek_v4.shape import RECORD, Shape, Spark
from rulespack.derive.grouped_latent import BF16
from rulespack.derive.layers import Layer
from rulespack.derive.predictor import FINAL_NORM, Predictor, draft_lm_head, draft_lookup, module_count, predictor
from rulespack.derive.weights import Format
from rulespack.graph.model import AnyNode, Elementwise, Gather, Speculator, Stack

LAYER: Final = "dspark"
CONTEXT: Final = "dspark_context"


def drafter(config: Config, shape: Shape, top_k: int) -> Predictor:
    """The draft module's kinds and how it runs."""
    if shape.spark is not None:
        return _spark(config, shape, shape.spark, top_k)
    past = range(config.layers, config.layers + module_count(config, default=1))
    layers = [_predicting(config, shape, index, top_k) for index in past]
    return predictor(config, layers, after_layers=(*draft_streams_folded(config, shape, "mtp_"), *FINAL_NORM))


def _predicting(config: Config, shape: Shape, index: int, top_k: int) -> Layer:
    """One module: both inputs normed in one launch and projected apart, the token's into each of the streams."""
    hidden, streams = config.hidden_size, shape.streams
    layer = Layer("mtp_swa")
    normed = layer.add(norm_of("mtp_input_norms", (1 + streams) * hidden, config))
    form = config.weights.of_linear
    projections = []
    for name in ("e_proj", "h_proj"):
        stored = form(f"layers.{index}.{name}")
        node = gemm(config, f"mtp_{name}", hidden, hidden, "replicated", stored, SHARDED)
        projections.append(layer.add(node, [normed]))
    moved = (1 + 2 * streams) * hidden * BF16
    layer.add(Elementwise(role="mtp_streams_in", bytes_per_token=moved, under_sequence_parallel=SHARDED), projections)
    whole_layer(layer, config, shape, index, top_k, 0, shape.window)
    return layer


def _spark(config: Config, shape: Shape, spark: Spark, top_k: int) -> Predictor:
    """DSpark: a few layers draft a whole block in one pass, a small sequential head corrects it token by token."""
    layer = Layer(LAYER)
    # A draft query reads its whole block, not only what comes before it.
    whole_layer(layer, config, shape, config.layers, top_k, 0, shape.window + spark.tokens)
    speculator = Speculator(
        method="dspark",
        num_spec_tokens=spark.tokens,
        drafting="parallel_block",
        embedding=draft_lookup(config, LAYER),
        stack=Stack(pattern=(LAYER,) * spark.layers, repeat=1),
        context_stack=Stack(pattern=(CONTEXT,), repeat=1),
        head=(
            *draft_streams_folded(config, shape, f"{LAYER}_"),
            norm(f"{LAYER}_final_norm"),
            draft_lm_head(config, LAYER),
        ),
        sequential_head=_sequential(config, spark),
    )
    return Predictor((layer.kind(LAYER), _context(config, shape, spark).kind(CONTEXT)), speculator)


def _context(config: Config, shape: Shape, spark: Spark) -> Layer:
    """The target's hidden states projected, then made into the window entries of all draft layers by one multiply."""
    hidden, width = config.hidden_size, shape.width
    form = config.weights.of_linear
    layer = Layer(CONTEXT)
    layer.add(gemm(config, "main_proj", hidden, spark.targets * hidden, "replicated", form("main_proj")))
    layer.add(norm_of("main_norm", hidden, config))
    entries = spark.layers * width
    stored = layer.add(gemm(config, "context_wkv_proj", entries, hidden, "replicated", form("context_wkv_proj")))
    # Normed, then rotated, quantized and written as one record of each draft layer's window cache.
    moved = 3 * width * BF16 + RECORD
    for number in range(spark.layers):
        store = Elementwise(role=f"context_kv_store_{number}", tp="replicated", bytes_per_token=moved)
        layer.add(store, [stored])
    return layer


def _sequential(config: Config, spark: Spark) -> tuple[AnyNode, ...]:
    """A row for the token before, a bias for every token from it, and how sure the draft is."""
    rank = spark.markov_rank
    row = rank * BF16
    table = Gather(role="markov_w1", rows=config.vocab_size, row_bytes=row, rows_per_token=1, out_bytes_per_token=row)
    bias = gemm(config, "markov_w2", padded_vocab(config), rank, "replicated", config.weights.plain)
    if not spark.confidence:
        return table, bias
    return table, bias, gemm(config, "confidence_head", 1, config.hidden_size + rank, "replicated", Format("fp32"))
