"""Speculative decoding in vLLM 0.31.0: which groups are the draft's, and which methods need the first model runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from rulespack.graph.model import Attention
from rulespack.graph.vocabulary import LATENT_KINDS
from vllm_0_29 import draft_checks, draft_keys, draft_modules
from vllm_0_29 import drafts as earlier
from vllm_0_29.draft_layers import AS_TARGET, Own
from vllm_0_29.draft_layers import draft_layers as earlier_layers
from vllm_0_31 import deepseek_v41
from vllm_0_31.groups import REPLICATED

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.graph.model import ModelGraph
    from rulespack.kv.specs import Spec
    from vllm_0_29.model import Draft, Model
    from vllm_0_29.rules import Rules

#: A draft model of its own runs under the second runner.
FIRST_RUNNER: Final = earlier.FIRST_RUNNER - {"draft_model"}
#: The earlier switches, and one that keeps the draft's last blocks.
SWITCHES: Final = draft_keys.SWITCHES | {"disable_eagle_block_drop"}
KEYS: Final = draft_keys.KEYS | SWITCHES
CHOICES: Final = {
    **draft_keys.CHOICES,
    "moe_backend": draft_keys.CHOICES["moe_backend"] | {"aiter_triton_mxfp4_bf16", "rdna3"},
}
#: Methods whose draft takes a backend of its own for its experts under the second runner.
CHOOSE_EXPERTS: Final = frozenset({"eagle", "eagle3", "mtp"})
MODULES_REDUCE_LOCALLY: Final = draft_checks.MODULES_REDUCE_LOCALLY | {"Glm5NextForConditionalGeneration"}
#: A draft model of its own takes the backend forced on the target.
CHOOSE_THEIR_BACKEND: Final = earlier.CHOOSE_THEIR_BACKEND - {"draft_model"}

#: Methods whose draft checkpoint says how many tokens it drafts (``config/speculative.py``: its block's size).
STATE_TOKENS: Final = frozenset({"dspark"})


def draft_groups(model: Model, deployment: Deployment, branch: str, groups: Sequence[Sequence[int]]) -> frozenset[int]:
    """As before; the group of the last registered cache also for every multi-token predictor, and for equal pages.

    Nothing is marked where ``disable_eagle_block_drop`` is stated.
    """
    config = deployment.speculative_config or {}
    if config.get("disable_eagle_block_drop") or branch not in earlier.MARKED_BRANCHES:
        return frozenset()
    if not earlier.drops_blocks(model, deployment):
        return frozenset()
    marked = earlier.non_causal_groups(model, groups)
    if model.draft is not None and (model.draft.method == "mtp" or model.architecture.marks_last_group):
        marked |= earlier.last_group(model, groups)
    return marked


def own_draft(graph: ModelGraph, model: Model, method: str) -> Draft:
    """As before; DeepSeek V4.1 drafts by DSpark alone."""
    if method == "mtp" and model.architecture_name == deepseek_v41.NAME:
        raise draft_keys.invalid(
            "deepseek-v41-mtp", "DeepSeek V4.1 carries no multi-token predictor; it drafts by dspark"
        )
    return draft_modules.own_draft(graph, model, method)


def draft_layers(rules: Rules, model: Model, deployment: Deployment) -> Own:
    """As before under the first model runner and for block drafts.

    Under the second a plain draft model is built as the target is, and any other draft takes the backend that is stated
    for it, else the target's.
    """
    draft = model.draft
    if draft is None or not draft.names:
        return AS_TARGET
    if draft.method == "extract_hidden_states":
        return AS_TARGET
    if replicated(rules, model, deployment):
        return msgspec.structs.replace(earlier_layers(rules, model, deployment), alone=True)
    if draft.method in rules.own_backend_methods or rules.model_runner(rules, model, deployment, []) == 1:
        return msgspec.structs.replace(earlier_layers(rules, model, deployment), alone=False)
    if draft.method == "draft_model":
        return Own(alone=True)
    config = deployment.speculative_config or {}
    return Own(config.get("kv_cache_dtype"), draft_keys.backend_named(config))


def replicated(rules: Rules, model: Model, deployment: Deployment) -> bool:
    """Whether every rank keeps the draft's caches whole under decode context parallelism: a block draft's that are not
    latent, under the second model runner.

    ``vllm/v1/worker/gpu/spec_decode/dflash/speculator.py: DFlashSpeculator.__init__``.
    """
    draft = model.draft
    if deployment.decode_context_parallel_size == 1 or draft is None or draft.method not in ("dflash", "dspark"):
        return False
    latent = any(isinstance(cls.node, Attention) and cls.node.kind in LATENT_KINDS for cls in draft.classes)
    return not latent and rules.model_runner(rules, model, deployment, []) == 2


def draft_spec(rules: Rules, model: Model, deployment: Deployment, spec: Spec) -> Spec:
    """As its layer answers, marked where every rank keeps it whole.

    ``vllm/v1/worker/gpu/model_runner.py: GPUModelRunner.get_kv_cache_spec``.
    """
    if not replicated(rules, model, deployment):
        return spec
    return msgspec.structs.replace(spec, labels=(*spec.labels, (REPLICATED, True)))


def adaptive(rules: Rules, model: Model, deployment: Deployment, draft: Draft, config: draft_checks.Config) -> None:
    """``enable_adaptive_verification``: with any method that has a drafter, but not without its logits."""
    if config["enable_adaptive_verification"] and draft.method != "dspark" and config.get("use_local_argmax_reduction"):
        raise draft_keys.invalid(
            "adaptive-verification", "adaptive verification reads the logits use_local_argmax_reduction does without"
        )


CHECKS: Final = {**draft_checks.CHECKS, "enable_adaptive_verification": adaptive}
