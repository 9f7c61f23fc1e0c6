"""Block sizes of pipeline stages: each worker resolves them from the layers it holds.

Source: ``vllm/platforms/interface.py: Platform.update_block_size_for_backend``, which looks through the layers of its
own process. A stage of recurrent states alone aligns nothing; one whose first layer is skipped starts from another
kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rulespack.kv.plan import Reason
from vllm_0_29.block_size import SOURCE
from vllm_0_29.stages import parts_of_stages

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from rulespack.hooks import BlockSizes, CacheDtype, LayerBackend
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Reasons, Rules


def stage_sizes(
    rules: Rules,
    model: Model,
    deployment: Deployment,
    dtype: CacheDtype,
    parts: tuple[LayerBackend, ...],
    mamba: tuple[str, int | None],
    whole: BlockSizes,
    reasons: Reasons,
) -> tuple[tuple[LayerBackend, ...], BlockSizes]:
    """The parts, cut by stage and each with its stage's sizes where stages differ, and the sizes of the first stage,
    which the engine's core goes on with."""
    held = parts_of_stages(model, deployment, parts)
    found = [rules.block_size(rules, model, deployment, dtype, each, mamba, []) for each in held]
    if all(sizes == whole for sizes, each in zip(found, held, strict=True) if each):
        return parts, whole
    cut = [msgspec.structs.replace(part, sizes=sizes) for sizes, each in zip(found, held, strict=True) for part in each]
    sizes = {f"stage_{stage}": sizes.block_size for stage, sizes in enumerate(found)}
    because = "each pipeline stage resolves its blocks from the layers it holds; the engine goes on with the first's"
    reasons.append(Reason("stage-block-sizes", found[0].block_size, sizes, because, SOURCE))
    return tuple(sorted(cut, key=lambda part: part.caches[0])), found[0]
