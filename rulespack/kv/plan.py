"""The answer: what a release decides for one graph and one deployment, frozen.

Keys and meanings are the public contract's (``docs/plan.md``). Sizes are bytes and say so; block sizes and lengths are
tokens; everything is per rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsIndex

import msgspec

from rulespack.errors import BadLength
from rulespack.kv.pages import PageCount
from rulespack.kv.specs import Spec

SCHEMA_VERSION = 1


class Reason(msgspec.Struct, frozen=True):
    """Why one decision fell: the rule's stable name, what it decided, what it saw, and where the release does it."""

    rule: str
    value: Any
    inputs: Mapping[str, Any]
    because: str
    source: str


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine arguments came to. ``None`` where the engine stopped before it set a value."""

    cache_dtype: str
    block_size: int
    kv_cache_layout: str | None
    hybrid_kv_cache_manager: bool
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_in_flight_tokens: int
    num_speculative_tokens: int
    enable_prefix_caching: bool
    async_scheduling: bool
    mamba_block_size: int | None
    mamba_cache_mode: str
    scheduler_block_size: int | None = None
    hash_block_size: int | None = None

    def with_pool(self, scheduler_block_size: int, hash_block_size: int, max_model_len: int | None) -> Resolved:
        """The same with what is known only when the pool is: the scheduler's sizes, and a length fitted to memory."""
        return msgspec.structs.replace(
            self,
            scheduler_block_size=scheduler_block_size,
            hash_block_size=hash_block_size,
            max_model_len=self.max_model_len if max_model_len is None else max_model_len,
        )


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Caches that share one block table. ``caches`` are indices into the plan's caches."""

    caches: tuple[int, ...]
    type: str
    block_size: int
    page_size_bytes: int
    blocks_per_request: int
    draft: bool
    padding_bytes: int
    pages: PageCount


class Stage(msgspec.Struct, frozen=True):
    """One pipeline stage: its part of every group, and what a block costs there."""

    groups: tuple[tuple[int, ...], ...]
    bytes_per_block: int


class Capacity(msgspec.Struct, frozen=True):
    """The pool for a stated memory, as the engine logs it."""

    num_blocks: int
    tokens: int
    max_concurrency: float


class Request(msgspec.Struct, frozen=True):
    """What one request of ``tokens`` tokens pins.

    ``fixed_bytes`` is the part in groups that stop growing (windows, chunks, states) at this length;
    ``growth_bytes_per_token`` what each further token costs on average in the groups that never stop.
    """

    tokens: int
    blocks: int
    bytes: int
    growth_bytes_per_token: float
    fixed_bytes: int


def read_length(name: str, value: object) -> int:
    """A length in tokens from any integer, a NumPy one too. Raises BadLength where it is none, or below 1."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        length = value.__index__()
        if length >= 1:
            return length
        raise BadLength(f"{name}: a request has at least 1 token, got {length}")
    raise BadLength(f"{name}: expected a number of tokens, such as 4096, got {value!r} ({type(value).__name__})")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that a pack answers for one graph and one deployment.

    ``caches`` are ``(engine layer name, index into specs)`` in the engine's registration order over all pipeline
    stages. ``nearest`` names the release that was asked for, where the answer is another's.
    """

    engine: str
    release: str
    model: str
    deployment: Mapping[str, Any]
    architecture: str
    resolved: Resolved
    specs: tuple[Spec, ...]
    caches: tuple[tuple[str, int], ...]
    draft_caches: tuple[int, ...]
    groups: tuple[Group, ...]
    bytes_per_block: int
    blocks_per_request: int
    backends: Mapping[str, int]
    stages: tuple[Stage, ...] | None = None
    capacity: Capacity | None = None
    reasons: tuple[Reason, ...] = ()
    nearest: str | None = None

    @property
    def growth_bytes_per_token(self) -> float:
        """Bytes each further token costs in the groups that grow without end, averaged over a block."""
        per_token = sum(1 / (group.pages.block_size * group.pages.shards) for group in self.groups if group.pages.grows)
        return self.bytes_per_block * per_token

    def request(self, tokens: int) -> Request:
        """What one request of ``tokens`` tokens pins.

        Raises BadLength where ``tokens`` is no integer, below 1, or past ``resolved.max_model_len``: such a request is
        not served.
        """
        longest = self.resolved.max_model_len
        if type(tokens) is not int or not 1 <= tokens <= longest:
            tokens = read_length("tokens", tokens)
            if tokens > longest:
                raise BadLength(
                    f"tokens: a request of {tokens} tokens is not served, {longest} is max_model_len; state a larger "
                    "max_model_len to ask further"
                )
        growing = fixed = 0
        for group in self.groups:
            blocks = group.pages.at(tokens)
            if group.pages.grows:
                growing += blocks
            else:
                fixed += blocks
        return Request(
            tokens=tokens,
            blocks=growing + fixed,
            bytes=(growing + fixed) * self.bytes_per_block,
            growth_bytes_per_token=self.growth_bytes_per_token,
            fixed_bytes=fixed * self.bytes_per_block,
        )


def pinned(plan: Plan) -> tuple[list[Any], Any]:
    """What a request pins of each group, and in all; an error instead where the engine's own count crashes."""
    blocks: list[Any] = [
        group.blocks_per_request if group.pages.error is None else {"error": group.pages.error} for group in plan.groups
    ]
    try:
        return blocks, sum(blocks)
    except TypeError as uncounted:
        return blocks, {"error": f"TypeError: {uncounted}"}
