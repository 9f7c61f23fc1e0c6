"""Every rule about the graph around its nodes, broken by one edit of a valid text, and the same place edited well."""

from __future__ import annotations

import pytest
from graph_texts import BASE, Case, assert_breaks_only, broken, edited

READ = "kind: kv, owned: false, bytes_per_entry: 64, tokens_per_entry: 2, bytes_by_cache_dtype: {fp8: 40}}\n- id: plain"
RATIO = (
    "compress_ratio: 2\n    caches:\n    - {name: latent, kind: kv, owned: false, bytes_per_entry: 64, "
    "tokens_per_entry: 2"
)
OVERRIDE = "bytes_by_cache_dtype: {nvfp4: 30}}\n"
ROLE = "{role: qkv_proj, weight_dtype: fp8}"
CACHE = "{name: latent, bytes_per_entry: 56, page_alignment: 128, bytes_by_cache_dtype: {nvfp4: 30}}"
STACK = "  prologue: [source]\n  pattern: [reader, plain]\n  repeat: 2\n  epilogue: [state]\n"
DRAFT_STACK = "  stack:\n    pattern: [draft]\n    repeat: 1\n"

GRAPH = [
    Case("kind-not-model-graph", "kind", "kind: ModelGraph", "kind: Model"),
    Case("kind-not-model-graph", "kind", "kind: ModelGraph\n", ""),
    Case("name-empty", "name", "name: tiny", 'name: ""', "name: t"),
    Case("name-empty", "name", "name: tiny\n", ""),
    Case("modality-unknown", "modality", "text_only", "text", "text_decoder_of_multimodal"),
    Case("derived-from-format-missing", "derived_from.format", "  format: hf_config_json\n", ""),
    Case("derived-from-format-missing", "derived_from.format", "hf_config_json", "''", "mistral_params_json"),
    Case("derived-from-path-missing", "derived_from.path", "  path: config.json\n", ""),
    Case("derived-from-path-missing", "derived_from.path", "path: config.json", 'path: ""', "path: params.json"),
    Case("derived-from-sha256", "derived_from.sha256", "00aa", "00a", "00FF"),
    Case("derived-from-sha256", "derived_from.sha256", "00aa", "00xy"),
    Case("derived-from-deriver-version", "derived_from.deriver_version", "version: 1", "version: 0", "version: 2"),
    Case("hidden-size", "global.hidden_size", "hidden_size: 64", "hidden_size: 0", "hidden_size: 1"),
    Case("hidden-size", "global.hidden_size", "  hidden_size: 64\n", ""),
    Case("vocab-size", "global.vocab_size", "vocab_size: 100", "vocab_size: -1", "vocab_size: 1"),
    Case(
        "global-weight-dtype-unknown",
        "global.weight_dtype",
        "dtype: bf16\nemb",
        "dtype: bfloat16\nemb",
        "dtype: fp8\nemb",
    ),
    Case(
        "global-weight-scale-not-positive",
        "global.weight_scale.bytes",
        "weight_dtype: bf16\n",
        "weight_dtype: bf16\n  weight_scale: {elements: 32, bytes: 0}\n",
        "weight_dtype: bf16\n  weight_scale: {elements: 32, bytes: 1}\n",
    ),
    Case(
        "context-window-negative",
        "global.context_window",
        "vocab_size: 100\n",
        "vocab_size: 100\n  context_window: -1\n",
        "vocab_size: 100\n  context_window: 4096\n",
    ),
    Case(
        "default-context-window-negative",
        "global.default_context_window",
        "vocab_size: 100\n",
        "vocab_size: 100\n  context_window: 8\n  default_context_window: -1\n",
        "vocab_size: 100\n  context_window: 8\n  default_context_window: 8\n",
    ),
    Case(
        "default-context-window-exceeds",
        "global.default_context_window",
        "vocab_size: 100\n",
        "vocab_size: 100\n  context_window: 8\n  default_context_window: 9\n",
    ),
    Case(
        "default-context-window-alone",
        "global.default_context_window",
        "vocab_size: 100\n",
        "vocab_size: 100\n  default_context_window: 8\n",
    ),
    Case(
        "global-dtype-unknown",
        "global.dtype",
        "vocab_size: 100\n",
        "vocab_size: 100\n  dtype: nvfp4\n",
        "vocab_size: 100\n  dtype: fp16\n",
    ),
    Case(
        "position-not-positive",
        "global.positions.rope[0].factor",
        "vocab_size: 100\n",
        "vocab_size: 100\n  positions: {max_position_embeddings: 8, rope: [{type: yarn, factor: 0}]}\n",
        "vocab_size: 100\n  positions: {max_position_embeddings: 8, rope: [{type: yarn, factor: 4}]}\n",
    ),
    Case(
        "rope-type-empty",
        "global.positions.rope[0].type",
        "vocab_size: 100\n",
        "vocab_size: 100\n  positions: {rope: [{type: '', factor: 2.5}]}\n",
        "vocab_size: 100\n  positions: {rope: [{type: linear, factor: 2.5}]}\n",
    ),
    Case(
        "quantization-method-empty",
        "global.quantization.method",
        "vocab_size: 100\n",
        "vocab_size: 100\n  quantization: {method: ''}\n",
        "vocab_size: 100\n  quantization: {method: modelopt, kv_cache_algorithm: FP8}\n",
    ),
    Case(
        "item-tokens-not-positive",
        "global.multimodal.max_item_tokens",
        "vocab_size: 100\n",
        "vocab_size: 100\n  multimodal: {max_item_tokens: 0}\n",
        "vocab_size: 100\n  multimodal: {prefix_lm: true, max_item_tokens: 256}\n",
    ),
]

LAYERS = [
    Case("layer-kind-id-empty", "layer_kinds[3].id", "- id: state\n", "- id: ''\n", also=("stack-kind-undeclared",)),
    Case("layer-kind-id-empty", "layer_kinds[3].id", "- id: state\n  nodes", "- nodes"),
    Case(
        "layer-kind-id-repeated", "layer_kinds[3].id", "- id: state\n", "- id: plain\n", also=("stack-kind-undeclared",)
    ),
    Case(
        "layer-kind-without-nodes",
        "layer_kinds[6].nodes",
        "stack:\n  pro",
        "- {id: empty, nodes: []}\nstack:\n  pro",
        also=("layer-kind-unused",),
    ),
    Case("edge-node-missing", "layer_kinds[0].edges[4]", "[5, 6]]", "[5, 8]]", "[5, 7]]"),
    Case("edge-node-missing", "layer_kinds[0].edges[4]", "[5, 6]]", "[-1, 6]]"),
    Case("edge-to-itself", "layer_kinds[0].edges[4]", "[5, 6]]", "[6, 6]]"),
    Case("edge-cycle", "layer_kinds[0].edges[5]", "[5, 6]]", "[5, 6], [6, 2]]", "[5, 6], [2, 6]]"),
    Case("layer-kind-unused", "layer_kinds[3]", "  epilogue: [state]\n", "", "  epilogue: [state, state]\n"),
]

STACKS = [
    Case("stack-empty", "stack", STACK, "  repeat: 0\n", also=("layer-kind-unused",)),
    Case("stack-empty", "stack", "stack:\n" + STACK, "", also=("missing-key",)),
    Case("stack-too-long", "stack", "repeat: 2\n  ep", "repeat: 2048\n  ep", "repeat: 2047\n  ep"),
    Case("stack-repeat-negative", "stack.repeat", "repeat: 2\n  ep", "repeat: -1\n  ep"),
    Case("stack-pattern-without-repeat", "stack.repeat", "  repeat: 2\n  ep", "  ep"),
    Case(
        "stack-repeat-without-pattern",
        "stack.repeat",
        STACK,
        "  prologue: [source, reader, plain, state]\n  repeat: 3\n",
        "  prologue: [source, reader, plain, state]\n  repeat: 0\n",
    ),
    Case("stack-kind-undeclared", "stack.epilogue[0]", "epilogue: [state]", "epilogue: [stat, state]"),
    Case("speculator-method-missing", "speculator.method", "method: dspark", "method: ''", "method: mtp"),
    Case("speculator-method-missing", "speculator.method", "  method: dspark\n", ""),
    Case("speculator-draft-tokens", "speculator.num_spec_tokens", "  num_spec_tokens: 5\n", ""),
    Case(
        "speculator-draft-tokens",
        "speculator.num_spec_tokens",
        "num_spec_tokens: 5",
        "num_spec_tokens: 0",
        also=("cache-window-disagrees",),
    ),
    Case("speculator-pattern-missing", "speculator.stack", DRAFT_STACK, ""),
    Case(
        "speculator-pattern-missing",
        "speculator.stack.pattern",
        DRAFT_STACK,
        "  stack:\n    prologue: [draft]\n    repeat: 1\n",
        "  stack:\n    prologue: [draft_context]\n    pattern: [draft]\n    repeat: 1\n",
    ),
    Case("speculator-repeat", "speculator.stack.repeat", "    repeat: 1\n", "    repeat: 0\n"),
    Case("speculator-repeat", "speculator.stack.repeat", "    repeat: 1\n", ""),
    Case(
        "speculator-drafting-unknown",
        "speculator.drafting",
        "parallel_block",
        "parallel",
        also=("speculator-sequential-head", "cache-window-disagrees"),
    ),
    Case(
        "speculator-sequential-head",
        "speculator.sequential_head",
        "  drafting: parallel_block\n",
        "",
        also=("cache-window-disagrees",),
    ),
    Case("speculator-modules", "speculator.modules", "num_spec_tokens: 5\n", "num_spec_tokens: 5\n  modules: 0\n"),
    Case(
        "speculator-modules",
        "speculator.modules",
        "num_spec_tokens: 5\n",
        "num_spec_tokens: 5\n  modules: 2\n",
        "num_spec_tokens: 5\n  modules: 1\n",
    ),
    Case("speculator-kind-undeclared", "speculator.stack.pattern[1]", "[draft]\n", "[draft, drafts]\n"),
    Case(
        "speculator-kind-undeclared",
        "speculator.context_stack.prologue[0]",
        "[draft_context]",
        "[context, draft_context]",
    ),
    Case(
        "stack-repeat-without-pattern",
        "speculator.context_stack.repeat",
        "[draft_context]\n",
        "[draft_context]\n    repeat: 2\n",
        "[draft_context]\n    pattern: [draft_context]\n    repeat: 2\n",
    ),
    Case(
        "stack-empty",
        "speculator.context_stack",
        "    prologue: [draft_context]\n",
        "    prologue: []\n",
        also=("layer-kind-unused",),
    ),
]

READS = "layer_kinds[1].nodes[0].caches[0]"
READERS = [
    Case(
        "reader-without-owner",
        READS,
        "prologue: [source]",
        "prologue: [reader, source]",
        "prologue: [source, reader]",
    ),
    Case(
        "reader-without-owner",
        READS,
        "- {name: latent, kind: kv, owned: false",
        "- {name: latents, kind: kv, owned: false",
    ),
    Case(
        "reader-kind-differs",
        f"{READS}.kind",
        "kind: kv, owned: false",
        "kind: index, owned: false",
    ),
    Case("reader-entry-differs", f"{READS}.bytes_per_entry", READ, READ.replace("entry: 64", "entry: 65")),
    Case("reader-entry-differs", f"{READS}.bytes_by_cache_dtype", READ, READ.replace("fp8: 40", "fp8: 41")),
    Case(
        "reader-entry-differs",
        f"{READS}.bytes_by_cache_dtype",
        READ,
        READ.replace(", bytes_by_cache_dtype: {fp8: 40}", ""),
        READ.replace("fp8: 40", "fp8: 40, auto: 64"),
    ),
    Case(
        "reader-tokens-per-entry-differs",
        f"{READS}.tokens_per_entry",
        RATIO,
        RATIO.replace(": 2", ": 4"),
    ),
    Case(
        "reader-window-differs",
        f"{READS[:-2]}1].window",
        READ,
        READ.replace("\n-", "\n    - {name: recent, kind: window, owned: false, bytes_per_entry: 48, window: 17}\n-"),
        also=("cache-window-disagrees",),
    ),
    Case(
        "reader-entries-differ",
        f"{READS[:-2]}1].entries",
        READ,
        READ.replace("\n-", "\n    - {name: ring, kind: state, owned: false, bytes_per_entry: 256, entries: 9}\n-"),
        also=("state-cache-not-owned",),
    ),
]

ALIAS = "layer_kinds[5].nodes[0].aliases"
ALIASES = [
    Case("alias-unresolved", ALIAS, "draft.draft_proj}", "draft.proj}", "draft.draft_proj, tp: column}"),
    Case("alias-unresolved", ALIAS, "draft.draft_proj}", "draft.draft_attend}"),
    Case(
        "alias-unresolved", "head[1].aliases", "aliases: embedding.embed_tokens}\nspec", "aliases: embed_tokens}\nspec"
    ),
    Case(
        "alias-ambiguous",
        ALIAS,
        "n: 80, k: 64}",
        "n: 80, k: 64}\n  - {op: GEMM, role: draft_proj, n: 80, k: 64}",
        "n: 80, k: 64}\n  - {op: Elementwise, role: draft_proj}",
    ),
    Case("alias-shape-differs", ALIAS, "n: 80, k: 64}", "n: 80, k: 65}"),
    Case("alias-shape-differs", "head[1].aliases", "role: lm_head, n: 100", "role: lm_head, n: 101"),
    Case("alias-shape-differs", "head[1].aliases", "n: 100, k: 64", "n: 100, k: 63"),
    Case(
        "alias-shape-differs",
        "speculator.embedding[0].aliases",
        "role: draft_tokens, rows: 100",
        "role: draft_tokens, rows: 99",
    ),
    Case(
        "alias-kind-runs-often",
        ALIAS,
        "    pattern: [draft]\n    repeat: 1",
        "    pattern: [draft]\n    repeat: 2",
    ),
    Case(
        "alias-kind-runs-often",
        ALIAS,
        "prologue: [draft_context]",
        "prologue: [draft_context, draft]",
        also=("cache-window-disagrees",),
    ),
    Case(
        "alias-of-alias",
        ALIAS,
        "aliases: draft.draft_proj}",
        "aliases: head.lm_head}",
        also=("alias-shape-differs",),
    ),
    Case("aliases-elsewhere", "head[0].aliases", "role: final_norm}", "role: final_norm, aliases: head.lm_head}"),
    Case(
        "alias-states-weight-dtype",
        ALIAS[:-7] + "weight_dtype",
        "role: context_proj,",
        "role: context_proj, weight_dtype: fp8,",
    ),
    Case(
        "alias-states-weight-scale",
        ALIAS[:-7] + "weight_scale",
        "role: context_proj,",
        "role: context_proj, weight_scale: {elements: 8, bytes: 1},",
    ),
]

OVERRIDES = [
    Case("overrides-without-base", "base_capability_families", "base_capability_families: [9]\n", ""),
    Case("capability-family-not-positive", "base_capability_families[0]", "families: [9]", "families: [0]"),
    Case("capability-family-not-positive", "arch_overrides[0].capability_family", "family: 10", "family: -1"),
    Case(
        "capability-family-not-positive", "arch_overrides[0].capability_family", "- capability_family: 10\n  n", "- n"
    ),
    Case(
        "base-family-repeated", "base_capability_families[1]", "families: [9]", "families: [9, 9]", "families: [9, 8]"
    ),
    Case(
        "override-family-repeated",
        "arch_overrides[1].capability_family",
        OVERRIDE,
        OVERRIDE + "- {capability_family: 10, nodes: [{role: experts, weight_dtype: fp8}]}\n",
        OVERRIDE + "- {capability_family: 12, nodes: [{role: experts, weight_dtype: fp8}]}\n",
    ),
    Case("family-base-and-override", "arch_overrides[0].capability_family", "families: [9]", "families: [9, 10]"),
    Case("override-empty", "arch_overrides[1]", OVERRIDE, OVERRIDE + "- capability_family: 12\n"),
    Case("override-entry-empty", "arch_overrides[0].nodes[0]", ROLE, "{role: qkv_proj}"),
    Case(
        "override-entry-empty",
        "arch_overrides[0].caches[0]",
        CACHE,
        "{name: latent}",
        "{name: latent, page_alignment: 8}",
    ),
    Case(
        "override-entry-repeated",
        "arch_overrides[0].nodes[1].role",
        ROLE,
        ROLE + "\n  - {role: qkv_proj, weight_scale: {elements: 4, bytes: 1}}",
        ROLE + "\n  - {role: experts, weight_scale: {elements: 4, bytes: 1}}",
    ),
    Case("override-role-unknown", "arch_overrides[0].nodes[0].role", ROLE, "{role: qkv, weight_dtype: fp8}"),
    Case(
        "override-role-without-parameters", "arch_overrides[0].nodes[0].role", ROLE, "{role: attend, weight_dtype: fp8}"
    ),
    Case(
        "override-role-without-parameters", "arch_overrides[0].nodes[0].role", ROLE, "{role: engram, weight_dtype: fp8}"
    ),
    Case(
        "override-role-without-parameters",
        "arch_overrides[0].nodes[0].role",
        ROLE,
        "{role: lm_head, weight_dtype: fp8}",
    ),
    Case("override-cache-unknown", "arch_overrides[0].caches[0].name", CACHE, "{name: kv, bytes_per_entry: 56}"),
    Case(
        "override-weight-dtype-unknown",
        "arch_overrides[0].nodes[0].weight_dtype",
        ROLE,
        "{role: qkv_proj, weight_dtype: fp4}",
        "{role: qkv_proj, weight_dtype: nvfp4}",
    ),
    Case(
        "override-weight-scale-not-positive",
        "arch_overrides[0].nodes[0].weight_scale.elements",
        ROLE,
        "{role: qkv_proj, weight_scale: {elements: 0, bytes: 1}}",
        "{role: qkv_proj, weight_scale: {elements: 1, bytes: 1}}",
    ),
    Case("override-bytes-not-positive", "arch_overrides[0].caches[0].bytes_per_entry", "entry: 56", "entry: 0"),
    Case(
        "override-alignment-not-positive",
        "arch_overrides[0].caches[0].page_alignment",
        "alignment: 128",
        "alignment: 0",
    ),
    Case(
        "override-dtype-entry-unnamed",
        "arch_overrides[0].caches[0].bytes_by_cache_dtype['']",
        "{nvfp4: 30}",
        "{'': 30}",
    ),
    Case(
        "override-dtype-entry-not-positive",
        "arch_overrides[0].caches[0].bytes_by_cache_dtype.nvfp4",
        "{nvfp4: 30}",
        "{nvfp4: 0}",
    ),
]

CASES = [*GRAPH, *LAYERS, *STACKS, *READERS, *ALIASES, *OVERRIDES]


def test_the_text_the_edits_start_from_is_valid() -> None:
    assert broken(BASE) == []


def test_a_graph_has_layer_kinds() -> None:
    none = BASE[: BASE.index("layer_kinds:")] + "layer_kinds: []\n" + BASE[BASE.index("stack:") :]
    assert ("layer-kinds-empty", "layer_kinds") in broken(none)
    assert ("layer-kinds-empty", "layer_kinds") in broken(none.replace("layer_kinds: []\n", ""))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_broken_rule_is_found_where_it_is_broken(case: Case) -> None:
    assert_breaks_only(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.good is not None], ids=str)
def test_the_same_place_edited_well_breaks_nothing(case: Case) -> None:
    assert broken(edited((case.old, case.good or ""))) == []
