"""Whether the hybrid KV cache manager is on, and what turning it off does to the specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from rulespack.errors import engine_refuses, not_modelled
from rulespack.hooks import OwnedCaches
from rulespack.kv.plan import Reason
from rulespack.kv.specs import Spec, with_block_size
from vllm_0_29.connectors import transfer
from vllm_0_29.drafts import drops_blocks
from vllm_0_29.environment import CHUNKED, switch

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Reasons, Rules

SOURCE = "vllm/config/vllm.py: VllmConfig.__post_init__"
PROMOTE_SOURCE = "vllm/v1/core/kv_cache_utils.py: unify_hybrid_kv_cache_specs"

#: The full counterpart of each local spec class.
FULL_COUNTERPART = {
    "SlidingWindowSpec": "FullAttentionSpec",
    "SlidingWindowMLASpec": "MLAAttentionSpec",
    "ChunkedLocalAttentionSpec": "FullAttentionSpec",
}
FULL_CLASSES = frozenset({"FullAttentionSpec", "MLAAttentionSpec", "HiddenStateCacheSpec"})


def hybrid_manager(rules: Rules, model: Model, deployment: Deployment, reasons: Reasons) -> bool:
    """On, unless it is asked off, chunked attention may not use it, or a KV connector cannot work with it.

    Refused by the engine where it is asked on and chunked attention may not use it; not modelled where it is asked on
    beside a connector that cannot.
    """
    asked = deployment.disable_hybrid_kv_cache_manager
    chunked = any(cls.chunk is not None for cls in model.classes)
    drafts = chunked and drops_blocks(model, deployment)
    barred = drafts or (chunked and switch(deployment, CHUNKED) is False)
    running = transfer(rules, model, deployment)
    connector = None if running is None else running.name
    keeps = running is None or running.hybrid
    if asked is None:
        on = not barred and keeps
        because = (
            "chunked local attention is barred from it beside a draft"
            if drafts
            else "chunked local attention is barred from it by the environment"
            if barred
            else "the default"
            if keeps
            else f"{connector} cannot work with it"
        )
    else:
        on, because = not asked, "as asked"
        if not asked and barred:
            raise engine_refuses(
                "hybrid-manager-supported",
                "ValidationError",
                "config",
                "the hybrid KV cache manager was asked for, and the environment bars chunked local attention from it",
                SOURCE,
            )
        if not asked and not keeps:
            raise not_modelled(
                "connector-keeps-hybrid-manager",
                f"the hybrid KV cache manager was asked for beside {connector}, which cannot work with it: the release "
                "stops when it creates the connector, and how far it comes is not modelled",
            )
    reasons.append(Reason("hybrid-kv-cache-manager", on, {"asked_off": asked, "connector": connector}, because, SOURCE))
    return on


def promote(rules: Rules, owned: OwnedCaches) -> OwnedCaches:
    """The caches with every local one made full, as the release does with the manager off.

    Nothing happens where the specs already form one group, or where there is nothing full to stand beside. Refused by
    the engine where windows of two sizes would share a group, or the result still is not one group.
    """
    specs = owned.specs
    if len({rules.merge_key(spec) for spec in specs}) == 1 or len({rules.uniform_key(spec) for spec in specs}) == 1:
        return owned
    full = [spec for spec in specs if spec.type in FULL_CLASSES]
    local = [spec for spec in specs if spec.type in FULL_COUNTERPART]
    if full and local:
        sizes = {spec.block_size for spec in full}
        common = sizes.pop() if len(sizes) == 1 else None
        specs = tuple(_promoted(spec, common) for spec in specs)
    if all(spec.type == "FullAttentionSpec" for spec in specs):  # latent caches among them are never merged
        _check_one_window(specs)
    if len({rules.merge_key(spec) for spec in specs}) > 1 and len({rules.uniform_key(spec) for spec in specs}) > 1:
        raise engine_refuses(
            "one-type-without-hybrid-manager",
            "ValueError",
            "groups",
            "without the hybrid KV cache manager the caches do not come to one type: "
            + ", ".join(sorted({spec.type for spec in specs})),
            PROMOTE_SOURCE,
        )
    return msgspec.structs.replace(owned, specs=specs)


def _check_one_window(specs: Sequence[Spec]) -> None:
    for kept in ({spec.sliding_window for spec in specs}, {spec.attention_chunk_size for spec in specs}):
        sizes = sorted(size for size in kept if size is not None)
        if len(sizes) > 1:
            raise engine_refuses(
                "one-window-size-without-hybrid-manager",
                "ValueError",
                "groups",
                f"without the hybrid KV cache manager one group would hold windows or chunks of {sizes} tokens",
                "vllm/v1/kv_cache_interface.py: FullAttentionSpec.merge_window_sizes",
            )


def _promoted(spec: Spec, block_size: int | None) -> Spec:
    counterpart = FULL_COUNTERPART.get(spec.type)
    if counterpart is None:
        return spec
    wider = spec if block_size is None else with_block_size(msgspec.structs.replace(spec, padded_page=None), block_size)
    page = wider.page_size_bytes
    if spec.padded_page is not None and spec.padded_page > page:
        page = spec.padded_page
    return msgspec.structs.replace(
        wider, type=counterpart, page_size_bytes=page, padded_page=page if spec.padded_page is not None else None
    )
