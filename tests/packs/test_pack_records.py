"""A packed record is as large as the graph says: one that is not stated is refused by its name, never computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import rulespack
from rulespack import Deployment, ModelGraph, Refused
from rulespack.graph.load import load_graph

MODELS = Path(__file__).parents[2] / "models"


def without_records(model: str) -> ModelGraph:
    """The catalog's graph with every ``bytes_by_cache_dtype`` taken out."""

    def stripped(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: stripped(item) for key, item in value.items() if key != "bytes_by_cache_dtype"}
        return [stripped(item) for item in value] if isinstance(value, list) else value

    text = (MODELS / model / "graph.yaml").read_text(encoding="utf-8")
    return load_graph(yaml.safe_dump(stripped(yaml.safe_load(text))).encode(), f"{model}.yaml")


@pytest.mark.parametrize(
    ("release", "model", "stated", "record"),
    [
        ("0.29.0", "deepseek-v3.2", {"kv_cache_dtype": "fp8"}, "fp8_ds_mla"),
        ("0.31.0", "deepseek-v3.2", {"kv_cache_dtype": "fp8_ds_mla"}, "fp8_ds_mla"),
        ("0.31.0", "glm-5", {"kv_cache_dtype": "nvfp4_ds_mla", "gpu": "B200"}, "nvfp4_ds_mla"),
        ("0.31.0", "deepseek-v4.1-flash", {"kv_cache_dtype": "nvfp4_ds_mla", "gpu": "B200"}, "nvfp4_ds_mla"),
    ],
)
def test_a_record_the_graph_does_not_state_is_refused(
    release: str, model: str, stated: dict[str, Any], record: str
) -> None:
    engine, deployment = rulespack.engine(release), Deployment(**stated)
    assert engine.plan(rulespack.load_model(model), deployment).resolved.cache_dtype == record
    with pytest.raises(Refused, match=f"states no bytes_by_cache_dtype for {record}") as caught:
        engine.plan(without_records(model), deployment)
    assert (caught.value.by, caught.value.rule) == ("pack", "fact-stated")
