"""A small graph that has one of everything, and the edits the tests make to it."""

from __future__ import annotations

from typing import NamedTuple

from rulespack.graph.load import inspect_graph
from rulespack.graph.problems import Problem
from rulespack.graph.rules import RULES

BASE = """\
kind: ModelGraph
name: tiny
derived_from:
  format: hf_config_json
  path: config.json
  sha256: 00000000000000000000000000000000000000000000000000000000000000aa
  deriver_version: 1
modality: text_only
global:
  architecture: TinyForCausalLM
  hidden_size: 64
  vocab_size: 100
  weight_dtype: bf16
embedding:
- {op: Gather, role: embed_tokens, rows: 100, row_bytes: 128, rows_per_token: 1, out_bytes_per_token: 128, shard: rows}
- {op: AllReduce, role: embed_out, emit: tensor_parallel}
- {op: Elementwise, role: embed_scale, per_tokens: 1}
layer_kinds:
- id: source
  nodes:
  - {op: GEMM, role: qkv_proj, n: 96, k: 64, tp: column, weight_scale: {elements: 32, bytes: 1}}
  - {op: Elementwise, role: latent_store, per_tokens: 2, writes_cache: latent, tp: replicated}
  - op: Attention
    role: attend
    kind: sparse_mla
    n_q: 4
    n_kv: 1
    d_h: 32
    window: 16
    index_topk: 8
    compress_ratio: 2
    caches:
    - {name: latent, kind: kv, owned: true, bytes_per_entry: 64, tokens_per_entry: 2, bytes_by_cache_dtype: {fp8: 40},
       page_alignment: 96}
    - {name: recent, kind: window, owned: true, bytes_per_entry: 48, window: 16, block_size: 32}
    - {name: ring, kind: state, owned: true, bytes_per_entry: 256, entries: 8}
  - {op: Elementwise, role: unpack, context: {reads_cache: latent, bytes_per_entry: 0, per: request, phase: prefill}}
  - {op: Elementwise, role: mask, context: {bytes_per_entry: 4, per: query_token, decode_extent: max_model_len}}
  - {op: GroupedGEMM, role: experts, n: 32, k: 64, experts: 8, top_k: 2, weight_dtype: mxfp4, shared_experts: 1,
     shared_intermediate_size: 24, latent_size: 16, under_sequence_parallel: token_sharded}
  - {op: All2All, role: dispatch, emit: expert_parallel}
  - {op: AllReduce, role: mlp_out, emit: tensor_parallel_unless_sp_moe, bytes_per_token: 256}
  edges: [[0, 1], [1, 2], [2, 3], [2, 5], [5, 6]]
- id: reader
  nodes:
  - op: Attention
    role: attend
    kind: sparse_mla
    n_q: 4
    n_kv: 1
    d_h: 32
    compress_ratio: 2
    caches:
    - {name: latent, kind: kv, owned: false, bytes_per_entry: 64, tokens_per_entry: 2, bytes_by_cache_dtype: {fp8: 40}}
- id: plain
  nodes:
  - {op: Attention, role: local, kind: swa, n_q: 4, n_kv: 2, d_h: 16, window: 64}
  - {op: GEMM, role: o_proj, n: 64, k: 72, weight_dtype: fp8}
- id: state
  nodes:
  - {op: RecurrentUpdate, role: ssm, recurrent_kind: mamba2, n_heads: 4, state_size: 16, n_groups: 1, conv_kernel: 4,
     intermediate_size: 128, state_dtype: fp32}
- id: draft
  nodes:
  - op: Attention
    role: draft_attend
    kind: sparse_mla
    n_q: 4
    n_kv: 1
    d_h: 32
    window: 21
    caches:
    - {name: recent, kind: window, owned: true, bytes_per_entry: 48, window: 16}
  - {op: GEMM, role: draft_proj, n: 80, k: 64}
- id: draft_context
  nodes:
  - {op: GEMM, role: context_proj, n: 80, k: 64, aliases: draft.draft_proj}
stack:
  prologue: [source]
  pattern: [reader, plain]
  repeat: 2
  epilogue: [state]
head:
- {op: Elementwise, role: final_norm}
- {op: GEMM, role: lm_head, n: 100, k: 64, aliases: embedding.embed_tokens}
speculator:
  method: dspark
  num_spec_tokens: 5
  drafting: parallel_block
  embedding:
  - {op: Gather, role: draft_tokens, rows: 100, row_bytes: 128, rows_per_token: 1, out_bytes_per_token: 128,
     aliases: embedding.embed_tokens}
  stack:
    pattern: [draft]
    repeat: 1
  context_stack:
    prologue: [draft_context]
  head:
  - {op: Elementwise, role: draft_norm}
  sequential_head:
  - {op: Gather, role: engram, rows: 50, row_bytes: 32, rows_per_token: 4, out_bytes_per_token: 256, residency: host,
     residency_control: engram_cpu_offload, shard: heads}
base_capability_families: [9]
arch_overrides:
- capability_family: 10
  nodes:
  - {role: qkv_proj, weight_dtype: fp8}
  caches:
  - {name: latent, bytes_per_entry: 56, page_alignment: 128, bytes_by_cache_dtype: {nvfp4: 30}}
"""


def edited(*edits: tuple[str, str], text: str = BASE) -> str:
    """The text with each ``(old, new)`` made; ``old`` must be there exactly once, so that an edit cannot miss."""
    for old, new in edits:
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    return text


def problems(text: str | bytes) -> list[Problem]:
    """Everything wrong with a graph text."""
    return inspect_graph(text, "graph.yaml")[1]


def broken(text: str | bytes) -> list[tuple[str, str]]:
    """The broken rules of a graph text with their paths, in the order they are reported."""
    return [(problem.rule, problem.path) for problem in problems(text)]


class Case(NamedTuple):
    """One rule at one place: ``old`` made ``bad`` breaks ``rule`` at ``path``, ``old`` made ``good`` breaks nothing.

    Without ``good`` the text as it is shows the rule kept. ``also`` names what breaks by necessity with it.
    """

    rule: str
    path: str
    old: str
    bad: str
    good: str | None = None
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.rule


def assert_breaks_only(case: Case) -> None:
    """The bad edit breaks the rule, at its path and on a line of the file, and nothing but what must break with it."""
    text = edited((case.old, case.bad))
    found = problems(text)
    assert (case.rule, case.path) in [(problem.rule, problem.path) for problem in found]
    assert {problem.rule for problem in found} <= {case.rule, *case.also}
    for problem in found:
        assert problem.line is not None
        assert 1 <= problem.line <= text.count("\n")
        assert problem.severity == RULES[problem.rule].severity
        assert problem.message
