"""The graph schema as frozen classes: a model as the work one forward pass launches.

One class for each table of the schema and one for each primitive, so a key that means nothing on a primitive is not
there to be set. Keys are optional exactly where they have a default here; ``None`` stands for "not stated".
Sizes are bytes where the name says so, lengths are tokens, counts are plain integers. Keys marked *ours* extend the
schema with facts a KV-cache plan needs; ``docs/graph.md`` says which recorded answer needs each.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Record(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What every part of a graph is: frozen, keyword-only, strict."""


class DerivedFrom(Record, frozen=True, kw_only=True):
    """The vendor file a graph was derived from; ``path`` is relative to the model's folder.

    Ours: ``hf_overrides``, what was laid over the file first, as JSON with its keys sorted.
    """

    format: str
    path: str
    sha256: str
    deriver_version: int
    hf_overrides: str | None = None


class WeightScale(Record, frozen=True, kw_only=True):
    """A resident scale layout: one scale of ``bytes`` for every ``elements`` weight elements."""

    elements: int
    bytes: int


class Rope(Record, frozen=True, kw_only=True):
    """Ours. One rotary-embedding entry as the configuration states it; ``layer_type`` where it is for one kind."""

    type: str
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    layer_type: str | None = None


class Positions(Record, frozen=True, kw_only=True):
    """Ours. What the configuration says about length; each release derives ``max_model_len`` from it in its own way.

    ``max_position_embeddings`` is the smallest of the length keys the configuration states, None where it states
    none. ``model_max_length`` is that key where present (a longer ``--max-model-len`` is admitted up to it).
    """

    max_position_embeddings: int | None = None
    original_max_position_embeddings: int | None = None
    model_max_length: int | None = None
    rope: tuple[Rope, ...] = ()


class Quantization(Record, frozen=True, kw_only=True):
    """Ours. The checkpoint's quantization as far as the KV cache depends on it.

    ``method`` is the engine's ``quant_method``; ``algorithm`` what a ModelOpt checkpoint calls the format of its
    weights in a file of its own, where that is all a release has to infer the method from; ``kv_cache_algorithm`` the
    cache format it names (``FP8``, ``NVFP4``); ``kv_cache_scheme`` whether a compressed-tensors checkpoint carries a
    cache scheme.
    """

    method: str
    algorithm: str | None = None
    kv_cache_algorithm: str | None = None
    kv_cache_scheme: bool = False


class Multimodal(Record, frozen=True, kw_only=True):
    """Ours. A decoder with encoders before it.

    ``prefix_lm``: image tokens attend to each other in both directions (the engine's ``mm_prefix``).
    ``max_item_tokens``: tokens of the largest single item a request may carry, which floors
    ``max_num_batched_tokens`` for such models.
    """

    prefix_lm: bool = False
    max_item_tokens: int | None = None


class DraftFacts(Record, frozen=True, kw_only=True):
    """Ours. A checkpoint that drafts for another model.

    ``num_spec_tokens``: tokens a step drafts where the deployment does not say (a diffusion block's size).
    ``non_causal``: some layers attend to their whole block. ``markov_head``: the configuration states ``markov_rank``
    where the engine reads it, which a DSpark draft cannot do without.
    """

    num_spec_tokens: int | None = None
    non_causal: bool = False
    markov_head: bool = False


class Global(Record, frozen=True, kw_only=True):
    """Whole-model shapes."""

    hidden_size: int
    vocab_size: int
    weight_dtype: str
    tie_word_embeddings: bool = False
    architecture: str | None = None
    weight_scale: WeightScale | None = None
    context_window: int | None = None
    default_context_window: int | None = None
    dtype: str | None = None
    positions: Positions | None = None
    quantization: Quantization | None = None
    multimodal: Multimodal | None = None
    draft: DraftFacts | None = None


class Cache(Record, frozen=True, kw_only=True):
    """One per-request cache an attention node reads; its layer allocates it where ``owned``."""

    name: str
    kind: str
    owned: bool
    bytes_per_entry: int
    bytes_by_cache_dtype: dict[str, int] | None = None
    tokens_per_entry: int = 1
    window: int | None = None
    entries: int | None = None
    block_size: int | None = None
    page_alignment: int | None = None


class Context(Record, frozen=True, kw_only=True):
    """Traffic that scales with the attended context."""

    bytes_per_entry: int
    per: str
    reads_cache: str | None = None
    tokens_per_entry: int | None = None
    phase: str | None = None
    decode_extent: str | None = None


class Node(Record, frozen=True, kw_only=True, tag_field="op"):
    """What every primitive can state."""

    role: str | None = None
    emit: str | None = None
    tp: str | None = None
    under_sequence_parallel: str | None = None
    aliases: str | None = None

    @property
    def op(self) -> str:
        """The primitive's name, as the ``op`` key spells it."""
        return type(self).__name__


class GEMM(Node, frozen=True, kw_only=True, tag="GEMM"):
    """A matrix multiply with an ``n`` x ``k`` weight."""

    n: int
    k: int
    weight_dtype: str | None = None
    weight_scale: WeightScale | None = None


class GroupedGEMM(Node, frozen=True, kw_only=True, tag="GroupedGEMM"):
    """One matrix multiply for each expert: ``experts`` weights of ``n`` x ``k`` (or ``n`` x ``latent_size``).

    Shared experts, where stated, add ``shared_experts`` weights of ``shared_intermediate_size`` (or ``n``) x ``k``.
    """

    n: int
    k: int
    experts: int
    top_k: int
    weight_dtype: str | None = None
    weight_scale: WeightScale | None = None
    shared_experts: int | None = None
    shared_intermediate_size: int | None = None
    latent_size: int | None = None


class Attention(Node, frozen=True, kw_only=True, tag="Attention"):
    """Attention of ``n_q`` query heads over the caches it lists; none listed means one owned cache named ``kv``.

    ``d_h`` is the cached width of a head: for ``mla`` and ``sparse_mla`` the latent and rotary width together.
    Ours: ``d_v`` (value width where it is not ``d_h``), ``qk_nope_head_dim``, ``attention_chunk_size`` (``chunked``),
    ``sinks`` (a learned sink logit for each head) and ``logits_soft_cap``.
    """

    kind: str
    n_q: int
    n_kv: int
    d_h: int
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    window: int | None = None
    index_topk: int | None = None
    compress_ratio: int | None = None
    caches: tuple[Cache, ...] | None = None
    d_v: int | None = None
    qk_nope_head_dim: int | None = None
    attention_chunk_size: int | None = None
    sinks: bool = False
    logits_soft_cap: float | None = None


class RecurrentUpdate(Node, frozen=True, kw_only=True, tag="RecurrentUpdate"):
    """A linear-attention or state-space update; it owns one implied state cache named ``state``.

    What the keys count, by ``recurrent_kind``: ``mamba2`` ``n_heads`` of ``intermediate_size / n_heads`` channels with
    ``state_size`` states each; ``mamba1`` one head for each of its ``intermediate_size`` channels; ``gdn`` ``n_heads``
    value heads of ``head_dim`` over keys of ``state_size``, with ``n_key_heads`` key heads; ``kda`` and ``lightning``
    heads of ``state_size`` both ways; ``short_conv`` a convolution alone over ``intermediate_size`` channels.
    ``state_dtype`` is the recurrent state's format, the model's own where not stated. Ours: ``n_key_heads``,
    ``head_dim`` (a value head's width), ``bounded_gate`` (the decay gate has a lower bound, which decides a kernel) and
    ``chunk_size`` (tokens the prefill kernel takes at once).
    """

    recurrent_kind: str
    n_heads: int
    state_size: int
    n_groups: int | None = None
    conv_kernel: int | None = None
    intermediate_size: int | None = None
    state_dtype: str | None = None
    n_key_heads: int | None = None
    head_dim: int | None = None
    bounded_gate: bool = False
    chunk_size: int | None = None


class Elementwise(Node, frozen=True, kw_only=True, tag="Elementwise"):
    """Per-token work without weights."""

    bytes_per_token: int | None = None
    per_tokens: int | None = None
    context: Context | None = None
    writes_cache: str | None = None


class Gather(Node, frozen=True, kw_only=True, tag="Gather"):
    """A lookup of ``rows_per_token`` rows for each token in a table of ``rows`` rows of ``row_bytes`` bytes."""

    rows: int
    row_bytes: int
    rows_per_token: int
    out_bytes_per_token: int
    residency: str | None = None
    residency_control: str | None = None
    shard: str | None = None


class AllReduce(Node, frozen=True, kw_only=True, tag="AllReduce"):
    """A tensor-parallel sum."""

    bytes_per_token: int | None = None


class AllGather(Node, frozen=True, kw_only=True, tag="AllGather"):
    """A gather over ranks."""

    bytes_per_token: int | None = None


class ReduceScatter(Node, frozen=True, kw_only=True, tag="ReduceScatter"):
    """A sum whose result stays split over ranks."""

    bytes_per_token: int | None = None


class All2All(Node, frozen=True, kw_only=True, tag="All2All"):
    """Expert dispatch and combine; its volume follows from the routing."""


AnyNode: TypeAlias = (
    GEMM
    | GroupedGEMM
    | Attention
    | RecurrentUpdate
    | Elementwise
    | Gather
    | AllReduce
    | AllGather
    | ReduceScatter
    | All2All
)


class LayerKind(Record, frozen=True, kw_only=True):
    """A distinct layer: its nodes and the edges between them, as ``[from, to]`` indices."""

    id: str
    nodes: tuple[AnyNode, ...]
    edges: tuple[tuple[int, int], ...] = ()


class Stack(Record, frozen=True, kw_only=True):
    """The order layers run in: ``prologue``, then ``pattern`` ``repeat`` times, then ``epilogue``."""

    prologue: tuple[str, ...] = ()
    pattern: tuple[str, ...] = ()
    repeat: int = 0
    epilogue: tuple[str, ...] = ()


class Speculator(Record, frozen=True, kw_only=True):
    """A draft module as its own stack over the graph's layer kinds.

    Ours: ``modules``, how many prediction modules the stack holds, equally long, one after another. Each pass runs one
    of them in turn; all of them hold weights and register caches.
    """

    method: str
    num_spec_tokens: int
    stack: Stack
    drafting: str | None = None
    modules: int = 1
    embedding: tuple[AnyNode, ...] = ()
    context_stack: Stack | None = None
    head: tuple[AnyNode, ...] = ()
    sequential_head: tuple[AnyNode, ...] = ()


class NodeOverride(Record, frozen=True, kw_only=True):
    """The weight format of every GEMM and GroupedGEMM with this role, on one architecture."""

    role: str
    weight_dtype: str | None = None
    weight_scale: WeightScale | None = None


class CacheOverride(Record, frozen=True, kw_only=True):
    """The record of every cache with this name, on one architecture."""

    name: str
    bytes_per_entry: int | None = None
    page_alignment: int | None = None
    bytes_by_cache_dtype: dict[str, int] | None = None


class ArchOverride(Record, frozen=True, kw_only=True):
    """Facts that differ on GPUs of one compute-capability major version."""

    capability_family: int
    nodes: tuple[NodeOverride, ...] = ()
    caches: tuple[CacheOverride, ...] = ()


class ModelGraph(Record, frozen=True, kw_only=True, weakref=True, rename={"globals_": "global"}):
    """A model, written as the work one forward pass launches."""

    kind: str
    name: str
    derived_from: DerivedFrom
    globals_: Global
    layer_kinds: tuple[LayerKind, ...]
    stack: Stack
    embedding: tuple[AnyNode, ...] = ()
    head: tuple[AnyNode, ...] = ()
    speculator: Speculator | None = None
    arch_overrides: tuple[ArchOverride, ...] = ()
    base_capability_families: tuple[int, ...] = ()
    modality: str = "text_only"


class Source(Record, frozen=True, kw_only=True):
    """Where a vendor configuration was fetched from."""

    provider: str
    repo: str
    revision: str
    retrieved: str | None = None


class ModelIdentity(Record, frozen=True, kw_only=True):
    """``model.yaml``: which model a catalog entry is and where its configuration came from.

    ``draft_for`` is the model a draft checkpoint was made for, by its catalog name.
    """

    name: str
    source: Source
    draft_for: str | None = None
