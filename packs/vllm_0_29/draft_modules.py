"""The caches a draft module registers: a module in the target's checkpoint, or a checkpoint of its own.

Source: the draft modules under ``vllm/model_executor/models`` and ``vllm/models``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from rulespack.errors import Refused, RulespackError, engine_refuses, not_modelled
from rulespack.graph.model import Attention, GroupedGEMM, ModelGraph, Stack
from rulespack.graph.stack import layers, uses
from vllm_0_29.draft_keys import SOURCE, invalid
from vllm_0_29.drafts import CACHELESS, CACHELESS_HEADS
from vllm_0_29.hidden_states import hidden_states
from vllm_0_29.model import Architecture, CacheClass, Draft, DraftNames, Model, class_key, class_of_cache
from vllm_0_29.shards import read_shards
from vllm_0_29.stages import PARTITION, layers_of_stages
from vllm_0_29.windows import draft_windows

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.rules import Rules

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


#: Classes of EAGLE heads (``vllm/model_executor/models/registry.py``).
EAGLE_CLASSES: Final = frozenset(
    """
    Eagle3DeepseekV2ForCausalLM Eagle3DeepseekV3ForCausalLM Eagle3LlamaForCausalLM Eagle3MiniMaxM2ForCausalLM
    Eagle3Qwen2_5vlForCausalLM Eagle3Qwen3ForCausalLM Eagle3Qwen3vlForCausalLM EagleCohereForCausalLM
    EagleDeepSeekMTPModel EagleLlama4ForCausalLM EagleLlamaForCausalLM EagleMiniCPMForCausalLM
    EagleMistralForCausalLM EagleMistralLarge3ForCausalLM LlamaForCausalLMEagle3
    """.split()
)


#: Classes of block drafts.
DFLASH_CLASSES: Final = frozenset(
    {"DFlash2DraftModel", "DFlashDraftModel", "DFlashLagunaForCausalLM", "DFlashMuseGlimmerAssistantModel"}
)


#: Architectures that come back from the release's reading of a draft's configuration as a multi-token predictor
#: (``SpeculativeConfig.hf_config_override``), whatever the checkpoint counts.
TAKEN_FOR_PREDICTORS: Final = PREDICTING | {"DeepseekV3ForCausalLM", "KimiK3ForConditionalGeneration"}


def run_method(method: str, given: ModelGraph | None) -> str:
    """The method that runs once the draft is known: a whole model that has a prediction module runs that module."""
    if method != "draft_model" or given is None:
        return method
    predicts = given.speculator is not None or given.globals_.architecture in TAKEN_FOR_PREDICTORS
    return "mtp" if predicts else method


def read_draft(rules: Rules, graph: ModelGraph, model: Model, deployment: Deployment, method: str) -> Draft:
    """The draft module a method runs on: the target's own, a checkpoint of its own, or none.

    Refused by the engine where the checkpoint does not carry the module, by the pack where it is not at hand.
    """
    if method in CACHELESS_HEADS and (deployment.speculative_config or {}).get("model") is None:
        raise invalid("draft-named", f"speculative_config.model is not stated, which {method} needs")
    if method in CACHELESS_HEADS:
        check_head(deployment, method)
    if method == "mlp_speculator":
        raise invalid("draft-class-known", "the release has no class for an MLP speculator")
    if method == "medusa" and model.architecture_name.endswith("ForConditionalGeneration"):
        raise not_modelled("draft-is-a-head", f"medusa beside {model.architecture_name}, a composite, is not modelled")
    if method in CACHELESS:
        return Draft(method=method)
    if method == "extract_hidden_states":
        return hidden_states(graph, model, deployment)
    if method == "custom_class":
        if (deployment.speculative_config or {}).get("model") is None:
            raise invalid("draft-named", f"speculative_config.model is not stated, which {method} needs")
        raise not_modelled("speculative-method-modelled", f"the speculative method {method} is not modelled")
    config = deployment.speculative_config or {}
    given = deployment.draft
    if method in ("mtp", "dspark") and (config.get("model") is None if given is None else given.name == graph.name):
        return rules.own_draft(graph, model, method)
    if given is None:
        raise invalid("draft-named", f"speculative_config.model is not stated, which {method} needs")
    return separate_draft(rules, model, given, method, deployment)


def check_head(deployment: Deployment, method: str) -> None:
    """Not modelled: a model of ours where a head is expected. A checkpoint nobody has described is taken for one."""
    try:
        given = deployment.draft
    except RulespackError:
        return
    if given is not None:
        raise not_modelled("draft-is-a-head", f"{method} on {given.name}, no head of that kind, is not modelled")


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
    shared = not (deployment.speculative_config or {}).get("use_heterogeneous_vocab")
    if method == "draft_model" and shared and draft.globals_.vocab_size != model.vocabulary:
        raise invalid(
            "draft-vocabulary",
            f"the draft has {draft.globals_.vocab_size} tokens in its vocabulary, the target {model.vocabulary}",
        )
    if method == "draft_model":
        architecture = rules.architectures.get(name)
        if architecture is not None and architecture.prefix:
            architecture = msgspec.structs.replace(architecture, prefix=f"draft_model.{architecture.prefix}")
    else:
        architecture = rules.draft_architectures.get(run_class(name, method))
    if method == "mtp":
        _check_predictor(rules, draft)
    if architecture is None:
        raise not_modelled("architecture-modelled", f"{name} is not modelled as a draft for vLLM {rules.release}")
    facts = draft.globals_.draft
    default = facts.num_spec_tokens if facts is not None and method in rules.drafts_state_tokens else None
    offset = 0 if method == "draft_model" else model.num_layers
    count = len(layers(draft))
    # A whole model is cut into the target's stages, of which the last alone drafts.
    stages = deployment.pipeline_parallel_size if method == "draft_model" else 1
    held = layers_of_stages(count, stages, deployment.env.get(PARTITION) if stages > 1 else None)[-1]
    made = _draft(draft, draft.stack, architecture, method, offset, count, default, modules=1, first=count - held)
    return msgspec.structs.replace(
        made,
        non_causal=facts is not None and facts.non_causal,
        separate=True,
        headless=method == "dspark" and facts is not None and not facts.markov_head,
        vocabulary=draft.globals_.vocab_size,
    )


def _check_predictor(rules: Rules, draft: ModelGraph) -> None:
    """Refused by the engine: a model of a class without a predictor, named for multi-token prediction."""
    name = draft.globals_.architecture or ""
    whole = rules.architectures.get(name)
    if whole is None or draft.speculator is not None or name in TAKEN_FOR_PREDICTORS:
        return
    if whole.draft_names == DraftNames():
        raise engine_refuses(
            "draft-in-checkpoint",
            "NotImplementedError",
            "config",
            f"the checkpoint of {draft.name} carries no mtp module",
            SOURCE,
        )


def run_class(name: str, method: str) -> str:
    """The class a method runs for a draft checkpoint of this architecture (``transformers_utils/configs/eagle.py``).

    Refused by the engine where there is none of that name.
    """
    if method == "eagle":
        called = name if name.startswith("Eagle") else f"Eagle{name}"
    elif method == "eagle3":
        called = name if name.startswith("Eagle3") or name.endswith("Eagle3") else f"Eagle3{name}"
    elif method == "dflash":
        called = name if name.startswith("DFlash") or name.endswith("DFlash") else f"DFlash{name}"
    else:
        return name
    if called not in EAGLE_CLASSES | DFLASH_CLASSES:
        raise invalid("draft-class-known", f"{method} runs {name} as {called}, and there is no such class")
    return called


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
    held = layers(graph, stack)[:count]
    owned = [use for use in uses(graph, held) if use.cache.owned and use.layer >= first]
    owned.sort(key=lambda use: (use.layer, order.get(use.cache.name, 0)))
    indexed = {use.layer for use in owned if use.cache.kind == "index"}
    names, classes = [], []
    for use in owned:
        called = architecture.caches.get(use.cache.name)
        if called is None or called.pattern is not None:
            raise not_modelled("cache-modelled", f"the draft's cache {use.cache.name!r} is not one {method} keeps")
        names.append(f"{architecture.prefix}{offset + use.layer}{called.suffix}")
        named = class_of_cache(architecture, called, use, indexed=use.layer in indexed)
        classes.append(CacheClass(named, use.node, use.cache, draft=True))
    nodes = [node for layer in held for node in layer.nodes]
    return Draft(
        method=method,
        names=tuple(names),
        classes=tuple(classes),
        default_tokens=default,
        modules=modules,
        experts=max((node.experts for node in nodes if isinstance(node, GroupedGEMM)), default=0),
        quantization=graph.globals_.quantization,
        heads=max((node.n_q for node in nodes if isinstance(node, Attention)), default=0),
        shards=read_shards(graph, stack),
    )


def drafted(model: Model, draft: Draft) -> Model:
    """The model with the draft's caches registered after the target's."""
    twice = sorted(set(model.names).intersection(draft.names))
    if twice:
        raise engine_refuses(
            "layer-names-differ",
            "ValueError",
            "construct",
            f"the draft's layers are called as the target's are: {twice[0]}",
            "vllm/model_executor/layers/attention/attention.py: Attention.__init__",
        )
    classes, class_of, keys = list(model.classes), list(model.class_of), {}
    for cls in draft_windows(model, draft):
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
