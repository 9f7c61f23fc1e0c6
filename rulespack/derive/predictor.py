"""Multi-token prediction: the draft modules a checkpoint carries beside its layers.

Source: 0.31.0, model_executor/models/deepseek_mtp.py and its kin: a module norms the embedding of the last token and
the target's hidden state, projects the two together back to one width, and runs decoder layers on the result. Its
tables are the target's: v1/spec_decode/llm_base_proposer.py, _maybe_share_embeddings and _maybe_share_lm_head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from rulespack.derive.blocks import all_reduce, gemm, norm, padded_vocab
from rulespack.derive.config import Config
from rulespack.derive.layers import Layer, fold
from rulespack.graph.model import GEMM, AllReduce, AnyNode, Gather, LayerKind, Speculator, Stack
from rulespack.graph.vocabulary import DTYPE_BITS

COUNT: Final = "num_nextn_predict_layers"
EMBEDDING: Final = "embedding.embed_tokens"


class Predictor(msgspec.Struct, frozen=True):
    """The layer kinds of a draft module and how it runs; neither where a checkpoint carries none."""

    kinds: tuple[LayerKind, ...] = ()
    speculator: Speculator | None = None


NONE: Final = Predictor()


def module_count(config: Config, key: str = COUNT, *, default: int = 0) -> int:
    """How many modules a configuration states; ``default`` where it leaves the key out, none where it is null."""
    if not config.text.states(key):
        return default
    return config.text.optional_integer(key, minimum=0) or 0


def predictor_layer(config: Config, label: str) -> Layer:
    """A layer that starts with what a module does before its decoder layer: two norms, and one projection of both."""
    hidden = config.hidden_size
    layer = Layer(f"mtp_{label}")
    norms = [layer.add(norm("mtp_enorm"), []), layer.add(norm("mtp_hnorm"), [])]
    layer.add(gemm(config, "mtp_eh_proj", hidden, 2 * hidden, "replicated", config.weights.plain), norms)
    return layer


def predictor(
    config: Config, layers: Sequence[Layer], modules: int | None = None, before_norm: tuple[AnyNode, ...] = ()
) -> Predictor:
    """The predictor whose ``modules`` hold these layers one after another; one layer each where it is left out.

    No layers, no predictor. It drafts one token with each module. ``before_norm`` is what runs between a module's last
    layer and the final norm.
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
        embedding=draft_lookup(config, "mtp"),
        stack=Stack(pattern=names, repeat=1),
        head=(*before_norm, norm("mtp_final_norm"), draft_lm_head(config, "mtp")),
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
