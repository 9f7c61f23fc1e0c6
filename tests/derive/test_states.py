"""The state of every recurrent layer is the one the real release allocated, tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rulespack.catalog import load_model, names
from rulespack.graph.model import RecurrentUpdate
from rulespack.graph.stack import layers
from rulespack.graph.state import state_tensors

RECORDINGS = Path(__file__).parent.parent / "recordings"
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
#: What changes a state and is no fact of the model.
FLAGS = {"dtype", "hf_overrides", "mamba_cache_dtype", "mamba_ssm_cache_dtype", "speculative_config"}

Tensors = list[tuple[tuple[int, ...], str]]


def recorded() -> Iterator[tuple[str, int, Tensors]]:
    """Model, ranks, and the shape and dtype of each tensor of its states, once for each distinct answer."""
    for name in names():
        seen: list[tuple[int, Tensors]] = []
        for file in sorted(RECORDINGS.glob(f"*/{name}.json")):
            for case in json.loads(file.read_text())["cases"].values():
                deployment: dict[str, Any] = case["deployment"]
                ranks = deployment.get("tensor_parallel_size", 1)
                for spec in case.get("plan", {}).get("specs", ()):
                    if spec["type"] != "MambaSpec" or FLAGS & deployment.keys():
                        continue
                    held = [(tuple(s), DTYPES[d]) for s, d in zip(spec["shapes"], spec["dtypes"], strict=True)]
                    if (ranks, held) not in seen:
                        seen.append((ranks, held))
                        yield name, ranks, held


@pytest.mark.parametrize(("name", "ranks", "held"), list(recorded()))
def test_a_state_is_what_the_release_allocated(name: str, ranks: int, held: Tensors) -> None:
    graph = load_model(name)
    own = graph.globals_.dtype or "bf16"
    stated = [
        [
            (tensor.shape, tensor.dtype)
            for tensor in state_tensors(
                node, conv_dtype=own, state_dtype=node.state_dtype or own, tensor_parallel_size=ranks
            )
        ]
        for layer in layers(graph)
        for node in layer.nodes
        if isinstance(node, RecurrentUpdate)
    ]
    assert held in stated
