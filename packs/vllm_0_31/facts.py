"""What vLLM 0.31.0 accepts and serves beyond 0.29.0."""

from __future__ import annotations

from typing import Final

import msgspec

from vllm_0_29 import attention_config, value_checks
from vllm_0_29 import facts as earlier
from vllm_0_29.model import Unserved
from vllm_0_29.rules import Connector
from vllm_0_31 import deepseek_v41, glm5_next

CACHE_DTYPES: Final = earlier.CACHE_DTYPES | {"nvfp4_ds_mla"}
SPECULATIVE_METHODS: Final = earlier.SPECULATIVE_METHODS | {"glm5_next_mtp"}
CONNECTORS: Final = earlier.CONNECTORS | {"MoRIIOConnector": Connector(True)}
#: A connector that replaces the caches by its own (``v1/hisparse``).
UNMODELLED_CONNECTORS: Final = frozenset({"HiSparseConnector"})
KIMI_K3: Final = msgspec.structs.replace(
    earlier.ARCHITECTURES["KimiK3ForConditionalGeneration"],
    state=msgspec.structs.replace(earlier.KIMI_K3, takes_dtype_flag=True),
    state_size_heeds_flag=True,
)
KIMI_LINEAR: Final = msgspec.structs.replace(earlier.ARCHITECTURES["KimiLinearForCausalLM"], state_size_heeds_flag=True)
ARCHITECTURES: Final = earlier.ARCHITECTURES | {
    "KimiK3ForConditionalGeneration": KIMI_K3,
    "KimiLinearForCausalLM": KIMI_LINEAR,
    "Qwen3VLMoeForConditionalGeneration": earlier.NESTED_MODEL,
    deepseek_v41.NAME: deepseek_v41.ARCHITECTURE,
    **glm5_next.ARCHITECTURES,
}
CHOICES: Final = {
    **value_checks.CHOICES,
    "all2all_backend": value_checks.CHOICES["all2all_backend"] | {"moonep"},
}
INNER_STATE_TARGETS: Final = earlier.INNER_STATE_TARGETS | {deepseek_v41.NAME, "MiMoV2OmniForCausalLM"}
#: Architectures whose inner hidden states go on from stage to stage (``supports_aux_hidden_states_over_pp``).
INNER_STATES_OVER_STAGES: Final = frozenset(
    """
    DeepseekV4ForCausalLM Ernie4_5ForCausalLM KimiK3ForConditionalGeneration KimiLinearForCausalLM
    Llama4ForConditionalGeneration LlamaForCausalLM Mistral3ForConditionalGeneration MistralForCausalLM
    Phi3ForCausalLM Qwen2ForCausalLM Qwen3ForCausalLM Qwen3VLForConditionalGeneration
    """.split()
)
UNSERVED: Final[dict[str, Unserved]] = {}

ATTENTION_KEYS: Final = {
    **{key: taken for key, taken in attention_config.KEYS.items() if key != "use_fp4_indexer_cache"},
    "indexer_sparse_logits": attention_config.SWITCH,
    "hisparse_config": attention_config.READ,
}
PREFILL_BACKENDS: Final = attention_config.PREFILL_BACKENDS | {"ZEN_CPU"}

INDEXERS: Final = {
    **attention_config.INDEXERS,
    "DeepseekV41Indexer": attention_config.DEEPSEEK,
    "QSACompressedKeyCache": attention_config.Indexer(("bf16", "fp8"), error="NotImplementedError"),
}

#: Engine settings that move a table between host and device: where each puts it by default.
RESIDENCIES: Final = {"engram_cpu_offload": "host"}
