"""Recurrent state: the mamba cache mode, the block size of state and attention together, and the state as a spec."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Final

from rulespack.errors import engine_refuses
from rulespack.graph.state import StateTensor, Uneven, state_tensors
from rulespack.hooks import BlockSizes
from rulespack.kv.pages import cdiv
from rulespack.kv.plan import Reason
from rulespack.kv.specs import Spec
from vllm_0_29.backend_terms import element_bytes
from vllm_0_29.backends import model_dtype
from vllm_0_29.drafts import speculative_tokens
from vllm_0_29.model import REPLICATED_STATE
from vllm_0_29.scheduler import chunked_prefill, prefix_caching

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import LayerBackend
    from vllm_0_29.backend_terms import Backend, Want
    from vllm_0_29.model import CacheClass, Model
    from vllm_0_29.rules import Reasons, Rules, Settings

MODE_SOURCE = "vllm/model_executor/models/config.py: MambaModelConfig.verify_and_update_config"
ALIGN_SOURCE = "vllm/platforms/interface.py: Platform._align_hybrid_block_size"
SHAPE_SOURCE = "vllm/model_executor/layers/mamba/mamba_utils.py: MambaStateShapeCalculator"

#: Formats of the graph by torch's name, and back.
TORCH: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
FORMAT: Final = {name: key for key, name in TORCH.items()}

#: The label of further blocks a request pins for checkpoints of its prefill.
CHECKPOINT_BLOCKS: Final = "prefill_checkpoint_blocks"

#: The label of a state every rank keeps whole.
REPLICATED: Final = "tp_replicated"

DEFAULT_CHUNK: Final = 2048
MLA_ALIGNMENT: Final = 128


def mamba_mode(
    rules: Rules, model: Model, deployment: Deployment, length: int, reasons: Reasons
) -> tuple[str, int | None]:
    """The mamba cache mode, and the block size the configuration starts from (None without recurrent state).

    Without prefix caching one state serves a request whatever its length; with it a state is kept at block boundaries:
    ``align`` at the last one, ``all`` at each, where the class can.
    """
    given = deployment.mamba_block_size
    if not model.states:
        return deployment.mamba_cache_mode or "none", given
    mode, because = settled_mode(model, deployment)
    if not prefix_caching(model, deployment):
        start = length if given is None else given
    else:
        if mode == "align" and not chunked_prefill(model, deployment):
            raise engine_refuses(
                "align-needs-chunks",
                "ValidationError",
                "config",
                "mamba cache mode align needs prompts to be chunked",
                MODE_SOURCE,
            )
        start = (deployment.block_size or 16) if given is None else given
    reasons.append(Reason("mamba-cache-mode", mode, {"asked": deployment.mamba_cache_mode}, because, MODE_SOURCE))
    return mode, start


def settled_mode(model: Model, deployment: Deployment) -> tuple[str, str]:
    """The mamba cache mode, and why; what was asked where there is no recurrent state to keep."""
    asked = deployment.mamba_cache_mode or "none"
    facts = model.architecture.state
    if not model.states or facts is None:
        return asked, "as asked"
    if not prefix_caching(model, deployment):
        return "none", "prefix caching is off"
    if asked == "none":
        return "align", "the default with prefix caching"
    if asked == "all" and not facts.caches_prefixes:
        return "align", "the class cannot keep all"
    return asked, "as asked"


def tensors(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, *, extra_rows: int = 0
) -> tuple[StateTensor, ...]:
    """One layer's state on one rank, the convolution with ``extra_rows`` more.

    Refused by the engine where the ranks cannot share it evenly.
    """
    node = cls.recurrent
    tp = 1 if cls.layer_class == REPLICATED_STATE else deployment.tensor_parallel_size
    groups = node.n_groups
    if node.recurrent_kind == "mamba2" and groups is not None and groups != 1 and groups % tp:
        raise engine_refuses(
            "state-groups-divide",
            "AssertionError",
            "construct",
            f"{groups} state groups are not divisible by tensor_parallel_size {tp}, and are not one",
            "vllm/model_executor/layers/mamba/mamba_mixer2.py: MambaMixer2.__init__",
        )
    conv, recurrent = rules.state_dtypes(model, deployment, cls)
    try:
        return state_tensors(
            node, conv_dtype=FORMAT[conv], state_dtype=FORMAT[recurrent], tensor_parallel_size=tp, extra_rows=extra_rows
        )
    except Uneven as uneven:
        raise engine_refuses("state-divides", "AssertionError", "construct", str(uneven), SHAPE_SOURCE) from None


def state_dtypes(model: Model, deployment: Deployment, cls: CacheClass) -> tuple[str, str]:
    """torch's names of the convolution's and the recurrent part's dtype: the flags, else the model's own."""
    own = model_dtype(model, deployment)
    conv = own if deployment.mamba_cache_dtype == "auto" else deployment.mamba_cache_dtype
    stated = cls.recurrent.state_dtype
    recurrent = conv if stated is None else TORCH[stated]
    facts = model.architecture.state
    assert facts is not None
    if facts.takes_dtype_flag and deployment.mamba_ssm_cache_dtype != "auto":
        recurrent = deployment.mamba_ssm_cache_dtype
    return conv, recurrent


def page_bytes(rules: Rules, model: Model, deployment: Deployment, cls: CacheClass) -> int:
    """One state in bytes, unpadded."""
    return sum(
        tensor.bytes for tensor in tensors(rules, model, deployment, cls, extra_rows=counted_rows(model, deployment))
    )


def counted_rows(model: Model, deployment: Deployment) -> int:
    """Rows of the convolution the model class counts for drafted tokens."""
    facts = model.architecture.state
    return speculative_tokens(model, deployment) if facts is not None and facts.counts_drafts else 0


def layer_rows(model: Model, deployment: Deployment) -> int:
    """Rows of the convolution the layers themselves keep for drafted tokens."""
    facts = model.architecture.state
    return speculative_tokens(model, deployment) if facts is not None and facts.widens else 0


def aligned(
    rules: Rules,
    model: Model,
    deployment: Deployment,
    first: tuple[Backend, Want],
    mode: str,
    start: int | None,
    size: int,
    reasons: Reasons,
) -> BlockSizes:
    """A hybrid's block sizes: an attention block grows until its page holds a state, and the state is padded to it."""
    backend, want = first
    state = max(rules.state_page_bytes(rules, model, deployment, cls) for cls in model.states)
    if state == 0:
        return BlockSizes(block_size=size, mamba_block_size=start)
    token = token_bytes(rules, model, deployment, backend, want)
    step = max(backend.kernel(want).smallest, size)
    if model.mla:
        step = max(step, MLA_ALIGNMENT)
    mamba = start
    if mode == "all":
        chunk = deployment.mamba_block_size or _chunk(model)
        unit = lcm(chunk, step)
        grown = unit * cdiv(cdiv(state, token), unit)
        mamba = grown
    else:
        grown = rules.pooled_block(model, deployment, step * cdiv(state, step * token))
    because = "a state fits a page of the size there was"
    if grown > size:
        size, because = grown, f"a page must hold a state of {state} bytes at {token} bytes a token"
    if mode == "align":
        mamba = size
    page = size * token
    reasons.append(
        Reason("hybrid-block-size", size, {"state_bytes": state, "bytes_per_token": token}, because, ALIGN_SOURCE)
    )
    return BlockSizes(block_size=size, mamba_block_size=mamba, mamba_page_bytes=None if page == state else page)


def token_bytes(rules: Rules, model: Model, deployment: Deployment, backend: Backend, want: Want) -> int:
    """Bytes of one token in one attention layer, the model's heads on one rank in the engine's cache dtype.

    Under turboquant it is counted as TURBOQUANT packs it, whichever backend leads; beside skipped layers it is what
    both of a packed token and a plain one divide, so that pages of either can be made equal.
    """
    dtype = want.model_cache_dtype
    element = element_bytes(dtype, want.dtype)
    if model.mla:
        return model.head_size * element
    size = model.head_size
    if dtype.startswith("turboquant_"):
        packed = want.model_kv_heads * rules.backends["TURBOQUANT"].content_bytes(dtype, size, size, element)
        plain = want.model_kv_heads * 2 * size * element_bytes("auto", want.dtype)
        return lcm(packed, plain) if deployment.kv_cache_dtype_skip_layers else packed
    return backend.head_slots(dtype, want.model_kv_heads) * backend.content_bytes(dtype, size, size, element)


def _chunk(model: Model) -> int:
    return next((cls.recurrent.chunk_size for cls in model.states if cls.recurrent.chunk_size), DEFAULT_CHUNK)


def no_pool(model: Model, deployment: Deployment, block_size: int) -> int:
    """No pooled indexer asks for more."""
    return block_size


def state_backend(rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, cache_dtype: str) -> str:
    """The backend the architecture's recurrent layers are handed."""
    facts = model.architecture.state
    assert facts is not None
    return facts.backend


def checkpoint_blocks(rules: Rules, model: Model, deployment: Deployment, cls: CacheClass) -> int:
    """Blocks kept for checkpoints of a prefill: one where the prefill kernel with bounded gates runs.

    ``vllm/models/kimi_k3``: on families 9, 10 and 12, for heads of 128, bfloat16 inputs and a gate with a lower bound.
    """
    facts = model.architecture.state
    node = cls.recurrent
    runs = (
        facts is not None
        and facts.checkpoints
        and node.bounded_gate
        and deployment.gpu.family in (9, 10, 12)
        and node.state_size == 128
        and model_dtype(model, deployment) == "bfloat16"
    )
    return int(runs)


def state_spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """A recurrent layer's state: one block whatever it holds, padded to the page of the attention layers."""
    parts = tensors(rules, model, deployment, cls, extra_rows=layer_rows(model, deployment))
    size = sum(tensor.bytes for tensor in parts)
    page = size if settings.mamba_page_bytes is None else settings.mamba_page_bytes
    if page < size:
        raise engine_refuses(
            "state-fits-page",
            "AssertionError",
            "groups",
            f"a state of {size} bytes is larger than the {page} its page was padded to",
            "vllm/v1/kv_cache_interface.py: MambaSpec.page_size_bytes",
        )
    assert settings.mamba_block_size is not None
    labels: list[tuple[str, object]] = []
    if checkpoints := rules.checkpoint_blocks(rules, model, deployment, cls):
        labels.append((CHECKPOINT_BLOCKS, checkpoints))
    if cls.layer_class == REPLICATED_STATE:
        labels.append((REPLICATED, True))
    return Spec(
        type="MambaSpec",
        block_size=settings.mamba_block_size,
        page_size_bytes=page,
        shapes=tuple(tensor.shape for tensor in parts),
        dtypes=tuple(TORCH[tensor.dtype] for tensor in parts),
        content_bytes=size,
        tokens_per_state=settings.mamba_block_size,
        padded_page=settings.mamba_page_bytes,
        labels=tuple(labels),
    )
