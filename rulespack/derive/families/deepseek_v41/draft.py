"""DSpark, the drafter inside a DeepSeek V4.1 checkpoint: a few layers that draft a whole block in one pass.

Before the pass each draft layer projects the target's hidden states, over every token the target ran, into its window
cache; after it a small sequential head corrects the block token by token.
"""

from __future__ import annotations

from rulespack.derive.blocks import all_reduce, gemm, norm, norm_of, padded_vocab
from rulespack.derive.config import Config
from rulespack.derive.families.deepseek_v41.layer import collapsed, whole_layer
from rulespack.derive.families.deepseek_v41.shape import RECORD, Shape
from rulespack.derive.grouped_latent import BF16, SP
from rulespack.derive.layers import Layer
from rulespack.derive.weights import Format
from rulespack.graph.model import GEMM, AllGather, Elementwise, Gather, LayerKind, Speculator, Stack

CONTEXT = "dspark_context"


def _names(shape: Shape) -> tuple[str, ...]:
    return tuple(f"dspark_{number}" for number in range(shape.draft_layers))


def draft_kinds(config: Config, shape: Shape) -> tuple[LayerKind, ...]:
    """One kind for each draft layer, which the context work reads the weights of, and the context work's own."""
    if shape.draft_top_k > shape.draft_experts:
        config.text.refuse("dspark_num_experts_per_tok", f"is {shape.draft_top_k} of {shape.draft_experts} experts")
    kinds = []
    for number, name in enumerate(_names(shape)):
        layer = Layer(name)
        index = config.layers + number
        # A draft query reads its whole block, not only what comes before it.
        window = shape.window + shape.draft_tokens
        whole_layer(layer, config, shape, index, shape.draft_experts, shape.draft_top_k, window)
        kinds.append(layer.kind(name))
    return (*kinds, _context(config, shape).kind(CONTEXT))


def _context(config: Config, shape: Shape) -> Layer:
    """The target's hidden states gathered, projected, and made into each draft layer's window entries."""
    hidden, width = config.hidden_size, shape.width
    low = shape.query_rank + width
    layer = Layer(CONTEXT)
    layer.add(AllGather(role="main_hidden", emit=SP, bytes_per_token=shape.draft_targets * hidden * BF16))
    form = config.weights.of_linear("main_proj")
    layer.add(gemm(config, "main_proj", hidden, shape.draft_targets * hidden, "replicated", form))
    main = layer.add(norm_of("main_norm", hidden, config))
    for number, name in enumerate(_names(shape)):
        aliased = f"{name}.fused_wqa_wkv"
        role = f"context_wqa_wkv_{number}"
        layer.add(GEMM(role=role, n=low, k=hidden, tp="replicated", aliases=aliased), [main])
        # Normed, then rotated, quantized and written as one record of the draft layer's window cache.
        moved = 3 * width * BF16 + RECORD
        layer.add(Elementwise(role=f"context_kv_store_{number}", tp="replicated", bytes_per_token=moved))
    return layer


def speculator(config: Config, shape: Shape) -> Speculator:
    """How the drafter runs."""
    hidden, vocab = config.hidden_size, padded_vocab(config)
    row = hidden * BF16
    lookup = Gather(
        role="dspark_embed_tokens",
        rows=vocab,
        row_bytes=row,
        rows_per_token=1,
        out_bytes_per_token=row,
        shard="rows",
        aliases="embedding.embed_tokens",
    )
    markov = shape.markov_rank * BF16
    return Speculator(
        method="dspark",
        num_spec_tokens=shape.draft_tokens,
        drafting="parallel_block",
        # The draft's rows are summed before its stream is sharded, so the sum runs under sequence parallelism too.
        embedding=(lookup, all_reduce("dspark_embed_out")),
        stack=Stack(pattern=_names(shape), repeat=1),
        context_stack=Stack(pattern=(CONTEXT,), repeat=1),
        head=(
            *collapsed(config, shape, "dspark_"),
            AllGather(role="dspark_hidden_out", emit=SP),
            norm("dspark_final_norm"),
            GEMM(role="dspark_lm_head", n=vocab, k=hidden, tp="column", aliases="head.lm_head"),
        ),
        sequential_head=(
            Gather(
                role="markov_w1",
                rows=config.vocab_size,
                row_bytes=markov,
                rows_per_token=1,
                out_bytes_per_token=markov,
            ),
            gemm(config, "markov_w2", vocab, shape.markov_rank, "replicated", config.weights.plain),
            gemm(config, "confidence_head", 1, hidden + shape.markov_rank, "replicated", Format("fp32")),
        ),
    )
