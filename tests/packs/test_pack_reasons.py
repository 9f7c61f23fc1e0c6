"""A plan says why: every decision has a rule with a name of its own, a reason in words and a place in the release."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from small_graphs import MODELS, RELEASES, full, graph_of, plan

import rulespack
from rulespack import Deployment, Plan, Refused

PACKS = Path(__file__).parent.parent.parent / "packs"
KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
#: What names a rule where it is called: the first argument.
NAMING = ("Reason", "engine_refuses", "not_modelled", "invalid", "_problem")

#: Said of every plan, in the engine's order; models with state or windows of their own say more in between.
DECISIONS = (
    "cache-dtype",
    "max-model-len",
    "max-num-batched-tokens",
    "model-runner",
    "async-scheduling",
    "max-in-flight-tokens",
    "hybrid-kv-cache-manager",
    "attention-backend",
    "block-size",
    "kv-cache-layout",
    "cache-spec",
    "bytes-per-block",
    "scheduler-block-size",
)
DEPLOYMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"gpu": "B200", "kv_cache_dtype": "fp8"},
    {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "kv_cache_memory_bytes": 1 << 42},
)


@cache
def plans() -> tuple[Plan, ...]:
    return tuple(made())


def made() -> Iterator[Plan]:
    for release in RELEASES:
        for model in MODELS:
            for stated in DEPLOYMENTS:
                try:
                    yield rulespack.engine(release).plan(rulespack.load_model(model), Deployment(**stated))
                except Refused:
                    continue


def named_rules() -> Iterator[tuple[str, str]]:
    """Every rule named in a pack, and what names it: a decision, a refusal or a problem of the graph."""
    for file in PACKS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                called = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
                if called in NAMING and isinstance(node.args[0].value, str):
                    yield node.args[0].value, "decision" if called == "Reason" else "refusal"


def test_every_plan_gives_its_decisions_in_order() -> None:
    known = {name for name, kind in named_rules() if kind == "decision"}
    for answer in plans():
        rules = list(dict.fromkeys(reason.rule for reason in answer.reasons))
        attention = any(spec.type != "MambaSpec" for spec in answer.specs)
        wanted = [rule for rule in DECISIONS if attention or rule != "block-size"]
        assert [rule for rule in rules if rule in DECISIONS] == wanted, answer
        assert (rules[-1] == "capacity") == (answer.capacity is not None)
        assert len([rule for rule in rules if grouping(rule)]) == 1
        assert {rule for rule in rules if not grouping(rule)} <= known
    assert len(plans()) > 150


def grouping(rule: str) -> bool:
    """Whether a rule is a branch of the grouping."""
    return rule.endswith(("-group", "-groups"))


def test_every_decision_says_what_why_and_where() -> None:
    for answer in plans():
        for reason in answer.reasons:
            assert KEBAB.fullmatch(reason.rule)
            assert reason.value is not None
            assert len(reason.because) > 5
            assert re.search(r"\bvllm/[\w/]+\.py\b", reason.source), reason
            assert all(KEBAB.fullmatch(name.replace("_", "-")) for name in reason.inputs)


def test_a_decision_is_made_once_but_for_each_class_of_cache() -> None:
    for answer in plans():
        rules = [reason.rule for reason in answer.reasons if reason.rule not in ("attention-backend", "cache-spec")]
        assert len(rules) == len(set(rules))


def test_a_reasons_value_is_the_plans() -> None:
    for answer in plans():
        said = {reason.rule: reason.value for reason in answer.reasons}
        resolved = answer.resolved
        assert said["cache-dtype"] == resolved.cache_dtype
        assert said["max-model-len"] == resolved.max_model_len
        assert said["max-num-batched-tokens"] == resolved.max_num_batched_tokens
        assert said["async-scheduling"] == resolved.async_scheduling
        assert said["max-in-flight-tokens"] == resolved.max_in_flight_tokens
        assert said["hybrid-kv-cache-manager"] == resolved.hybrid_kv_cache_manager
        assert resolved.block_size in (said.get("hybrid-block-size"), said.get("block-size", resolved.block_size))
        assert said["kv-cache-layout"] == resolved.kv_cache_layout
        assert said["scheduler-block-size"] == resolved.scheduler_block_size
        assert said["bytes-per-block"] == answer.bytes_per_block
        assert [value for rule, value in said.items() if grouping(rule)] == [len(answer.groups)]
        backends = [reason.value for reason in answer.reasons if reason.rule == "attention-backend"]
        assert set(backends) == set(answer.backends)
        pages = {reason.value for reason in answer.reasons if reason.rule == "cache-spec"}
        assert pages == {spec.page_size_bytes for spec in answer.specs}


def test_a_name_is_a_decisions_or_a_refusals_and_never_both() -> None:
    kinds: dict[str, set[str]] = defaultdict(set)
    for name, kind in named_rules():
        assert KEBAB.fullmatch(name), name
        kinds[name].add(kind)
    assert len(kinds) > 80
    assert [name for name, kind in kinds.items() if len(kind) > 1] == []


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("stated", "rule", "because"),
    [
        ({}, "block-size", "what FLASH_ATTN prefers"),
        ({"block_size": 32}, "block-size", "as asked"),
        ({"kv_cache_dtype": "fp8"}, "cache-dtype", "as asked"),
        ({"max_model_len": 4096}, "max-model-len", "as asked"),
        ({"disable_hybrid_kv_cache_manager": True}, "hybrid-kv-cache-manager", "as asked"),
        (
            {"kv_transfer_config": {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}},
            "hybrid-kv-cache-manager",
            "LMCacheConnectorV1 cannot work with it",
        ),
        ({"async_scheduling": False}, "max-in-flight-tokens", "1 batch"),
    ],
)
def test_a_reason_tells_a_default_from_a_wish(release: str, stated: dict[str, Any], rule: str, because: str) -> None:
    answer = plan(release, graph_of([full()] * 2), **stated)
    assert [because in reason.because for reason in answer.reasons if reason.rule == rule] == [True]
