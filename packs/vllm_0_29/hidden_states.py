"""``extract_hidden_states``: no tokens are drafted, and a cache keeps hidden states of the target for a connector.

Source: ``vllm/model_executor/models/extract_hidden_states.py``,
``vllm/v1/worker/gpu/spec_decode/extract_hidden_states.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rulespack.errors import Refused, engine_refuses, not_modelled
from rulespack.graph.model import Attention, Cache, ModelGraph
from rulespack.kv.specs import DTYPE_BYTES, Spec, attention_spec
from vllm_0_29.backend_terms import handed, is_quantized
from vllm_0_29.hidden_groups import HIDDEN_STATES_SPEC
from vllm_0_29.model import HIDDEN_STATES, CacheClass, Draft, Model

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import LayerBackend
    from vllm_0_29.rules import Rules, Settings

METHOD: Final = "extract_hidden_states"
LAYER_IDS: Final = "eagle_aux_hidden_state_layer_ids"
SOURCE: Final = "vllm/v1/worker/gpu/spec_decode/extract_hidden_states.py: ExtractHiddenStatesSpeculator.__init__"


def layer_ids(config: Mapping[str, Any]) -> tuple[int, ...]:
    """The layers whose hidden states are kept, as ``draft_model_config`` states them; none where it does not.

    Refused by the pack where it states anything else, which would change the target's configuration.
    """
    given = config.get("draft_model_config")
    stated = given.get("hf_config") if isinstance(given, Mapping) else None
    if not isinstance(stated, Mapping):
        return ()
    ids = stated.get(LAYER_IDS) or ()
    if set(stated) - {LAYER_IDS} or not isinstance(ids, list | tuple) or not all(type(i) is int for i in ids):
        raise not_modelled(
            "speculative-config-modelled", f"a draft_model_config with more than {LAYER_IDS} is not modelled"
        )
    return tuple(ids)


def hidden_states(graph: ModelGraph, model: Model, deployment: Deployment) -> Draft:
    """The one cache that keeps the hidden states of the layers that are named, all of them for every token.

    Refused by the engine where no layer is named.
    """
    config = deployment.speculative_config or {}
    count = len(layer_ids(config))
    if count == 0:
        raise _refused(f"extract_hidden_states needs {LAYER_IDS} in draft_model_config.hf_config")
    width = graph.globals_.hidden_size
    node = Attention(kind="gqa", n_q=count, n_kv=count, d_h=width)
    cache = Cache(name="hidden_states", kind="kv", owned=True, bytes_per_entry=2 * count * width)
    return Draft(
        method=METHOD,
        names=(f"cache_only_layers.{model.num_layers}",),
        classes=(CacheClass(HIDDEN_STATES, node, cache, draft=True),),
        quantization=model.quantization,
    )


def check_extraction(config: Mapping[str, Any]) -> None:
    """Refused by the engine where more than one token is drafted, drafts are sampled or batches are not padded."""
    if config.get("draft_sample_method", "greedy") != "greedy":
        raise _refused("drafts are not sampled by extract_hidden_states")
    if config.get("num_speculative_tokens") not in (None, 1):
        raise _refused("extract_hidden_states takes num_speculative_tokens 1")
    if config.get("disable_padded_drafter_batch"):
        raise _refused("extract_hidden_states pads its batches")


def _refused(reason: str) -> Refused:
    return engine_refuses("hidden-states-extracted", "ValueError", "construct", reason, SOURCE)


#: It gives back no softmax sums, which decode context parallelism combines by.
BACKENDS: Final = {"CACHE_ONLY_ATTN": msgspec.structs.replace(handed("CACHE_ONLY_ATTN", mla=False), dcp=False)}
MODEL_BACKENDS: Final[Mapping[str, Callable[[Rules, Model, Deployment, CacheClass, str], str]]] = {
    HIDDEN_STATES: lambda rules, model, deployment, cls, cache_dtype: "CACHE_ONLY_ATTN"
}


def spec(
    rules: Rules, model: Model, deployment: Deployment, cls: CacheClass, part: LayerBackend, settings: Settings
) -> Spec:
    """Hidden states as they are, in the model's own format where the cache is quantized."""
    stored = part.cache_dtype
    dtype = settings.model_dtype if stored == "auto" or is_quantized(stored) else stored
    node = cls.attention
    return attention_spec(
        HIDDEN_STATES_SPEC,
        block_size=settings.block_size,
        head_slots=node.n_kv,
        content_bytes=node.d_h * DTYPE_BYTES[dtype],
        dtype=dtype,
        num_kv_heads=node.n_kv,
        head_size=node.d_h,
    )


SPECS: Final = {HIDDEN_STATES: spec}
