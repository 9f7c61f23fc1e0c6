"""Asynchronous scheduling in vLLM 0.31.0: not with pipeline stages under the first model runner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulespack.errors import engine_refuses
from rulespack.kv.plan import Reason
from vllm_0_29 import scheduler as earlier

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Reasons, Rules


def async_scheduling(rules: Rules, model: Model, deployment: Deployment, runner: int, reasons: Reasons) -> bool:
    """On unless asked off, or unless several pipeline stages run under the first model runner.

    Refused by the engine where it is asked on there.
    """
    if runner == 2 or deployment.pipeline_parallel_size == 1:
        return earlier.async_scheduling(rules, model, deployment, runner, reasons)
    if deployment.async_scheduling:
        raise engine_refuses(
            "async-scheduling-runner",
            "ValidationError",
            "config",
            "the first model runner does not schedule asynchronously over pipeline stages",
            earlier.ASYNC_SOURCE,
        )
    because = "the first model runner does not schedule asynchronously over pipeline stages"
    reasons.append(Reason("async-scheduling", False, {"runner": runner}, because, earlier.ASYNC_SOURCE))
    return False
