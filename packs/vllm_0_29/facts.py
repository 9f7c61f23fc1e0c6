"""What vLLM 0.29.0 accepts and serves: names, connectors, architectures."""

from __future__ import annotations

from typing import Final

import msgspec

from vllm_0_29 import families
from vllm_0_29.backend_terms import FP8, NVFP4, PER_TOKEN_HEAD, PLAIN, TURBOQUANT
from vllm_0_29.model import Architecture, CacheName, DraftNames, StateFacts, Unserved
from vllm_0_29.rules import Connector
from vllm_0_29.stages import check_head_on_last_stage, check_text_class_named, check_whole_prefill

#: ``vllm/config/cache.py: CacheDType``.
CACHE_DTYPES: Final = PLAIN | FP8 | NVFP4 | PER_TOKEN_HEAD | TURBOQUANT | {"fp8_e5m2", "fp8_inc", "fp8_ds_mla"}

#: Cache dtypes of later releases: a graph, which serves all of them, may state their records.
LATER_CACHE_DTYPES: Final = frozenset({"nvfp4_ds_mla"})

#: ``vllm/config/speculative.py``: methods, and the aliases that become ``mtp``.
SPECULATIVE_METHODS: Final = frozenset(
    """
    ngram ngram_gpu medusa mlp_speculator draft_model suffix custom_class eagle eagle3 extract_hidden_states
    dflash dspark mtp deepseek_mtp dots3_note_mtp mimo_mtp mimo_v2_mtp glm4_moe_mtp glm4_moe_lite_mtp
    glm_ocr_mtp ernie_mtp nemotron_h_mtp exaone_moe_mtp exaone4_5_mtp qwen3_next_mtp qwen4_exp_mtp qwen3_5_mtp
    longcat_flash_mtp bailing_hybrid_mtp bailing_hybrid_v3_mtp minimax_m3_mtp kimi_k3_mtp pangu_ultra_moe_mtp
    step3p5_mtp hy_v3_mtp hy_v4_mtp gemma4_mtp inkling_mtp
    """.split()
)

#: ``vllm/distributed/kv_transfer/kv_connector/factory.py``: every connector but those of a user's own module.
CONNECTORS: Final = {
    "NixlConnector": Connector(True, "LBHNC", layout_spares_mla=True),
    "NixlPullConnector": Connector(True, "LBHNC", layout_spares_mla=True),
    "NixlPushConnector": Connector(True, "LBHNC", layout_spares_mla=True),
    "OffloadingConnector": Connector(True, "LBHNC"),
    "SimpleCPUOffloadConnector": Connector(True),
    "MooncakeConnector": Connector(True, "LBHNC", layout_spares_mla=True),
    "MooncakeStoreConnector": Connector(True),
    "DecodeBenchConnector": Connector(True),
    "ExampleHiddenStatesConnector": Connector(True, "LBNHC"),
    "MoRIIOConnector": Connector(False),
    "LMCacheConnectorV1": Connector(False),
    "LMCacheMPConnector": Connector(False),
    "ExampleConnector": Connector(False),
    "FlexKVConnectorV1": Connector(False),
    "HF3FSKVConnector": Connector(False),
}

PLAIN_MODEL: Final = Architecture()
WINDOWED_MODEL: Final = Architecture(window_from_config=True)
NESTED_MODEL: Final = Architecture(prefix="language_model.model.layers.")
#: Classes served through ``vllm/model_executor/models/transformers``.
TRANSFORMERS_MODEL: Final = Architecture(prefix="", caches={"kv": CacheName(".attn")})

MAMBA1: Final = StateFacts(backend="MAMBA1_ATTN", caches_prefixes=True, widens=False, counts_drafts=False)
#: The layers keep rows for drafted tokens that the model class does not count.
MAMBA2: Final = StateFacts(backend="MAMBA2_ATTN", caches_prefixes=True, counts_drafts=False)
NEMOTRON: Final = StateFacts(backend="MAMBA2_ATTN", caches_prefixes=True)
GDN: Final = StateFacts(backend="GDN_ATTN")
#: The layers keep float32 whatever the flag says.
KDA: Final = StateFacts(backend="GDN_ATTN", takes_dtype_flag=False, lists_attention=False)
KIMI_K3: Final = StateFacts(backend="KIMI_K3_KDA", takes_dtype_flag=False, checkpoints=True, lists_attention=False)
#: Every layer attends or none is said to.
UNLISTED: Final = msgspec.structs.replace(MAMBA2, lists_attention=False)

STATE, KV = "state", "kv"
ATTENTION: Final = CacheName(".self_attn.attn")
#: Draft modules that count their layers from 0 under a name of their own.
MTP_LAYERS: Final = DraftNames(prefix="mtp.layers.", counted_on=False)
MTP_MIXER: Final = DraftNames(prefix="mtp.layers.", counted_on=False, caches={KV: CacheName(".mixer.attn")})

QWEN_NEXT: Final = {STATE: CacheName(".linear_attn"), KV: ATTENTION}

#: Architectures with recurrent layers.
STATEFUL: Final = {
    "FalconH1ForCausalLM": Architecture(
        caches={KV: CacheName(".attn"), STATE: CacheName(pattern="model.{past}.mixer")}, state=UNLISTED
    ),
    "FalconMambaForCausalLM": Architecture(
        prefix="backbone.layers.", caches={STATE: CacheName(".mixer")}, state=MAMBA1
    ),
    "GraniteMoeHybridForCausalLM": Architecture(caches={STATE: CacheName(".mixer"), KV: ATTENTION}, state=MAMBA2),
    "JambaForCausalLM": Architecture(caches={STATE: CacheName(".mixer"), KV: CacheName(".attn")}, state=MAMBA1),
    "KimiK3ForConditionalGeneration": Architecture(
        prefix=NESTED_MODEL.prefix,
        caches={STATE: CacheName(".self_attn"), KV: CacheName(".self_attn")},
        state=KIMI_K3,
        latent_ignores_skips=True,
        check=check_whole_prefill,
        draft_names=DraftNames(without="ZeroDivisionError"),  # its count of modules, 0, is divided by
    ),
    "KimiLinearForCausalLM": Architecture(
        caches={STATE: CacheName(".self_attn"), KV: CacheName(".self_attn")},
        state=KDA,
        latent_ignores_skips=True,
        check=check_whole_prefill,
    ),
    "Lfm2ForCausalLM": Architecture(
        caches={STATE: CacheName(".short_conv"), KV: ATTENTION},
        state=StateFacts(backend="SHORT_CONV_ATTN", widens=False, counts_drafts=False),
    ),
    "NemotronHForCausalLM": Architecture(
        caches={STATE: CacheName(".mixer"), KV: CacheName(".mixer.attn")},
        state=NEMOTRON,
        config_claims_experts=True,
        draft_names=MTP_MIXER,
    ),
    "Qwen3NextForCausalLM": Architecture(caches=QWEN_NEXT, state=GDN, draft_names=MTP_LAYERS),
    "Qwen3_5ForConditionalGeneration": Architecture(
        prefix=NESTED_MODEL.prefix, caches=QWEN_NEXT, state=GDN, draft_names=MTP_LAYERS
    ),
    "Qwen3_5MoeForConditionalGeneration": Architecture(
        prefix=NESTED_MODEL.prefix, caches=QWEN_NEXT, state=GDN, draft_names=MTP_LAYERS
    ),
    "Zamba2ForCausalLM": Architecture(
        caches={KV: CacheName(pattern="model.attn.{ordinal}"), STATE: CacheName(pattern="{position}.mixer")},
        cache_by_cache=True,
        state=UNLISTED,
        pipeline_parallel=False,
    ),
}

#: ``vllm/model_executor/models/registry.py``, as far as the families are modelled.
ARCHITECTURES: Final = (
    STATEFUL
    | dict(families.ARCHITECTURES)
    | {
        "Cohere2ForCausalLM": PLAIN_MODEL,
        "CohereForCausalLM": PLAIN_MODEL,
        "DeciLMForCausalLM": PLAIN_MODEL,
        "DeepseekV2ForCausalLM": PLAIN_MODEL,
        "DeepseekV3ForCausalLM": PLAIN_MODEL,
        "Ernie4_5ForCausalLM": PLAIN_MODEL,
        "Ernie4_5_MoeForCausalLM": Architecture(check_stages=check_head_on_last_stage),
        "Exaone4ForCausalLM": WINDOWED_MODEL,
        "Gemma2ForCausalLM": Architecture(takes_float16=False, window_from_config=True),
        "Gemma3ForCausalLM": Architecture(rope_already_applied=True, takes_float16=False, window_from_config=True),
        "Gemma3ForConditionalGeneration": Architecture(
            prefix=NESTED_MODEL.prefix,
            rope_already_applied=True,
            takes_float16=False,
            window_from_config=True,
            items=("image",),
        ),
        "Gemma3nForConditionalGeneration": Architecture(
            prefix=NESTED_MODEL.prefix,
            caches={KV: ATTENTION, "window": ATTENTION},
            rope_already_applied=True,
            pipeline_parallel=False,
        ),
        "Gemma4ForConditionalGeneration": Architecture(
            prefix=NESTED_MODEL.prefix,
            counts_windows=True,
            wide_heads_take_fa4=True,
            window_from_config=True,
            items=("image", "video"),
            optional_items=("audio",),
        ),
        "Glm4MoeForCausalLM": PLAIN_MODEL,
        "Glm4MoeLiteForCausalLM": PLAIN_MODEL,
        "GptOssForCausalLM": Architecture(
            caches={"kv": CacheName(".attn.attn")}, replicates_kv_heads=False, window_from_config=True
        ),
        "GraniteMoeForCausalLM": PLAIN_MODEL,
        "HYV3ForCausalLM": PLAIN_MODEL,
        "HunYuanDenseV1ForCausalLM": TRANSFORMERS_MODEL,
        "KimiK25ForConditionalGeneration": NESTED_MODEL,
        "Llama4ForConditionalGeneration": NESTED_MODEL,
        "LlamaForCausalLM": PLAIN_MODEL,
        "MiMoForCausalLM": PLAIN_MODEL,
        "MiniCPM3ForCausalLM": PLAIN_MODEL,
        "MiniMaxM2ForCausalLM": PLAIN_MODEL,
        "Mistral3ForConditionalGeneration": NESTED_MODEL,
        "MistralForCausalLM": WINDOWED_MODEL,
        "MistralLarge3ForCausalLM": PLAIN_MODEL,
        "MixtralForCausalLM": PLAIN_MODEL,
        "Olmo3ForCausalLM": msgspec.structs.replace(TRANSFORMERS_MODEL, window_from_config=True),
        "Phi3ForCausalLM": WINDOWED_MODEL,
        "Qwen2ForCausalLM": PLAIN_MODEL,
        "Qwen3ForCausalLM": PLAIN_MODEL,
        "Qwen3MoeForCausalLM": PLAIN_MODEL,
        "Qwen3VLForConditionalGeneration": NESTED_MODEL,
        "Qwen3VLMoeForConditionalGeneration": msgspec.structs.replace(
            NESTED_MODEL, check_stages=check_text_class_named
        ),
        "SmolLM3ForCausalLM": TRANSFORMERS_MODEL,
        "Step3p5ForCausalLM": PLAIN_MODEL,
        "Step3p7ForConditionalGeneration": NESTED_MODEL,
    }
)

#: Architectures whose checkpoints the release cannot load.
UNSERVED: Final = {
    architecture: Unserved(
        "ValidationError",
        "config",
        f"this release knows no model type {model_type}, and neither does its Transformers",
        "vllm/transformers_utils/config.py: get_config",
    )
    for architecture, model_type in (
        ("DeepseekV41ForCausalLM", "deepseek_v41"),
        ("Glm5NextForConditionalGeneration", "glm5_next"),
    )
}

#: Architectures that hand out the hidden states of their inner layers (``SupportsEagle3``).
INNER_STATE_TARGETS: Final = frozenset(
    """
    DeepseekV2ForCausalLM DeepseekV32ForCausalLM DeepseekV3ForCausalLM DeepseekV4ForCausalLM Ernie4_5ForCausalLM
    Gemma4ForConditionalGeneration GlmMoeDsaForCausalLM GptOssForCausalLM HunYuanDenseV1ForCausalLM
    KimiK25ForConditionalGeneration KimiK3ForConditionalGeneration KimiLinearForCausalLM
    Llama4ForConditionalGeneration LlamaForCausalLM MiMoForCausalLM MiMoV2FlashForCausalLM MiMoV2ForCausalLM
    MiniCPM3ForCausalLM MiniMaxM2ForCausalLM MiniMaxM3SparseForConditionalGeneration Mistral3ForConditionalGeneration
    MistralForCausalLM MistralLarge3ForCausalLM NemotronHForCausalLM Olmo3ForCausalLM Phi3ForCausalLM
    Qwen2ForCausalLM Qwen3ForCausalLM Qwen3MoeForCausalLM Qwen3NextForCausalLM Qwen3VLForConditionalGeneration
    Qwen3VLMoeForConditionalGeneration Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration
    Qwen4ExpForConditionalGeneration SmolLM3ForCausalLM
    """.split()
)

#: Architectures whose own draft class can be cut into pipeline stages.
DRAFTS_OVER_STAGES: Final = frozenset({"Glm4MoeLiteForCausalLM", "NemotronHForCausalLM"})

#: Architectures of draft checkpoints: their layers go on counting from the target's.
DRAFT_ARCHITECTURES: Final = {
    "DFlashDraftModel": PLAIN_MODEL,
    "DSparkDraftModel": PLAIN_MODEL,
    "K3DSparkModel": Architecture(caches={KV: CacheName(".self_attn")}),
    "Eagle3LlamaForCausalLM": PLAIN_MODEL,
    "EagleLlamaForCausalLM": PLAIN_MODEL,
    "LlamaForCausalLMEagle3": PLAIN_MODEL,
}
