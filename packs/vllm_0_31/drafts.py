"""Speculative decoding in vLLM 0.31.0: which groups are the draft's, and which methods need the first model runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from vllm_0_29 import draft_modules
from vllm_0_29 import drafts as earlier
from vllm_0_31 import deepseek_v41

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.graph.model import ModelGraph
    from vllm_0_29.model import Draft, Model

#: A draft model of its own runs under the second runner.
FIRST_RUNNER: Final = earlier.FIRST_RUNNER - {"draft_model"}
#: The earlier keys, and one that keeps the draft's last blocks.
KEYS: Final = earlier.KEYS | {"disable_eagle_block_drop"}
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
        raise earlier.invalid("deepseek-v41-mtp", "DeepSeek V4.1 carries no multi-token predictor; it drafts by dspark")
    return draft_modules.own_draft(graph, model, method)
