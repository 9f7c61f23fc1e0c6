"""A pin and the diff agree: the same facts move in both, for every model of the catalog."""

from __future__ import annotations

from typing import Any

import pytest

import rulespack
from rulespack import Deployment
from rulespack.catalog import names
from rulespack.diff import Question, compare_questions
from rulespack.diff.comparison import answer
from rulespack.testing.pins import named_alike
from rulespack.testing.text import chosen, lines

DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "default": {},
    "shared": {"tensor_parallel_size": 8, "pipeline_parallel_size": 2, "kv_cache_memory_bytes": 64 << 30},
    "fp8": {"kv_cache_dtype": "fp8", "gpu": "B200"},
}


@pytest.mark.parametrize("stated", DEPLOYMENTS.values(), ids=DEPLOYMENTS)
def test_a_pin_moves_exactly_where_the_diff_says_so(stated: dict[str, Any]) -> None:
    old, new = rulespack.engine("0.29.0"), rulespack.engine("0.31.0")
    questions = [Question(rulespack.load_model(model), Deployment.of(stated)) for model in names()]
    comparison = compare_questions(old, new, questions)
    moved, told = set(), set()
    for question, pair in zip(questions, comparison.pairs, strict=True):
        if pair.status == "not-modelled":
            continue
        before, after = answer(old, question), answer(new, question)
        if chosen(lines(before), ()) != chosen(lines(named_alike(before, after)), ()):
            moved.add(pair.model)
        kept = [change for change in pair.changes if not change.key.startswith("weights.")]  # pinned only by name
        if pair.status not in ("same", "changed") or kept or pair.caches or pair.groups:
            told.add(pair.model)
    assert moved == told
    assert moved
    assert len(moved) < len(questions)
