"""What a graph's weights are: how many parameters, in which format, and how many bytes stay resident for them.

Whole weights, before any division over ranks. A node's parameters follow from its shape, a weight's bytes from its
format and scale layout; an alias reads another node's weights and adds nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from rulespack.graph.aliases import target
from rulespack.graph.memo import PerGraph
from rulespack.graph.model import GEMM, AnyNode, Gather, GroupedGEMM, LayerKind, ModelGraph, WeightScale
from rulespack.graph.stack import expand
from rulespack.graph.vocabulary import DEFAULT_RESIDENCY, DTYPE_BITS, IMPLIED_SCALES

Part: TypeAlias = Literal["target", "speculator"]
Holder: TypeAlias = GEMM | GroupedGEMM | Gather
#: Where a node stands: in a layer kind, or outside the layers.
Place: TypeAlias = LayerKind | Literal["embedding", "head"]
K = TypeVar("K")

#: What a model computes in where its graph does not say.
_ASSUMED_DTYPE = "bf16"


class WeightFormat(msgspec.Struct, frozen=True):
    """How weights are stored: the payload's dtype and the resident scales beside it, None for none."""

    dtype: str
    scale: WeightScale | None = None


class Amount(msgspec.Struct, frozen=True):
    """So many parameters, and the bytes they keep resident, scales included."""

    elements: int = 0
    bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        """Both together."""
        return Amount(self.elements + other.elements, self.bytes + other.bytes)


class Weight(msgspec.Struct, frozen=True):
    """The weights of one node: ``each`` counts one of them, and ``copies`` layers hold one.

    ``residency`` is ``device``, or ``host`` for a table that lives in host memory by default.
    """

    part: Part
    role: str | None
    op: str
    stored: WeightFormat
    residency: str
    copies: int
    each: Amount

    @property
    def dtype(self) -> str:
        """The dtype of the payload."""
        return self.stored.dtype

    @property
    def amount(self) -> Amount:
        """All copies together."""
        return Amount(self.each.elements * self.copies, self.each.bytes * self.copies)


class Parameters(msgspec.Struct, frozen=True):
    """Every weight a graph keeps, in the graph's order; the sums most people ask for."""

    weights: tuple[Weight, ...]

    @property
    def target(self) -> Amount:
        """What the target model keeps on the devices."""
        return self.of(lambda weight: weight.part == "target" and weight.residency == "device")

    @property
    def speculator(self) -> Amount:
        """What the draft module adds on the devices."""
        return self.of(lambda weight: weight.part == "speculator" and weight.residency == "device")

    @property
    def host(self) -> Amount:
        """Tables that live in host memory by default, the target's and the draft's."""
        return self.of(lambda weight: weight.residency == "host")

    @property
    def total(self) -> Amount:
        """All of it."""
        return self.of(lambda weight: True)

    def of(self, wanted: Callable[[Weight], bool]) -> Amount:
        """The sum over the weights that are wanted."""
        return sum((weight.amount for weight in self.weights if wanted(weight)), Amount())

    def by_role(self, part: Part = "target") -> dict[str, Amount]:
        """One part's device weights by role; a node without a role counts under its primitive."""
        return self._by(part, lambda weight: weight.role or weight.op)

    def by_dtype(self, part: Part = "target") -> dict[str, Amount]:
        """One part's device weights by the dtype of their payload, in the graph's order."""
        return self._by(part, lambda weight: weight.dtype)

    def by_format(self, part: Part = "target") -> dict[WeightFormat, Amount]:
        """One part's device weights by format, which tells two scale layouts of one dtype apart."""
        return self._by(part, lambda weight: weight.stored)

    def _by(self, part: Part, key: Callable[[Weight], K]) -> dict[K, Amount]:
        sums: dict[K, Amount] = {}
        for weight in self.weights:
            if weight.part == part and weight.residency == "device":
                sums[key(weight)] = sums.get(key(weight), Amount()) + weight.amount
        return sums


def weight_format(dtype: str, scale: WeightScale | None = None) -> WeightFormat:
    """The format of weights stored as ``dtype`` with the scale layout stated, or the one the dtype brings along."""
    if scale is None and dtype in IMPLIED_SCALES:
        elements, size = IMPLIED_SCALES[dtype]
        scale = WeightScale(elements=elements, bytes=size)
    return WeightFormat(dtype, scale)


def bytes_per_parameter(stored: WeightFormat) -> float:
    """Resident bytes of one weight element: its payload and its share of a scale."""
    share = 0.0 if stored.scale is None else stored.scale.bytes / stored.scale.elements
    return DTYPE_BITS[stored.dtype] / 8 + share


def weight_bytes(elements: int, stored: WeightFormat) -> int:
    """Resident bytes of so many weight elements, a last incomplete byte or scale counted whole."""
    payload = -(-elements * DTYPE_BITS[stored.dtype] // 8)
    return payload if stored.scale is None else payload + -(-elements // stored.scale.elements) * stored.scale.bytes


def node_format(graph: ModelGraph, node: GEMM | GroupedGEMM) -> WeightFormat:
    """The format a node's weights are read in: its own, the graph's, or for an alias its target's.

    ``global.weight_scale`` holds for weights stored at ``global.weight_dtype`` and for no others.
    """
    if isinstance(node, GEMM) and node.aliases is not None:
        holder = target(graph, node)
        return table_format(graph, holder) if isinstance(holder, Gather) else node_format(graph, holder)
    whole = graph.globals_
    dtype = node.weight_dtype or whole.weight_dtype
    scale = node.weight_scale
    if scale is None and dtype == whole.weight_dtype:
        scale = whole.weight_scale
    return weight_format(dtype, scale)


def node_parameters(graph: ModelGraph, node: AnyNode) -> int:
    """The weight elements a node reads, its own or an alias's; 0 for a primitive without weights."""
    if isinstance(node, GEMM):
        return node.n * node.k
    if isinstance(node, GroupedGEMM):
        routed = node.experts * node.n * (node.latent_size or node.k)
        shared = (node.shared_experts or 0) * (node.shared_intermediate_size or node.n) * node.k
        return routed + shared
    if isinstance(node, Gather):
        return node.rows * row_elements(graph, node)
    return 0


def row_elements(graph: ModelGraph, node: Gather) -> int:
    """The elements of one row of a table.

    A row is stated in bytes. What a lookup writes is in the model's own dtype (``global.dtype``, bf16 where it is not
    stated), so ``out_bytes_per_token`` tells the elements; where that does not divide, or the row could not hold as
    many, the row counts as stored at ``global.weight_dtype``.
    """
    width = DTYPE_BITS[graph.globals_.dtype or _ASSUMED_DTYPE] // 8
    elements, rest = divmod(node.out_bytes_per_token, node.rows_per_token * width)
    if rest or not elements or node.row_bytes * 8 < elements * min(DTYPE_BITS.values()):
        elements = node.row_bytes * 8 // DTYPE_BITS[graph.globals_.weight_dtype]
    return elements


def table_format(graph: ModelGraph, node: Gather) -> WeightFormat:
    """The format of a table: the widest payload its rows have room for, what is left of a row being its scales.

    ``global.weight_dtype`` and the model's own dtype are preferred among dtypes of one width.
    """
    elements = row_elements(graph, node)
    likely = (graph.globals_.weight_dtype, graph.globals_.dtype or _ASSUMED_DTYPE, "fp32", "fp8", "int4")
    fitting = [dtype for dtype in likely if elements * DTYPE_BITS[dtype] <= node.row_bytes * 8]
    dtype = max(fitting, key=DTYPE_BITS.__getitem__, default=graph.globals_.weight_dtype)
    rest = node.row_bytes - -(-elements * DTYPE_BITS[dtype] // 8)
    return WeightFormat(dtype, WeightScale(elements=elements, bytes=rest) if rest > 0 else None)


def parameters(graph: ModelGraph) -> Parameters:
    """Every weight of a checked graph: the embedding, each layer of the stacks, the head, the draft module.

    An embedding the graph leaves out is a table of ``vocab_size`` rows of ``hidden_size`` elements at
    ``global.weight_dtype``. A head that shares the embedding's weights adds nothing, whether it says so with an alias
    or the graph says so with ``tie_word_embeddings``.
    """
    weights = [_whole(graph, held) for held in holdings(graph)]
    return Parameters(tuple(weights if graph.embedding else [implied_embedding(graph), *weights]))


class Held(NamedTuple):
    """A node with weights of its own: its part, where it stands, how many layers hold one, and how it is stored."""

    part: Part
    place: Place
    node: Holder
    copies: int
    stored: WeightFormat


def holdings(graph: ModelGraph) -> tuple[Held, ...]:
    """Every node that holds weights, in the graph's order; kept with the graph."""
    return _HOLDINGS(graph)


def _holdings(graph: ModelGraph) -> Iterator[Held]:
    yield from _held(graph, "target", "embedding", graph.embedding, 1)
    yield from _layers(graph, "target", expand(graph.stack))
    yield from _held(graph, "target", "head", tuple(node for node in graph.head if not tied(graph, node)), 1)
    draft = graph.speculator
    if draft is None:
        return
    yield from _held(graph, "speculator", "embedding", draft.embedding, 1)
    context = () if draft.context_stack is None else expand(draft.context_stack)
    yield from _layers(graph, "speculator", expand(draft.stack) + context)
    yield from _held(graph, "speculator", "head", draft.head + draft.sequential_head, 1)


def implied_embedding(graph: ModelGraph, rows: int | None = None) -> Weight:
    """The table of a graph that states none, ``rows`` long (``vocab_size``, if None)."""
    whole = graph.globals_
    elements = (whole.vocab_size if rows is None else rows) * whole.hidden_size
    stored = weight_format(whole.weight_dtype, whole.weight_scale)
    each = Amount(elements, weight_bytes(elements, stored))
    return Weight("target", "embedding", "Gather", stored, DEFAULT_RESIDENCY, 1, each)


def tied(graph: ModelGraph, node: AnyNode) -> bool:
    """Whether ``tie_word_embeddings`` makes this node of the head read the embedding's table."""
    whole = graph.globals_
    shape = (whole.vocab_size, whole.hidden_size)
    return whole.tie_word_embeddings and isinstance(node, GEMM) and (node.n, node.k) == shape


def _layers(graph: ModelGraph, part: Part, order: Sequence[str]) -> Iterator[Held]:
    running = Counter(order)
    for kind in graph.layer_kinds:
        if copies := running[kind.id]:
            yield from _held(graph, part, kind, kind.nodes, copies)


def _held(graph: ModelGraph, part: Part, place: Place, nodes: tuple[AnyNode, ...], copies: int) -> Iterator[Held]:
    for node in nodes:
        if isinstance(node, (GEMM, GroupedGEMM, Gather)) and node.aliases is None:
            yield Held(part, place, node, copies, stored_format(graph, node))


_HOLDINGS = PerGraph(lambda graph: tuple(_holdings(graph)))


def stored_format(graph: ModelGraph, node: Holder) -> WeightFormat:
    """The format a node's weights, or a table's rows, are read in."""
    return table_format(graph, node) if isinstance(node, Gather) else node_format(graph, node)


def _whole(graph: ModelGraph, held: Held) -> Weight:
    node = held.node
    return weight_of(graph, held, node.rows if isinstance(node, Gather) else node_parameters(graph, node))


def weight_of(graph: ModelGraph, held: Held, amount: int) -> Weight:
    """The weight a node holds when ``amount`` of its elements, or of its rows where it is a table, are held."""
    node, stored = held.node, held.stored
    residency = DEFAULT_RESIDENCY
    if isinstance(node, Gather):
        each = Amount(amount * row_elements(graph, node), amount * node.row_bytes)
        residency = node.residency or DEFAULT_RESIDENCY
    else:
        each = Amount(amount, weight_bytes(amount, stored))
    return Weight(held.part, node.role, node.op, stored, residency, held.copies, each)
