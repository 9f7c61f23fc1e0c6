"""An override of one answer: a fork of vLLM 0.31.0 that stores fp8 unless it is told otherwise."""

from __future__ import annotations

from rulespack.deployment import Deployment
from rulespack.hooks import hookimpl


@hookimpl
def resolve_cache_dtype(deployment: Deployment) -> str | None:
    return "fp8" if deployment.kv_cache_dtype == "auto" else None
