"""A pack of another engine, written against ``rulespack`` alone: blocks of 32 tokens, one group, bfloat16 always."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rulespack.deployment import Deployment
from rulespack.errors import engine_refuses
from rulespack.graph.model import ModelGraph
from rulespack.graph.problems import Problem
from rulespack.graph.stack import owned_caches
from rulespack.hooks import CacheGroup, Grouping, LayerBackend, OwnedCaches, Pool, Resolution, hookimpl
from rulespack.kv.pages import PageCount
from rulespack.kv.plan import Reason, Resolved
from rulespack.kv.specs import Spec

BLOCK = 32


@hookimpl
def pack_release() -> str:
    return "1.2.0"


@hookimpl
def known_arguments() -> Mapping[str, str]:
    return {"port": "inert"}


@hookimpl
def check_graph(graph: ModelGraph) -> Sequence[Problem]:
    return ()


@hookimpl
def check_deployment(deployment: Deployment) -> bool:
    if deployment.tensor_parallel_size > 1:
        raise engine_refuses("one-rank", "ValueError", "config", "this engine runs on one GPU", "acme/engine.py: start")
    return True


@hookimpl
def resolve_cache_dtype() -> str:
    return "bfloat16"


@hookimpl
def resolve_engine(graph: ModelGraph) -> Resolution:
    resolved = Resolved(
        cache_dtype="bfloat16",
        block_size=BLOCK,
        kv_cache_layout=None,
        hybrid_kv_cache_manager=False,
        max_model_len=graph.globals_.context_window or BLOCK,
        max_num_batched_tokens=512,
        max_num_seqs=8,
        max_in_flight_tokens=512,
        num_speculative_tokens=0,
        enable_prefix_caching=False,
        async_scheduling=False,
        mamba_block_size=None,
        mamba_cache_mode="none",
    )
    caches = tuple(range(len(owned_caches(graph))))
    return Resolution(resolved=resolved, backends=(LayerBackend(caches, "PLAIN", "bfloat16"),))


@hookimpl
def owned_kv_cache_layers(graph: ModelGraph) -> OwnedCaches:
    uses = owned_caches(graph)
    page = BLOCK * uses[0].cache.bytes_per_entry
    return OwnedCaches(
        names=tuple(f"block.{use.layer}" for use in uses),
        specs=(Spec(type="Pages", block_size=BLOCK, page_size_bytes=page),),
        spec_of=(0,) * len(uses),
        backends={"PLAIN": len(uses)},
    )


@hookimpl
def kv_cache_groups(owned: OwnedCaches) -> Grouping:
    pages = tuple(owned.specs[0].page_size_bytes for _ in owned.names)
    reason = Reason("one-group", 1, {}, "this engine has one block table", "acme/blocks.py: plan")
    group = CacheGroup(caches=tuple(range(len(pages))), spec=owned.specs[0])
    return Grouping(groups=(group,), pages=pages, bytes_per_block=sum(pages), reasons=(reason,))


@hookimpl
def pages_per_request() -> PageCount:
    return PageCount(BLOCK)


@hookimpl
def size_pool() -> Pool:
    return Pool(scheduler_block_size=BLOCK, hash_block_size=BLOCK)
