"""A plan explained: what each argument does, what each decision cost."""

from __future__ import annotations

from typing import Any

import pytest

import rulespack
from rulespack import Deployment, Refused
from rulespack.diff import Answer, Refusal
from rulespack.report.why import COSTS, Explanation, explain
from rulespack.shelf import asked_graph


def explained(model: str, release: str = "0.31.0", **stated: Any) -> Explanation:
    engine, deployment = rulespack.engine(release), Deployment(**stated)
    graph = asked_graph(model, deployment)
    try:
        answer = Answer(release, engine.plan(graph, deployment))
    except Refused as refused:
        answer = Answer(release, refused.plan, Refusal.of(refused))
    return explain(engine, graph, deployment, answer, lambda: asked_graph(model, Deployment()))


def cost(of: Explanation, rule: str) -> str:
    return next(decision.cost for decision in of.decisions if decision.rule == rule)


@pytest.mark.parametrize(
    ("stated", "argument", "effect"),
    [
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype=fp8", "holds 100.0 % more in the same memory, 6,710,886,400"),
        ({"block_size": 16}, "block_size=16", "changes nothing of the plan"),
        ({"port": 8000}, "port=8000", "cannot change the plan"),
        ({"gpu": "B200"}, "gpu=B200", "layout LBNHC -> LBHNC"),
        (
            {"tensor_parallel_size": 8, "decode_context_parallel_size": 1},
            "tensor_parallel_size=8",
            "holds 700.0 % more in the same memory",
        ),
        (
            {"kv_cache_memory_bytes": 1 << 30},
            "kv_cache_memory_bytes=1073741824",
            "without it, the release has a plan",
        ),
        (
            {"hf_overrides": {"num_hidden_layers": 20}},
            'hf_overrides={"num_hidden_layers": 20}',
            "holds 100.0 % more in the same memory",
        ),
    ],
)
def test_what_an_argument_does(stated: dict[str, Any], argument: str, effect: str) -> None:
    said = dict(explained("qwen3-14b", **stated).asked)
    assert effect in said[argument]


def test_an_argument_a_deployment_would_be_refused_without() -> None:
    said = dict(explained("deepseek-v4-flash", "0.29.0", kv_cache_dtype="fp8").asked)
    assert said["kv_cache_dtype=fp8"].startswith("without it, refused, AssertionError at stage construct: ")


def test_what_the_decisions_cost() -> None:
    of = explained("gpt-oss-120b")
    assert cost(of, "hybrid-kv-cache-manager") == (
        "decided otherwise, a request of 131,072 tokens would take 9,663,676,416 (9 GiB), not 5,441,126,400 (5.07 GiB)"
    )
    assert cost(of, "max-in-flight-tokens").startswith("1,024 blocks, 603,979,776 (576 MiB), of a request of 131,072")
    assert cost(of, "equal-page-groups") == "nothing: no group leaves bytes of a block unused"
    assert cost(of, "bytes-per-block").startswith("5,441,126,400 (5.07 GiB) for the 9,225 blocks")
    assert cost(of, "model-runner") == ""


def test_padding_is_a_cost() -> None:
    of = explained("gemma-3-4b-it")
    assert cost(of, "equal-page-groups") == (
        "71,368,704 (68.06 MiB) of padding in a request of 131,072 tokens, 1.5% of it"
    )


def test_a_decision_that_makes_no_difference_costs_nothing() -> None:
    of = explained("qwen3-14b")
    assert cost(of, "async-scheduling") == cost(of, "hybrid-kv-cache-manager") == cost(of, "max-in-flight-tokens") == ""


def test_the_decisions_are_the_plans_in_order() -> None:
    plan = rulespack.engine("0.31.0").plan(rulespack.load_model("qwen3.5-35b-a3b"))
    of = explained("qwen3.5-35b-a3b")
    assert [decision.rule for decision in of.decisions] == [reason.rule for reason in plan.reasons]
    assert [decision.source for decision in of.decisions] == [reason.source for reason in plan.reasons]


def test_every_rule_with_a_cost_is_a_rule() -> None:
    assert set(COSTS) <= {rule.name for rule in rulespack.engine("0.31.0").rules()}
