"""The parameters of every graph add up to what the real release constructed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rulespack.catalog import load_model, names
from rulespack.graph.weights import parameters

RECORDINGS = Path(__file__).parent.parent / "recordings"
TOLERANCE = 0.005
#: Arguments that make other weights of a checkpoint.
CHANGING = {"dtype", "hf_overrides", "quantization"}


def whole_models() -> Iterator[tuple[str, dict[str, Any]]]:
    """What each release held of each model on an H200, nothing divided or overridden, each distinct answer once.

    Other GPUs pad packed experts to what their kernels take.
    """
    for name in names():
        seen: list[dict[str, Any]] = []
        for file in sorted(RECORDINGS.glob(f"*/{name}.json")):
            for case in json.loads(file.read_text())["cases"].values():
                deployment = case["deployment"]
                changed = any("parallel" in key or key in CHANGING for key in deployment)
                whole = deployment["gpu"] == "H200" and not changed
                held = case.get("plan", {}).get("weights", {}).get("model")
                if whole and held is not None and held not in seen:
                    seen.append(held)
                    yield name, held


@pytest.mark.parametrize(("name", "held"), list(whole_models()))
def test_a_graph_holds_what_the_release_constructed(name: str, held: dict[str, Any]) -> None:
    weights = parameters(load_model(name))
    ours = weights.of(lambda weight: weight.part == "target")
    if not held.get("packed"):
        assert ours.elements == pytest.approx(held["elements"], rel=TOLERANCE)
    else:
        # Packed elements are not parameters; their bytes are still the model's.
        assert ours.bytes == pytest.approx(held["bytes"], rel=TOLERANCE)


def test_most_of_the_catalog_was_measured() -> None:
    measured = {name for name, _ in whole_models()}
    assert len(measured) > len(names()) / 2
