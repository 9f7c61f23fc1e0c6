"""What a drafter's own layers are built with where ``speculative_config`` states it: their cache dtype, their backend.

Source: the loaders of the draft modules, ``vllm/v1/worker/gpu/spec_decode`` under the second model runner and
``vllm/v1/spec_decode/llm_base_proposer.py: SpecDecodeBaseProposer._create_draft_vllm_config`` under the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from vllm_0_29.draft_keys import backend_named

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.kv.specs import Spec
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Rules


class Own(msgspec.Struct, frozen=True):
    """What layers are built with that is not the target's.

    ``cache_dtype``: the engine's string for them, None for the target's. ``backend``: the one that is forced on them.
    ``free``: they are not bound by what is forced on the target. ``alone``: they are built with a parallel
    configuration of their own, which knows no decode context parallelism.
    """

    cache_dtype: str | None = None
    backend: str | None = None
    free: bool = False
    alone: bool = False


#: The target's layers, and a draft's that are built as they are.
AS_TARGET: Final = Own()

#: The block size layers with a cache dtype of their own ask for, where none is stated: the configuration is copied for
#: them, and its copy takes the default it holds for a stated one (``vllm/config/cache.py: CacheConfig.__post_init__``).
TAKEN_FOR_STATED: Final = 16


def draft_layers(rules: Rules, model: Model, deployment: Deployment) -> Own:
    """What this release builds the draft's layers with.

    ``kv_cache_dtype`` reaches every draft. ``attention_backend`` reaches those whose loader chooses a backend apart
    from the target's: block drafts under the second model runner, every draft under the first.
    """
    draft = model.draft
    if draft is None or not draft.names or draft.method == "extract_hidden_states":
        return AS_TARGET
    config = deployment.speculative_config or {}
    apart = draft.method in rules.own_backend_methods or rules.model_runner(rules, model, deployment, []) == 1
    # DSpark inside the target's checkpoint keeps to the target's backend where none is stated for it.
    free = apart and (draft.separate or draft.method != "dspark")
    backend = backend_named(config) if apart else None
    return Own(config.get("kv_cache_dtype"), backend, free, alone=draft.method == "draft_model")


def draft_spec(rules: Rules, model: Model, deployment: Deployment, spec: Spec) -> Spec:
    """A draft's cache as the runner reports it: as its layer answers."""
    return spec
