"""A package of somebody else's: one answer overridden, and a pack of its own, found because they are installed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from other_packages import Interpreter

import rulespack
from rulespack import Deployment


def plan(interpreter: Interpreter, *words: str) -> dict[str, Any]:
    done = interpreter.run("plan", *words, "--format", "json")
    assert done.status == 0, done.err
    answer: dict[str, Any] = json.loads(done.out)
    return answer


def test_without_the_package_nothing_is_overridden(interpreter: Interpreter) -> None:
    assert plan(interpreter, "deepseek-v3", "--release", "0.31.0")["resolved"]["cache_dtype"] == "auto"
    assert interpreter.evaluate("rulespack.releases('acme')") == []


def test_an_overridden_answer_feeds_every_later_step(acme: Interpreter) -> None:
    """With fp8 latents vLLM takes another backend, whose blocks hold 64 tokens: all of it follows from one answer."""
    fork = plan(acme, "deepseek-v3", "--release", "0.31.0")
    vllm = rulespack.engine("0.31.0").plan(rulespack.load_model("deepseek-v3"), Deployment(kv_cache_dtype="fp8"))
    assert fork["resolved"]["cache_dtype"] == "fp8"
    assert fork["backends"] == {"FLASHMLA": 61} == vllm.backends
    assert fork["resolved"]["block_size"] == vllm.resolved.block_size == 64
    assert fork["specs"][0]["dtype"] == "uint8"
    assert fork["bytes_per_block"] == vllm.bytes_per_block
    assert fork["blocks_per_request"] == vllm.blocks_per_request


def test_the_override_is_said_to_be_one(acme: Interpreter) -> None:
    first = plan(acme, "deepseek-v3", "--release", "0.31.0")["reasons"][0]
    assert (first["rule"], first["value"], first["source"]) == ("cache-dtype", "fp8", "override")


def test_what_an_override_leaves_is_the_packs(acme: Interpreter) -> None:
    stated = plan(acme, "qwen3-14b", "--release", "0.31.0", "--kv-cache-dtype", "bfloat16")
    assert stated["resolved"]["cache_dtype"] == "bfloat16"
    assert stated["reasons"][0]["source"] != "override"


def test_an_override_is_for_its_release_alone(acme: Interpreter) -> None:
    assert plan(acme, "deepseek-v3", "--release", "0.29.0")["resolved"]["cache_dtype"] == "auto"


def test_a_refusal_of_the_pack_stays_with_an_override(acme: Interpreter) -> None:
    done = acme.run("plan", "qwen3-14b", "--release", "0.31.0", "--tensor-parallel-size", "7")
    assert done.status == 1
    assert "not divisible by 7" in done.err


def test_a_pack_of_ones_own_is_an_engine_of_its_own(acme: Interpreter) -> None:
    assert acme.evaluate("rulespack.releases('acme')") == ["1.0.0"]
    assert acme.evaluate("rulespack.releases()") == ["0.29.0", "0.31.0"]
    cost = "rulespack.engine({!r}, engine={!r}).plan(rulespack.load_model('qwen3-14b')).bytes_per_block"
    assert acme.evaluate(cost.format("1.0", "acme")) == 3 << 20
    assert acme.evaluate(cost.format("0.29.0", "vllm")) == 2_621_440


def test_its_plan_is_its_base_with_the_one_rule_replaced(acme: Interpreter) -> None:
    question = {"engine": "acme", "release": "1.0.0", "model": "qwen3-14b", "deployment": {"tensor_parallel_size": 2}}
    done = acme.run("batch", "-", stdin=json.dumps(question) + "\n")
    answer = json.loads(done.out)["plan"]
    base = rulespack.engine("0.31.0").plan(rulespack.load_model("qwen3-14b"), Deployment(tensor_parallel_size=2))
    assert (answer["engine"], answer["release"]) == ("acme", "1.0.0")
    assert (base.bytes_per_block, answer["bytes_per_block"]) == (1_310_720, 2 << 20)
    assert answer["groups"][0]["padding_bytes"] == (2 << 20) - 1_310_720
    assert answer["resolved"]["cache_dtype"] == "auto"  # the fork's override is not this pack's
    assert answer["backends"] == base.backends
    assert answer["blocks_per_request"] == base.blocks_per_request


@pytest.mark.parametrize("release", ["2.0", "0.31.0"])
def test_a_release_of_another_engine_is_not_its_own(acme: Interpreter, release: str) -> None:
    question = {"engine": "acme", "release": release, "model": "qwen3-14b"}
    error = json.loads(acme.run("batch", "-", stdin=json.dumps(question)).out)["error"]
    assert error["type"] == "UnknownRelease"
    assert "releases there are packs for: 1.0.0" in error["message"]


def test_the_command_takes_another_engine(acme: Interpreter) -> None:
    assert acme.run("releases", "--engine", "acme").out.split() == ["1.0.0"]
    assert acme.run("releases").out.split() == ["0.29.0", "0.31.0"]
    answer = plan(acme, "qwen3-14b", "--engine", "acme", "--release", "1.0")
    assert (answer["engine"], answer["bytes_per_block"]) == ("acme", 3 << 20)
