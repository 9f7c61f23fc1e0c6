"""The group of its own that the cache of hidden states keeps beside other groups.

Source: ``vllm/v1/core/kv_cache_utils.py: get_kv_cache_groups``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import TYPE_CHECKING, Final

import msgspec

from rulespack.errors import engine_refuses

if TYPE_CHECKING:
    from rulespack.hooks import OwnedCaches
    from rulespack.kv.specs import Spec

#: The cache of hidden states that ``extract_hidden_states`` keeps.
HIDDEN_STATES_SPEC: Final = "HiddenStateCacheSpec"


def apart(owned: OwnedCaches) -> tuple[Spec | None, OwnedCaches]:
    """The cache of hidden states, which is registered last, and the others."""
    kept = next((spec for spec in owned.specs if spec.type == HIDDEN_STATES_SPEC), None)
    if kept is None:
        return None, owned
    specs = tuple(spec for spec in owned.specs if spec is not kept)
    spec_of = tuple(specs.index(owned.specs[index]) for index in owned.spec_of[:-1])
    return kept, msgspec.structs.replace(owned, specs=specs, spec_of=spec_of)


def uneven(owned: OwnedCaches) -> bool:
    """Whether the pages of the others are of several sizes."""
    return len({spec.page_size_bytes for spec in owned.specs if spec.type != HIDDEN_STATES_SPEC}) > 1


def fitted(specs: Sequence[Spec], kept: Spec, scale: int) -> tuple[list[Spec], Spec]:
    """Groups of one page size, ``scale`` times as large, and the cache of hidden states in blocks of as many tokens as
    divide theirs and fit the page, padded to it.

    Refused by the engine, in a crash, where the page does not hold a token.
    """
    made = list(specs) if scale == 1 else [_scaled(spec, scale) for spec in specs]
    page, block = made[0].page_size_bytes, gcd(*(spec.block_size for spec in made))
    token = kept.head_slots * kept.content_bytes
    if token > page:
        raise engine_refuses(
            "hidden-states-fit-page",
            "AssertionError",
            "groups",
            f"a token of hidden states takes {token} bytes, more than the page of {page} its cache is padded to",
            "vllm/v1/kv_cache_interface.py: AttentionSpec.page_size_bytes",
        )
    size = next(size for size in range(min(block, page // token), 0, -1) if block % size == 0)
    return made, msgspec.structs.replace(kept, block_size=size, padded_page=page, page_size_bytes=page)


def _scaled(spec: Spec, scale: int) -> Spec:
    return msgspec.structs.replace(
        spec,
        block_size=spec.block_size * scale,
        page_size_bytes=spec.page_size_bytes * scale,
        padded_page=None if spec.padded_page is None else spec.padded_page * scale,
    )


def hidden_states_scale(kept: Spec, page: int) -> int:
    """How many times larger pages are made to hold a token of hidden states: this release leaves them as they are."""
    return 1
