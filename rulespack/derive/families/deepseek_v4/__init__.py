"""DeepSeek V4: sliding windows everywhere, caches compressed 4 or 128 to 1 beside them, hyper-connections.

Source: 0.31.0, models/deepseek_v4/{attention,compressor,quant_config}.py, models/deepseek_v4/nvidia/model.py. The
graph states the packed record, which every GPU family runs by default.
"""

from __future__ import annotations

from rulespack.derive.blocks import embedding, read_top_k
from rulespack.derive.config import Config, Served
from rulespack.derive.families.deepseek_v4.draft import drafter
from rulespack.derive.families.deepseek_v4.layer import head, target_layer
from rulespack.derive.families.deepseek_v4.shape import read_shape
from rulespack.derive.family import Family, Parts


def build(config: Config) -> Parts:
    """Layers by their compression ratio; the first ones route by token."""
    shape = read_shape(config)
    top_k = read_top_k(config, "num_experts_per_tok", config.text.integer("n_routed_experts"))
    draft = drafter(config, shape, top_k)
    return Parts(
        layers=[target_layer(config, shape, index, top_k) for index in range(config.layers)],
        embedding=embedding(config),
        head=head(config, shape),
        draft_kinds=draft.kinds,
        speculator=draft.speculator,
    )


FAMILY = Family(serves={"DeepseekV4ForCausalLM": Served()}, build=build)
