"""Multi-token prediction: the draft modules a checkpoint carries beside its layers.

Source: 0.31.0, model_executor/models/deepseek_mtp.py and its kin: a module norms the embedding of the last token and
the target's hidden state, projects the two together back to one width, and runs decoder layers on the result. Its
tables are the target's: v1/spec_decode/llm_base_proposer.py, _maybe_share_embeddings and _maybe_share_lm_head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from rulespack.derive.blocks import TENSOR_PARALLEL, all_reduce, gemm, norm, padded_vocab
from rulespack.derive.config import Config
from rulespack.derive.layers import Layer, fold
from rulespack.derive.weights import Format
from rulespack.graph.model import GEMM, AllGather, AllReduce, AnyNode, Gather, LayerKind, Speculator, Stack
from rulespack.graph.vocabulary import DTYPE_BITS

COUNT: Final = "num_nextn_predict_layers"
PROJECTION: Final = "mtp_eh_proj"
EMBEDDING: Final = "embedding.embed_tokens"


class Predictor(msgspec.Struct, frozen=True):
    """The layer kinds of a draft module and how it runs; neither where a checkpoint carries none."""

    kinds: tuple[LayerKind, ...] = ()
    speculator: Speculator | None = None


NONE: Final = Predictor()
FINAL_NORM: Final = (norm("mtp_final_norm"),)


def module_count(config: Config, key: str = COUNT, *, default: int = 0) -> int:
    """How many modules a configuration states; ``default`` where it leaves the key out, none where it is null."""
    if not config.text.states(key):
        return default
    return config.text.optional_integer(key, minimum=0) or 0


def predictor_layer(config: Config, label: str, form: Format | None = None, *, gathered: bool = False) -> Layer:
    """A layer that starts with what a module does before its decoder layer: two norms, and one projection of both.

    The projection keeps the model's own dtype but for another ``form``, and is whole on every rank; where it is
    ``gathered``, ranks share it and put its result together.
    """
    layer = Layer(f"mtp_{label}")
    enorm, hnorm, *projection = joined(config, form, gathered=gathered)
    before = [layer.add(enorm, []), layer.add(hnorm, [])]
    for node in projection:
        before = [layer.add(node, before)]
    return layer


def joined(config: Config, form: Format | None = None, *, gathered: bool = False) -> tuple[AnyNode, ...]:
    """The two norms and the projection by themselves, for classes whose modules share them."""
    hidden = config.hidden_size
    norms = norm("mtp_enorm"), norm("mtp_hnorm")
    tp = "column" if gathered else "replicated"
    projection = gemm(config, PROJECTION, hidden, 2 * hidden, tp, form or config.weights.plain)
    if not gathered:
        return *norms, projection
    row = hidden * DTYPE_BITS[config.dtype] // 8
    return *norms, projection, AllGather(role="mtp_eh_out", emit=TENSOR_PARALLEL, bytes_per_token=row)


def predictor(
    config: Config,
    layers: Sequence[Layer],
    modules: int | None = None,
    lookup: tuple[AnyNode, ...] | None = None,
    before_layers: tuple[AnyNode, ...] = (),
    after_layers: tuple[AnyNode, ...] = FINAL_NORM,
) -> Predictor:
    """The predictor whose ``modules`` hold these layers one after another; one layer each where it is left out.

    No layers, no predictor. It drafts one token with each module. ``lookup`` is its token lookup where it is not one in
    the target's table, divided over ranks. ``before_layers`` and ``after_layers`` are what all
    modules share between the lookup and their first layer, and between their last layer and the LM head.
    """
    if not layers:
        return NONE
    folded = fold(layers)
    stack = folded.stack
    names = stack.prologue + stack.pattern * stack.repeat + stack.epilogue
    count = len(layers) if modules is None else modules
    speculator = Speculator(
        method="mtp",
        num_spec_tokens=count,
        modules=count,
        embedding=(*(lookup or draft_lookup(config, "mtp")), *before_layers),
        stack=Stack(pattern=names, repeat=1),
        head=(*after_layers, draft_lm_head(config, "mtp")),
    )
    return Predictor(folded.kinds, speculator)


def draft_lookup(config: Config, method: str) -> tuple[Gather, AllReduce]:
    """The draft's token lookup, in the target's table."""
    row = config.hidden_size * DTYPE_BITS[config.dtype] // 8
    table = Gather(
        role=f"{method}_embed_tokens",
        rows=padded_vocab(config),
        row_bytes=row,
        rows_per_token=1,
        out_bytes_per_token=row,
        shard="rows",
        aliases=EMBEDDING,
    )
    return table, all_reduce(f"{method}_embed_out")


def draft_lm_head(config: Config, method: str) -> GEMM:
    """The draft's LM head, which is the target's."""
    aliases = EMBEDDING if config.tie_word_embeddings else "head.lm_head"
    return GEMM(role=f"{method}_lm_head", n=padded_vocab(config), k=config.hidden_size, tp="column", aliases=aliases)
