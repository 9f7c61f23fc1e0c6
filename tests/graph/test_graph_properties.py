"""What holds for every graph and every text, not only for those somebody thought of."""

from __future__ import annotations

import msgspec
import pytest
from graph_texts import BASE
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rulespack.graph import model
from rulespack.graph.capability import UndescribedFamily, families, for_capability
from rulespack.graph.check import check_graph
from rulespack.graph.dump import dump_graph
from rulespack.graph.load import inspect_graph, inspect_identity, load_graph
from rulespack.graph.rules import RULES
from rulespack.graph.stack import expand, layers, length, owned_caches, uses
from rulespack.graph.vocabulary import ATTENTION_KINDS, CACHE_KINDS, DTYPES, EMIT_CONDITIONS
from rulespack.graph.weights import parameters

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    [
        "on",
        "no",
        "null",
        "~",
        "0123",
        "1e5",
        "0x1F",
        "2026-09-16",
        "1:30",
        "a b",
        "a: b",
        "- a",
        "#",
        "{",
        "'",
        '"',
        "\n",
        "=",
    ]
)
COUNTS = st.integers(min_value=-(2**63), max_value=2**63 - 1)
SMALL = st.integers(min_value=1, max_value=64)


def _of(cls: type[msgspec.Struct], **given: st.SearchStrategy[object]) -> st.SearchStrategy[msgspec.Struct]:
    """Any object of a model class, keys left out at random where they may be."""
    fields = msgspec.structs.fields(cls)
    must = {field.name: given.get(field.name, _any(field.type)) for field in fields if field.required}
    may = {field.name: given.get(field.name, _any(field.type)) for field in fields if not field.required}
    return st.fixed_dictionaries(must, optional=may).map(lambda values: cls(**values))


def _any(kind: object) -> st.SearchStrategy[object]:
    """Any value of a field's type, None left out: a key that is None is a key that is not stated."""
    wanted = msgspec.inspect.type_info(kind)
    return _values(wanted)


def _values(wanted: msgspec.inspect.Type) -> st.SearchStrategy[object]:
    inspect = msgspec.inspect
    if isinstance(wanted, inspect.UnionType):
        return st.one_of([_values(part) for part in wanted.types if not isinstance(part, inspect.NoneType)])
    if isinstance(wanted, inspect.StructType):
        return _of(wanted.cls)
    if isinstance(wanted, inspect.VarTupleType):
        return st.lists(_values(wanted.item_type), max_size=3).map(tuple)
    if isinstance(wanted, inspect.TupleType):
        return st.tuples(*(_values(part) for part in wanted.item_types))
    if isinstance(wanted, inspect.DictType):
        return st.dictionaries(TEXTS, COUNTS, max_size=3)
    scalars: dict[type, st.SearchStrategy[object]] = {
        inspect.StrType: TEXTS,
        inspect.IntType: COUNTS,
        inspect.FloatType: st.floats(allow_nan=False, allow_infinity=False),
        inspect.BoolType: st.booleans(),
    }
    return scalars[type(wanted)]


GRAPHS = _of(model.ModelGraph)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(GRAPHS)
def test_any_graph_written_reads_back_equal_however_wrong_it_is(graph: model.ModelGraph) -> None:
    text = dump_graph(graph)
    assert text.endswith("\n")
    assert dump_graph(graph) == text
    read, problems = inspect_graph(text, "graph.yaml")
    assert read == graph
    assert {problem.rule for problem in problems} == {problem.rule for problem in check_graph(graph)}


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.recursive(
        st.none() | st.booleans() | COUNTS | st.floats() | TEXTS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
        max_leaves=20,
    )
)
def test_any_document_is_refused_in_words(data: object) -> None:
    text = msgspec.yaml.encode(data)
    for inspect in (inspect_graph, inspect_identity):
        found, problems = inspect(text, "graph.yaml")
        assert found is None
        assert problems
        assert all(problem.rule in RULES and problem.message for problem in problems)


@settings(max_examples=300)
@given(st.text(alphabet=st.sampled_from("{}[]:,-#&*!|>'\"%@`?~<= \n\tabc01."), max_size=60) | st.binary(max_size=60))
def test_any_text_at_all_is_refused_in_words(text: str | bytes) -> None:
    graph, problems = inspect_graph(text, "graph.yaml")
    assert graph is None
    assert problems


JUNK = st.sampled_from(
    ["", "~", "[]", "{}", "-1", "0", "x", "true", "1.5", "[1, 2]", "{a: b}", "!t v", "*a", "&a v", '"1"', "0x1"]
)


@settings(max_examples=300)
@given(st.integers(min_value=0, max_value=len(BASE) - 1), st.integers(min_value=0, max_value=12), JUNK)
def test_a_valid_text_damaged_anywhere_never_ends_in_a_traceback(start: int, count: int, junk: str) -> None:
    text = BASE[:start] + junk + BASE[start + count :]
    graph, problems = inspect_graph(text, "graph.yaml")
    assert graph is not None or problems
    for problem in problems:
        assert problem.rule in RULES
        assert problem.line is None or 1 <= problem.line <= len(text.splitlines())


STACKS = st.builds(
    model.Stack,
    prologue=st.lists(st.sampled_from("ab"), max_size=3).map(tuple),
    pattern=st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple),
    repeat=st.integers(min_value=1, max_value=5),
    epilogue=st.lists(st.sampled_from("ab"), max_size=3).map(tuple),
)


def _shared(owners: frozenset[str], stack: model.Stack) -> model.ModelGraph:
    """A graph of kinds a, b and c that all use a cache called shared, owned by some of them."""
    kinds = []
    for name in "abc":
        cache = model.Cache(name="shared", kind="kv", owned=name in owners, bytes_per_entry=8)
        node = model.Attention(kind="gqa", n_q=1, n_kv=1, d_h=2, caches=(cache,))
        kinds.append(model.LayerKind(id=name, nodes=(node,)))
    source = model.DerivedFrom(format="f", path="p", sha256="0a" * 32, deriver_version=1)
    shapes = model.Global(hidden_size=1, vocab_size=1, weight_dtype="bf16")
    return model.ModelGraph(
        kind="ModelGraph", name="g", derived_from=source, globals_=shapes, layer_kinds=tuple(kinds), stack=stack
    )


@given(STACKS)
def test_a_stack_has_the_length_it_says(stack: model.Stack) -> None:
    order = expand(stack)
    assert len(order) == length(stack)
    assert order[: len(stack.prologue)] == stack.prologue
    assert order[len(order) - len(stack.epilogue) :] == stack.epilogue


@given(st.frozensets(st.sampled_from("abc")), STACKS)
def test_a_reader_reads_the_nearest_earlier_owner(owners: frozenset[str], stack: model.Stack) -> None:
    graph = _shared(owners, stack)
    order = expand(stack)
    for use in uses(graph, layers(graph)):
        earlier = [place for place in range(use.layer) if order[place] in owners]
        assert use.owner == (use.layer if order[use.layer] in owners else max(earlier, default=None))
    assert len(owned_caches(graph)) == sum(name in owners for name in order)


@given(st.frozensets(st.sampled_from("abc")), STACKS)
def test_a_reader_is_an_error_exactly_where_nobody_owns_before_it(owners: frozenset[str], stack: model.Stack) -> None:
    order = expand(stack)
    orphans = {
        name
        for place, name in enumerate(order)
        if name not in owners and not any(before in owners for before in order[:place])
    }
    wrong = [problem for problem in check_graph(_shared(owners, stack)) if problem.severity == "error"]
    assert {problem.rule for problem in wrong} <= {"reader-without-owner"}
    assert {problem.path for problem in wrong} == {
        f"layer_kinds[{'abc'.index(name)}].nodes[0].caches[0]" for name in orphans
    }


@st.composite
def overlays(draw: st.DrawFn) -> model.ModelGraph:
    """The small graph with other families and other facts for each."""
    bases = draw(st.lists(st.integers(7, 9), min_size=1, unique=True))
    others = draw(st.lists(st.integers(10, 13), min_size=1, max_size=3, unique=True))
    overrides = []
    for family in others:
        node = model.NodeOverride(role="qkv_proj", weight_dtype=draw(st.sampled_from(DTYPES)))
        cache = model.CacheOverride(
            name=draw(st.sampled_from(["latent", "recent", "ring"])),
            bytes_per_entry=draw(SMALL),
            bytes_by_cache_dtype=draw(st.dictionaries(st.sampled_from(["fp8", "nvfp4"]), SMALL)),
        )
        overrides.append(model.ArchOverride(capability_family=family, nodes=(node,), caches=(cache,)))
    return msgspec.structs.replace(
        load_graph(BASE), base_capability_families=tuple(bases), arch_overrides=tuple(overrides)
    )


@given(overlays(), st.integers(0, 14))
def test_an_overlay_is_valid_final_and_leaves_the_shape_alone(graph: model.ModelGraph, family: int) -> None:
    assert check_graph(graph) == []
    if family not in families(graph):
        with pytest.raises(UndescribedFamily):
            for_capability(graph, family)
        return
    served = for_capability(graph, family)
    assert check_graph(served) == []
    assert families(served) == (family,)
    assert for_capability(served, family) == served
    assert load_graph(dump_graph(served)) == served
    assert parameters(served).total.elements == parameters(graph).total.elements
    assert expand(served.stack) == expand(graph.stack)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    _of(
        model.Attention,
        kind=st.sampled_from(ATTENTION_KINDS),
        caches=st.lists(_of(model.Cache, kind=st.sampled_from(CACHE_KINDS)), max_size=2).map(tuple),
        emit=st.sampled_from(EMIT_CONDITIONS),
    )
)
def test_checks_hold_for_a_graph_built_in_python(node: msgspec.Struct) -> None:
    base = load_graph(BASE)
    kinds = (*base.layer_kinds, model.LayerKind(id="more", nodes=(node,)))  # type: ignore[arg-type]
    graph = msgspec.structs.replace(base, layer_kinds=kinds)
    found = check_graph(graph)
    assume(found)
    assert all(problem.line is None for problem in found)
    # The same graph as a text breaks the same rules at the same places.
    _, again = inspect_graph(dump_graph(graph), "graph.yaml")
    assert sorted((problem.rule, problem.path) for problem in again) == sorted(
        (problem.rule, problem.path) for problem in found
    )
