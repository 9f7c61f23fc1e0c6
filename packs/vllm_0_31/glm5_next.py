"""GLM 5.3 Flash in vLLM 0.31.0: delta attention beside sparse latent attention whose indexer keeps pooled keys.

States lie in the latent caches' pages, and the tails of the pools in the pooled keys'. Source:
``vllm/models/glm5next/common/attention.py``, ``vllm/v1/core/kv_cache_utils.py: _get_kv_cache_groups_glm5_next``,
``vllm/platforms/cuda.py: CudaPlatformBase._get_indexer_block_alignment``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rulespack.errors import engine_refuses
from rulespack.hooks import OwnedCaches
from rulespack.kv.pages import cdiv
from rulespack.kv.specs import DTYPE_BYTES, Spec, attention_spec, with_padded_page
from vllm_0_29.backend_terms import LBHNC, Kernel, handed
from vllm_0_29.drafts import speculative_tokens
from vllm_0_29.groups import Aliased, Part, uniform_type
from vllm_0_29.model import Architecture, CacheName, StateFacts
from vllm_0_29.sparse_mla import index_backend, index_spec
from vllm_0_29.specs import Builder

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import LayerBackend
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Rules, Settings

POOLED, TAIL = "Glm5NextIndexerCache", "Glm5NextTailCache"

#: Entries of a pool page of the indexer's kernel: the smaller one, and the one that family 12 needs.
POOL_PAGE, POOL_PAGE_SM120 = 32, 64
#: A tail keeps a token's key and its gate score.
TAIL_SLOTS: Final = 2


def check_stages(model: Model, stage_of_layer: Sequence[int]) -> None:
    """Refused by the engine, which crashes: the model class cannot hand a step over to another stage."""
    raise engine_refuses(
        "glm5-next-one-stage",
        "AttributeError",
        "construct",
        "the model class lacks make_empty_intermediate_tensors, which pipeline parallelism asks it for",
        "vllm/models/glm5next/common/multimodal.py",
    )


#: In the order a layer registers its caches.
ARCHITECTURES: Final = {
    "Glm5NextForConditionalGeneration": Architecture(
        prefix="language_model.model.layers.",
        caches={
            "state": CacheName(".self_attn"),
            "index": CacheName(".self_attn.indexer.k_cache", POOLED),
            "tail": CacheName(".self_attn.indexer.tail_cache", TAIL),
            "kv": CacheName(".self_attn.attn"),
        },
        state=StateFacts(backend="GDN_ATTN", takes_dtype_flag=False, lists_attention=False),
        check_stages=check_stages,
    )
}


def pooled_block(model: Model, deployment: Deployment, block_size: int) -> int:
    """A hybrid's attention block, rounded up so that the kernel's pool pages tile it."""
    page = POOL_PAGE_SM120 if deployment.gpu.family == 12 else POOL_PAGE
    units = [cls.cache.tokens_per_entry * page for cls in model.classes if cls.layer_class == POOLED]
    unit = units[0] if units else 1
    return cdiv(block_size, unit) * unit


def tail_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """The last tokens' keys and gate scores that no pool holds yet, in a ring of one block: a pool of them, or as many
    as the drafted tokens reach into, doubled up. Refused by the engine where the block is not whole rings."""
    pool = cls.attention.compress_ratio
    assert pool is not None
    pools = cdiv(pool + speculative_tokens(model, deployment), pool)
    ring = pool * (1 << (pools - 1).bit_length())
    if settings.block_size % ring:
        raise engine_refuses(
            "tail-ring-divides-block",
            "AssertionError",
            "specs",
            f"a tail ring of {ring} tokens does not divide the block of {settings.block_size}",
            "vllm/models/glm5next/common/attention.py: Glm5NextTailCache.get_kv_cache_spec",
        )
    width = cls.cache.bytes_per_entry // TAIL_SLOTS
    return attention_spec(
        "KpoolTailSpec",
        block_size=ring,
        head_slots=TAIL_SLOTS,
        content_bytes=width,
        dtype="bfloat16",
        num_kv_heads=TAIL_SLOTS,
        head_size=width // DTYPE_BYTES["bfloat16"],
        sliding_window=ring,
    )


MODEL_BACKENDS: Final = {
    POOLED: index_backend,
    TAIL: lambda rules, model, deployment, cls, cache_dtype: "KPOOL_TAIL",
}
BACKENDS: Final = {"KPOOL_TAIL": handed("KPOOL_TAIL", lambda want: Kernel((1,), multiples=True), lambda _: (LBHNC,))}
SPECS: Final[Mapping[str, Builder]] = {POOLED: index_spec, TAIL: tail_spec}


def aliased_groups(owned: OwnedCaches) -> Aliased | None:
    """Latent caches and pooled keys in one group; the tails in the pooled keys' pages; states in the latent caches'.

    None for other caches. Refused by the engine where a state is larger than a latent cache's page.
    """
    specs, spec_of = owned.specs, owned.spec_of
    states = [spec for spec in specs if spec.type == "MambaSpec"]
    rest = [spec for spec in specs if spec.type not in ("MambaSpec", "KpoolTailSpec")]
    pooled = [spec for spec in rest if spec.tokens_per_state > 1]
    if not states or not pooled or any(spec.type != "MLAAttentionSpec" for spec in rest):
        return None
    pages = {spec.page_size_bytes for spec in rest if spec.tokens_per_state == 1}
    if len(pages) != 1:
        raise engine_refuses(
            "latent-pages-alike",
            "AssertionError",
            "groups",
            f"latent caches of several page sizes ({', '.join(map(str, sorted(pages)))}) are not grouped with states",
            "vllm/v1/core/kv_cache_utils.py: _get_kv_cache_groups_glm5_next",
        )
    page = pages.pop()
    if states[0].content_bytes > page:
        raise engine_refuses(
            "state-fits-latent-page",
            "ValueError",
            "groups",
            f"a state of {states[0].content_bytes} bytes does not fit a latent cache's page of {page}",
            "vllm/v1/core/kv_cache_utils.py: _get_kv_cache_groups_glm5_next",
        )
    lying_in = {"MambaSpec": page, "KpoolTailSpec": pooled[0].page_size_bytes}
    placed = tuple(with_padded_page(spec, lying_in[spec.type]) if spec.type in lying_in else spec for spec in specs)
    held: dict[str, list[int]] = {"MambaSpec": [], "KpoolTailSpec": [], "MLAAttentionSpec": []}
    for position, index in enumerate(spec_of):
        held[specs[index].type].append(position)

    def group(caches: Sequence[int]) -> Part:
        pages = [placed[spec_of[i]].page_size_bytes for i in caches]
        return Part(tuple(caches), uniform_type(placed[spec_of[caches[0]]], pages))

    parts = [group(held["MLAAttentionSpec"])]
    if held["KpoolTailSpec"]:
        parts.append(group(held["KpoolTailSpec"]))
    count = sum(specs[spec_of[i]].tokens_per_state == 1 for i in held["MLAAttentionSpec"])
    mamba = held["MambaSpec"]
    number = cdiv(len(mamba), count)
    state = placed[spec_of[mamba[0]]]
    parts += [Part(tuple(mamba[i::number]), state) for i in range(number)]
    because = f"states lie in the pages of the {count} latent caches, tails in those of the pooled keys"
    return Aliased(parts, placed, because)
