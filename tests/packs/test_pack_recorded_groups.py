"""Grouping of made-up layers, held against what the releases' own planner answered for them.

No model has most of these: windows and states of several pages in every order, with and without the hybrid manager,
under layouts of both kinds. ``tests/recordings/README.md`` says what a line holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from small_graphs import RELEASES, full, graph_of

import rulespack
import vllm_0_29
import vllm_0_31
from rulespack import Deployment, Refused, Spec
from rulespack.hooks import Grouping, OwnedCaches
from rulespack.kv.specs import attention_spec

FILE = Path(__file__).parent.parent / "recordings" / "groups.jsonl"
RECORDED = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
PACKS = {"0.29.0": vllm_0_29.plugin, "0.31.0": vllm_0_31.plugin}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_the_groups_are_the_releases(release: str, number: int) -> None:
    case = RECORDED[number]
    wanted = case.get("both") or case[release]
    got = grouping_or_refusal(release, case)
    if "refused" in wanted:
        assert isinstance(got, Refused)
        assert (got.by, got.type, got.stage) == ("engine", wanted["refused"], "groups")
    elif loses_caches(case, wanted):
        assert isinstance(got, Refused)
        assert (got.by, got.rule) == ("pack", "packed-repeats-even")
    else:
        assert isinstance(got, Grouping), got
        assert [shown(got, position) for position in range(len(got.groups))] == wanted["groups"]
        assert got.bytes_per_block == wanted["bytes_per_block"]


def loses_caches(case: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the release left a cache without a group."""
    return sum(len(group["caches"]) for group in wanted["groups"]) < len(case["layers"])


def test_the_recordings_hold_what_they_are_for() -> None:
    answers = [case.get("both") or case[release] for case in RECORDED for release in RELEASES]
    assert {answer.get("refused") for answer in answers} == {None, "ValueError", "NotImplementedError", "StopIteration"}
    assert {spec["type"] for case in RECORDED for spec in case["specs"]} == {
        "FullAttentionSpec",
        "MLAAttentionSpec",
        "SlidingWindowSpec",
        "ChunkedLocalAttentionSpec",
        "MambaSpec",
    }
    assert any("both" not in case for case in RECORDED)


def grouping_or_refusal(release: str, case: Mapping[str, Any]) -> Grouping | Refused:
    specs: list[Spec] = []
    spec_of = []
    for index in case["layers"]:
        spec = made(**case["specs"][index])
        if spec not in specs:
            specs.append(spec)
        spec_of.append(specs.index(spec))
    names = tuple(f"layer {position}" for position in range(len(spec_of)))
    owned = OwnedCaches(names=names, specs=tuple(specs), spec_of=tuple(spec_of), backends={})
    graph = graph_of([full()])
    resolution = rulespack.engine(release).resolve_engine(graph, Deployment())
    resolved = msgspec.structs.replace(
        resolution.resolved,
        kv_cache_layout=case["layout"],
        hybrid_kv_cache_manager=case["hybrid_kv_cache_manager"],
    )
    resolution = msgspec.structs.replace(resolution, resolved=resolved)
    try:
        return PACKS[release].kv_cache_groups(graph, Deployment(), resolution, owned)
    except Refused as refused:
        return refused


def made(type: str, **facts: Any) -> Spec:  # noqa: A002 - the recording's key
    """One cache as the recording describes it, in bf16."""
    if type == "MambaSpec":
        size, padded = facts["state_bytes"], facts.get("page_size_padded")
        return Spec(
            type=type,
            block_size=facts["block_size"],
            page_size_bytes=padded or size,
            shapes=((size,),),
            dtypes=("uint8",),
            content_bytes=size,
            tokens_per_state=facts["block_size"],
            padded_page=padded,
        )
    latent = type == "MLAAttentionSpec"
    heads = 1 if latent else facts["num_kv_heads"]
    return attention_spec(
        type,
        block_size=facts["block_size"],
        head_slots=heads,
        content_bytes=facts["head_size"] * (2 if latent else 4),
        dtype="bfloat16",
        num_kv_heads=heads,
        head_size=facts["head_size"],
        sliding_window=facts.get("sliding_window"),
        attention_chunk_size=facts.get("attention_chunk_size"),
    )


def shown(grouping: Grouping, position: int) -> dict[str, Any]:
    """A group as the recording has it."""
    group = grouping.groups[position]
    caches: Sequence[int] = group.caches
    return {
        "caches": list(caches),
        "type": group.spec.type,
        "block_size": group.spec.block_size,
        "page_size_bytes": group.spec.page_size_bytes,
    }
