"""The scheduler's defaults: batch sizes, model runner, asynchronous scheduling, tokens in flight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rulespack.errors import engine_refuses
from rulespack.kv.plan import Reason
from vllm_0_29.drafts import ASYNCHRONOUS
from vllm_0_29.environment import RUNNER, switch
from vllm_0_29.words import many

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import Draft, Model
    from vllm_0_29.rules import Reasons, Rules

BATCH_SOURCE = "vllm/engine/arg_utils.py: EngineArgs.get_batch_defaults"
RUNNER_SOURCE = "vllm/config/vllm.py: VllmConfig.use_v2_model_runner"
ASYNC_SOURCE = "vllm/config/vllm.py: VllmConfig.__post_init__"
FLIGHT_SOURCE = "vllm/config/vllm.py: VllmConfig.max_in_flight_tokens"

GIB: Final = 1 << 30

#: (max_num_batched_tokens, max_num_seqs) by usage context, for the largest, large and other GPUs.
LARGEST: Final = {"LLM_CLASS": (16384, 1024), "OPENAI_API_SERVER": (16384, 1024)}
LARGE: Final = {"LLM_CLASS": (16384, 1024), "OPENAI_API_SERVER": (8192, 1024)}
OTHER: Final = {"LLM_CLASS": (8192, 256), "OPENAI_API_SERVER": (2048, 256)}
ANY_CONTEXT: Final = (2048, 128)

#: All-to-all backends whose batches are fixed, with data parallelism over experts.
BATCHED_ALL2ALL: Final = frozenset({"deepep_low_latency", "nixl_ep"})
BATCHED_TOKENS: Final = 256


def chunked_prefill(model: Model, deployment: Deployment) -> bool:
    """Whether long prompts are scheduled in pieces: a decoder's unless told otherwise, an encoder's only where told;
    never those of a decoder beside an encoder."""
    attends, asked = model.architecture.attends, deployment.enable_chunked_prefill
    if attends == "encoder_decoder":
        return False
    return attends == "decoder" if asked is None else asked


def prefix_caching(model: Model, deployment: Deployment) -> bool:
    """Whether blocks of earlier requests are kept for reuse; a decoder that attends does unless told otherwise."""
    if deployment.enable_prefix_caching is not None:
        return deployment.enable_prefix_caching
    return model.heads > 0 and model.architecture.attends == "decoder"


def mm_prefix(model: Model, deployment: Deployment) -> bool:
    """Whether images attend within themselves in both directions: such a model, with images admitted."""
    return model.multimodal is not None and model.multimodal.prefix_lm and not text_only(model, deployment)


def text_only(model: Model, deployment: Deployment) -> bool | None:
    """Whether a model with encoders admits no item: told so, or every kind of item limited to none; not where
    embeddings are taken instead. None where that hangs on a kind that not every checkpoint of the class takes."""
    if deployment.stated.get("enable_mm_embeds"):
        return False
    if deployment.language_model_only:
        return True
    limits = deployment.limit_mm_per_prompt
    if limits is None or not model.architecture.items:
        return False
    if not all(_limited_to_none(limits.get(kind)) for kind in model.architecture.items):
        return False
    return True if all(_limited_to_none(limits.get(kind)) for kind in model.architecture.optional_items) else None


def _limited_to_none(limit: object) -> bool:
    return (limit.get("count") if isinstance(limit, Mapping) else limit) == 0


def batch_sizes(
    rules: Rules, model: Model, deployment: Deployment, max_model_len: int, reasons: Reasons
) -> tuple[int, int]:
    """``max_num_batched_tokens`` and ``max_num_seqs``: what was asked, else by GPU memory and usage context.

    Refused by the engine where the batch is smaller than the number of sequences, or than the longest request when
    prompts are not chunked.
    """
    gpu = deployment.gpu
    if gpu.memory_bytes >= 160 * GIB:
        table, size = LARGEST, "at least 160 GiB"
    elif gpu.memory_bytes >= 70 * GIB and "a100" not in gpu.name.lower():
        table, size = LARGE, "at least 70 GiB and no A100"
    else:
        table, size = OTHER, "under 70 GiB, or an A100"
    tokens, seqs = table.get(deployment.usage_context, ANY_CONTEXT)
    because = f"the default for {deployment.usage_context} on a GPU of {size}"
    if deployment.enable_expert_parallel and deployment.data_parallel_size > 1:
        if deployment.all2all_backend in BATCHED_ALL2ALL:
            tokens, because = BATCHED_TOKENS, f"the batch size of {deployment.all2all_backend} with data parallelism"
    if deployment.performance_mode == "throughput":
        tokens, seqs, because = tokens * 2, seqs * 2, because + ", doubled for throughput"
    if deployment.max_num_seqs is not None:
        seqs = deployment.max_num_seqs
    if deployment.max_num_batched_tokens is not None:
        tokens, because = deployment.max_num_batched_tokens, "as asked"
    else:
        if not chunked_prefill(model, deployment) and max_model_len > tokens:
            tokens, because = max_model_len, "a whole prompt must fit, as prompts are not chunked"
        item = model.multimodal.max_item_tokens if model.multimodal is not None else None
        if item is not None and item > tokens and mm_prefix(model, deployment):
            tokens, because = item, "the largest multimodal item must fit whole"
        if seqs * max_model_len < tokens:
            tokens, because = seqs * max_model_len, "no more than max_num_seqs requests of max_model_len"
    if deployment.max_num_seqs is None:
        seqs = min(seqs, tokens)
    _check_batch(model, tokens, seqs, max_model_len, deployment)
    reasons.append(
        Reason(
            "max-num-batched-tokens",
            tokens,
            {"gpu": gpu.name, "usage_context": deployment.usage_context, "max_num_seqs": seqs},
            because,
            BATCH_SOURCE,
        )
    )
    return tokens, seqs


def _check_batch(model: Model, tokens: int, seqs: int, max_model_len: int, deployment: Deployment) -> None:
    source = "vllm/config/scheduler.py: SchedulerConfig.verify_max_model_len"
    if tokens < max_model_len and not chunked_prefill(model, deployment):
        raise engine_refuses(
            "batch-holds-a-prompt",
            "ValidationError",
            "config",
            f"max_num_batched_tokens {tokens} is less than max_model_len {max_model_len} while prompts are not chunked",
            source,
        )
    if tokens < seqs:
        raise engine_refuses(
            "batch-holds-a-token-a-sequence",
            "ValidationError",
            "config",
            f"max_num_batched_tokens {tokens} is less than max_num_seqs {seqs}",
            source,
        )


def model_runner(rules: Rules, model: Model, deployment: Deployment, reasons: Reasons) -> int:
    """The model runner's version: 2, unless the environment forces 1 or a feature needs it."""
    forced = switch(deployment, RUNNER)
    version, because = 2, "nothing asked for needs the first"
    method = model.draft.method if model.draft is not None else None
    if method in rules.first_runner_methods:
        version, because = 1, f"the second does not draft by {method}"
    if forced is not None:
        if model.draft is not None:
            _check_drafts(rules, model, model.draft, forced)
        version, because = (2 if forced else 1), f"{RUNNER} says so"
    if version == 1:
        check_runner(deployment)
    reasons.append(Reason("model-runner", version, {}, because, RUNNER_SOURCE))
    return version


def _check_drafts(rules: Rules, model: Model, draft: Draft, second: bool) -> None:
    """Refused by the engine: a drafter that the runner the environment forces does not run.

    The first runs no DSpark, and no block draft some of whose layers have a window.
    """
    windows = {cls.window is not None for cls in draft.classes}
    if second:
        against = draft.method in rules.first_runner_methods
    else:
        against = draft.method == "dspark" or (draft.method == "dflash" and len(windows) > 1)
    if against:
        raise engine_refuses(
            "model-runner-drafts",
            "ValidationError",
            "config",
            f"the {'second' if second else 'first'} model runner, which {RUNNER} asks for, does not run this draft by "
            f"{draft.method}",
            "vllm/config/vllm.py: VllmConfig.__post_init__",
        )


def check_runner(deployment: Deployment) -> None:
    """Refused by the engine: a prefill shared over ranks under the first model runner."""
    if deployment.prefill_context_parallel_size > 1:
        raise engine_refuses(
            "model-runner-shares-prefill",
            "ValidationError",
            "config",
            "the first model runner does not support prefill context parallelism",
            "vllm/config/vllm.py: VllmConfig._get_v1_model_runner_unsupported_features",
        )


def async_scheduling(rules: Rules, model: Model, deployment: Deployment, runner: int, reasons: Reasons) -> bool:
    """Whether a step is scheduled while the last one runs: on, unless asked off; an encoder's only where asked."""
    asked = deployment.async_scheduling
    method = model.draft.method if model.draft is not None else None
    padded = method is None or not (deployment.speculative_config or {}).get("disable_padded_drafter_batch")
    barred = not padded or (method is not None and method not in ASYNCHRONOUS)
    default = not barred and model.architecture.attends != "encoder_only"
    on, because = default if asked is None else asked, "the default" if asked is None else "as asked"
    if barred:
        because = (
            f"drafting by {method} does not allow it" if padded else "drafts in batches without padding do not allow it"
        )
        if asked:
            raise engine_refuses("async-scheduling-method", "ValidationError", "config", because, ASYNC_SOURCE)
    reasons.append(Reason("async-scheduling", on, {"asked": asked, "method": method}, because, ASYNC_SOURCE))
    return on


def in_flight_tokens(deployment: Deployment, batch: int, asynchronous: bool, runner: int, reasons: Reasons) -> int:
    """Tokens scheduled but not settled at once: the concurrent batches times ``max_num_batched_tokens``.

    With asynchronous scheduling the second runner keeps one batch more than there are pipeline stages; the first
    keeps two on one stage and as many as there are stages otherwise.
    """
    stages = deployment.pipeline_parallel_size
    batches = stages
    if asynchronous:
        batches = stages + 1 if runner == 2 else max(2, stages) if stages <= 1 else stages
    reasons.append(
        Reason(
            "max-in-flight-tokens",
            batches * batch,
            {"concurrent_batches": batches, "max_num_batched_tokens": batch},
            f"{many(batches, 'batch')} may be under way at once, and windows keep what is",
            FLIGHT_SOURCE,
        )
    )
    return batches * batch
