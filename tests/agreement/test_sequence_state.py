"""The state a sequence holds, from graphs alone, held against the states of the releases' own specs."""

from __future__ import annotations

from math import prod

import pytest

import rulespack

from .cases import Case, asked_graph, recorded

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FORMATS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def recurrent_bytes(case: Case) -> int:
    """What the release's recurrent states take for one sequence, without the padding of their pages."""
    assert case.plan is not None
    specs = case.plan["specs"]
    return sum(
        prod(shape) * BYTES[dtype]
        for _, spec in case.plan["caches"]
        for shape, dtype in zip(specs[spec].get("shapes", ()), specs[spec].get("dtypes", ()), strict=True)
    )


#: A drafter widens the convolutions; 0.29.0's KDA layers keep their dtype whatever the flag says. A graph says what a
#: state takes in the model's own 16 bits.
CASES = [
    case
    for case in recorded()
    if case.plan is not None
    and "speculative_config" not in case.deployment
    and case.deployment.get("dtype") not in ("float32", "float")
    and not (case.release == "0.29.0" and case.model.startswith("kimi"))
    and recurrent_bytes(case)
]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_a_graph_says_what_the_release_keeps(case: Case) -> None:
    stated = case.deployment.get("mamba_ssm_cache_dtype"), case.deployment.get("mamba_cache_dtype")
    state, convolution = (None if dtype is None else FORMATS.get(dtype) for dtype in stated)
    held = rulespack.state_bytes_per_sequence(
        asked_graph(case),
        tensor_parallel_size=case.deployment.get("tensor_parallel_size", 1),
        state_dtype=state,
        conv_dtype=convolution,
    )
    assert held.recurrent == recurrent_bytes(case)
