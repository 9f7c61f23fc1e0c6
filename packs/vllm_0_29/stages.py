"""Which pipeline stage holds each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rulespack.errors import engine_refuses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulespack.deployment import Deployment
    from rulespack.hooks import LayerBackend
    from vllm_0_29.model import Model

SOURCE = "vllm/distributed/utils.py: get_pp_indices"
#: The environment variable that states how many layers each stage holds.
PARTITION = "VLLM_PP_LAYER_PARTITION"


def layers_of_stages(layers: int, stages: int, stated: str | None) -> tuple[int, ...]:
    """Layers on each stage: an equal share, the remainder one each to the stages before the last, from the back.

    ``VLLM_PP_LAYER_PARTITION`` states them outright. Refused by the engine where that does not fit.
    """
    if stated is not None:
        try:
            counts = tuple(int(part) for part in stated.split(","))
        except ValueError:
            counts = ()
        if len(counts) != stages or sum(counts) != layers:
            raise engine_refuses(
                "layer-partition-fits",
                "ValueError",
                "construct",
                f"VLLM_PP_LAYER_PARTITION {stated!r} does not part {layers} layers over {stages} stages",
                SOURCE,
            )
        return counts
    share, rest = divmod(layers, stages)
    parted = [share] * stages
    for i in range(2, rest + 2):
        parted[-i] += 1
    return tuple(parted)


def check_text_class_named(model: Model, stage_of_layer: Sequence[int]) -> None:
    """Refused by the engine: the decoder's own configuration names no class, which stages are checked against."""
    raise engine_refuses(
        "decoder-class-named",
        "ValidationError",
        "construct",
        f"{model.architecture_name} gives its decoder a configuration without a class, which pipeline stages need",
        "vllm/model_executor/models/qwen3_vl_moe.py: Qwen3VLMoeForConditionalGeneration.__init__",
    )


def check_head_on_last_stage(model: Model, stage_of_layer: Sequence[int]) -> None:
    """Refused by the engine, which crashes: the class ties its head on every stage, and only the last has one."""
    if model.tied_head:
        raise engine_refuses(
            "head-tied-on-every-stage",
            "AttributeError",
            "construct",
            f"{model.architecture_name} ties its head to the vocabulary table on stages that have no head",
            "vllm/model_executor/models/ernie45_moe.py: Ernie4_5_MoeForCausalLM.__init__",
        )


def check_whole_prefill(model: Model, deployment: Deployment) -> None:
    """Refused by the engine: a prefill shared over ranks, which the class's latent layers do not take."""
    if deployment.prefill_context_parallel_size > 1:
        raise engine_refuses(
            "backend-shares-prefill",
            "AssertionError",
            "construct",
            f"the latent layers of {model.architecture_name} do not share a prefill over ranks",
            "vllm/models/kimi_k3/nvidia/mla.py: MultiHeadLatentAttention.__init__",
        )


def stage_of(model: Model, deployment: Deployment) -> tuple[int, ...]:
    """The stage of each cache in registration order; empty where there is one stage, which a stated partition must
    still part the layers over."""
    stages, stated = deployment.pipeline_parallel_size, deployment.env.get(PARTITION)
    if stages == 1 and stated is None:
        return ()
    counts = layers_of_stages(model.num_layers, stages, stated)
    if stages == 1:
        return ()
    held = [stage for stage, count in enumerate(counts) for _ in range(count)]
    if model.architecture.check_stages is not None:
        model.architecture.check_stages(model, held)
    return tuple(held[layer] for layer in model.layer_of)


def parts_of_stages(
    model: Model, deployment: Deployment, parts: Sequence[LayerBackend]
) -> tuple[tuple[LayerBackend, ...], ...]:
    """What each pipeline stage holds of each part, in the order it registers them; all of it where there is one."""
    stages = stage_of(model, deployment)
    if not stages:
        return (tuple(parts),)
    held = []
    for stage in range(deployment.pipeline_parallel_size):
        mine = ((part, tuple(i for i in part.caches if stages[i] == stage)) for part in parts)
        kept = [msgspec.structs.replace(part, caches=caches) for part, caches in mine if caches]
        held.append(tuple(sorted(kept, key=lambda part: part.caches[0])))
    return tuple(held)
