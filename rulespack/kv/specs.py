"""One owned cache as an engine sees it, and the arithmetic of its page."""

from __future__ import annotations

from typing import Final

import msgspec

#: Bytes of one element by torch's name for the dtype.
DTYPE_BYTES: Final = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One cache: its class, its block in tokens and its page in bytes.

    ``type`` is the engine's class name. ``page_size_bytes`` is one block of this cache on one rank, padding included.
    ``content_bytes`` is one state (a token, or a compressed entry of ``tokens_per_state`` tokens) of one head slot;
    a block holds ``block_size // tokens_per_state`` states for each of ``head_slots`` heads. ``alignment`` rounds a
    page up; ``padded_page`` is a page size forced from outside. ``cache_dtype`` is the layer's cache-dtype string.
    ``members`` is set on the spec of a group of several page sizes: the class its first member has.
    ``labels`` are further facts two specs must share to be one group, as sorted (name, value) pairs; what they mean
    is the pack's.
    """

    type: str
    block_size: int
    page_size_bytes: int
    dtype: str | None = None
    num_kv_heads: int | None = None
    head_size: int | None = None
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    shapes: tuple[tuple[int, ...], ...] | None = None
    dtypes: tuple[str, ...] | None = None
    head_slots: int = 1
    content_bytes: int = 0
    tokens_per_state: int = 1
    alignment: int | None = None
    padded_page: int | None = None
    cache_dtype: str = "auto"
    labels: tuple[tuple[str, object], ...] = ()
    members: str | None = None

    @property
    def states(self) -> int:
        """States in one block of one head slot."""
        return self.block_size // self.tokens_per_state

    def label(self, name: str) -> object:
        """The label's value, None where the spec does not carry it."""
        for key, value in self.labels:
            if key == name:
                return value
        return None


def page_bytes(
    *, head_slots: int, states: int, content_bytes: int, alignment: int | None = None, padded_page: int | None = None
) -> int:
    """One block in bytes: heads x states x content, rounded up to ``alignment``; ``padded_page`` overrides the rest."""
    page = head_slots * states * content_bytes
    if padded_page is not None:
        return padded_page
    return page if alignment is None else -(-page // alignment) * alignment


def attention_spec(
    type: str,  # noqa: A002 - the contract's key
    *,
    block_size: int,
    head_slots: int,
    content_bytes: int,
    dtype: str,
    num_kv_heads: int,
    head_size: int,
    sliding_window: int | None = None,
    attention_chunk_size: int | None = None,
    tokens_per_state: int = 1,
    alignment: int | None = None,
    padded_page: int | None = None,
    cache_dtype: str = "auto",
    labels: tuple[tuple[str, object], ...] = (),
) -> Spec:
    """A spec whose page is computed from its parts; parameters as on :class:`Spec`."""
    return Spec(
        type=type,
        block_size=block_size,
        page_size_bytes=page_bytes(
            head_slots=head_slots,
            states=block_size // tokens_per_state,
            content_bytes=content_bytes,
            alignment=alignment,
            padded_page=padded_page,
        ),
        dtype=dtype,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        sliding_window=sliding_window,
        attention_chunk_size=attention_chunk_size,
        head_slots=head_slots,
        content_bytes=content_bytes,
        tokens_per_state=tokens_per_state,
        alignment=alignment,
        padded_page=padded_page,
        cache_dtype=cache_dtype,
        labels=labels,
    )


def with_block_size(spec: Spec, block_size: int) -> Spec:
    """The same cache in blocks of another size; a page forced from outside stays as it is."""
    return msgspec.structs.replace(
        spec,
        block_size=block_size,
        page_size_bytes=page_bytes(
            head_slots=spec.head_slots,
            states=block_size // spec.tokens_per_state,
            content_bytes=spec.content_bytes,
            alignment=spec.alignment,
            padded_page=spec.padded_page,
        ),
    )


def with_padded_page(spec: Spec, page: int) -> Spec:
    """The same cache with its page padded to ``page`` bytes."""
    return msgspec.structs.replace(spec, padded_page=page, page_size_bytes=page)
