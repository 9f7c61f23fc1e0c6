"""Environment variables that are switches: how the release reads them (``vllm/envs.py``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rulespack.errors import engine_refuses, not_modelled

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Rules

RUNNER: Final = "VLLM_USE_V2_MODEL_RUNNER"
CUBINS: Final = "VLLM_HAS_FLASHINFER_CUBIN"
CHUNKED: Final = "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE"
SIMPLE_OFFLOAD: Final = "VLLM_USE_SIMPLE_KV_OFFLOAD"


def switch(deployment: Deployment, name: str) -> bool | None:
    """Whether a switch is on: any integer but zero; None where it is not stated. :func:`check_switches` goes before."""
    said = deployment.env.get(name)
    return None if said is None else int(said) != 0


def check_switches(rules: Rules, model: Model, deployment: Deployment) -> None:
    """Every switch is an integer. Refused by the engine for the model runner's, which every configuration reads; by
    the pack for the others, which are read only where something asks for them."""
    for name in (RUNNER, CUBINS, CHUNKED, SIMPLE_OFFLOAD):
        said = deployment.env.get(name)
        if said is None or _is_integer(said):
            continue
        if name == RUNNER:
            raise engine_refuses(
                "model-runner-switch",
                "ValidationError",
                "config",
                f"{name} {said!r} is no integer: 0 is the first model runner, any other the second",
                "vllm/envs.py: maybe_convert_bool",
            )
        raise not_modelled("environment-switch-modelled", f"{name} {said!r} is no integer: state 0 or 1")


def _is_integer(said: str) -> bool:
    try:
        int(said)
    except ValueError:
        return False
    return True
