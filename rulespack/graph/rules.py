"""Every rule a graph or an identity can break, by name, with what breaks it. ``docs/graph.md`` lists the same."""

from __future__ import annotations

from typing import Final

import msgspec

from rulespack.graph.problems import Severity


class Rule(msgspec.Struct, frozen=True):
    """``summary`` says what breaks the rule, ``group`` what part of the schema it watches over."""

    summary: str
    group: str
    severity: Severity = "error"


def _rules(group: str, summaries: dict[str, str], severity: Severity = "error") -> dict[str, Rule]:
    return {name: Rule(summary=summary, group=group, severity=severity) for name, summary in summaries.items()}


_READING = {
    "empty-file": "The file holds no document, or one without a value.",
    "too-large": "The file is larger than the limit.",
    "not-utf8": "The file is not UTF-8 text.",
    "not-yaml": "The text is not YAML.",
    "several-documents": "The file holds more than one YAML document.",
    "too-deep": "Mappings and lists are nested deeper than the limit.",
    "too-many-values": "The document holds more values than the limit, aliases expanded.",
    "unknown-anchor": "An alias refers to an anchor that is not complete before it.",
    "yaml-tag": "A value carries an explicit YAML tag.",
    "merge-key": "A mapping uses a YAML merge key.",
    "key-not-text": "A key is not text: a number, a boolean, a null, a mapping or a list.",
    "repeated-key": "A mapping states a key twice.",
    "unknown-key": "A mapping states a key the schema does not have there.",
    "missing-key": "A required key is not stated.",
    "null-value": "A key is stated without a value.",
    "mistyped-value": "A value is of another type than its key takes.",
    "integer-out-of-range": "An integer does not fit 64 bits.",
}

_GRAPH = {
    "kind-not-model-graph": "kind is not ModelGraph.",
    "name-empty": "name is empty.",
    "modality-unknown": "modality is not recognized.",
    "derived-from-format-missing": "derived_from has no format, or an empty one.",
    "derived-from-path-missing": "derived_from has no path, or an empty one.",
    "derived-from-sha256": "derived_from.sha256 is missing or is not 64 hexadecimal digits.",
    "derived-from-deriver-version": "derived_from.deriver_version is missing or below 1.",
    "hidden-size": "global.hidden_size is missing or below 1.",
    "vocab-size": "global.vocab_size is missing or below 1.",
    "global-weight-dtype-unknown": "global.weight_dtype is missing or not a recognized dtype.",
    "global-weight-scale-not-positive": "A count of global.weight_scale is missing or not positive.",
    "context-window-negative": "global.context_window is negative.",
    "default-context-window-negative": "global.default_context_window is negative.",
    "default-context-window-exceeds": "global.default_context_window exceeds context_window.",
    "default-context-window-alone": "global.default_context_window is stated without context_window.",
    "global-dtype-unknown": "global.dtype is not a format a model computes in.",
    "position-not-positive": "A length or a factor of global.positions is not positive and finite.",
    "rope-type-empty": "A rope entry of global.positions has an empty type.",
    "quantization-method-empty": "global.quantization.method is empty.",
    "item-tokens-not-positive": "global.multimodal.max_item_tokens is not positive.",
}

_LAYERS = {
    "layer-kinds-empty": "There are no layer kinds.",
    "layer-kind-id-empty": "A layer kind has no id, or an empty one.",
    "layer-kind-id-repeated": "Two layer kinds have the same id.",
    "layer-kind-without-nodes": "A layer kind has no nodes.",
    "edge-node-missing": "An edge indexes a node that does not exist.",
    "edge-to-itself": "An edge joins a node to itself.",
    "edge-cycle": "The edges of a layer kind close a cycle.",
}

_STACKS = {
    "stack-empty": "A stack is missing or expands to no layers.",
    "stack-too-long": "A stack expands to more layers than the limit.",
    "stack-repeat-negative": "repeat is negative.",
    "stack-pattern-without-repeat": "A stack has a pattern and no repeat.",
    "stack-repeat-without-pattern": "A stack has a repeat and no pattern.",
    "stack-kind-undeclared": "The stack names a layer kind that is not declared.",
    "speculator-method-missing": "The speculator has no method, or an empty one.",
    "speculator-draft-tokens": "The speculator's num_spec_tokens is missing or below 1.",
    "speculator-pattern-missing": "The speculator's stack is missing or has no pattern.",
    "speculator-repeat": "The speculator's stack has a repeat below 1.",
    "speculator-modules": "The speculator's modules are fewer than 1, or do not divide its stack.",
    "speculator-drafting-unknown": "The speculator's drafting is not recognized.",
    "speculator-sequential-head": "The speculator has a sequential_head without parallel_block drafting.",
    "speculator-kind-undeclared": "The speculator's stack or context_stack names a layer kind that is not declared.",
}

_READERS = {
    "reader-without-owner": "A cache a layer reads but does not own has no owner earlier in its stack.",
    "reader-kind-differs": "A reader's cache is of another kind than its owner's.",
    "reader-entry-differs": "A reader's entry size differs from its owner's under some cache dtype.",
    "reader-tokens-per-entry-differs": "A reader's tokens_per_entry differs from its owner's.",
    "reader-window-differs": "A reader's window differs from its owner's.",
    "reader-entries-differ": "A reader's entries differ from its owner's.",
}

_ALIASES = {
    "alias-unresolved": "aliases names no weight-holding node.",
    "alias-ambiguous": "aliases names more than one weight-holding node.",
    "alias-shape-differs": "aliases names a node of another primitive or shape.",
    "alias-kind-runs-often": "aliases names a layer kind the stacks run more than once.",
    "alias-of-alias": "aliases names a node that is itself an alias.",
    "alias-states-weight-dtype": "An aliases node states its own weight_dtype.",
    "alias-states-weight-scale": "An aliases node states its own weight_scale.",
    "aliases-elsewhere": "aliases is set on anything other than a GEMM or Gather.",
}

_OVERRIDES = {
    "overrides-without-base": "arch_overrides is stated without base_capability_families.",
    "capability-family-not-positive": "A capability family is missing or not positive.",
    "base-family-repeated": "base_capability_families lists a family twice.",
    "override-family-repeated": "Two overrides are for the same family.",
    "family-base-and-override": "A family is both a base and an override.",
    "override-empty": "An override overrides nothing.",
    "override-entry-empty": "An entry of an override names a role or a cache and restates nothing.",
    "override-entry-repeated": "An override restates a role or a cache in two entries.",
    "override-role-unknown": "An override names a role that no node has.",
    "override-role-without-parameters": "An override names a role held only by nodes without parameters of their own.",
    "override-cache-unknown": "An override names a cache that no node lists.",
    "override-weight-dtype-unknown": "An override's weight_dtype is not a recognized dtype.",
    "override-weight-scale-not-positive": "A count of an override's weight_scale is missing or not positive.",
    "override-bytes-not-positive": "An override's bytes_per_entry is not positive.",
    "override-alignment-not-positive": "An override's page_alignment is not positive.",
    "override-dtype-entry-unnamed": "An override's bytes_by_cache_dtype has an entry without a name.",
    "override-dtype-entry-not-positive": "An override's bytes_by_cache_dtype has an entry that is not positive.",
}

_NODES = {
    "op-missing": "A node has no op.",
    "op-unknown": "A node's op is not one of the primitives.",
    "emit-unknown": "emit is not a recognized condition.",
    "collective-without-emit": "A collective has no emit.",
    "emit-needs-architecture": "A sequence_parallel emit condition is used without global.architecture.",
    "sequence-split-unknown": "under_sequence_parallel is not a recognized split.",
    "sequence-split-on-collective": "under_sequence_parallel is set on a collective.",
    "sequence-split-needs-architecture": "under_sequence_parallel is used without global.architecture.",
    "tp-not-accepted": "tp is not a layout the node's primitive accepts.",
    "node-key-missing": "A key the tables mark required for its primitive is missing.",
    "node-key-not-positive": "A key the tables mark required for its primitive is not positive.",
    "count-negative": "An optional count is negative.",
    "key-of-other-primitive": "A node states a key that belongs to another primitive.",
    "weight-dtype-elsewhere": "weight_dtype is set on anything other than a GEMM or GroupedGEMM.",
    "weight-scale-elsewhere": "weight_scale is set on anything other than a GEMM or GroupedGEMM.",
    "weight-dtype-unknown": "A node's weight_dtype is not a recognized dtype.",
    "weight-scale-not-positive": "A count of a node's weight_scale is missing or not positive.",
    "bytes-per-token-negative": "bytes_per_token is negative.",
    "bytes-per-token-elsewhere": "bytes_per_token is set on a primitive it says nothing about.",
}

_EXPERTS = {
    "top-k-exceeds-experts": "top_k exceeds experts.",
    "shared-experts-negative": "shared_experts is negative.",
    "shared-size-negative": "shared_intermediate_size is negative.",
    "shared-size-without-experts": "shared_intermediate_size is set without shared_experts.",
    "latent-size-negative": "latent_size is negative.",
}

_ATTENTION = {
    "attention-kind-unknown": "An attention kind is not recognized.",
    "n-kv-exceeds-n-q": "n_kv exceeds n_q.",
    "latent-n-kv-not-one": "n_kv is not 1 for mla or sparse_mla.",
    "index-topk-elsewhere": "index_topk is set on anything other than a sparse_mla attention node.",
    "index-topk-negative": "index_topk is negative.",
    "compress-ratio-elsewhere": "compress_ratio is set on anything other than a sparse_mla attention node.",
    "compress-ratio-negative": "compress_ratio is negative.",
    "sparse-mla-unbounded": "A sparse_mla node has none of index_topk, compress_ratio and window.",
    "chunk-size-elsewhere": "attention_chunk_size is set on anything other than a chunked attention node.",
    "soft-cap-not-positive": "logits_soft_cap is not positive and finite.",
    "recurrent-kind-unknown": "A recurrent_kind is not recognized.",
    "state-dtype-unknown": "state_dtype is not a recognized dtype.",
}

_CACHES = {
    "caches-elsewhere": "caches is set on anything other than an Attention node.",
    "caches-outside-layer": "An embedding or head node states caches.",
    "cache-name-missing": "A cache has no name, or an empty one.",
    "cache-name-repeated": "Two caches of one layer have the same name.",
    "cache-kind-unknown": "A cache's kind is missing or not recognized.",
    "cache-owned-missing": "A cache does not say whether it is owned.",
    "cache-bytes-not-positive": "A cache's bytes_per_entry is missing or not positive.",
    "cache-size-negative": "A size of a cache is negative.",
    "cache-size-zero": "A cache's tokens_per_entry, block_size or page_alignment is zero.",
    "cache-dtype-entry-unnamed": "A bytes_by_cache_dtype entry has no name.",
    "cache-dtype-entry-not-positive": "A bytes_by_cache_dtype entry is not positive.",
    "window-cache-without-window": "A window cache lacks a positive window.",
    "window-on-other-cache": "window is set on a cache of another kind.",
    "state-cache-without-entries": "A state cache lacks positive entries.",
    "entries-on-other-cache": "entries is set on a cache of another kind.",
    "state-cache-not-owned": "A state cache is not owned by its layer.",
    "reader-states-block-size": "A cache the layer does not own states block_size.",
    "reader-states-page-alignment": "A cache the layer does not own states page_alignment.",
    "cache-window-disagrees": "A window cache's window disagrees with its node's.",
    "cache-ratio-disagrees": "A kv or index cache's tokens_per_entry disagrees with its node's compress_ratio.",
}

_GATHERS = {
    "gather-key-missing": "A Gather lacks rows, row_bytes, rows_per_token or out_bytes_per_token.",
    "gather-key-not-positive": "A Gather's rows, row_bytes, rows_per_token or out_bytes_per_token is not positive.",
    "gather-rows-exceeded": "A Gather reads more rows per token than its table has.",
    "gather-heads-single": "A Gather is split by heads and reads fewer than two rows per token.",
    "gather-key-elsewhere": "A Gather key is set on another primitive.",
    "residency-unknown": "residency is not recognized.",
    "shard-unknown": "shard is not recognized.",
}

_ELEMENTWISE = {
    "per-tokens-elsewhere": "per_tokens is set on anything other than an Elementwise node.",
    "context-elsewhere": "context is set on anything other than an Elementwise node.",
    "writes-cache-elsewhere": "writes_cache is set on anything other than an Elementwise node.",
    "per-tokens-not-positive": "per_tokens is not positive.",
    "context-bytes-not-positive": "A context lacks a positive bytes_per_entry (or one of zero with reads_cache).",
    "context-per-unknown": "A context's per is missing or not recognized.",
    "context-phase-unknown": "A context's phase is not recognized.",
    "context-extent-unknown": "A context's decode_extent is not recognized.",
    "context-extent-on-prefill": "A context states a decode_extent on prefill-only work.",
    "context-tokens-beside-reads": "A context states tokens_per_entry beside reads_cache.",
    "context-tokens-not-positive": "A context's tokens_per_entry is not positive.",
    "writes-cache-unknown": "writes_cache names no cache of the layer.",
    "reads-cache-unknown": "reads_cache names no cache of the layer.",
    "writes-cache-not-owned": "writes_cache names a cache the layer does not own.",
    "per-tokens-differs": "per_tokens differs from the tokens_per_entry of the cache the node writes.",
    "per-tokens-no-ratio": "per_tokens above 1 is no compress_ratio the layer reads at.",
    "writes-cache-outside-layer": "An embedding or head node sets writes_cache.",
    "reads-cache-outside-layer": "An embedding or head node sets reads_cache.",
    "per-tokens-outside-layer": "An embedding or head node sets per_tokens above 1.",
}

_IDENTITY = {
    "identity-name-empty": "The identity has no name, or an empty one.",
    "identity-source-missing": "The identity has no source.",
    "identity-provider-missing": "source has no provider, or an empty one.",
    "identity-repo-missing": "source has no repo, or an empty one.",
    "identity-revision-missing": "source has no revision, or an empty one.",
}

_WARNINGS = {
    "layer-kind-unused": "Neither the stack nor the speculator uses a layer kind.",
    "emit-on-non-collective": "An emit condition stands on a node that is not a collective.",
}

#: Every rule by name, in the order the documentation shows them.
RULES: Final[dict[str, Rule]] = {
    **_rules("The text", _READING),
    **_rules("The graph", _GRAPH),
    **_rules("Layer kinds", _LAYERS),
    **_rules("Stacks and the speculator", _STACKS),
    **_rules("Readers and owners", _READERS),
    **_rules("Aliases", _ALIASES),
    **_rules("GPU architectures", _OVERRIDES),
    **_rules("Any node", _NODES),
    **_rules("GroupedGEMM", _EXPERTS),
    **_rules("Attention and RecurrentUpdate", _ATTENTION),
    **_rules("Caches", _CACHES),
    **_rules("Gather", _GATHERS),
    **_rules("Elementwise", _ELEMENTWISE),
    **_rules("Model identity", _IDENTITY),
    **_rules("Warnings", _WARNINGS, "warning"),
}
