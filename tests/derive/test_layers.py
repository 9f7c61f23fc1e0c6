"""A sequence of layers written as a stack."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rulespack.derive.layers import Layer, fold, fold_sequence
from rulespack.graph.model import GEMM, Elementwise, Stack
from rulespack.graph.stack import expand

KINDS = st.sampled_from(["a", "b", "c"])


def test_a_uniform_model_is_one_pattern() -> None:
    assert fold_sequence(["dense"] * 40) == Stack(pattern=("dense",), repeat=40)


def test_one_layer_is_a_pattern_run_once() -> None:
    assert fold_sequence(["dense"]) == Stack(pattern=("dense",), repeat=1)


def test_a_period_keeps_its_ragged_end() -> None:
    gemma_3 = (["sliding"] * 5 + ["full"]) * 5 + ["sliding"] * 4
    assert fold_sequence(gemma_3) == Stack(pattern=("sliding",) * 5 + ("full",), repeat=5, epilogue=("sliding",) * 4)


def test_dense_layers_before_the_experts_are_the_prologue() -> None:
    deepseek = ["dense"] * 3 + ["moe"] * 58
    assert fold_sequence(deepseek) == Stack(prologue=("dense",) * 3, pattern=("moe",), repeat=58)


def test_a_sequence_without_a_period_is_all_prologue() -> None:
    assert fold_sequence(["a", "b", "c"]) == Stack(prologue=("a", "b", "c"))


@given(st.lists(KINDS, min_size=1, max_size=30))
def test_a_stack_expands_to_the_sequence_it_was_made_from(sequence: list[str]) -> None:
    assert expand(fold_sequence(sequence)) == tuple(sequence)


@given(st.lists(KINDS, min_size=1, max_size=4), st.integers(min_value=2, max_value=10))
def test_a_repeated_sequence_is_never_written_out(period: list[str], times: int) -> None:
    stack = fold_sequence(period * times)
    assert len(stack.prologue) + len(stack.pattern) + len(stack.epilogue) <= len(period)


def layer(label: str, width: int) -> Layer:
    made = Layer(label)
    made.add(Elementwise(role="input_norm"))
    made.add(GEMM(role="up", n=width, k=64))
    return made


def test_equal_layers_become_one_kind() -> None:
    folded = fold([layer("dense", 128) for _ in range(3)])
    assert [kind.id for kind in folded.kinds] == ["dense"]
    assert folded.kinds[0].edges == ((0, 1),)
    assert expand(folded.stack) == ("dense",) * 3


def test_layers_of_one_label_that_differ_are_told_apart() -> None:
    folded = fold([layer("dense", 128), layer("dense", 256), layer("dense", 128)])
    assert [kind.id for kind in folded.kinds] == ["dense", "dense_2"]
    assert expand(folded.stack) == ("dense", "dense_2", "dense")
