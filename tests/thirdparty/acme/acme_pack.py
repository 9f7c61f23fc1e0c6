"""Acme serves with a fork of vLLM 0.31.0 that stores fp8 by default, and with an engine of its own made from it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

import vllm_0_31
from rulespack import Deployment, Spec, hookimpl
from vllm_0_29.pack import Pack


class Fork:
    """The fork: unless something else is asked for, the cache is fp8. Everything else is vLLM's."""

    @hookimpl
    def resolve_cache_dtype(self, deployment: Deployment) -> str | None:
        """``fp8`` where nothing was asked for; otherwise left to the pack."""
        return "fp8" if deployment.kv_cache_dtype == "auto" else None


def block_alignment(specs: Sequence[Spec]) -> int:
    """Acme's engine rounds every block up to a mebibyte."""
    return 1 << 20


fork = Fork()
pack = Pack(msgspec.structs.replace(vllm_0_31.RULES, release="1.0.0", block_alignment=block_alignment))
