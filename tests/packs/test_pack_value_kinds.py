"""Whatever stands where a value is wanted, the answer is a plan or a refusal with its reason, never a crash of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from small_graphs import RELEASES

import rulespack
import vllm_0_29
import vllm_0_31
from rulespack import Deployment, Refused, RulespackError
from vllm_0_29.connectors import KEYS

TABLES: Final = {"0.29.0": vllm_0_29.RULES, "0.31.0": vllm_0_31.RULES}
VALUES: Final = (None, True, 5, -1, 0, 1.5, "x", "", "fp8", ["x"], [1], [], [{}], [None], {"a": 1}, {}, {"backend": 5})
PARTS: Final = "kv_connector_extra_config"
MULTI: Final = {"kv_connector": "MultiConnector", "kv_role": "kv_both"}
NIXL: Final = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
SPECULATIONS: Final[tuple[Mapping[str, Any], ...]] = (
    {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3},
    {"method": "eagle3", "model": "qwen3-8b-eagle3-specforge", "num_speculative_tokens": 2},
)


def attention(release: str, value: object) -> Iterator[dict[str, Any]]:
    for key in TABLES[release].attention_keys:
        yield {"attention_config": {key: value}}


def transfers(release: str, value: object) -> Iterator[dict[str, Any]]:
    for key in KEYS:
        yield {"kv_transfer_config": {**NIXL, key: value}}
        yield {"kv_transfer_config": {**MULTI, PARTS: {"connectors": [{**NIXL, key: value}]}}}
    yield {"kv_transfer_config": {**MULTI, PARTS: {"connectors": value}}}


def speculations(release: str, value: object) -> Iterator[dict[str, Any]]:
    for key in TABLES[release].speculative_keys:
        for speculation in SPECULATIONS:
            yield {"speculative_config": {**speculation, key: value}}


def arguments(release: str, value: object) -> Iterator[dict[str, Any]]:
    for name in Deployment.__annotations__:
        yield {name: value}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("stated", [attention, transfers, speculations, arguments], ids=lambda of: of.__name__)
def test_a_value_of_any_kind_is_answered(stated: Any, value: object, release: str) -> None:
    engine = rulespack.engine(release)
    for model in ("qwen3-8b", "gemma-3-4b-it"):
        graph = rulespack.load_model(model)
        for asked in stated(release, value):
            with contextlib.suppress(Refused, RulespackError):
                assert engine.plan(graph, Deployment.of(asked)).groups
