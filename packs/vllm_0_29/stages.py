"""Which pipeline stage holds each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulespack.errors import engine_refuses, not_modelled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rulespack.deployment import Deployment
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
    stage_of_cache = tuple(held[layer] for layer in model.layer_of)
    if model.states:
        check_states_attended(model, stage_of_cache)
    return stage_of_cache


def check_states_attended(model: Model, stage_of_cache: Sequence[int]) -> None:
    """Not modelled: a stage of a hybrid that holds states and no attention. Each worker aligns blocks by the layers it
    holds (``vllm/platforms/interface.py: Platform.update_block_size_for_backend``), so such a stage aligns none."""
    if not model.hybrid:
        return
    states = {id(cls) for cls in model.states}
    holds: dict[int, set[bool]] = {}
    for stage, index in zip(stage_of_cache, model.class_of, strict=True):
        holds.setdefault(stage, set()).add(id(model.classes[index]) in states)
    bare = [stage for stage, kinds in holds.items() if kinds == {True}]
    if bare:
        raise not_modelled(
            "stages-attend", f"pipeline stage {min(bare)} holds states and no attention, which is not modelled"
        )
