"""What stated keys of ``speculative_config`` make the release refuse, once the method and the draft are known.

Source: ``vllm/config/speculative.py: SpeculativeConfig`` and the users of its fields that are named beside each check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from rulespack.errors import engine_refuses, not_modelled
from vllm_0_29.draft_keys import PLAIN, invalid
from vllm_0_29.hidden_states import METHOD, check_extraction
from vllm_0_29.lengths import check_admitted

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import Draft, Model
    from vllm_0_29.rules import Rules

Config = Mapping[str, Any]
Check = Callable[["Rules", "Model", "Deployment", "Draft", "Config"], None]

#: Methods that make no configuration of a draft model's.
WITHOUT_CONFIG: Final = frozenset({"ngram", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states"})
#: Classes of draft checkpoints whose head can reduce its logits on every rank apart (``get_top_tokens``).
REDUCE_LOCALLY: Final = frozenset(
    """
    DFlashDraftModel DSparkDraftModel Ernie4_5ForCausalLM LlamaForCausalLM LlamaForCausalLMEagle
    LlamaForCausalLMEagle3 MistralForCausalLM Phi3ForCausalLM Qwen3ForCausalLM
    """.split()
)
#: Targets whose prediction module can.
MODULES_REDUCE_LOCALLY: Final = frozenset(
    """
    DeepseekV32ForCausalLM Dots3NoteForCausalLM GlmMoeDsaForCausalLM InklingForConditionalGeneration
    Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration
    """.split()
)
#: Quantization methods a release knows (``vllm/model_executor/layers/quantization: QUANTIZATION_METHODS``).
QUANTIZATIONS: Final = frozenset(
    """
    awq auto_awq fp8 fbgemm_fp8 fp_quant modelopt modelopt_fp4 modelopt_mxfp8 modelopt_mixed auto_gptq gptq
    gptq_marlin awq_marlin humming compressed-tensors experts_int8 quark moe_wna16 torchao inc mxfp4 gpt_oss_mxfp4
    deepseek_v4_fp8 online fp8_per_tensor fp8_per_block fp8_per_channel int8_per_channel_weight_only nvfp4_per_token
    mxfp8
    """.split()
)
#: Draft classes that evaluate the Markov head for the likeliest candidates alone.
TOP_CANDIDATES: Final = frozenset({"DSparkDraftModel"})


def check_stated(rules: Rules, model: Model, deployment: Deployment) -> None:
    """Refused by the engine where a stated key does not go with the method, the draft or the rest of the arguments."""
    draft, config = model.draft, deployment.speculative_config
    if draft is None or config is None:
        return
    if deployment.tensor_parallel_size > 1:
        _check_heads(draft, config, deployment)
    if draft.method == METHOD:
        check_extraction(config)
    if PLAIN.issuperset(config):
        return
    if config.get("rejection_sample_method") == "synthetic" or not _SYNTHETIC.isdisjoint(config):
        _check_synthetic(draft, config, deployment)
    for key in config:
        check = rules.draft_checks.get(key)
        if check is not None and config[key] is not None:
            check(rules, model, deployment, draft, config)


def _check_heads(draft: Draft, config: Config, deployment: Deployment) -> None:
    ranks = config.get("draft_tensor_parallel_size") or deployment.tensor_parallel_size
    if draft.separate and draft.heads % ranks:
        raise engine_refuses(
            "draft-heads-divide",
            "ValidationError",
            "config",
            f"{draft.heads} attention heads of the draft are not divisible by {ranks} ranks",
            "vllm/config/model.py: ModelConfig.verify_with_parallel_config",
        )


_SYNTHETIC: Final = frozenset({"synthetic_acceptance_rates", "synthetic_acceptance_length"})


def _check_synthetic(draft: Draft, config: Config, deployment: Deployment) -> None:
    rates, length = config.get("synthetic_acceptance_rates"), config.get("synthetic_acceptance_length")
    if config.get("rejection_sample_method") != "synthetic":
        if rates is not None or length is not None:
            raise invalid(
                "synthetic-acceptance",
                "synthetic_acceptance_rates and synthetic_acceptance_length go with rejection_sample_method synthetic",
            )
        return
    if (rates is None) == (length is None):
        raise invalid(
            "synthetic-acceptance",
            "rejection_sample_method synthetic takes one of synthetic_acceptance_rates and synthetic_acceptance_length",
        )
    tokens = config.get("num_speculative_tokens") or draft.default_tokens
    if rates is not None:
        falling = all(later <= earlier for earlier, later in pairwise(rates))
        if len(rates) != tokens or not falling or not all(0 <= rate <= 1 for rate in rates):
            raise invalid(
                "synthetic-acceptance",
                f"synthetic_acceptance_rates takes {tokens} shares from 0 to 1, none above the one before it",
            )
    elif tokens is not None and not 1 <= (length or 0) <= tokens + 1:
        raise invalid("synthetic-acceptance", f"synthetic_acceptance_length is {length}, and must be 1 to {tokens + 1}")


def draft_ranks(rules: Rules, model: Model, deployment: Deployment, draft: Draft, config: Config) -> None:
    """``draft_tensor_parallel_size``: one rank or the target's; the layers are cut as the target's are either way."""
    ranks, target = config["draft_tensor_parallel_size"], deployment.tensor_parallel_size
    if draft.method in WITHOUT_CONFIG or ranks == target:
        return
    if ranks != 1:
        raise invalid("draft-ranks", f"draft_tensor_parallel_size is {ranks}, and must be 1 or {target}")
    if draft.method == "draft_model" and rules.model_runner(rules, model, deployment, []) == 1:
        raise engine_refuses(
            "draft-ranks",
            "ValueError",
            "construct",
            f"a draft model runs on as many ranks as its target: {target}, not {ranks}",
            "vllm/v1/spec_decode/draft_model.py: DraftModelProposer._raise_if_draft_tp_mismatch",
        )


def padded(rules: Rules, model: Model, deployment: Deployment, draft: Draft, config: Config) -> None:
    """``disable_padded_drafter_batch``: not where the first runner's drafts take tokens of a batch beyond its own."""
    if not config["disable_padded_drafter_batch"] or draft.method not in ("draft_model", "dflash"):
        return
    if rules.model_runner(rules, model, deployment, []) == 1 and deployment.async_scheduling is not True:
        raise engine_refuses(
            "draft-batches-padded",
            "NotImplementedError",
            "construct",
            f"the first model runner drafts by {draft.method} in padded batches alone",
            "vllm/v1/spec_decode/llm_base_proposer.py: SpecDecodeBaseProposer.__init__",
        )


def draft_length(rules: Rules, model: Model, deployment: Deployment, draft: Draft, config: Config) -> None:
    """``max_model_len``: no more than the draft's configuration admits, nor than the target's requests may have."""
    if draft.method in WITHOUT_CONFIG:
        return
    given = deployment.draft
    positions = model.positions if not draft.separate else None if given is None else given.globals_.positions
    if positions is None or not draft.names:
        raise not_modelled("speculative-config-modelled", f"max_model_len of this {draft.method} is not modelled")
    asked = config["max_model_len"]
    check_admitted(asked, rules.scaled_length(positions)[0], positions.model_max_length, deployment)
    longest = rules.max_model_len(rules, model, deployment, [])
    if asked > longest:
        raise invalid("draft-length", f"the draft's max_model_len {asked} is more than the target's {longest}")


def draft_experts(rules: Rules, model: Model, deployment: Deployment, draft: Draft, config: Config) -> None:
    """``moe_backend``: nothing for a draft without experts, or one whose loader does not look at it."""
    asked = config["moe_backend"]
    if draft.experts == 0 or asked == "auto":
        return
    if draft.method in rules.drafts_choose_experts or rules.model_runner(rules, model, deployment, []) == 1:
        raise not_modelled("speculative-config-modelled", f"moe_backend {asked} for a draft's experts is not modelled")


def draft_quantization(rules: Rules, model: Model, deployment: Deployment, draft: Draft, config: Config) -> None:
    """``quantization``: a method there is; beyond what the checkpoint says, fp8 made of one that is not quantized."""
    if draft.method in WITHOUT_CONFIG:
        return
    asked, own = config["quantization"], None if draft.quantization is None else draft.quantization.method
    if asked not in QUANTIZATIONS:
        raise invalid("draft-quantization", f"quantization {asked!r} of the draft is none of the release's methods")
    if asked != own and (own is not None or asked != "fp8" or not draft.names):
        raise not_modelled(
            "speculative-config-modelled",
            f"quantization {asked!r} over the draft's own ({own or 'none'}) is not modelled",
        )


def check_local_argmax(rules: Rules, model: Model, deployment: Deployment) -> None:
    """``use_local_argmax_reduction``, once the draft is built: its head must be able to, and the second runner samples
    greedily then."""
    draft, config = model.draft, deployment.speculative_config or {}
    if draft is None or not config.get("use_local_argmax_reduction") or not draft.names:
        return
    given = deployment.draft
    if draft.separate:
        able = given is not None and given.globals_.architecture in REDUCE_LOCALLY
    else:
        able = draft.method == "mtp" and model.architecture_name in rules.modules_reduce_locally
    reason = None if able else "the draft's class does not reduce its logits on every rank apart"
    if config.get("draft_sample_method") == "probabilistic" and rules.model_runner(rules, model, deployment, []) == 2:
        reason = "drafts that are sampled need all of their logits"
    if reason is not None:
        raise engine_refuses(
            "draft-local-argmax",
            "ValueError",
            "construct",
            f"use_local_argmax_reduction is stated, and {reason}",
            "vllm/v1/worker/gpu/spec_decode/speculator.py: DraftModelSpeculator._validate_local_argmax_reduction",
        )


def other_vocabulary(rules: Rules, model: Model, deployment: Deployment, draft: Draft, config: Config) -> None:
    """``use_heterogeneous_vocab``: for a plain draft model that samples greedily.

    The first runner asks what its tokenizer shares with the target's, which is not known here.
    """
    if not config["use_heterogeneous_vocab"]:
        return
    if draft.method != "draft_model":
        raise invalid("draft-vocabularies", f"use_heterogeneous_vocab goes with draft_model, not with {draft.method}")
    if config.get("draft_sample_method", "greedy") != "greedy":
        raise invalid("draft-vocabularies", "use_heterogeneous_vocab samples drafts greedily alone")
    if rules.model_runner(rules, model, deployment, []) == 1:
        raise not_modelled(
            "speculative-config-modelled", "use_heterogeneous_vocab needs what two tokenizers share: not modelled"
        )


def parallel_drafting(rules: Rules, model: Model, deployment: Deployment, draft: Draft, config: Config) -> None:
    """``parallel_drafting``: block drafts do so anyway; whether another was trained to is not known here."""
    if config["parallel_drafting"] and draft.names and draft.method not in ("dflash", "dspark"):
        raise not_modelled(
            "speculative-config-modelled",
            f"parallel_drafting of {draft.method} is not modelled: its mask token",
        )


def shared_index(rules: Rules, model: Model, deployment: Deployment, draft: Draft, config: Config) -> None:
    """``index_share_for_mtp_iteration``: for multi-token prediction alone; its caches stay."""
    if draft.method != "mtp":
        raise invalid("draft-shares-index", f"index_share_for_mtp_iteration goes with mtp, not with {draft.method}")


def adaptive(rules: Rules, model: Model, deployment: Deployment, draft: Draft, config: Config) -> None:
    """``enable_adaptive_verification``: with DSpark alone."""
    if config["enable_adaptive_verification"] and draft.method != "dspark":
        raise invalid("adaptive-verification", f"adaptive verification goes with dspark, not with {draft.method}")


def check_adaptive(deployment: Deployment) -> None:
    """Adaptive verification, once the draft's class is accepted: refused by the engine without CUDA graphs and over
    pipeline stages; otherwise by the pack."""
    if not (deployment.speculative_config or {}).get("enable_adaptive_verification"):
        return
    source = "vllm/config/vllm.py: VllmConfig._validate_adaptive_verification"
    against = "enforce_eager" if deployment.enforce_eager else "pipeline stages"
    if deployment.enforce_eager or deployment.pipeline_parallel_size > 1:
        reason = f"adaptive verification does not go with {against}"
        raise engine_refuses("adaptive-verification", "ValidationError", "config", reason, source)
    raise not_modelled("speculative-config-modelled", "enable_adaptive_verification is not modelled")


def top_candidates(rules: Rules, model: Model, deployment: Deployment, draft: Draft, config: Config) -> None:
    """``dspark_draft_topk``: with a DSpark draft of the Qwen form, up to its vocabulary."""
    if draft.method in WITHOUT_CONFIG:
        return
    asked, given = config["dspark_draft_topk"], deployment.draft
    if draft.method != "dspark":
        raise invalid("draft-candidates", f"dspark_draft_topk goes with dspark, not with {draft.method}")
    name = None if given is None or not draft.separate else given.globals_.architecture
    if name not in TOP_CANDIDATES or given is None:
        raise invalid("draft-candidates", f"dspark_draft_topk is not for the draft class of {model.architecture_name}")
    if asked > given.globals_.vocab_size:
        raise invalid("draft-candidates", f"dspark_draft_topk {asked} is more than {given.globals_.vocab_size} tokens")


def lookup(rules: Rules, model: Model, deployment: Deployment, draft: Draft, config: Config) -> None:
    """``prompt_lookup_min`` is no more than ``prompt_lookup_max``, where n-grams are looked up."""
    if draft.method not in ("ngram", "ngram_gpu"):
        return
    least, most = config.get("prompt_lookup_min"), config.get("prompt_lookup_max")
    if least is not None and most is not None and least > most:
        raise invalid("ngram-lookup", f"prompt_lookup_min {least} is more than prompt_lookup_max {most}")


def suffix(rules: Rules, model: Model, deployment: Deployment, draft: Draft, config: Config) -> None:
    """What suffix decoding takes: a tree of at least 1, and no negative numbers, a share for the probability."""
    if draft.method != "suffix":
        return
    depth = config.get("suffix_decoding_max_tree_depth", 1)
    share = config.get("suffix_decoding_min_token_prob", 0)
    requests, factor = (config.get(f"suffix_decoding_max_{name}", 0) for name in ("cached_requests", "spec_factor"))
    if depth < 1 or requests < 0 or factor < 0 or not 0 <= share <= 1:
        raise invalid("suffix-numbers", "suffix decoding takes a tree depth of at least 1 and no negative numbers")


def overwritten(rules: Rules, model: Model, deployment: Deployment, draft: Draft, config: Config) -> None:
    """Configurations the release writes over itself, but for methods that read what was given."""
    if draft.method == "suffix":
        raise not_modelled("speculative-config-modelled", f"a draft_model_config beside {draft.method} is not modelled")


def check_schedule(deployment: Deployment) -> None:
    """Refused by the engine, where the scheduler is made: ``num_speculative_tokens_per_batch_size`` that does not begin
    at 1, goes back or over itself, or is negative. Data-parallel ranks pass it over.

    Source: ``vllm/v1/spec_decode/dynamic/utils.py: validate_and_normalize_dynamic_sd_schedule``.
    """
    schedule = (deployment.speculative_config or {}).get("num_speculative_tokens_per_batch_size")
    if not schedule or deployment.data_parallel_size > 1:
        return
    reached = 0
    for first, last, tokens in sorted(schedule, key=lambda entry: entry[0]):
        begins = first > reached if reached else first == 1
        if not begins or last < first or tokens < 0:
            raise engine_refuses(
                "speculative-schedule",
                "ValueError",
                "scheduler",
                f"num_speculative_tokens_per_batch_size has ({first}, {last}, {tokens}): batch sizes go up from 1 "
                "without an overlap, and tokens are not negative",
                "vllm/v1/core/sched/scheduler.py: Scheduler.__init__",
            )
        reached = last


CHECKS: Final[Mapping[str, Check]] = {
    "draft_tensor_parallel_size": draft_ranks,
    "max_model_len": draft_length,
    "moe_backend": draft_experts,
    "quantization": draft_quantization,
    "disable_padded_drafter_batch": padded,
    "use_heterogeneous_vocab": other_vocabulary,
    "parallel_drafting": parallel_drafting,
    "index_share_for_mtp_iteration": shared_index,
    "enable_adaptive_verification": adaptive,
    "dspark_draft_topk": top_candidates,
    "prompt_lookup_min": lookup,
    "suffix_decoding_max_tree_depth": suffix,
    "suffix_decoding_max_cached_requests": suffix,
    "suffix_decoding_max_spec_factor": suffix,
    "suffix_decoding_min_token_prob": suffix,
    "draft_model_config": overwritten,
    "draft_parallel_config": overwritten,
}
