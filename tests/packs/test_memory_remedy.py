"""A deployment refused for its memory says what to state instead, exactly: a step less and it is refused again."""

from __future__ import annotations

import re
from typing import Any

import pytest

import rulespack
from rulespack import Deployment, Plan, Refused

MODELS = [
    "qwen3-14b",
    "gpt-oss-20b",
    "gemma-3-4b-it",
    "qwen3.5-35b-a3b",
    "deepseek-v3",
    "llama-4-scout-17b-16e-instruct",
]
LAYOUTS: list[dict[str, Any]] = [{"tensor_parallel_size": 4}, {"pipeline_parallel_size": 2}]


def planned(release: str, model: str, **stated: Any) -> Plan:
    return rulespack.engine(release).plan(rulespack.load_model(model), Deployment(**stated))


def refusal(release: str, model: str, **stated: Any) -> str:
    with pytest.raises(Refused) as caught:
        planned(release, model, **stated)
    assert caught.value.by == "engine"
    return caught.value.reason


def number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, text
    return int(found[1])


@pytest.mark.parametrize("layout", LAYOUTS, ids=["tp", "pp"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("release", rulespack.releases())
def test_the_least_memory_and_the_longest_request_that_fit(release: str, model: str, layout: dict[str, Any]) -> None:
    whole = planned(release, model, **layout)
    asked = {**layout, "kv_cache_memory_bytes": whole.blocks_per_request * whole.bytes_per_block // 2}
    said = refusal(release, model, **asked)

    memory = number(r"raise kv_cache_memory_bytes to (\d+) or more", said)
    assert planned(release, model, **{**asked, "kv_cache_memory_bytes": memory}).capacity is not None
    refusal(release, model, **{**asked, "kv_cache_memory_bytes": memory - 1})

    length = number(r"lower max_model_len to (\d+) or less", said)
    assert planned(release, model, **asked, max_model_len=length).resolved.max_model_len == length
    assert planned(release, model, **asked, max_model_len=-1).resolved.max_model_len == length
    refusal(release, model, **asked, max_model_len=length + 1)


@pytest.mark.parametrize("release", rulespack.releases())
def test_an_override_of_the_blocks_is_what_is_raised(release: str) -> None:
    said = refusal(release, "qwen3-14b", num_gpu_blocks_override=10)
    blocks = number(r"raise num_gpu_blocks_override to (\d+) or more", said)
    assert planned(release, "qwen3-14b", num_gpu_blocks_override=blocks).capacity is not None
    refusal(release, "qwen3-14b", num_gpu_blocks_override=blocks - 1)


@pytest.mark.parametrize("stated", [{"kv_cache_memory_bytes": 1}, {"kv_cache_memory_bytes": 1, "max_model_len": -1}])
def test_where_no_request_fits_only_memory_helps(stated: dict[str, Any]) -> None:
    said = refusal("0.31.0", "qwen3-14b", **stated)
    assert "max_model_len" not in said
    assert planned(
        "0.31.0", "qwen3-14b", **{**stated, "kv_cache_memory_bytes": number(r"bytes to (\d+) or more", said)}
    )
