"""A graph as this release reads it: its architecture's facts, and its owned caches in registration order.

Everything here depends on the graph alone and is kept with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from rulespack.graph.model import (
    GEMM,
    Attention,
    Cache,
    Gather,
    GroupedGEMM,
    ModelGraph,
    Multimodal,
    Positions,
    Quantization,
    RecurrentUpdate,
)
from rulespack.graph.stack import Use, layers, node_caches, owned_caches, uses
from rulespack.graph.vocabulary import LATENT_KINDS
from vllm_0_29.shards import Shard, read_shards

if TYPE_CHECKING:
    from rulespack.deployment import Deployment

#: torch's names of the formats a model computes in.
MODEL_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

#: The engine's layer class for each attention kind whose layers choose a backend by themselves.
LAYER_CLASSES = {
    "gqa": "Attention",
    "swa": "Attention",
    "chunked": "ChunkedLocalAttention",
    "mla": "MLAAttention",
    "sparse_mla": "MLAAttention",
}

#: The engine's layer class of a recurrent state.
STATE_LAYER = "MambaBase"
#: That of one every rank keeps whole.
REPLICATED_STATE = "ReplicatedMambaBase"
#: The layer class that keeps hidden states for ``extract_hidden_states``.
HIDDEN_STATES = "CacheOnlyAttentionLayer"
STATE_LAYERS = frozenset({STATE_LAYER, REPLICATED_STATE})


class CacheName(msgspec.Struct, frozen=True):
    """How an architecture names one of its caches, and the layer class that owns it (None: the node's own).

    ``suffix`` stands behind the architecture's prefix and the layer's index. A ``pattern`` stands for the whole name
    instead, with ``{layer}``, ``{ordinal}`` (counted over the caches of this name), ``{position}`` (counted over all
    caches) and ``{past}`` (the layer's index counted on from the number of layers).
    """

    suffix: str = ""
    layer_class: str | None = None
    pattern: str | None = None


class DraftNames(msgspec.Struct, frozen=True, kw_only=True):
    """How an architecture names the layers of the draft module inside its checkpoint.

    ``counted_on``: indices go on from the target's; ``caches`` as in :class:`Architecture`, None for the target's own.
    ``mtp_layers``: layers a plain multi-token predictor runs of a module that states another method, 0 for none.
    ``modelled``: these names are the release's. ``without`` is the class of its error where a checkpoint carries no
    predictor.
    """

    prefix: str = "model.layers."
    counted_on: bool = True
    caches: Mapping[str, CacheName] | None = None
    mtp_layers: int = 0
    modelled: bool = True
    without: str = "NotImplementedError"


class StateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How an architecture's recurrent layers behave.

    ``backend`` serves them; ``caches_prefixes``: the class can keep a state for every block (mamba mode ``all``);
    ``takes_dtype_flag``: ``--mamba-ssm-cache-dtype`` reaches the layers; ``checkpoints``: its prefill kernel keeps one
    checkpoint block where it runs. With drafts ``widens``: the convolution keeps a row more for every drafted token,
    ``counts_drafts``: and the model class counts them. ``lists_attention``: the configuration says which layers
    attend, where turboquant looks for it.
    """

    backend: str
    caches_prefixes: bool = False
    takes_dtype_flag: bool = True
    checkpoints: bool = False
    widens: bool = True
    counts_drafts: bool = True
    lists_attention: bool = True


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """What one model class does that its graph does not say.

    ``prefix`` stands before the layer's index in a layer name; ``caches`` maps the graph's cache names to the engine's
    in the order a layer registers them; ``indexed`` names the layer class of those whose layer keeps an index beside
    them. ``rope_already_applied``: the length keys are already scaled, so rope scaling
    is not applied again.
    ``counts_windows``: the configuration's numbers of heads are its windows', not its full layers'.
    ``wide_heads_take_fa4``: layers of several head sizes make the release ask for FlashAttention 4.
    ``replicates_kv_heads``: with more ranks than KV heads every rank keeps one; otherwise the release crashes.
    ``config_claims_experts``: the configuration class states experts whether or not a layer has any.
    ``state_size_heeds_flag``: the model class counts its state in the dtype ``--mamba-ssm-cache-dtype`` asks for.
    ``cache_dtype_ignored``: layers keep the model's own dtype, whatever the engine's cache dtype.
    ``bfloat16_cache_is_auto``: a bfloat16 cache is taken for ``auto``.
    ``marks_last_group``: the release takes the last registered cache for the draft's, by the model's type.
    ``cache_by_cache``: all layers register their first cache before any registers its second.
    ``items``: the kinds of item a class takes whose images attend in both directions, ``optional_items`` those that
    only some of its checkpoints take.
    ``window_from_config``: every window layer reads the configuration's ``sliding_window``, and nothing else does;
    ``window_elsewhere``: the windows are those of another key, and there is none called so.
    ``latent_ignores_skips``: its latent layers keep the engine's cache dtype where they are skipped.
    ``takes_float16``: whether the release runs the model in float16, which it does not where that is unstable.
    ``rounds_shared_experts``: a rank's part of shared experts is rounded up to whole blocks of fp8 scales.
    ``leading_class``: the class whose layers register first, also where they keep no cache of their own.
    ``check`` refuses deployments the model class cannot have, ``check_stages`` pipeline stages it cannot be cut into,
    by the stage of each layer. ``attends``: ``decoder``, ``encoder_decoder`` (layers also attend an encoder's output),
    or ``encoder_only`` (in both directions, without a cache).
    """

    prefix: str = "model.layers."
    caches: Mapping[str, CacheName] = msgspec.field(default_factory=lambda: {"kv": CacheName(".self_attn.attn")})
    indexed: Mapping[str, str] = msgspec.field(default_factory=dict)
    attends: str = "decoder"
    rope_already_applied: bool = False
    counts_windows: bool = False
    wide_heads_take_fa4: bool = False
    pipeline_parallel: bool = True
    cache_by_cache: bool = False
    leading_class: str | None = None
    latent_ignores_skips: bool = False
    takes_float16: bool = True
    rounds_shared_experts: bool = False
    window_from_config: bool = False
    window_elsewhere: bool = False
    items: tuple[str, ...] = ()
    optional_items: tuple[str, ...] = ()
    cache_dtype_ignored: bool = False
    bfloat16_cache_is_auto: bool = False
    replicates_kv_heads: bool = True
    config_claims_experts: bool = False
    state: StateFacts | None = None
    check: Callable[[Model, Deployment], None] | None = None
    check_stages: Callable[[Model, Sequence[int]], None] | None = None
    state_size_heeds_flag: bool = False
    draft_names: DraftNames = DraftNames()
    marks_last_group: bool = False


class Unserved(msgspec.Struct, frozen=True):
    """An architecture the release cannot load: the class of its error, where it stops, and why."""

    type: str
    stage: str
    reason: str
    source: str


class CacheClass(msgspec.Struct, frozen=True):
    """Owned caches that are alike: the node that keeps them, the cache, and the engine's layer class.

    ``draft``: a draft's; ``non_causal``: of a draft that attends to its whole block.
    """

    layer_class: str
    node: Attention | RecurrentUpdate
    cache: Cache
    draft: bool = False
    non_causal: bool = False

    @property
    def attention(self) -> Attention:
        """The node of a class whose layers attend."""
        assert isinstance(self.node, Attention)
        return self.node

    @property
    def recurrent(self) -> RecurrentUpdate:
        """The node of a class whose layers keep a recurrent state."""
        assert isinstance(self.node, RecurrentUpdate)
        return self.node

    @property
    def window(self) -> int | None:
        """The sliding window in tokens, None without one."""
        return self.node.window if isinstance(self.node, Attention) else None

    @property
    def chunk(self) -> int | None:
        """The attention chunk in tokens, None without one."""
        return self.node.attention_chunk_size if isinstance(self.node, Attention) else None


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A drafter: its method, and what its module registers after the target's caches.

    ``modules`` is how many prediction modules run one after another; ``default_tokens`` what is drafted where the
    deployment does not say; ``separate``: a checkpoint of its own, ``headless``: which does not state its Markov head.
    ``experts`` and ``quantization`` are the module's. ``heads`` are its attention's, ``shards`` what tensor parallelism
    divides of it, ``vocabulary`` that of a checkpoint of its own.
    """

    method: str
    names: tuple[str, ...] = ()
    classes: tuple[CacheClass, ...] = ()
    default_tokens: int | None = None
    modules: int = 1
    non_causal: bool = False
    separate: bool = False
    headless: bool = False
    experts: int = 0
    quantization: Quantization | None = None
    heads: int = 0
    vocabulary: int | None = None
    shards: tuple[Shard, ...] = ()


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The graph's facts in the engine's terms.

    ``names``, ``class_of`` and ``layer_of`` run over the owned caches in registration order. ``heads`` and
    ``kv_heads`` are those the configuration counts, before tensor parallelism; ``head_size`` the widest of its layers.
    ``output_groups`` are the groups a grouped output projection (``wo_a``) has, 1 without one; ``hash_heads`` the heads
    a table of n-grams is split by, 0 without one; ``shared`` pairs each
    layer that reads another's cache with that layer. ``states`` are the classes of recurrent state among ``classes``,
    ``sparse`` those that keep the context of sparse attention. ``tied_head``: the head reads the vocabulary table.
    ``shards`` are what tensor parallelism divides. ``first_draft`` is the position of the draft's first cache.
    ``disabled_window`` is the window in tokens that the deployment took out of every layer, None otherwise.
    """

    name: str
    architecture_name: str
    architecture: Architecture
    num_layers: int
    names: tuple[str, ...]
    class_of: tuple[int, ...]
    layer_of: tuple[int, ...]
    classes: tuple[CacheClass, ...]
    members: tuple[tuple[int, ...], ...]
    dtype: str
    mla: bool
    heads: int
    kv_heads: int
    head_size: int
    head_sizes: frozenset[int]
    experts: int
    positions: Positions
    quantization: Quantization | None
    multimodal: Multimodal | None
    soft_cap: bool
    output_groups: int
    hash_heads: int
    shared: tuple[tuple[int, int], ...]
    states: tuple[CacheClass, ...]
    sparse: tuple[CacheClass, ...]
    vocabulary: int
    hf_overrides: str | None
    tied_head: bool
    shards: tuple[Shard, ...]
    draft: Draft | None = None
    first_draft: int | None = None
    disabled_window: int | None = None

    @property
    def hybrid(self) -> bool:
        """Whether some layers keep a recurrent state and some attend."""
        return bool(self.states) and self.heads > 0


def read_model(graph: ModelGraph, architectures: Mapping[str, Architecture]) -> Model:
    """The graph in the engine's terms; the graph has passed :func:`vllm_0_29.graph_checks.check_graph`."""
    name = graph.globals_.architecture or ""
    architecture = architectures[name]
    order = {cache: position for position, cache in enumerate(architecture.caches)}
    owned = sorted(owned_caches(graph), key=lambda use: (use.layer, order[table_key(architecture, use)]))
    if architecture.cache_by_cache:
        owned.sort(key=lambda use: order[table_key(architecture, use)])
    num_layers = len(layers(graph))
    counts: dict[str, int] = {}
    classes: dict[object, int] = {}
    found: list[CacheClass] = []
    names: list[str] = []
    class_of: list[int] = []
    indexed = {use.layer for use in owned if use.cache.kind == "index"}
    for use in owned:
        called = architecture.caches[table_key(architecture, use)]
        named = class_of_cache(architecture, called, use, indexed=use.layer in indexed)
        key = (named, class_key(use.node, use.cache))
        if key not in classes:
            classes[key] = len(found)
            found.append(CacheClass(named, use.node, use.cache))
        class_of.append(classes[key])
        ordinal = counts[use.cache.name] = counts.get(use.cache.name, -1) + 1
        names.append(_name(architecture, called, use.layer, ordinal, len(names), num_layers))
    members: list[list[int]] = [[] for _ in found]
    for position, index in enumerate(class_of):
        members[index].append(position)
    nodes = [node for layer in layers(graph) for node in layer.nodes]
    attention = [node for node in nodes if isinstance(node, Attention)]
    main = [node for node in attention if any(cache.kind in ("kv", "window") for cache in node_caches(graph, node))]
    counted = [node for node in main if (node.window is not None) == architecture.counts_windows] or main
    widest = max(main, key=lambda node: node.d_h, default=None)
    # Only a model without attention may leave its lengths out: check_graph names the problem in any other.
    positions = graph.globals_.positions or Positions()
    return Model(
        name=graph.name,
        architecture_name=name,
        architecture=architecture,
        num_layers=num_layers,
        names=tuple(names),
        class_of=tuple(class_of),
        layer_of=tuple(use.layer for use in owned),
        classes=tuple(found),
        members=tuple(map(tuple, members)),
        dtype=MODEL_DTYPES[graph.globals_.dtype or "bf16"],
        mla=any(node.kind in LATENT_KINDS for node in main),
        heads=max((node.n_q for node in counted or attention), default=0),
        kv_heads=max((node.n_kv for node in counted), default=0),
        head_size=0 if widest is None else widest.d_h,
        head_sizes=frozenset(node.d_h for node in main),
        experts=max((node.experts for node in nodes if isinstance(node, GroupedGEMM)), default=0),
        positions=positions,
        quantization=graph.globals_.quantization,
        multimodal=graph.globals_.multimodal,
        soft_cap=any(node.logits_soft_cap is not None for node in attention),
        output_groups=next(
            (
                widest.n_q * widest.d_h // node.k
                for node in nodes
                if widest is not None and isinstance(node, GEMM) and node.role == "wo_a"
            ),
            1,
        ),
        hash_heads=max(
            (node.rows_per_token for node in nodes if isinstance(node, Gather) and node.shard == "heads"), default=0
        ),
        states=tuple(cls for cls in found if cls.layer_class in STATE_LAYERS),
        sparse=tuple(cls for cls in found if is_sparse(cls)),
        vocabulary=graph.globals_.vocab_size,
        hf_overrides=None if graph.derived_from is None else graph.derived_from.hf_overrides,
        tied_head=graph.globals_.tie_word_embeddings,
        shards=read_shards(graph, rounds_shared=architecture.rounds_shared_experts),
        shared=tuple(
            (use.layer, use.owner) for use in uses(graph, layers(graph)) if use.owner not in (None, use.layer)
        ),
    )


def _name(
    architecture: Architecture, called: CacheName, layer: int, ordinal: int, position: int, num_layers: int
) -> str:
    if called.pattern is not None:
        return called.pattern.format(layer=layer, ordinal=ordinal, position=position, past=layer + num_layers)
    return f"{architecture.prefix}{layer}{called.suffix}"


def is_sparse(cls: CacheClass) -> bool:
    """Whether a class keeps the context of sparse attention."""
    return isinstance(cls.node, Attention) and cls.node.kind == "sparse_mla" and cls.cache.kind in ("kv", "window")


def table_key(architecture: Architecture, use: Use) -> str:
    """What an architecture's table knows a cache by: a recurrent node's role where it has it, else the cache's name."""
    role = use.node.role
    if role is not None and isinstance(use.node, RecurrentUpdate) and role in architecture.caches:
        return role
    return use.cache.name


def class_of_cache(architecture: Architecture, called: CacheName, use: Use, *, indexed: bool) -> str:
    """The engine's layer class of a cache; ``indexed`` where its layer keeps an index beside it."""
    named = called.layer_class or layer_class(use.node)
    return architecture.indexed.get(use.cache.name, named) if indexed else named


def layer_class(node: Attention | RecurrentUpdate) -> str:
    """The engine's layer class of a node whose architecture names no other."""
    return STATE_LAYER if isinstance(node, RecurrentUpdate) else LAYER_CLASSES[node.kind]


def class_key(node: Attention | RecurrentUpdate, cache: Cache) -> object:
    """What tells two classes of cache apart."""
    return (_facts(node), cache.name, cache.tokens_per_entry)


def _facts(node: Attention | RecurrentUpdate) -> object:
    """What tells two nodes apart for their caches: every fact but the labels and the caches themselves."""
    if isinstance(node, RecurrentUpdate):
        return msgspec.structs.replace(node, role=None, tp=None)
    return msgspec.structs.replace(node, role=None, tp=None, caches=None)
