"""A family's parts and a configuration's facts put together as one graph."""

from __future__ import annotations

from typing import Final

from rulespack.derive.config import Config
from rulespack.derive.document import Document
from rulespack.derive.family import Parts
from rulespack.derive.layers import fold
from rulespack.derive.lengths import context_window
from rulespack.graph.model import DerivedFrom, Global, ModelGraph, Multimodal, Positions
from rulespack.graph.vocabulary import DEFAULT_MODALITY, KIND

#: Raised whenever the same configuration would derive to another graph.
DERIVER_VERSION: Final = 1
MULTIMODAL: Final = "text_decoder_of_multimodal"


def assemble(name: str, document: Document, config: Config, parts: Parts) -> ModelGraph:
    """The graph of one model. ``derived_from`` names the file as it stands in its own folder."""
    folded = fold(parts.layers)
    window = context_window(config.positions, config.model_type)
    encoders = config.served.multimodal
    stated = config.positions != Positions()
    return ModelGraph(
        kind=KIND,
        name=name,
        derived_from=DerivedFrom(
            format=document.format,
            path=document.path.name,
            sha256=document.sha256,
            deriver_version=DERIVER_VERSION,
            hf_overrides=document.overrides,
        ),
        globals_=Global(
            architecture=config.architecture,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            tie_word_embeddings=config.tie_word_embeddings,
            weight_dtype=config.weights.stored.dtype,
            weight_scale=config.weights.stored.scale,
            context_window=window.longest,
            default_context_window=window.default,
            dtype=config.dtype,
            positions=config.positions if stated else None,
            quantization=config.weights.facts,
            multimodal=Multimodal(prefix_lm=parts.prefix_lm, max_item_tokens=parts.max_item_tokens)
            if encoders
            else None,
            draft=parts.draft,
        ),
        layer_kinds=folded.kinds + parts.draft_kinds,
        stack=folded.stack,
        embedding=parts.embedding,
        head=parts.head,
        speculator=parts.speculator,
        arch_overrides=parts.arch_overrides,
        base_capability_families=parts.base_capability_families,
        modality=MULTIMODAL if encoders else DEFAULT_MODALITY,
    )
