"""How many blocks a request pins in one group.

Source: ``vllm/v1/kv_cache_interface.py``, each spec's ``max_memory_usage_bytes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rulespack.errors import BadPack
from rulespack.kv.pages import PageCount, cdiv
from vllm_0_29.groups import EMPTY_PAGE
from vllm_0_29.hidden_groups import HIDDEN_STATES_SPEC
from vllm_0_29.pool import RINGS
from vllm_0_29.state import CHECKPOINT_BLOCKS

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import Resolution
    from rulespack.kv.specs import Spec


#: How the release stops while it counts blocks: at an assertion of its own, and at a page of no bytes.
WINDOW_DCP: Final = "AssertionError: DCP not support sliding window."
EMPTY: Final = "ZeroDivisionError: integer division or modulo by zero"


def pages(deployment: Deployment, resolution: Resolution, spec: Spec) -> PageCount:
    """Full and latent caches grow with the request, sharded by decode context parallelism; a chunked one keeps a chunk
    and what is in flight; a ring is one block whatever the length; an encoder's output fills as many as a batch."""
    kind = spec.members or spec.type
    if spec.label(EMPTY_PAGE):
        return PageCount(spec.block_size, error=EMPTY)
    if kind in ("FullAttentionSpec", "MLAAttentionSpec", HIDDEN_STATES_SPEC):
        return PageCount(spec.block_size, shards=deployment.decode_context_parallel_size)
    if kind == "ChunkedLocalAttentionSpec":
        assert spec.attention_chunk_size is not None
        in_flight = resolution.resolved.max_in_flight_tokens
        return PageCount(spec.block_size, bound=spec.attention_chunk_size + in_flight)
    if kind in RINGS:
        return PageCount(spec.block_size, bound=0, extra=1)
    if kind == "CrossAttentionSpec":
        return PageCount(
            spec.block_size, bound=0, extra=cdiv(resolution.resolved.max_num_batched_tokens, spec.block_size)
        )
    if kind == "MambaSpec":
        return _state_pages(resolution, spec)
    raise BadPack(f"no rule says how many blocks a request pins in a {kind}")


def _state_pages(resolution: Resolution, spec: Spec) -> PageCount:
    """A state's blocks by mamba cache mode: one; the last boundary's beside it; or one at every boundary; and one for
    each drafted token."""
    mode = resolution.resolved.mamba_cache_mode
    drafts = resolution.resolved.num_speculative_tokens
    if mode == "all":
        return PageCount(spec.block_size, extra=drafts)
    checkpoints = spec.label(CHECKPOINT_BLOCKS)
    extra = checkpoints if isinstance(checkpoints, int) else 0
    return PageCount(spec.block_size, bound=0, extra=drafts + (1 if mode == "none" else 2 + extra))


def window_pages(deployment: Deployment, resolution: Resolution, spec: Spec) -> PageCount:
    """A window keeps its last ``window - 1`` tokens and what is in flight, in one block more than they fill.

    The release crashes while it counts them under decode context parallelism.
    """
    assert spec.sliding_window is not None
    in_flight = resolution.resolved.max_in_flight_tokens
    kept = spec.sliding_window - 1 + resolution.extra_retained_tokens
    error = WINDOW_DCP if deployment.decode_context_parallel_size > 1 else None
    return PageCount(spec.block_size, bound=kept + in_flight, extra=1, error=error)
