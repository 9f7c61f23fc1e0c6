"""DeepSeek V4.1: sliding windows everywhere, compressed caches owned by few layers, Engram tables, hyper-connections.

Source: 0.31.0, models/deepseek_v41/{attention,compressor}.py, nvidia/{model,dspark,engram}.py, common/engram.py,
models/deepseek_v4/nvidia/model.py (the MoE), transformers_utils/configs/deepseek_v41.py. The base graph is compute
capability 9; family 10 keeps other records and another format of one weight.
"""

from __future__ import annotations

from rulespack.derive.blocks import embedding
from rulespack.derive.config import Config, Served
from rulespack.derive.families.deepseek_v41.draft import draft_kinds, speculator
from rulespack.derive.families.deepseek_v41.layer import head, target_layer
from rulespack.derive.families.deepseek_v41.shape import ALIGNMENT_10, NVFP4_RECORD, RECORD_10, read_shape
from rulespack.derive.family import Family, Parts
from rulespack.graph.model import ArchOverride, CacheOverride, NodeOverride

#: Capability 10 multiplies wo_a in FP8 and stores the MXFP8 record, or NVFP4 for the compressed cache.
FAMILY_10 = ArchOverride(
    capability_family=10,
    nodes=(NodeOverride(role="wo_a", weight_dtype="fp8"),),
    caches=(
        CacheOverride(name="swa", bytes_per_entry=RECORD_10, page_alignment=ALIGNMENT_10),
        CacheOverride(
            name="compressed",
            bytes_per_entry=RECORD_10,
            page_alignment=ALIGNMENT_10,
            bytes_by_cache_dtype={"nvfp4_ds_mla": NVFP4_RECORD},
        ),
        CacheOverride(name="index", page_alignment=ALIGNMENT_10),
    ),
)


def build(config: Config) -> Parts:
    """The target by each layer's place in the sharing of caches, and the DSpark drafter."""
    shape = read_shape(config)
    return Parts(
        layers=[target_layer(config, shape, index) for index in range(config.layers)],
        embedding=embedding(config),
        head=head(config, shape),
        draft_kinds=draft_kinds(config, shape),
        speculator=speculator(config, shape),
        base_capability_families=(9,),
        arch_overrides=(FAMILY_10,),
    )


FAMILY = Family(serves={"DeepseekV41ForCausalLM": Served(multimodal=True)}, build=build)
