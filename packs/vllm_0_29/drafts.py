"""Speculative decoding: which method runs, how many tokens it drafts, and the caches its draft module registers.

Source: ``vllm/config/speculative.py: SpeculativeConfig``; the draft modules under ``vllm/model_executor/models``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from rulespack.errors import Refused, engine_refuses, not_modelled
from rulespack.graph.model import ModelGraph, Stack
from rulespack.graph.stack import layers, uses
from rulespack.kv.plan import Reason
from vllm_0_29.model import Architecture, CacheClass, Draft, Model, class_key, class_of_cache
from vllm_0_29.stages import PARTITION, layers_of_stages
from vllm_0_29.words import meant

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.rules import Rules

SOURCE = "vllm/config/speculative.py: SpeculativeConfig.__post_init__"

#: Methods whose drafter lives beside the target's hidden states.
EAGLE_LIKE: Final = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
#: Methods that own no cache.
CACHELESS: Final = frozenset({"ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"})
#: Methods under which a step is scheduled while the last one runs.
ASYNCHRONOUS: Final = EAGLE_LIKE | {"extract_hidden_states", "ngram_gpu", "draft_model"}
#: Methods that need the first model runner.
FIRST_RUNNER: Final = CACHELESS | {"draft_model", "custom_class"}

#: Methods that read hidden states of the target's inner layers.
READ_INNER_STATES: Final = frozenset({"eagle3", "dflash", "dspark"})
#: Methods whose draft's backend is selected whatever is forced on the target.
CHOOSE_THEIR_BACKEND: Final = frozenset({"dflash", "dspark", "draft_model"})

#: Keys of ``speculative_config`` the release has, those that are read here, and those that cannot change a plan.
KEYS: Final = frozenset(
    """
    enforce_eager num_speculative_tokens model method draft_tensor_parallel_size tensor_parallel_size quantization
    moe_backend attention_backend kv_cache_dtype max_model_len revision code_revision index_share_for_mtp_iteration
    disable_padded_drafter_batch use_local_argmax_reduction use_heterogeneous_vocab prompt_lookup_max prompt_lookup_min
    parallel_drafting target_model_config target_parallel_config num_speculative_tokens_per_batch_size
    draft_model_config draft_parallel_config suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests
    suffix_decoding_max_spec_factor suffix_decoding_min_token_prob draft_load_config rejection_sample_method
    synthetic_acceptance_rates synthetic_acceptance_length enable_adaptive_verification draft_sample_method
    dspark_draft_topk
    """.split()
)
READ: Final = frozenset(
    {
        "method",
        "model",
        "num_speculative_tokens",
        "disable_eagle_block_drop",
        "suffix_decoding_max_tree_depth",
    }
)
INERT: Final = frozenset(
    """
    revision code_revision prompt_lookup_max prompt_lookup_min draft_load_config draft_sample_method
    suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor suffix_decoding_min_token_prob
    """.split()
)

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
    for key in config:
        if key not in rules.speculative_keys:
            raise invalid("speculative-key-known", f"vLLM {rules.release} has no speculative_config.{key}")
        if key not in READ and key not in INERT:
            raise not_modelled("speculative-config-modelled", f"speculative_config.{key} is not modelled")
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
    called = next((method for part, method in NAMED_METHODS if part in named.lower()), None)
    return called or ("draft_model" if method is None else "mtp" if method.endswith("_mtp") else method)


def read_draft(rules: Rules, graph: ModelGraph, model: Model, deployment: Deployment, method: str) -> Draft:
    """The draft module a method runs on: the target's own, a checkpoint of its own, or none.

    Refused by the engine where the checkpoint does not carry the module, by the pack where it is not at hand.
    """
    if method in CACHELESS_HEADS and (deployment.speculative_config or {}).get("model") is None:
        raise invalid("draft-named", f"speculative_config.model is not stated, which {method} needs")
    if method in CACHELESS:
        return Draft(method=method)
    if method in ("extract_hidden_states", "custom_class"):
        raise not_modelled("speculative-method-modelled", f"the speculative method {method} is not modelled")
    config = deployment.speculative_config or {}
    given = deployment.draft
    if method in ("mtp", "dspark") and (config.get("model") is None if given is None else given.name == graph.name):
        return rules.own_draft(graph, model, method)
    if given is None:
        raise invalid("draft-named", f"speculative_config.model is not stated, which {method} needs")
    return separate_draft(rules, model, given, method, deployment)


def own_draft(graph: ModelGraph, model: Model, method: str) -> Draft:
    """The module inside the target's checkpoint, which the graph's ``speculator`` describes."""
    own, names = graph.speculator, model.architecture.draft_names
    if own is None or (own.method != method and not (method == "mtp" and names.mtp_layers)):
        raise _no_module(model, method)
    if not names.modelled:
        raise not_modelled("draft-described", f"the prediction module of {model.architecture_name} is not modelled")
    if own.method == method:
        count, modules = len(own.stack.pattern) * own.stack.repeat, own.modules
    else:
        count = modules = names.mtp_layers
    caches = names.caches or model.architecture.caches
    architecture = msgspec.structs.replace(model.architecture, prefix=names.prefix, caches=caches)
    offset = model.num_layers if names.counted_on else 0
    default = own.num_spec_tokens if method == "dspark" else modules
    return _draft(graph, own.stack, architecture, method, offset, count, default, modules=modules)


def _no_module(model: Model, method: str) -> Refused:
    if method == "dspark":
        return engine_refuses(
            "draft-in-checkpoint",
            "ValueError",
            "construct",
            f"the checkpoint of {model.name} carries no {method} module: it names no mask token",
            "vllm/v1/worker/gpu/spec_decode/dspark: the speculator's setup",
        )
    if model.architecture_name in PREDICTING:
        raise not_modelled("draft-described", f"{model.architecture_name} without a prediction module is not modelled")
    error = model.architecture.draft_names.without
    return engine_refuses(
        "draft-in-checkpoint", error, "config", f"the checkpoint of {model.name} carries no {method} module", SOURCE
    )


def separate_draft(rules: Rules, model: Model, draft: ModelGraph, method: str, deployment: Deployment) -> Draft:
    """A draft checkpoint of its own, by its own architecture's names, counted on from the target's layers."""
    name = draft.globals_.architecture or ""
    if method == "draft_model" and draft.globals_.vocab_size != model.vocabulary:
        raise invalid(
            "draft-vocabulary",
            f"the draft has {draft.globals_.vocab_size} tokens in its vocabulary, the target {model.vocabulary}",
        )
    architecture = rules.draft_architectures.get(name)
    if method == "draft_model":
        whole = rules.architectures.get(name)
        if whole is None:
            raise not_modelled("architecture-modelled", f"{name} is not modelled as a draft for vLLM {rules.release}")
        architecture = msgspec.structs.replace(whole, prefix=f"draft_model.{whole.prefix}")
    elif architecture is None:
        raise not_modelled("architecture-modelled", f"{name} is not modelled as a draft for vLLM {rules.release}")
    facts = draft.globals_.draft
    if method == "dspark" and facts is not None and not facts.markov_head:
        raise engine_refuses(
            "draft-markov-rank",
            "AttributeError",
            "construct",
            f"the draft {draft.name} does not say markov_rank where the release reads it",
            "vllm/model_executor/models: the DSpark draft classes",
        )
    offset = 0 if method == "draft_model" else model.num_layers
    default = facts.num_spec_tokens if facts is not None and method in rules.drafts_state_tokens else None
    count = len(layers(draft))
    # A whole model is cut into the target's stages, of which the last alone drafts.
    stages = deployment.pipeline_parallel_size if method == "draft_model" else 1
    held = layers_of_stages(count, stages, deployment.env.get(PARTITION) if stages > 1 else None)[-1]
    made = _draft(draft, draft.stack, architecture, method, offset, count, default, modules=1, first=count - held)
    return msgspec.structs.replace(made, non_causal=facts is not None and facts.non_causal, separate=True)


def _draft(
    graph: ModelGraph,
    stack: Stack,
    architecture: Architecture,
    method: str,
    offset: int,
    count: int,
    default: int | None,
    *,
    modules: int,
    first: int = 0,
) -> Draft:
    order = {cache: position for position, cache in enumerate(architecture.caches)}
    owned = [use for use in uses(graph, layers(graph, stack)[:count]) if use.cache.owned and use.layer >= first]
    owned.sort(key=lambda use: (use.layer, order.get(use.cache.name, 0)))
    indexed = {use.layer for use in owned if use.cache.kind == "index"}
    names, classes = [], []
    for use in owned:
        called = architecture.caches.get(use.cache.name)
        if called is None:
            raise not_modelled("cache-modelled", f"the draft's cache {use.cache.name!r} is not one {method} keeps")
        names.append(f"{architecture.prefix}{offset + use.layer}{called.suffix}")
        named = class_of_cache(architecture, called, use, indexed=use.layer in indexed)
        classes.append(CacheClass(named, use.node, use.cache, draft=True))
    return Draft(method=method, names=tuple(names), classes=tuple(classes), default_tokens=default, modules=modules)


def drafted(model: Model, draft: Draft) -> Model:
    """The model with the draft's caches registered after the target's."""
    classes, class_of, keys = list(model.classes), list(model.class_of), {}
    for cls in draft.classes:
        known = msgspec.structs.replace(cls, non_causal=draft.non_causal)
        key = (known.layer_class, class_key(known.node, known.cache))
        if key not in keys:
            keys[key] = len(classes)
            classes.append(known)
        class_of.append(keys[key])
    members: list[list[int]] = [[] for _ in classes]
    for position, index in enumerate(class_of):
        members[index].append(position)
    return msgspec.structs.replace(
        model,
        names=model.names + draft.names,
        class_of=tuple(class_of),
        layer_of=model.layer_of + (model.num_layers - 1,) * len(draft.names),
        classes=tuple(classes),
        members=tuple(map(tuple, members)),
        draft=draft,
        first_draft=len(model.names),
    )


#: Architectures with a prediction module of their own, which end in several ways where a checkpoint counts none.
PREDICTING: Final = frozenset(
    """
    DeepseekV32ForCausalLM DeepseekV4ForCausalLM Dots3NoteForCausalLM Ernie4_5_MoeForCausalLM Glm4MoeForCausalLM
    Glm4MoeLiteForCausalLM Glm5NextForConditionalGeneration GlmMoeDsaForCausalLM HYV3ForCausalLM HYV4ForCausalLM
    MiMoForCausalLM MiMoV2FlashForCausalLM MiMoV2ForCausalLM MiMoV2OmniForCausalLM
    MiniMaxM3SparseForConditionalGeneration Qwen3NextForCausalLM Qwen3_5ForConditionalGeneration
    Qwen3_5MoeForConditionalGeneration Qwen4ExpForConditionalGeneration Step3p5ForCausalLM
    Step3p7ForConditionalGeneration
    """.split()
)


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
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise invalid(
            "speculative-tokens-stated", f"num_speculative_tokens is {tokens!r}, and no named draft says more"
        )
    if draft.method == "mtp" and tokens > draft.modules and tokens % draft.modules:
        raise invalid(
            "speculative-tokens-divide", f"num_speculative_tokens {tokens} is no multiple of {draft.modules} modules"
        )
    return tokens


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
    if rules.drafts_over_stages is None or draft is None or deployment.pipeline_parallel_size == 1:
        return
    if draft.names and draft.method != "draft_model" and model.architecture_name not in rules.drafts_over_stages:
        raise engine_refuses(
            "draft-over-stages",
            "NotImplementedError",
            "config",
            f"the draft class that {draft.method} runs does not support pipeline parallelism",
            "vllm/config/speculative.py: SpeculativeConfig._verify_args",
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


def chooses_backend(rules: Rules, model: Model, cls: CacheClass) -> bool:
    """Whether a class is a draft's whose backend is selected whatever is forced on the target."""
    return cls.draft and model.draft is not None and model.draft.method in rules.own_backend_methods


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


def invalid(rule: str, reason: str) -> Refused:
    """A refusal of the release's own reading of ``speculative_config``."""
    return engine_refuses(rule, "ValidationError", "config", reason, SOURCE)
