"""The state one recurrent layer keeps for a request: its tensors, from the graph alone.

Shapes are those of one rank. The causal convolution keeps the last ``conv_kernel - 1`` inputs of every channel; the
recurrent part one matrix for each head. Which extra rows or blocks an engine adds is the packs'.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final, NamedTuple

from rulespack.graph.model import RecurrentUpdate
from rulespack.graph.vocabulary import DTYPE_BITS


class StateTensor(NamedTuple):
    """One tensor of a state: its role (``conv`` or ``recurrent``), its shape on one rank and its format."""

    role: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Bytes on one rank."""
        return prod(self.shape) * DTYPE_BITS[self.dtype] // 8


class Uneven(ValueError):
    """A dimension that the ranks cannot share evenly: ``what`` of ``size`` over ``ranks``."""

    def __init__(self, what: str, size: int, ranks: int) -> None:
        super().__init__(f"{what} {size} is not divisible by tensor_parallel_size {ranks}")
        self.what, self.size, self.ranks = what, size, ranks


def share(what: str, size: int, ranks: int) -> int:
    """An even part of ``size``. Raises Uneven where there is none."""
    if size % ranks:
        raise Uneven(what, size, ranks)
    return size // ranks


def _width(node: RecurrentUpdate) -> int:
    assert node.intermediate_size is not None  # a named check of the graph
    return node.intermediate_size


def _mamba2(node: RecurrentUpdate, ranks: int) -> tuple[int, tuple[int, ...]]:
    groups = node.n_groups or 1
    if groups % ranks:
        groups += ranks - groups  # every rank holds a copy of the group it needs
    channels = share("convolution channels", _width(node) + 2 * groups * node.state_size, ranks)
    heads = share("heads", node.n_heads, ranks)
    return channels, (heads, _width(node) // node.n_heads, node.state_size)


def _mamba1(node: RecurrentUpdate, ranks: int) -> tuple[int, tuple[int, ...]]:
    channels = share("intermediate_size", _width(node), ranks)
    return channels, (channels, node.state_size)


def _gdn(node: RecurrentUpdate, ranks: int) -> tuple[int, tuple[int, ...]]:
    value = node.head_dim or node.state_size
    keys = (node.n_key_heads or node.n_heads) * node.state_size
    channels = share("convolution channels", 2 * keys + node.n_heads * value, ranks)
    return channels, (share("heads", node.n_heads, ranks), value, node.state_size)


def _kda(node: RecurrentUpdate, ranks: int) -> tuple[int, tuple[int, ...]]:
    heads = share("heads", node.n_heads, ranks)
    return 3 * heads * node.state_size, (heads, node.state_size, node.state_size)


def _lightning(node: RecurrentUpdate, ranks: int) -> tuple[int, tuple[int, ...]]:
    return 0, (share("heads", node.n_heads, ranks), node.state_size, node.state_size)


def _short_conv(node: RecurrentUpdate, ranks: int) -> tuple[int, tuple[int, ...]]:
    return share("intermediate_size", _width(node), ranks), ()


_KINDS: Final[dict[str, Callable[[RecurrentUpdate, int], tuple[int, tuple[int, ...]]]]] = {
    "mamba2": _mamba2,
    "mamba1": _mamba1,
    "gdn": _gdn,
    "kda": _kda,
    "lightning": _lightning,
    "short_conv": _short_conv,
}


def state_tensors(
    node: RecurrentUpdate,
    *,
    conv_dtype: str,
    state_dtype: str,
    tensor_parallel_size: int = 1,
    extra_rows: int = 0,
) -> tuple[StateTensor, ...]:
    """The tensors of one layer's state on one rank: the convolution's, then the recurrent part's, where it has them.

    ``conv_dtype`` and ``state_dtype`` are formats of the vocabulary; ``extra_rows`` further inputs the convolution
    keeps. A replicated node's state is whole on every rank. Raises Uneven where the ranks cannot share a dimension.
    """
    ranks = 1 if node.tp == "replicated" else tensor_parallel_size
    channels, recurrent = _KINDS[node.recurrent_kind](node, ranks)
    tensors = []
    if channels:
        rows = (node.conv_kernel or 1) - 1 + extra_rows
        tensors.append(StateTensor("conv", (rows, channels), conv_dtype))
    if recurrent:
        tensors.append(StateTensor("recurrent", recurrent, state_dtype))
    return tuple(tensors)
