"""Every rule about a node and its caches, broken by one edit of a valid text, and the same place edited well."""

from __future__ import annotations

import pytest
from graph_texts import Case, assert_breaks_only, broken, edited

QKV = "n: 96, k: 64, tp: column"
SCALE = "weight_scale: {elements: 32, bytes: 1}"
O_PROJ = "{op: GEMM, role: o_proj, n: 64, k: 72, weight_dtype: fp8"
EXPERTS = "n: 32, k: 64, experts: 8, top_k: 2"
SHARED = "shared_experts: 1,\n     shared_intermediate_size: 24, latent_size: 16"
LOCAL = "kind: swa, n_q: 4, n_kv: 2, d_h: 16, window: 64"
MAMBA = "recurrent_kind: mamba2, n_heads: 4, state_size: 16, n_groups: 1, conv_kernel: 4"
MAMBA_INNER = "intermediate_size: 128, state_dtype: fp32"
ATTEND = "n_kv: 1\n    d_h: 32\n    window: 16\n    index_topk: 8"
READING = "d_h: 32\n    compress_ratio: 2\n    caches:\n    - {name: latent, kind: kv, owned: false"
READER = "{name: latent, kind: kv, owned: false, bytes_per_entry: 64"
RECENT = "{name: recent, kind: window, owned: true, bytes_per_entry: 48, window: 16, block_size: 32"
RING = "{name: ring, kind: state, owned: true, bytes_per_entry: 256, entries: 8"
DRAFTED = "window: 21"
STORE = "per_tokens: 2, writes_cache: latent"
UNPACK = "{reads_cache: latent, bytes_per_entry: 0, per: request, phase: prefill"
MASK = "{bytes_per_entry: 4, per: query_token, decode_extent: max_model_len"
ENGRAM = "rows: 50, row_bytes: 32, rows_per_token: 4, out_bytes_per_token: 256, residency: host"
SHARD = "shard: heads"
SCALED = "role: embed_scale, per_tokens: 1"
NORM = "{op: Elementwise, role: final_norm"
DISPATCH = "{op: All2All, role: dispatch, emit: expert_parallel"
MLP_OUT = "emit: tensor_parallel_unless_sp_moe, bytes_per_token: 256"

SOURCE, READS, PLAIN, STATE, DRAFT = (f"layer_kinds[{number}].nodes" for number in range(5))
CACHES = f"{SOURCE}[2].caches"
TABLE = "speculator.sequential_head[0]"


def swap(rule: str, path: str, text: str, old: str, bad: str, good: str | None = None, also: str = "") -> Case:
    """In ``text``, a piece of the graph, ``old`` is made ``bad``, and made ``good``."""
    assert text.count(old) == 1
    kept = None if good is None else text.replace(old, good)
    return Case(rule, path, text, text.replace(old, bad), kept, tuple(also.split()))


def add(rule: str, path: str, text: str, bad: str, good: str | None = None, also: str = "") -> Case:
    """After ``text``, a piece of the graph, ``bad`` is added, and ``good``."""
    return Case(rule, path, text, text + bad, None if good is None else text + good, tuple(also.split()))


NODES = [
    swap("op-missing", f"{PLAIN}[1]", O_PROJ, "op: GEMM, ", ""),
    swap("op-missing", f"{PLAIN}[1]", O_PROJ, "op: ", "Op: "),
    swap("op-unknown", f"{PLAIN}[1].op", O_PROJ, "GEMM", "Gemm"),
    swap("op-unknown", f"{PLAIN}[1].op", O_PROJ, "GEMM", "Convolution"),
    swap("emit-unknown", f"{SOURCE}[6].emit", DISPATCH, "expert_", "experts_", "tensor_"),
    swap("collective-without-emit", f"{SOURCE}[6].emit", DISPATCH, ", emit: expert_parallel", ""),
    add("emit-on-non-collective", "head[0].emit", NORM, ", emit: tensor_parallel"),
    swap("sequence-split-unknown", f"{SOURCE}[5].under_sequence_parallel", "token_sharded", "token_", "tokens_"),
    add(
        "sequence-split-on-collective",
        f"{SOURCE}[7].under_sequence_parallel",
        MLP_OUT,
        ", under_sequence_parallel: token_sharded",
    ),
    swap("tp-not-accepted", f"{SOURCE}[0].tp", QKV, "column", "columns", "row"),
    add("tp-not-accepted", "head[0].tp", NORM, ", tp: column", ", tp: replicated"),
    add("tp-not-accepted", f"{PLAIN}[0].tp", LOCAL, ", tp: row", ", tp: replicated"),
    add("tp-not-accepted", f"{SOURCE}[5].tp", EXPERTS, ", tp: column"),
    add("tp-not-accepted", f"{SOURCE}[7].tp", MLP_OUT, ", tp: replicated"),
    add("tp-not-accepted", f"{TABLE}.tp", ENGRAM, ", tp: row"),
    swap("node-key-missing", f"{SOURCE}[0].n", QKV, "n: 96, ", ""),
    swap("node-key-missing", f"{SOURCE}[5].top_k", EXPERTS, ", top_k: 2", ""),
    swap("node-key-missing", f"{PLAIN}[0].kind", LOCAL, "kind: swa, ", "", "kind: gqa, "),
    swap("node-key-missing", f"{PLAIN}[0].window", LOCAL, ", window: 64", "", ", window: 1"),
    swap("node-key-missing", f"{PLAIN}[0].attention_chunk_size", LOCAL, "swa", "chunked"),
    swap("node-key-missing", f"{STATE}[0].recurrent_kind", MAMBA, "recurrent_kind: mamba2, ", ""),
    swap("node-key-missing", f"{STATE}[0].n_groups", MAMBA, ", n_groups: 1", ""),
    swap("node-key-missing", f"{STATE}[0].conv_kernel", MAMBA, ", conv_kernel: 4", ""),
    swap("node-key-missing", f"{STATE}[0].intermediate_size", MAMBA_INNER, "intermediate_size: 128, ", ""),
    swap("node-key-not-positive", f"{SOURCE}[0].k", QKV, "k: 64", "k: 0", "k: 1"),
    swap("node-key-not-positive", f"{SOURCE}[0].n", QKV, "96", "-96"),
    swap("node-key-not-positive", f"{SOURCE}[5].experts", EXPERTS, "8", "0", also="top-k-exceeds-experts"),
    swap("node-key-not-positive", f"{PLAIN}[0].d_h", LOCAL, "d_h: 16", "d_h: 0"),
    swap("node-key-not-positive", f"{PLAIN}[0].window", LOCAL, "64", "-64"),
    swap("node-key-not-positive", f"{STATE}[0].state_size", MAMBA, "16", "0"),
    swap("node-key-not-positive", f"{STATE}[0].n_groups", MAMBA, "n_groups: 1", "n_groups: 0"),
    add("count-negative", f"{PLAIN}[0].d_v", LOCAL, ", d_v: -1", ", d_v: 8"),
    add("count-negative", f"{PLAIN}[0].kv_lora_rank", LOCAL, ", kv_lora_rank: -1", ", kv_lora_rank: 0"),
    add("key-of-other-primitive", f"{SOURCE}[0].n_q", QKV, ", n_q: 4"),
    add("key-of-other-primitive", f"{SOURCE}[0].experts", QKV, ", experts: 4"),
    add("key-of-other-primitive", f"{SOURCE}[0].state_size", QKV, ", state_size: 4"),
    add("key-of-other-primitive", "head[0].n", NORM, ", n: 4"),
    add("weight-dtype-elsewhere", f"{TABLE}.weight_dtype", ENGRAM, ", weight_dtype: fp8"),
    add("weight-scale-elsewhere", "head[0].weight_scale", NORM, ", weight_scale: {elements: 1, bytes: 1}"),
    swap("weight-dtype-unknown", f"{PLAIN}[1].weight_dtype", O_PROJ, "fp8", "fp6", "int4"),
    swap("weight-scale-not-positive", f"{SOURCE}[0].weight_scale.bytes", SCALE, "1", "0", "2"),
    swap("weight-scale-not-positive", f"{SOURCE}[0].weight_scale.elements", SCALE, "elements: 32, ", ""),
    swap("bytes-per-token-negative", f"{SOURCE}[7].bytes_per_token", MLP_OUT, "256", "-1", "0"),
    add("bytes-per-token-elsewhere", f"{SOURCE}[6].bytes_per_token", DISPATCH, ", bytes_per_token: 8"),
    add("bytes-per-token-elsewhere", f"{SOURCE}[0].bytes_per_token", QKV, ", bytes_per_token: 8"),
    swap("top-k-exceeds-experts", f"{SOURCE}[5].top_k", EXPERTS, "top_k: 2", "top_k: 9", "top_k: 8"),
    swap("shared-experts-negative", f"{SOURCE}[5].shared_experts", SHARED, ": 1,", ": -1,", ": 2,"),
    swap("shared-size-negative", f"{SOURCE}[5].shared_intermediate_size", SHARED, "24", "-24"),
    swap("shared-size-without-experts", f"{SOURCE}[5].shared_intermediate_size", SHARED, "shared_experts: 1,", ""),
    swap("shared-size-without-experts", f"{SOURCE}[5].shared_intermediate_size", SHARED, ": 1,", ": 0,"),
    swap("latent-size-negative", f"{SOURCE}[5].latent_size", SHARED, "16", "-16", "8"),
]

ATTENTION = [
    swap("attention-kind-unknown", f"{PLAIN}[0].kind", LOCAL, "swa", "sliding", "gqa"),
    swap("n-kv-exceeds-n-q", f"{PLAIN}[0].n_kv", LOCAL, "n_kv: 2", "n_kv: 5", "n_kv: 4"),
    swap("latent-n-kv-not-one", f"{SOURCE}[2].n_kv", ATTEND, "n_kv: 1", "n_kv: 2"),
    swap("latent-n-kv-not-one", f"{PLAIN}[0].n_kv", LOCAL, "swa", "mla"),
    add("index-topk-elsewhere", f"{PLAIN}[0].index_topk", LOCAL, ", index_topk: 8"),
    add("index-topk-elsewhere", f"{SOURCE}[0].index_topk", QKV, ", index_topk: 8"),
    swap("index-topk-negative", f"{SOURCE}[2].index_topk", ATTEND, "topk: 8", "topk: -8", "topk: 0"),
    add("compress-ratio-elsewhere", f"{PLAIN}[0].compress_ratio", LOCAL, ", compress_ratio: 1"),
    add("compress-ratio-elsewhere", "head[0].compress_ratio", NORM, ", compress_ratio: 1"),
    swap(
        "compress-ratio-negative",
        f"{READS}[0].compress_ratio",
        READING,
        "ratio: 2",
        "ratio: -2",
        also="cache-ratio-disagrees",
    ),
    swap(
        "sparse-mla-unbounded",
        f"{READS}[0]",
        READING,
        "    compress_ratio: 2\n",
        "",
        "    compress_ratio: 2\n    index_topk: 8\n",
        also="cache-ratio-disagrees",
    ),
    swap("sparse-mla-unbounded", f"{DRAFT}[0]", DRAFTED, "21", "0", also="cache-window-disagrees"),
    add("chunk-size-elsewhere", f"{PLAIN}[0].attention_chunk_size", LOCAL, ", attention_chunk_size: 8"),
    add("soft-cap-not-positive", f"{PLAIN}[0].logits_soft_cap", LOCAL, ", logits_soft_cap: 0", ", logits_soft_cap: 50"),
    swap("recurrent-kind-unknown", f"{STATE}[0].recurrent_kind", MAMBA, "mamba2", "mamba", "gdn"),
    swap("state-dtype-unknown", f"{STATE}[0].state_dtype", MAMBA_INNER, "fp32", "float32", "bf16"),
]

HEAD_ATTENTION = "\n- {op: Attention, kind: gqa, n_q: 1, n_kv: 1, d_h: 8"
CACHE = [
    add("caches-elsewhere", f"{SOURCE}[0].caches", QKV, ", caches: []"),
    add("caches-elsewhere", f"{STATE}[0].caches", MAMBA, ", caches: []"),
    Case(
        "caches-outside-layer",
        "head[0].caches",
        "head:\n- {op: Elementwise, role: final_norm",
        f"head:{HEAD_ATTENTION}, caches: []",
        f"head:{HEAD_ATTENTION}",
    ),
    swap("cache-name-missing", f"{CACHES}[2].name", RING, "name: ring, ", ""),
    swap("cache-name-missing", f"{CACHES}[2].name", RING, "ring", "''"),
    swap("cache-name-repeated", f"{CACHES}[2].name", RING, "ring", "recent"),
    swap(
        "cache-name-repeated",
        f"{PLAIN}[1]",
        O_PROJ,
        "{op: GEMM, ",
        f"{{op: Attention, {LOCAL}}}\n  - {{op: GEMM, ",
        f"{{op: Attention, {LOCAL}, caches: []}}\n  - {{op: GEMM, ",
    ),
    swap("cache-kind-unknown", f"{CACHES}[2].kind", RING, "state", "rings", also="entries-on-other-cache"),
    swap("cache-kind-unknown", f"{CACHES}[2].kind", RING, "kind: state, ", ""),
    swap("cache-owned-missing", f"{CACHES}[2].owned", RING, "owned: true, ", ""),
    swap("cache-bytes-not-positive", f"{CACHES}[2].bytes_per_entry", RING, "256", "0", "1"),
    swap("cache-bytes-not-positive", f"{CACHES}[2].bytes_per_entry", RING, ", bytes_per_entry: 256", ""),
    swap("cache-size-negative", f"{CACHES}[1].block_size", RECENT, "32", "-32", "64"),
    add("cache-size-negative", f"{CACHES}[2].page_alignment", RING, ", page_alignment: -1", ", page_alignment: 1"),
    swap("cache-size-zero", f"{CACHES}[1].block_size", RECENT, "32", "0"),
    add("cache-size-zero", f"{CACHES}[2].tokens_per_entry", RING, ", tokens_per_entry: 0", ", tokens_per_entry: 3"),
    add("cache-dtype-entry-unnamed", f"{CACHES}[2].bytes_by_cache_dtype['']", RING, ", bytes_by_cache_dtype: {'': 1}"),
    add(
        "cache-dtype-entry-not-positive",
        f"{CACHES}[2].bytes_by_cache_dtype.fp8",
        RING,
        ", bytes_by_cache_dtype: {fp8: 0}",
        ", bytes_by_cache_dtype: {fp8: 1}",
    ),
    swap("window-cache-without-window", f"{CACHES}[1].window", RECENT, ", window: 16", ""),
    swap(
        "window-cache-without-window",
        f"{CACHES}[1].window",
        RECENT,
        "window: 16",
        "window: 0",
        also="cache-window-disagrees",
    ),
    add("window-on-other-cache", f"{CACHES}[2].window", RING, ", window: 16"),
    swap("state-cache-without-entries", f"{CACHES}[2].entries", RING, ", entries: 8", ""),
    swap("state-cache-without-entries", f"{CACHES}[2].entries", RING, "entries: 8", "entries: 0", "entries: 16"),
    add("entries-on-other-cache", f"{CACHES}[1].entries", RECENT, ", entries: 8"),
    swap("state-cache-not-owned", f"{CACHES}[2].owned", RING, "true", "false", also="reader-without-owner"),
    add("reader-states-block-size", f"{READS}[0].caches[0].block_size", READER, ", block_size: 32"),
    add("reader-states-page-alignment", f"{READS}[0].caches[0].page_alignment", READER, ", page_alignment: 8"),
    swap("cache-window-disagrees", f"{CACHES}[1].window", ATTEND, "window: 16", "window: 17"),
    swap("cache-window-disagrees", f"{CACHES}[1].window", ATTEND, "    window: 16\n", ""),
    swap("cache-window-disagrees", f"{DRAFT}[0].caches[0].window", DRAFTED, "21", "16"),
    swap("cache-window-disagrees", f"{DRAFT}[0].caches[0].window", DRAFTED, "21", "22"),
    Case(
        "cache-window-disagrees",
        f"{DRAFT}[0].caches[0].window",
        "epilogue: [state]",
        "epilogue: [state, draft]",
        also=("alias-kind-runs-often",),
    ),
    swap("cache-ratio-disagrees", f"{READS}[0].caches[0].tokens_per_entry", READING, "ratio: 2", "ratio: 3"),
    swap(
        "cache-ratio-disagrees", f"{READS}[0].caches[0].tokens_per_entry", READING, "compress_ratio: 2", "index_topk: 2"
    ),
]

GATHER = [
    *(
        swap("gather-key-missing", f"{TABLE}.{key}", ENGRAM, f"{key}: {value}, ", "")
        for key, value in (("rows", 50), ("row_bytes", 32), ("rows_per_token", 4), ("out_bytes_per_token", 256))
    ),
    swap("gather-key-not-positive", f"{TABLE}.rows", ENGRAM, "50", "0", "4", also="gather-rows-exceeded"),
    swap("gather-key-not-positive", f"{TABLE}.row_bytes", ENGRAM, "32", "-32", "1"),
    swap("gather-key-not-positive", f"{TABLE}.rows_per_token", ENGRAM, "4", "0", "2", also="gather-heads-single"),
    swap("gather-key-not-positive", f"{TABLE}.out_bytes_per_token", ENGRAM, "256", "0", "1"),
    swap("gather-rows-exceeded", f"{TABLE}.rows_per_token", ENGRAM, "4", "51", "50"),
    swap("gather-heads-single", f"{TABLE}.rows_per_token", ENGRAM, "4", "1", "2"),
    add("gather-key-elsewhere", f"{SOURCE}[0].rows", QKV, ", rows: 4"),
    add("gather-key-elsewhere", "head[0].shard", NORM, ", shard: rows"),
    add("gather-key-elsewhere", f"{SOURCE}[7].residency", MLP_OUT, ", residency: host"),
    swap("residency-unknown", f"{TABLE}.residency", ENGRAM, "host", "disk", "device"),
    swap("shard-unknown", f"{TABLE}.shard", SHARD, "heads", "columns", "replicated"),
]

ELEMENTWISE = [
    add("per-tokens-elsewhere", f"{SOURCE}[0].per_tokens", QKV, ", per_tokens: 1"),
    add("context-elsewhere", f"{SOURCE}[0].context", QKV, ", context: {bytes_per_entry: 1, per: request}"),
    add("writes-cache-elsewhere", f"{SOURCE}[0].writes_cache", QKV, ", writes_cache: latent"),
    swap("per-tokens-not-positive", "embedding[2].per_tokens", SCALED, "1", "0"),
    swap(
        "context-bytes-not-positive",
        f"{SOURCE}[3].context.bytes_per_entry",
        UNPACK,
        "entry: 0",
        "entry: -1",
        "entry: 9",
    ),
    swap(
        "context-bytes-not-positive", f"{SOURCE}[4].context.bytes_per_entry", MASK, "entry: 4", "entry: 0", "entry: 1"
    ),
    swap("context-bytes-not-positive", f"{SOURCE}[4].context.bytes_per_entry", MASK, "bytes_per_entry: 4, ", ""),
    swap("context-per-unknown", f"{SOURCE}[4].context.per", MASK, "query_token", "token", "request"),
    swap("context-per-unknown", f"{SOURCE}[4].context.per", MASK, "per: query_token, ", ""),
    swap("context-phase-unknown", f"{SOURCE}[3].context.phase", UNPACK, "prefill", "decode"),
    swap("context-extent-unknown", f"{SOURCE}[4].context.decode_extent", MASK, "max_model_len", "context"),
    add("context-extent-on-prefill", f"{SOURCE}[3].context.decode_extent", UNPACK, ", decode_extent: max_model_len"),
    add("context-tokens-beside-reads", f"{SOURCE}[3].context.tokens_per_entry", UNPACK, ", tokens_per_entry: 2"),
    add(
        "context-tokens-not-positive",
        f"{SOURCE}[4].context.tokens_per_entry",
        MASK,
        ", tokens_per_entry: 0",
        ", tokens_per_entry: 2",
    ),
    swap("writes-cache-unknown", f"{SOURCE}[1].writes_cache", STORE, "latent", "kv"),
    swap("reads-cache-unknown", f"{SOURCE}[3].context.reads_cache", UNPACK, "latent", "kv", "ring"),
    Case(
        "writes-cache-not-owned",
        f"{READS}[0].writes_cache",
        "- id: reader\n  nodes:\n",
        f"- id: reader\n  nodes:\n  - {{op: Elementwise, {STORE}}}\n",
        "- id: reader\n  nodes:\n  - {op: Elementwise, per_tokens: 2}\n",
    ),
    swap("per-tokens-differs", f"{SOURCE}[1].per_tokens", STORE, "per_tokens: 2, ", ""),
    swap("per-tokens-differs", f"{SOURCE}[1].per_tokens", STORE, "latent", "recent"),
    swap("per-tokens-no-ratio", f"{SOURCE}[1].per_tokens", STORE, "2", "4", also="per-tokens-differs"),
    add("writes-cache-outside-layer", "embedding[2].writes_cache", SCALED, ", writes_cache: latent"),
    add(
        "reads-cache-outside-layer",
        "embedding[2].context.reads_cache",
        SCALED,
        ", context: {reads_cache: latent, bytes_per_entry: 1, per: request}",
        ", context: {bytes_per_entry: 1, per: request}",
    ),
    swap("per-tokens-outside-layer", "embedding[2].per_tokens", SCALED, "1", "2"),
]

CASES = [*NODES, *ATTENTION, *CACHE, *GATHER, *ELEMENTWISE]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_broken_rule_is_found_where_it_is_broken(case: Case) -> None:
    assert_breaks_only(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.good is not None], ids=str)
def test_the_same_place_edited_well_breaks_nothing(case: Case) -> None:
    assert broken(edited((case.old, case.good or ""))) == []


@pytest.mark.parametrize("emit", ["sequence_parallel", "tensor_parallel_unless_sequence_parallel"])
def test_conditions_on_the_models_own_sequence_parallelism_need_its_class(emit: str) -> None:
    without = ("  architecture: TinyForCausalLM\n", "")
    changed = edited((DISPATCH, DISPATCH.replace("expert_parallel", emit)))
    assert broken(changed) == []
    assert broken(edited(without, text=changed)) == [
        ("sequence-split-needs-architecture", f"{SOURCE}[5].under_sequence_parallel"),
        ("emit-needs-architecture", f"{SOURCE}[6].emit"),
    ]


def test_the_engine_wide_condition_needs_no_class() -> None:
    split = (",\n     shared_intermediate_size: 24, latent_size: 16, under_sequence_parallel: token_sharded}", "}")
    assert broken(edited(("  architecture: TinyForCausalLM\n", ""), split)) == []


def test_a_cache_of_an_attention_that_lists_none_can_be_written() -> None:
    store = ("- id: plain\n  nodes:\n", "- id: plain\n  nodes:\n  - {op: Elementwise, writes_cache: kv}\n")
    assert broken(edited(store)) == []
