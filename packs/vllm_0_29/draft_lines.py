"""The rules of speculative decoding, in one line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vllm_0_29.listing import DRAFTS, Line, topic

LINES: Final[Mapping[str, Line]] = topic(
    DRAFTS,
    speculative_config_modelled=(
        "A key of speculative_config that is not modelled is refused by name.",
        "check_deployment",
    ),
    speculative_key_known=("A key of speculative_config must be one the release has.", "speculative_keys"),
    speculative_method=("Which drafter runs, and how many caches it adds.", "own_draft draft_architectures"),
    speculative_method_known=("The method must be one the release has.", "speculative_methods"),
    speculative_method_modelled=("A method that is not modelled is refused by name.", "speculative_methods"),
    speculative_method_stated=("Speculative decoding needs a method or a draft model.", "check_deployment"),
    speculative_model_named=("The draft model must be stated by its name.", "check_deployment"),
    speculative_tokens_stated=(
        "The number of drafted tokens must be stated, or follow from the draft.",
        "check_deployment",
    ),
    speculative_tokens_divide=(
        "The number of drafted tokens must be a multiple of the prediction modules.",
        "check_deployment",
    ),
    draft_named=("A method that runs a model of its own needs its name.", "own_draft"),
    draft_described=("A prediction module that a graph does not describe is not modelled.", "own_draft"),
    draft_in_checkpoint=("The checkpoint must carry the draft module a method runs on.", "own_draft"),
    draft_has_a_target=("A model that drafts for another is not served by itself.", ""),
    draft_class_known=("An EAGLE method must know the draft's class.", "draft_architectures"),
    draft_is_a_head=("A model of the catalog is not modelled as a Medusa or MLP head.", "own_draft"),
    layer_names_differ=("A draft's layers must be called otherwise than the target's.", "own_draft"),
    draft_markov_rank=("A DSpark draft must say its Markov rank.", "draft_architectures"),
    draft_vocabulary=("A draft model must have the target's vocabulary.", "draft_architectures"),
    draft_over_stages=(
        "A draft's class must be able to run beside pipeline stages.",
        "drafts_over_stages",
    ),
    draft_inner_states=(
        "The target's class must hand out the hidden states that a draft reads.",
        "inner_state_targets",
    ),
    draft_inner_states_over_stages=(
        "The target's class must hand the hidden states a draft reads on from stage to stage.",
        "inner_states_over_stages",
    ),
    draft_heads_divide=("The ranks must divide a draft's attention heads.", "check_deployment"),
    model_runner_drafts=(
        "The model runner that the environment forces must run the draft.",
        "model_runner first_runner_methods",
    ),
    hidden_states_extracted=(
        "What extract_hidden_states takes: layers that are named, one token, no sampling.",
        "own_draft",
    ),
    qwen4_drafts=(
        "Qwen4Exp drafts by its own predictor or by n-grams.",
        "architectures.Qwen4ExpForConditionalGeneration",
    ),
    hidden_states_fit_page=(
        "A token of extracted hidden states must fit the page of the other groups.",
        "groups hidden_states_scale",
    ),
    draft_batches_padded=(
        "The first model runner drafts by a draft model in padded batches alone.",
        "draft_checks.disable_padded_drafter_batch",
    ),
    draft_slots=("A batch must hold more tokens than a request's drafts take of it.", "batch_sizes"),
    speculative_value_accepted=(
        "A key of speculative_config must have a value of its kind.",
        "speculative_keys speculative_switches speculative_choices",
    ),
    speculative_schedule=(
        "Numbers of drafted tokens by batch size must go up from a batch of 1 without an overlap.",
        "",
    ),
    synthetic_acceptance=("Synthetic acceptance takes rates or a length, within their bounds.", "check_deployment"),
    draft_ranks=(
        "A draft runs on one rank or on the target's.",
        "draft_checks.draft_tensor_parallel_size",
    ),
    draft_length=(
        "A draft's longest request must not be longer than the target's.",
        "draft_checks.max_model_len",
    ),
    draft_quantization=(
        "A draft's quantization must be a method the release has.",
        "draft_checks.quantization",
    ),
    draft_local_argmax=(
        "The draft's class must be able to reduce its logits on every rank apart where that is asked.",
        "modules_reduce_locally",
    ),
    draft_vocabularies=(
        "Vocabularies may differ for a plain draft model that samples greedily.",
        "draft_checks.use_heterogeneous_vocab",
    ),
    draft_shares_index=(
        "Only multi-token prediction shares its sparse indices between steps.",
        "draft_checks.index_share_for_mtp_iteration",
    ),
    adaptive_verification=(
        "What adaptive verification goes with: methods, CUDA graphs, one pipeline stage.",
        "draft_checks.enable_adaptive_verification",
    ),
    draft_candidates=(
        "Only DSpark drafts of Qwen's form take a number of candidates, up to their vocabulary.",
        "draft_checks.dspark_draft_topk",
    ),
    ngram_lookup=(
        "The shortest n-gram looked up must not be longer than the longest.",
        "draft_checks.prompt_lookup_min",
    ),
    suffix_numbers=(
        "What suffix decoding takes for its tree, its cache and its thresholds.",
        "draft_checks.suffix_decoding_max_tree_depth",
    ),
)
