"""Whether the ranks can share the weights: what the layers' constructors assert before any cache exists."""

from __future__ import annotations

from math import gcd, isqrt
from typing import TYPE_CHECKING, Final

import msgspec

from rulespack.errors import engine_refuses
from rulespack.graph.model import GEMM, Attention, GroupedGEMM, ModelGraph, Stack
from rulespack.graph.stack import layers

if TYPE_CHECKING:
    from rulespack.deployment import Deployment

DIVIDE_SOURCE = "vllm/distributed/utils.py: divide"
VOCABULARY_SOURCE = "vllm/model_executor/layers/vocab_parallel_embedding.py: vocab_range_from_global_vocab_size"
BLOCK_SOURCE = "vllm/model_executor/layers/quantization/utils/fp8_utils.py: validate_fp8_block_shape"

EXPERT_SOURCE = "vllm/model_executor/layers/fused_moe/config.py: FusedMoEConfig.__post_init__"

#: The vocabulary is padded to a multiple of this before the ranks share it.
VOCABULARY_PADDING: Final = 64

#: The smallest block an expert's scales are refined to.
SMALLEST_REFINED_BLOCK: Final = 32

#: Roles whose weight is several matrices one after another, each shared by itself.
MERGED: Final = {"gate_up_proj": 2, "shared_gate_up_proj": 2}


#: Roles of shared experts.
SHARED: Final = frozenset({"shared_gate_up_proj", "shared_down_proj"})


#: All-to-all backends that send whole tokens.
WHOLE_TOKENS: Final = frozenset({"flashinfer_all2allv", "flashinfer_nvlink_two_sided"})


class Shard(msgspec.Struct, frozen=True):
    """One dimension the ranks share: the role it belongs to, its size, the block its scales cover (None: no blocks),
    and whether it is an expert's, which expert parallelism leaves whole, or ``rounded`` up to whole blocks a rank."""

    role: str
    size: int
    block: int | None
    expert: bool = False
    rounded: bool = False


def read_shards(graph: ModelGraph, stack: Stack | None = None, *, rounds_shared: bool = False) -> tuple[Shard, ...]:
    """The distinct dimensions of a stack's layers that tensor parallelism divides, in the order they are built; of the
    target's where none is named. ``rounds_shared``: the model's class rounds shared experts up to whole blocks."""
    found: dict[Shard, None] = {}
    for kind in {layer.id: layer for layer in layers(graph, stack)}.values():
        heads = next((node for node in kind.nodes if isinstance(node, Attention)), None)
        for node in kind.nodes:
            if isinstance(node, GEMM) and node.tp in ("column", "row"):
                block = _block(graph, node)
                role = node.role or "a linear layer"
                rounded = rounds_shared and block is not None and role in SHARED
                if node.tp == "row":
                    found[Shard(role, node.k, block, rounded=rounded)] = None
                elif role == "qkv_proj" and heads is not None:
                    found[Shard(role, heads.n_q * heads.d_h, block)] = None
                else:
                    found[Shard(role, node.n // MERGED.get(role, 1), block, rounded=rounded)] = None
            elif isinstance(node, GroupedGEMM) and (node.role or "").endswith("_down"):
                found[Shard(node.role or "experts", node.k, _block(graph, node), expert=True)] = None
    return tuple(found)


def _block(graph: ModelGraph, node: GEMM | GroupedGEMM) -> int | None:
    """The side of the square blocks fp8 weights share a scale in, None where they are not stored so."""
    dtype = node.weight_dtype or graph.globals_.weight_dtype
    scale = node.weight_scale if node.weight_dtype is not None else node.weight_scale or graph.globals_.weight_scale
    if dtype != "fp8" or scale is None:
        return None
    side = isqrt(scale.elements)
    return side if side > 1 and side * side == scale.elements else None


def check_shards(vocabulary: int, shards: tuple[Shard, ...], deployment: Deployment) -> None:
    """Refused by the engine where the ranks cannot share the vocabulary, a layer, or an fp8 block evenly."""
    ranks = deployment.tensor_parallel_size
    sharing = ranks * deployment.data_parallel_size * deployment.prefill_context_parallel_size
    if sharing == 1:
        return
    padded = -(-vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING
    if padded % ranks:
        raise engine_refuses(
            "vocabulary-divides",
            "AssertionError",
            "construct",
            f"a vocabulary of {padded} (padded) is not divisible by {ranks} ranks",
            VOCABULARY_SOURCE,
        )
    for shard in shards:
        if shard.rounded or (shard.expert and deployment.enable_expert_parallel):
            continue
        if shard.expert and shard.size % sharing:
            raise engine_refuses(
                "experts-divide",
                "AssertionError",
                "construct",
                f"{shard.role}: {shard.size} is not divisible by the {sharing} ranks of all replicas that share it",
                EXPERT_SOURCE,
            )
        if ranks == 1:
            continue
        if shard.size % ranks:
            raise engine_refuses(
                "layer-divides",
                "AssertionError",
                "construct",
                f"{shard.role}: {shard.size} is not divisible by {ranks} ranks",
                DIVIDE_SOURCE,
            )
        if shard.block is not None and _cuts_block(shard, shard.size // ranks):
            raise engine_refuses(
                "fp8-block-divides",
                "ValueError",
                "construct",
                f"{shard.role}: {shard.size // ranks} on a rank cuts the {shard.block} that share an fp8 scale",
                BLOCK_SOURCE,
            )


def splits_tokens(deployment: Deployment) -> bool:
    """Whether each rank takes its own part of the tokens of a mixture of experts
    (``vllm/config/parallel.py: ParallelConfig.use_sequence_parallel_moe``), under a backend that can."""
    shared = deployment.tensor_parallel_size > 1 and deployment.data_parallel_size > 1
    return shared and deployment.enable_expert_parallel and deployment.all2all_backend not in WHOLE_TOKENS


def rounds_up(shards: tuple[Shard, ...], ranks: int) -> bool:
    """Whether a rank holds more of some layer than its even share."""
    return any(shard.rounded and shard.block is not None and shard.size % (shard.block * ranks) for shard in shards)


def _cuts_block(shard: Shard, local: int) -> bool:
    """Whether a rank's share cuts a block of scales; an expert's scales are refined to smaller blocks of 32 and more
    (``fused_moe/oracle/fp8.py: refine_fp8_moe_block_shape``)."""
    assert shard.block is not None
    if local % shard.block == 0:
        return False
    return not shard.expert or gcd(shard.block, local) < SMALLEST_REFINED_BLOCK
