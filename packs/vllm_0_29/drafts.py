"""Speculative decoding: which method runs, how many tokens it drafts, and what a drafter changes beside its caches.

Source: ``vllm/config/speculative.py: SpeculativeConfig``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rulespack.errors import engine_refuses, meant
from rulespack.kv.plan import Reason
from vllm_0_29.draft_keys import PLAIN, SOURCE, check_tokens, check_values, invalid
from vllm_0_29.model import Draft, Model

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.rules import Rules

#: Methods whose drafter lives beside the target's hidden states.
EAGLE_LIKE: Final = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
#: Methods that own no cache.
CACHELESS: Final = frozenset({"ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"})
#: Methods that name no draft of the catalog's: of no cache, of a user's own code, or of the target's states.
WITHOUT_DRAFT: Final = CACHELESS | {"custom_class", "extract_hidden_states"}
#: Methods under which a step is scheduled while the last one runs.
ASYNCHRONOUS: Final = EAGLE_LIKE | {"extract_hidden_states", "ngram_gpu", "draft_model"}
#: Methods that need the first model runner.
FIRST_RUNNER: Final = CACHELESS | {"draft_model", "custom_class"}

#: Methods that read hidden states of the target's inner layers.
READ_INNER_STATES: Final = frozenset({"eagle3", "dflash", "dspark", "extract_hidden_states"})
#: Methods whose draft's backend is selected whatever is forced on the target.
CHOOSE_THEIR_BACKEND: Final = frozenset({"dflash", "dspark", "draft_model"})

#: What a draft's path says of its method; the first that is found counts, and before what is stated.
NAMED_METHODS: Final = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))
#: Methods that are taken as stated whatever the draft's path says.
TAKEN_AS_STATED: Final = frozenset({"eagle", "eagle3", "dflash", "dspark", "extract_hidden_states", "custom_class"})
#: Methods that own no cache and still run on a checkpoint of their own.
CACHELESS_HEADS: Final = frozenset({"medusa", "mlp_speculator"})


def method_of(rules: Rules, deployment: Deployment) -> str | None:
    """The method that runs, aliases resolved; None without speculative decoding.

    Refused by the engine for a method the release does not have, and where neither a method nor a model is stated.
    """
    config = deployment.speculative_config
    if config is None:
        return None
    if len(config) > len(PLAIN) or not PLAIN.issuperset(config):
        check_values(rules, config)
    method, named = config.get("method"), config.get("model")
    if method is not None and (not isinstance(method, str) or method not in rules.speculative_methods):
        near = meant(method, rules.speculative_methods)
        raise invalid("speculative-method-known", f"vLLM {rules.release} has no speculative method {method!r}{near}")
    if named is not None and not isinstance(named, str):
        raise invalid("speculative-model-named", f"speculative_config.model is {named!r}, and must be a name")
    if method is not None and (method in TAKEN_AS_STATED or method in CACHELESS or named is None):
        return "mtp" if method.endswith("_mtp") else method
    if named is None:
        raise invalid("speculative-method-stated", "speculative_config states neither a method nor a draft model")
    if method is None and "." in named and "/" not in named and all(map(str.isidentifier, named.split("."))):
        return "custom_class"
    called = next((method for part, method in NAMED_METHODS if part in named.lower()), None)
    return called or ("draft_model" if method is None else "mtp" if method.endswith("_mtp") else method)


#: Tokens ``suffix`` drafts where nothing is stated.
SUFFIX_TOKENS: Final = 24


def speculative_tokens(model: Model, deployment: Deployment) -> int:
    """Tokens drafted each step: as stated, else what a draft named by its model says; 0 without speculative decoding.

    Refused by the engine where neither says, or where the modules of a multi-token predictor do not divide it.
    """
    draft = model.draft
    if draft is None:
        return 0
    config = deployment.speculative_config or {}
    tokens = config.get("num_speculative_tokens")
    if tokens is None and draft.method == "suffix":
        tokens = config.get("suffix_decoding_max_tree_depth", SUFFIX_TOKENS)
    if tokens is None and config.get("model") is not None:
        tokens = draft.default_tokens
    if type(tokens) is not int or tokens < 1:
        check_tokens(tokens)
        raise invalid(
            "speculative-tokens-stated", f"num_speculative_tokens is {tokens!r}, and no named draft says more"
        )
    if draft.method == "mtp" and tokens > draft.modules and tokens % draft.modules:
        raise invalid(
            "speculative-tokens-divide", f"num_speculative_tokens {tokens} is no multiple of {draft.modules} modules"
        )
    return tokens


def check_slots(model: Model, deployment: Deployment, batch: int, tokens: int) -> None:
    """Refused by the engine where a batch holds no more tokens than one request takes of it beyond its own to draft.

    A block draft takes one for every drafted token, but DSpark and others that draft in parallel draw on the token
    there is; a draft model takes one.
    """
    draft = model.draft
    if draft is None or batch > tokens:
        return
    parallel = draft.method == "dspark" or (deployment.speculative_config or {}).get("parallel_drafting")
    taken = tokens if draft.method == "dflash" else tokens - 1 if parallel else int(draft.method == "draft_model")
    if batch <= taken:
        raise engine_refuses(
            "draft-slots",
            "ValidationError",
            "config",
            f"max_num_batched_tokens {batch} leaves no token beside the {taken} that {draft.method} takes to draft",
            "vllm/config/vllm.py: VllmConfig._set_max_num_scheduled_tokens",
        )


def draft_reason(draft: Draft, tokens: int) -> Reason:
    """What drafts, and with which caches."""
    caches = len(draft.names)
    if not caches:
        because = "it keeps no cache"
    else:
        owner = "a draft checkpoint of its own" if draft.separate else "a module in the target's checkpoint"
        because = f"{owner} keeps {caches} caches after the target's" if caches > 1 else f"{owner} keeps a cache"
    return Reason(
        "speculative-method", draft.method, {"num_speculative_tokens": tokens, "caches": caches}, because, SOURCE
    )


def check_stages(rules: Rules, model: Model, deployment: Deployment) -> None:
    """Refused by the engine where the draft's class cannot be cut into the target's pipeline stages."""
    draft = model.draft
    if draft is None or deployment.pipeline_parallel_size == 1 or not (draft.names or draft.method == "medusa"):
        return
    cuts = rules.drafts_over_stages
    cut = cuts is None or (model.architecture_name in cuts and draft.method != "medusa")
    if draft.method == "extract_hidden_states" or not (cut or draft.method == "draft_model"):
        raise engine_refuses(
            "draft-over-stages",
            "NotImplementedError",
            "config",
            f"the draft class that {draft.method} runs does not support pipeline parallelism",
            "vllm/config/speculative.py: SpeculativeConfig._verify_args",
        )


def check_head(model: Model) -> None:
    """Refused by the engine where a DSpark draft does not say its Markov rank, once the draft is built."""
    if model.draft is not None and model.draft.headless:
        raise engine_refuses(
            "draft-markov-rank",
            "AttributeError",
            "construct",
            f"the draft of {model.name} does not say markov_rank where the release reads it",
            "vllm/model_executor/models: the DSpark draft classes",
        )


def check_inner_states(rules: Rules, model: Model, deployment: Deployment) -> None:
    """Refused by the engine where the target's class does not hand out its inner hidden states, and the draft reads
    them; or not from one pipeline stage to the next."""
    draft = model.draft
    if draft is None or draft.method not in READ_INNER_STATES:
        return
    name = model.architecture_name
    if name not in rules.inner_state_targets:
        raise engine_refuses(
            "draft-inner-states",
            "RuntimeError",
            "construct",
            f"{name} does not hand out the hidden states {draft.method} reads",
            "vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py: set_eagle3_aux_hidden_state_layers",
        )
    if deployment.pipeline_parallel_size > 1 and name not in rules.inner_states_over_stages:
        raise engine_refuses(
            "draft-inner-states-over-stages",
            "ValueError",
            "construct",
            f"{name} does not hand on the hidden states {draft.method} reads from one pipeline stage to the next",
            "vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py: verify_supports_aux_hidden_states_over_pp",
        )


def extra_retained_tokens(model: Model, tokens: int) -> int:
    """Tokens windows keep longer: one less than drafted, where several prediction modules run one after another."""
    draft = model.draft
    if draft is None or draft.method != "mtp" or min(draft.modules, tokens) <= 1:
        return 0
    return tokens - 1


def drops_blocks(model: Model, deployment: Deployment) -> bool:
    """Whether the release marks groups as the draft's at all: with a drafter of the EAGLE kind."""
    return model.draft is not None and model.draft.method in EAGLE_LIKE


#: Grouping branches whose groups the release looks through for the draft's.
MARKED_BRANCHES: Final = frozenset({"packed-groups", "equal-page-groups"})


def draft_groups(model: Model, deployment: Deployment, branch: str, groups: Sequence[Sequence[int]]) -> frozenset[int]:
    """The groups the release marks as the draft's (``kv_cache_utils.py: _annotate_eagle_groups``).

    Groups that hold a latent cache decoded non-causally; for DeepSeek V4's packed groups the one that holds the last
    registered cache. A model of one group is never looked at.
    """
    if branch not in MARKED_BRANCHES or not drops_blocks(model, deployment):
        return frozenset()
    marked = non_causal_groups(model, groups)
    if branch == "packed-groups" and model.architecture.marks_last_group:
        marked |= last_group(model, groups)
    return marked


def non_causal_groups(model: Model, groups: Sequence[Sequence[int]]) -> frozenset[int]:
    """Groups that hold a latent cache of a draft that attends to its whole block."""
    return frozenset(
        i
        for i, caches in enumerate(groups)
        if any(
            (cls := model.classes[model.class_of[cache]]).non_causal and cls.layer_class == "MLAAttention"
            for cache in caches
            if model.first_draft is not None and cache >= model.first_draft
        )
    )


def last_group(model: Model, groups: Sequence[Sequence[int]]) -> frozenset[int]:
    """The group that holds the last registered cache."""
    last = len(model.names) - 1
    return frozenset(i for i, caches in enumerate(groups) if last in caches)
