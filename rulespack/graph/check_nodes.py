"""What makes one node invalid, wherever it stands: one small function for each rule or pair of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from rulespack.graph.findings import Finding, not_among
from rulespack.graph.model import (
    GEMM,
    AllGather,
    AllReduce,
    AnyNode,
    Attention,
    Elementwise,
    Gather,
    GroupedGEMM,
    ModelGraph,
    RecurrentUpdate,
    ReduceScatter,
    WeightScale,
)
from rulespack.graph.problems import Path
from rulespack.graph.vocabulary import (
    ARCHITECTURE_CONDITIONS,
    ATTENTION_KINDS,
    COLLECTIVES,
    CONTEXT_UNITS,
    DECODE_EXTENTS,
    DTYPES,
    EMIT_CONDITIONS,
    LATENT_KINDS,
    PHASES,
    RECURRENT_KINDS,
    RESIDENCIES,
    SHARDS,
    SPLITS,
    TP_LAYOUTS,
)

Findings: TypeAlias = Iterator[Finding]

_REQUIRED: Final[dict[type, tuple[str, ...]]] = {
    GEMM: ("n", "k"),
    GroupedGEMM: ("n", "k", "experts", "top_k"),
    Attention: ("n_q", "n_kv", "d_h"),
    RecurrentUpdate: ("n_heads", "state_size"),
    Gather: ("rows", "row_bytes", "rows_per_token", "out_bytes_per_token"),
}
#: Optional counts that say "none" with a zero and nothing with a negative number.
_COUNTS: Final[dict[type, tuple[str, ...]]] = {
    Attention: ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "d_v", "window", "attention_chunk_size"),
    RecurrentUpdate: ("n_groups", "conv_kernel", "intermediate_size", "n_key_heads", "head_dim", "chunk_size"),
}
#: Required for one kind of Attention or RecurrentUpdate, optional for the others.
_NEEDED_BY_KIND: Final[dict[str, tuple[str, ...]]] = {
    "swa": ("window",),
    "chunked": ("attention_chunk_size",),
    "mamba2": ("n_groups", "conv_kernel", "intermediate_size"),
    "mamba1": ("conv_kernel", "intermediate_size"),
    "short_conv": ("conv_kernel", "intermediate_size"),
}


def check_node(node: AnyNode, path: Path, graph: ModelGraph) -> Findings:
    """Every rule about a node by itself."""
    yield from _emit(node, path, graph)
    if node.tp is not None:
        yield from _tp(node, path)
    if node.under_sequence_parallel is not None:
        yield from _sequence_split(node, path, graph)
    if node.aliases is not None:
        yield from _alias_states(node, path)
    for rule in _RULES.get(type(node), ()):
        yield from rule(node, path)


def _emit(node: AnyNode, path: Path, graph: ModelGraph) -> Findings:
    emit, collective = node.emit, node.op in COLLECTIVES
    if emit is None:
        if collective:
            message = f"{node.op} exists under some layouts only: state emit, one of {', '.join(EMIT_CONDITIONS)}"
            yield Finding("collective-without-emit", (*path, "emit"), message)
        return
    if emit not in EMIT_CONDITIONS:
        message = not_among("emit condition", emit, EMIT_CONDITIONS)
        yield Finding("emit-unknown", (*path, "emit"), message)
    if emit in ARCHITECTURE_CONDITIONS and not graph.globals_.architecture:
        message = f"emit: {emit} depends on the model class: state global.architecture"
        yield Finding("emit-needs-architecture", (*path, "emit"), message, (("global", "architecture"),))
    if not collective:
        message = f"{node.op} is no collective, and emit: {emit} makes it come and go: remove emit unless that is meant"
        yield Finding("emit-on-non-collective", (*path, "emit"), message)


def _tp(node: AnyNode, path: Path) -> Findings:
    layouts = TP_LAYOUTS.get(node.op, ())
    if node.tp in layouts:
        return
    if layouts:
        message = not_among(f"tp layout of {node.op}", node.tp or "", layouts)
    else:
        message = f"{node.op} takes no tp layout: remove tp"
    yield Finding("tp-not-accepted", (*path, "tp"), message)


def _sequence_split(node: AnyNode, path: Path, graph: ModelGraph) -> Findings:
    here = (*path, "under_sequence_parallel")
    if node.under_sequence_parallel not in SPLITS:
        yield Finding("sequence-split-unknown", here, not_among("split", node.under_sequence_parallel or "", SPLITS))
    if node.op in COLLECTIVES:
        message = f"{node.op} says with emit when it runs: remove under_sequence_parallel"
        yield Finding("sequence-split-on-collective", here, message)
    if not graph.globals_.architecture:
        message = "under_sequence_parallel depends on the model class: state global.architecture"
        yield Finding("sequence-split-needs-architecture", here, message, (("global", "architecture"),))


def _alias_states(node: AnyNode, path: Path) -> Findings:
    if not isinstance(node, (GEMM, Gather)):
        message = f"{node.op} cannot read another node's weights, only a GEMM or a Gather can: remove aliases"
        yield Finding("aliases-elsewhere", (*path, "aliases"), message)
    for key in ("weight_dtype", "weight_scale"):
        if getattr(node, key, None) is not None:
            message = f"the weights are those of {node.aliases}, in its format: remove {key}"
            yield Finding(f"alias-states-{key.replace('_', '-')}", (*path, key), message)


def _required(node: AnyNode, path: Path) -> Findings:
    rule = "gather-key-not-positive" if isinstance(node, Gather) else "node-key-not-positive"
    for key in _REQUIRED[type(node)]:
        if (value := getattr(node, key)) < 1:
            yield Finding(rule, (*path, key), f"{key} is {value}: {node.op} needs a positive {key}")


def _kind_needs(node: Attention | RecurrentUpdate) -> tuple[str, ...]:
    kind = node.kind if isinstance(node, Attention) else node.recurrent_kind
    return _NEEDED_BY_KIND.get(kind, ())


def _needed(node: Attention | RecurrentUpdate, path: Path) -> Findings:
    """The keys that only some kinds of the primitive require."""
    uses = ((*path, "kind"), (*path, "recurrent_kind"))
    for key in _kind_needs(node):
        kind = node.kind if isinstance(node, Attention) else node.recurrent_kind
        if (value := getattr(node, key)) is None:
            yield Finding("node-key-missing", (*path, key), f"{kind} needs {key}: state it", uses)
        elif value < 1:
            message = f"{key} is {value}: {kind} needs a positive {key}"
            yield Finding("node-key-not-positive", (*path, key), message, uses)


def _counts(node: Attention | RecurrentUpdate, path: Path) -> Findings:
    for key in _COUNTS[type(node)]:
        if (value := getattr(node, key)) is not None and value < 0 and key not in _kind_needs(node):
            message = f"{key} is {value}, and a count cannot be negative: remove it where there is none"
            yield Finding("count-negative", (*path, key), message)


def _weights(node: GEMM | GroupedGEMM, path: Path) -> Findings:
    if node.weight_dtype is not None and node.weight_dtype not in DTYPES:
        message = not_among("dtype", node.weight_dtype, DTYPES)
        yield Finding("weight-dtype-unknown", (*path, "weight_dtype"), message)
    if node.weight_scale is not None:
        yield from check_scale(node.weight_scale, (*path, "weight_scale"), "weight-scale-not-positive")


def check_scale(scale: WeightScale, path: Path, rule: str) -> Findings:
    """Both counts of a scale layout are positive."""
    for key in ("elements", "bytes"):
        if (value := getattr(scale, key)) < 1:
            yield Finding(rule, (*path, key), f"{key} is {value}: a scale of that layout needs a positive {key}")


def _experts(node: GroupedGEMM, path: Path) -> Findings:
    if node.top_k > node.experts:
        message = f"top_k {node.top_k} exceeds the {node.experts} experts there are"
        yield Finding("top-k-exceeds-experts", (*path, "top_k"), message, ((*path, "experts"),))
    for rule, key in (
        ("shared-experts-negative", "shared_experts"),
        ("shared-size-negative", "shared_intermediate_size"),
        ("latent-size-negative", "latent_size"),
    ):
        if (value := getattr(node, key)) is not None and value < 0:
            yield Finding(
                rule, (*path, key), f"{key} is {value}, and cannot be negative: remove it where there is none"
            )
    if node.shared_intermediate_size and not node.shared_experts:
        message = "shared_intermediate_size is the size of shared experts: state shared_experts or remove it"
        here = (*path, "shared_intermediate_size")
        yield Finding("shared-size-without-experts", here, message, ((*path, "shared_experts"),))


def _attention_kind(node: Attention, path: Path) -> Findings:
    if node.kind not in ATTENTION_KINDS:
        message = not_among("attention kind", node.kind, ATTENTION_KINDS)
        yield Finding("attention-kind-unknown", (*path, "kind"), message)


def _heads(node: Attention, path: Path) -> Findings:
    here, kind = (*path, "n_kv"), (*path, "kind")
    if node.n_kv > node.n_q:
        message = f"n_kv {node.n_kv} exceeds n_q {node.n_q}: every KV head serves at least one query head"
        yield Finding("n-kv-exceeds-n-q", here, message, ((*path, "n_q"),))
    if node.kind in LATENT_KINDS and node.n_kv != 1:
        message = f"n_kv is {node.n_kv}: {node.kind} stores one latent vector for each token, so n_kv is 1"
        yield Finding("latent-n-kv-not-one", here, message, (kind,))


def _bounds(node: Attention, path: Path) -> Findings:
    kind = (*path, "kind")
    for key in ("index_topk", "compress_ratio"):
        name, value = key.replace("_", "-"), getattr(node, key)
        if value is None:
            continue
        if node.kind != "sparse_mla":
            message = f"{key} bounds a sparse_mla read, and this node is {node.kind}: remove it"
            yield Finding(f"{name}-elsewhere", (*path, key), message, (kind,))
        if value < 0:
            yield Finding(f"{name}-negative", (*path, key), f"{key} is {value}, and cannot be negative")
    bounds = ("index_topk", "compress_ratio", "window")
    if node.kind == "sparse_mla" and not any(getattr(node, key) for key in bounds):
        message = "a sparse_mla node reads less than its whole context: state index_topk, compress_ratio or window"
        yield Finding("sparse-mla-unbounded", path, message, (kind, *((*path, key) for key in bounds)))


def _chunk(node: Attention, path: Path) -> Findings:
    if node.attention_chunk_size is not None and node.kind != "chunked":
        message = f"attention_chunk_size belongs to chunked attention, and this node is {node.kind}: remove it"
        yield Finding("chunk-size-elsewhere", (*path, "attention_chunk_size"), message, ((*path, "kind"),))


def _soft_cap(node: Attention, path: Path) -> Findings:
    cap = node.logits_soft_cap
    if cap is not None and not 0 < cap < float("inf"):
        message = f"logits_soft_cap is {cap}: a cap is positive; remove it where there is none"
        yield Finding("soft-cap-not-positive", (*path, "logits_soft_cap"), message)


def _recurrent(node: RecurrentUpdate, path: Path) -> Findings:
    if node.recurrent_kind not in RECURRENT_KINDS:
        message = not_among("recurrent kind", node.recurrent_kind, RECURRENT_KINDS)
        yield Finding("recurrent-kind-unknown", (*path, "recurrent_kind"), message)
    if node.state_dtype is not None and node.state_dtype not in DTYPES:
        message = not_among("dtype", node.state_dtype, DTYPES)
        yield Finding("state-dtype-unknown", (*path, "state_dtype"), message)


def _payload(node: Elementwise | AllReduce | AllGather | ReduceScatter, path: Path) -> Findings:
    if node.bytes_per_token is not None and node.bytes_per_token < 0:
        message = f"bytes_per_token is {node.bytes_per_token}, and cannot be negative"
        yield Finding("bytes-per-token-negative", (*path, "bytes_per_token"), message)


def _per_tokens(node: Elementwise, path: Path) -> Findings:
    if node.per_tokens is not None and node.per_tokens < 1:
        message = f"per_tokens is {node.per_tokens}: the node runs once every that many tokens, at least 1"
        yield Finding("per-tokens-not-positive", (*path, "per_tokens"), message)


def _context(node: Elementwise, path: Path) -> Findings:
    context = node.context
    if context is None:
        return
    here = (*path, "context")
    reads, size = context.reads_cache, context.bytes_per_entry
    if size < 0 or (size == 0 and reads is None):
        wanted = "at least 0 beside reads_cache" if reads is not None else "positive; only with reads_cache may it be 0"
        message = f"bytes_per_entry is {size}: it is {wanted}"
        uses = ((*here, "reads_cache"),)
        yield Finding("context-bytes-not-positive", (*here, "bytes_per_entry"), message, uses)
    if context.per not in CONTEXT_UNITS:
        yield Finding("context-per-unknown", (*here, "per"), not_among("unit of context", context.per, CONTEXT_UNITS))
    if context.phase is not None and context.phase not in PHASES:
        yield Finding("context-phase-unknown", (*here, "phase"), not_among("phase", context.phase, PHASES))
    if context.tokens_per_entry is not None:
        yield from _context_tokens(context.tokens_per_entry, reads, here)
    extent = context.decode_extent
    if extent is None:
        return
    if extent not in DECODE_EXTENTS:
        message = not_among("decode extent", extent, DECODE_EXTENTS)
        yield Finding("context-extent-unknown", (*here, "decode_extent"), message)
    if context.phase == "prefill":
        message = "work restricted to prefill has no decode step: remove decode_extent or phase"
        yield Finding("context-extent-on-prefill", (*here, "decode_extent"), message, ((*here, "phase"),))


def _context_tokens(tokens: int, reads: str | None, here: Path) -> Findings:
    where = (*here, "tokens_per_entry")
    if reads is not None:
        message = f"an entry covers what the cache {reads} says: remove tokens_per_entry"
        yield Finding("context-tokens-beside-reads", where, message)
    if tokens < 1:
        message = f"tokens_per_entry is {tokens}: an entry covers at least 1 token"
        yield Finding("context-tokens-not-positive", where, message)


def _gather(node: Gather, path: Path) -> Findings:
    here = (*path, "rows_per_token")
    if node.rows_per_token > node.rows:
        message = f"rows_per_token {node.rows_per_token} exceeds the {node.rows} rows of the table"
        yield Finding("gather-rows-exceeded", here, message, ((*path, "rows"),))
    if node.shard == "heads" and node.rows_per_token < 2:
        message = f"shard: heads splits the rows of a token, and there are {node.rows_per_token}: it needs at least 2"
        yield Finding("gather-heads-single", here, message, ((*path, "shard"),))
    if node.residency is not None and node.residency not in RESIDENCIES:
        message = not_among("residency", node.residency, RESIDENCIES)
        yield Finding("residency-unknown", (*path, "residency"), message)
    if node.shard is not None and node.shard not in SHARDS:
        yield Finding("shard-unknown", (*path, "shard"), not_among("shard", node.shard, SHARDS))


_RULES: Final[dict[type, tuple[Callable[[Any, Path], Findings], ...]]] = {
    GEMM: (_required, _weights),
    GroupedGEMM: (_required, _weights, _experts),
    Attention: (_required, _needed, _counts, _attention_kind, _heads, _bounds, _chunk, _soft_cap),
    RecurrentUpdate: (_required, _needed, _counts, _recurrent),
    Elementwise: (_payload, _per_tokens, _context),
    Gather: (_required, _gather),
    AllReduce: (_payload,),
    AllGather: (_payload,),
    ReduceScatter: (_payload,),
}
