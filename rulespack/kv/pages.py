"""How many blocks of one group a request of a given length pins."""

from __future__ import annotations

import msgspec


def cdiv(a: int, b: int) -> int:
    """``a`` over ``b``, rounded up."""
    return -(-a // b)


class PageCount(msgspec.Struct, frozen=True):
    """Blocks a request pins, as a function of its length.

    ``at(tokens) = ceil(min(ceil(tokens / shards), bound) / block_size) + extra``. ``shards`` ranks hold the context
    between them (decode context parallelism). ``bound`` is the most tokens ever kept, None where the count grows with
    the request; 0 leaves ``extra`` alone, the count of a fixed-size state. ``error`` is set where the engine's own
    count crashes: the class and the words of its error.
    """

    block_size: int
    bound: int | None = None
    extra: int = 0
    shards: int = 1
    error: str | None = None

    @property
    def grows(self) -> bool:
        """Whether the count grows with every further block of tokens, without end."""
        return self.bound is None

    def at(self, tokens: int) -> int:
        """Blocks a request of ``tokens`` tokens pins."""
        held = cdiv(tokens, self.shards)
        if self.bound is not None and self.bound < held:
            held = self.bound
        return cdiv(held, self.block_size) + self.extra
