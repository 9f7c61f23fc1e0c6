"""The closed lists of the graph schema: what a key may say, one place.

Every list is ordered as it is shown to people. Membership is exact; nothing here is case-folded. Entries marked
"ours" extend the schema text and are documented in ``docs/graph.md``.
"""

from __future__ import annotations

from typing import Final

KIND: Final = "ModelGraph"

#: Storage formats of weights and states, with the payload of one element in bits.
DTYPE_BITS: Final = {"bf16": 16, "fp16": 16, "fp32": 32, "fp8": 8, "nvfp4": 4, "mxfp4": 4, "int8": 8, "int4": 4}
DTYPES: Final = tuple(DTYPE_BITS)

#: Formats a model can compute in (``global.dtype``): what an ``auto`` KV cache stores.
MODEL_DTYPES: Final = ("bf16", "fp16", "fp32")

#: Scale layouts a format carries by itself: (weight elements sharing one scale, bytes of one scale).
IMPLIED_SCALES: Final = {"nvfp4": (16, 1), "mxfp4": (32, 1)}

MODALITIES: Final = ("text_only", "text_decoder_of_multimodal")
DEFAULT_MODALITY: Final = "text_only"

PRIMITIVES: Final = (
    "GEMM",
    "GroupedGEMM",
    "Attention",
    "RecurrentUpdate",
    "Elementwise",
    "Gather",
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "All2All",
)
COLLECTIVES: Final = ("AllReduce", "AllGather", "ReduceScatter", "All2All")

#: ``chunked`` is ours: causal attention cut into chunks of ``attention_chunk_size`` tokens (Llama 4).
ATTENTION_KINDS: Final = ("gqa", "mla", "sparse_mla", "swa", "chunked")
LATENT_KINDS: Final = ("mla", "sparse_mla")
#: ``mamba1``, ``short_conv`` (LFM2) and ``lightning`` (Bailing, Ling) are ours.
RECURRENT_KINDS: Final = ("mamba2", "kda", "gdn", "mamba1", "short_conv", "lightning")
CACHE_KINDS: Final = ("kv", "window", "index", "state")

EMIT_CONDITIONS: Final = (
    "tensor_parallel",
    "expert_parallel",
    "sequence_parallel",
    "tensor_parallel_unless_sequence_parallel",
    "tensor_parallel_unless_sp_moe",
)
#: Conditions on the model's own sequence parallelism, which is keyed on ``global.architecture``.
ARCHITECTURE_CONDITIONS: Final = ("sequence_parallel", "tensor_parallel_unless_sequence_parallel")

#: Tensor-parallel layouts each primitive accepts; a primitive not listed takes none.
TP_LAYOUTS: Final = {
    "GEMM": ("column", "row", "replicated"),
    "Elementwise": ("replicated",),
    "Attention": ("replicated",),
    "RecurrentUpdate": ("replicated",),  # ours: a state every rank keeps whole
}
SPLITS: Final = ("token_sharded",)

RESIDENCIES: Final = ("device", "host")
DEFAULT_RESIDENCY: Final = "device"
SHARDS: Final = ("rows", "heads", "replicated")

CONTEXT_UNITS: Final = ("query_token", "request")
PHASES: Final = ("prefill",)
DECODE_EXTENTS: Final = ("max_model_len",)
DRAFTING_MODES: Final = ("parallel_block",)

SHA256_LENGTH: Final = 64
