"""The attention block size, and the block size of window layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from rulespack.errors import engine_refuses
from rulespack.hooks import BlockSizes
from rulespack.kv.pages import cdiv
from rulespack.kv.plan import Reason
from vllm_0_29.backend_terms import Backend, Want, element_bytes
from vllm_0_29.backends import model_dtype, wants
from vllm_0_29.model import STATE_LAYERS
from vllm_0_29.state import aligned

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import CacheDtype, LayerBackend
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Reasons, Rules

SOURCE = "vllm/platforms/interface.py: Platform.update_block_size_for_backend"
SKIP_SOURCE = "vllm/platforms/interface.py: Platform._align_heterogeneous_kv_block_size"

DEFAULT_BLOCK_SIZE: Final = 16


def block_size(
    rules: Rules,
    model: Model,
    deployment: Deployment,
    dtype: CacheDtype,
    layers: Sequence[LayerBackend],
    mamba: tuple[str, int | None],
    reasons: Reasons,
) -> BlockSizes:
    """The block sizes the specs are made with.

    What was asked stays; otherwise the backends say. In a hybrid the block grows until a page of it holds a recurrent
    state. With skipped layers it grows until a page in the cache dtype covers a kernel block in the model's own.
    ``mamba`` is the mamba cache mode and the state's block size to start from.
    """
    mode, start = mamba
    attending = [part for part in layers if _layer_class(model, part) not in STATE_LAYERS]
    served = [(rules.backends[part.backend], _want(rules, model, deployment, dtype, part)) for part in attending]
    if not served:
        return BlockSizes(block_size=deployment.block_size or DEFAULT_BLOCK_SIZE, mamba_block_size=start)
    if deployment.block_size is not None:
        size, because = deployment.block_size, "as asked"
    else:
        size = rules.preferred_block_size(rules, served)
        names = "/".join(dict.fromkeys(part.backend for part in layers))
        unusual = "" if size == DEFAULT_BLOCK_SIZE else f", as the usual {DEFAULT_BLOCK_SIZE} does not suit it"
        because = f"what {names} prefers{unusual}"
    reasons.append(Reason("block-size", size, {"asked": deployment.block_size}, because, SOURCE))
    sizes = BlockSizes(block_size=size, mamba_block_size=start)
    if model.hybrid:
        sizes = aligned(rules, model, deployment, served[0], mode, start, size, reasons)
    if rules.skip_layers(model, deployment):
        leading = [
            i for i, part in enumerate(attending) if _layer_class(model, part) == model.architecture.leading_class
        ]
        sizes = _cover_skipped(model, deployment, dtype, served[leading[0] if leading else 0], sizes, reasons)
    return sizes


def preferred_block_size(rules: Rules, served: Sequence[tuple[Backend, Want]]) -> int:
    """What the first registered layer's backend prefers."""
    return preferred(*served[0])


def preferred(backend: Backend, want: Want) -> int:
    """One backend's preference: 16 where a kernel size divides it, else the smallest kernel size; not below a floor."""
    kernel = backend.kernel(want)
    size = DEFAULT_BLOCK_SIZE if kernel.supports(DEFAULT_BLOCK_SIZE) else kernel.smallest
    return max(size, backend.preferred_floor(want))


def window_block_size(backend: Backend, want: Want, block_size: int, token_bytes: int, page: int | None) -> int:
    """A window layer's own block in tokens: the smallest kernel size, or the largest whose page fits ``page`` bytes."""
    sizes = (backend.layer_kernel or backend.kernel)(want).sizes
    if page is None:
        return min(sizes)
    fitting = [size for size in sizes if size * token_bytes <= page]
    return max(fitting) if fitting else min(sizes)


def _cover_skipped(
    model: Model,
    deployment: Deployment,
    dtype: CacheDtype,
    first: tuple[Backend, Want],
    sizes: BlockSizes,
    reasons: Reasons,
) -> BlockSizes:
    backend, want = first
    size = sizes.block_size
    heads = max(1, model.kv_heads // deployment.tensor_parallel_size)
    own = model_dtype(model, deployment)
    backend.check_packing(dtype.value)
    primary = _token_bytes(backend, dtype.value, heads, model.head_size, own)
    skipped = _token_bytes(backend, "auto", heads, model.head_size, own)
    if skipped < primary:
        raise engine_refuses(
            "skipped-layers-not-narrower",
            "AssertionError",
            "construct",
            f"a token of a skipped layer takes {skipped} bytes, less than the {primary} of the others",
            SKIP_SOURCE,
        )
    if skipped == primary:
        return sizes
    smallest = backend.kernel(want).smallest
    step = max(smallest, size)
    needed = max(skipped * smallest, sizes.mamba_page_bytes or 0)
    size = max(size, step * cdiv(needed, step * primary))
    page = size * primary
    because = "one page must cover a kernel block of the layers left in the model's own dtype"
    reasons.append(Reason("skip-layer-block-size", size, {"page_bytes": page}, because, SKIP_SOURCE))
    return msgspec.structs.replace(
        sizes,
        block_size=size,
        skip_page_bytes=page,
        mamba_page_bytes=None if sizes.mamba_page_bytes is None else page,
    )


def _token_bytes(backend: Backend, cache_dtype: str, heads: int, head_size: int, own: str) -> int:
    element = element_bytes(cache_dtype, own)
    content = backend.content_bytes(cache_dtype, head_size, head_size, element)
    return backend.head_slots(cache_dtype, heads) * content


def _layer_class(model: Model, part: LayerBackend) -> str:
    return model.classes[model.class_of[part.caches[0]]].layer_class


def _want(rules: Rules, model: Model, deployment: Deployment, dtype: CacheDtype, part: LayerBackend) -> Want:
    cls = model.classes[model.class_of[part.caches[0]]]
    return wants(rules, model, deployment, cls, part.cache_dtype, dtype.value)
