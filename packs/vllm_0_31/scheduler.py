"""The scheduler in vLLM 0.31.0: the second model runner keeps no state for every block, and the first does not schedule
asynchronously over pipeline stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rulespack.errors import engine_refuses
from rulespack.kv.plan import Reason
from vllm_0_29 import scheduler as earlier
from vllm_0_29.environment import RUNNER, switch
from vllm_0_29.state import settled_mode

if TYPE_CHECKING:
    from rulespack.deployment import Deployment
    from vllm_0_29.model import Model
    from vllm_0_29.rules import Reasons, Rules


def model_runner(rules: Rules, model: Model, deployment: Deployment, reasons: Reasons) -> int:
    """As before, and the first where the mamba cache mode is ``all``, whether or not the model has recurrent state.

    Refused by the engine where the environment forces the second there.
    """
    if deployment.mamba_cache_mode != "all" or settled_mode(model, deployment)[0] != "all":
        return earlier.model_runner(rules, model, deployment, reasons)
    if switch(deployment, RUNNER):
        raise engine_refuses(
            "model-runner-keeps-all-states",
            "ValidationError",
            "config",
            "the second model runner does not support the mamba cache mode all",
            "vllm/config/vllm.py: VllmConfig._get_v2_model_runner_unsupported_features",
        )
    because = "the second does not support the mamba cache mode all"
    earlier.check_runner(deployment)
    reasons.append(Reason("model-runner", 1, {}, because, earlier.RUNNER_SOURCE))
    return 1


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
