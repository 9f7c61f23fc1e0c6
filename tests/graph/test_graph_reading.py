"""What a text must be before it can be a graph: YAML that means one thing, of bounded size, with the schema's keys."""

from __future__ import annotations

import pytest
from graph_texts import BASE, broken, edited, problems
from msgspec.structs import replace

from rulespack.graph.check import check_graph
from rulespack.graph.document import MAX_BYTES, MAX_DEPTH, MAX_VALUES
from rulespack.graph.load import inspect_graph, load_graph
from rulespack.graph.model import Stack
from rulespack.graph.problems import InvalidGraph

HIDDEN = "hidden_size: 64"
NAME = "name: tiny"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "empty-file"),
        ("# nothing but a comment\n", "empty-file"),
        ("---\n", "empty-file"),
        ("~\n", "empty-file"),
        (b"\xff\xfe\x00", "not-utf8"),
        (BASE.encode("utf-16"), "not-utf8"),
        (BASE.replace("tiny", "t\xefny").encode("latin-1"), "not-utf8"),
        ("name: \ud800", "not-utf8"),
        ("a: [1, 2", "not-yaml"),
        ("a: b: c", "not-yaml"),
        ("a:\n\t- tab", "not-yaml"),
        ("name: \x00", "not-yaml"),
        (BASE + "---\nkind: ModelGraph\n", "several-documents"),
        ("- a list\n", "mistyped-value"),
        ("just text\n", "mistyped-value"),
        ("7\n", "mistyped-value"),
        ("a: *nowhere\n", "unknown-anchor"),
        ("a: &loop [*loop]\n", "unknown-anchor"),
        ("? [a, b]\n: c\n", "key-not-text"),
        ("x: " + "[" * 100_000, "too-deep"),
        ("x: " + "{a: " * 100_000, "too-deep"),
        ("- " * 50_000 + "x", "too-deep"),
        ("x: [" + "1," * (MAX_VALUES + 1) + "]", "too-many-values"),
        ("x: " + "y" * MAX_BYTES, "too-large"),
        (b"x: " + b"y" * MAX_BYTES, "too-large"),
    ],
)
def test_a_text_that_is_no_document_of_ours_is_one_clear_problem(text: str | bytes, rule: str) -> None:
    graph, found = inspect_graph(text, "graph.yaml")
    assert graph is None
    assert [problem.rule for problem in found] == [rule]


def test_aliases_that_multiply_are_put_down_before_they_are_expanded() -> None:
    laughs = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    laughs += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 30)]
    found = problems("\n".join(laughs))
    assert [problem.rule for problem in found] == ["too-many-values"]
    assert found[0].line is not None
    assert found[0].line < 10


def test_nesting_up_to_the_limit_is_read() -> None:
    deep = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert broken(edited((NAME, f"{NAME}\nextra: {deep}"))) == [("unknown-key", "extra")]


def test_the_reader_survives_a_byte_order_mark_and_a_document_start() -> None:
    assert load_graph(("\ufeff---\n" + BASE + "...\n").encode()) == load_graph(BASE)


def test_anchors_and_aliases_stand_for_what_they_repeat() -> None:
    shared = edited(
        ("weight_scale: {elements: 32, bytes: 1}}", "weight_scale: &scale {elements: 32, bytes: 1}}"),
        ("k: 72, weight_dtype: fp8", "k: 72, weight_dtype: fp8, weight_scale: *scale"),
    )
    assert load_graph(shared) == load_graph(shared.replace("*scale", "{elements: 32, bytes: 1}").replace("&scale ", ""))


def test_a_mistake_in_what_an_alias_repeats_is_reported_where_it_is_written() -> None:
    text = edited(
        ("weight_scale: {elements: 32, bytes: 1}}", "weight_scale: &scale {elements: 32, bytes: 0}}"),
        ("k: 72, weight_dtype: fp8", "k: 72, weight_dtype: fp8, weight_scale: *scale"),
    )
    found = problems(text)
    assert [problem.path for problem in found] == [
        "layer_kinds[0].nodes[0].weight_scale.bytes",
        "layer_kinds[2].nodes[1].weight_scale.bytes",
    ]
    assert {problem.line for problem in found} == {text[: text.index("&scale")].count("\n") + 1}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: 7", '"7"'),
        ("kind: 1.10", "put quotes around it"),
        ("kind: true", '"true"'),
        ("kind: yes", '"yes"'),
        ("kind: off", '"off"'),
        ("kind: 0123", '"0123"'),
        ("kind: 0x1F", '"0x1F"'),
        ("kind: 1_000", '"1_000"'),
        ("kind: 12:30", '"12:30"'),
        ("kind: 1e5", "put quotes around it"),
        ("kind: .inf", '".inf"'),
        ("kind: 2026-09-16", '"2026-09-16"'),
        ("kind: 2026-09-16 10:00:00", '"2026-09-16 10:00:00"'),
        ("kind: [a]", "a list"),
        ("kind: {a: b}", "a mapping"),
    ],
)
def test_a_value_that_is_not_surely_text_is_not_taken_for_text(text: str, told: str) -> None:
    (found,) = problems(edited(("kind: ModelGraph", text)))
    assert (found.rule, found.path, found.line) == ("mistyped-value", "kind", 1)
    assert told in found.message


@pytest.mark.parametrize(
    "text", ["0123", "0o17", "0x40", "1_000", "1:30", "6.4e1", "64.0", '"64"', "true", "yes", "[64]"]
)
def test_an_integer_is_written_in_decimal_digits_and_nothing_else(text: str) -> None:
    found = problems(edited((HIDDEN, f"hidden_size: {text}")))
    assert [(problem.rule, problem.path) for problem in found] == [("mistyped-value", "global.hidden_size")]


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775809", "9" * 5000])
def test_an_integer_fits_64_bits(text: str) -> None:
    found = problems(edited((HIDDEN, f"hidden_size: {text}")))
    assert [(problem.rule, problem.path) for problem in found] == [("integer-out-of-range", "global.hidden_size")]
    assert broken(edited((HIDDEN, "hidden_size: 9223372036854775807"))) == []


@pytest.mark.parametrize("text", ["yes", "on", "1", '"true"', "t"])
def test_a_boolean_is_true_or_false(text: str) -> None:
    found = problems(edited((HIDDEN, f"{HIDDEN}\n  tie_word_embeddings: {text}")))
    assert [(problem.rule, problem.path) for problem in found] == [("mistyped-value", "global.tie_word_embeddings")]
    assert "true or false" in found[0].message


def test_a_factor_may_be_whole_or_not_but_finite() -> None:
    for text, good in (("4", True), ("2.5", True), ("1e3", True), (".inf", False), (".nan", False), ("'4'", False)):
        rope = f"{HIDDEN}\n  positions: {{rope: [{{type: yarn, factor: {text}}}]}}"
        assert (broken(edited((HIDDEN, rope))) == []) is good


@pytest.mark.parametrize("text", ["", "~", "null", "Null"])
@pytest.mark.parametrize("key", ["name", "modality"])
def test_a_key_without_a_value_is_refused_required_or_not(key: str, text: str) -> None:
    stated = {"name": "name: tiny", "modality": "modality: text_only"}[key]
    (found,) = problems(edited((stated, f"{key}: {text}")))
    assert (found.rule, found.path) == ("null-value", key)
    assert "remove it" in found.message


@pytest.mark.parametrize("key", ["derived_from", "global"])
def test_a_part_that_is_not_there_is_missed_once(key: str) -> None:
    start = BASE.index(f"\n{key}:") + 1
    stop = next(place for place in range(start, len(BASE)) if BASE[place] == "\n" and BASE[place + 1] not in " ") + 1
    assert broken(BASE[:start] + BASE[stop:]) == [("missing-key", key)]


def test_a_node_that_is_null_is_refused() -> None:
    assert broken(edited(("- {op: Elementwise, role: final_norm}\n", "- ~\n"))) == [("null-value", "head[0]")]


@pytest.mark.parametrize(
    ("edit", "rule", "path"),
    [
        ((NAME, "name: tiny\nname: tiny"), "repeated-key", "name"),
        ((HIDDEN, "hidden_size: 64\n  hidden_size: 65"), "repeated-key", "global.hidden_size"),
        (("n: 64, k: 72", "n: 64, k: 72, n: 64"), "repeated-key", "layer_kinds[2].nodes[1].n"),
        ((NAME, "name: !!str tiny"), "yaml-tag", "name"),
        ((NAME, "name: !python/object:os.system tiny"), "yaml-tag", "name"),
        (("derived_from:", "derived_from: !map"), "yaml-tag", "derived_from"),
        ((NAME, "name: tiny\n1: one"), "key-not-text", "['1']"),
        ((NAME, "name: tiny\ntrue: one"), "key-not-text", "true"),
        ((NAME, "name: tiny\n~: one"), "key-not-text", "['~']"),
        (
            ("{nvfp4: 30}", "{8: 30, nvfp4: 30}"),
            "key-not-text",
            "arch_overrides[0].caches[0].bytes_by_cache_dtype['8']",
        ),
        ((NAME, "name: tiny\n_comment: hello"), "unknown-key", "_comment"),
    ],
)
def test_a_mapping_says_each_of_its_keys_once_and_in_words(edit: tuple[str, str], rule: str, path: str) -> None:
    assert broken(edited(edit)) == [(rule, path)]


def test_a_merge_key_is_refused_and_what_it_would_have_brought_is_not_missed() -> None:
    text = edited(
        ("weight_scale: {elements: 32, bytes: 1}}", "weight_scale: &scale {elements: 32, bytes: 1}}"),
        ("k: 72, weight_dtype: fp8", "k: 72, weight_dtype: fp8, weight_scale: {<<: *scale}"),
    )
    assert broken(text) == [("merge-key", "layer_kinds[2].nodes[1].weight_scale['<<']")]


@pytest.mark.parametrize(
    ("edit", "path", "meant"),
    [
        ((HIDDEN, "hiden_size: 64"), "global.hiden_size", "hidden_size"),
        (
            ("bytes_per_entry: 256", "bytes_per_entyr: 256"),
            "layer_kinds[0].nodes[2].caches[2].bytes_per_entyr",
            "bytes_per_entry",
        ),
        (("vocab_size: 100", "vocab-size: 100"), "global.vocab-size", "vocab_size"),
        (("deriver_version: 1", "derivers_version: 1"), "derived_from.derivers_version", "deriver_version"),
        (("layer_kinds:", "layer_kind:"), "layer_kind", "layer_kinds"),
        (("n: 64, k: 72", "N: 64, k: 72"), "layer_kinds[2].nodes[1].N", "n"),
        (("  prologue: [source]", "  prolog: [source]"), "stack.prolog", "prologue"),
        (("num_spec_tokens: 5", "num_spec_token: 5"), "speculator.num_spec_token", "num_spec_tokens"),
        (("capability_family: 10", "capabilty_family: 10"), "arch_overrides[0].capabilty_family", "capability_family"),
    ],
)
def test_a_misspelt_key_is_one_problem_that_names_the_key_meant(edit: tuple[str, str], path: str, meant: str) -> None:
    shown = path if "-" not in path else "global['vocab-size']"
    found = [problem for problem in problems(edited(edit)) if problem.severity == "error"]
    assert [(problem.rule, problem.path) for problem in found] == [("unknown-key", shown)]
    assert f"did you mean {meant}?" in found[0].message


def test_a_key_in_the_wrong_place_is_told_where_it_belongs() -> None:
    (found,) = problems(edited((NAME, "name: tiny\ntie_word_embeddings: true")))
    assert (found.rule, found.path) == ("unknown-key", "tie_word_embeddings")
    assert "a key of global" in found.message


def test_everything_wrong_is_said_at_once_in_the_order_of_the_file() -> None:
    text = edited(
        (NAME, "name: 5"),
        (HIDDEN, "hidden_sise: 64"),
        ("vocab_size: 100", "vocab_size: 0"),
        ("n: 96, k: 64", "n: '96', k: -1, n_q: 3"),
        ("{op: All2All, role: dispatch, emit: expert_parallel}", "{op: All2All, role: dispatch}"),
        ("kind: swa, n_q: 4", "kind: sva, n_q: 1"),
        ("epilogue: [state]", "epilogue: [state, missing]"),
        ("num_spec_tokens: 5", "num_spec_tokens: five"),
    )
    found = problems(text)
    assert [problem.line for problem in found] == sorted(problem.line or 0 for problem in found)
    assert {(problem.rule, problem.path) for problem in found} == {
        ("mistyped-value", "name"),
        ("unknown-key", "global.hidden_sise"),
        ("vocab-size", "global.vocab_size"),
        ("key-of-other-primitive", "layer_kinds[0].nodes[0].n_q"),
        ("mistyped-value", "layer_kinds[0].nodes[0].n"),
        ("node-key-not-positive", "layer_kinds[0].nodes[0].k"),
        ("collective-without-emit", "layer_kinds[0].nodes[6].emit"),
        ("attention-kind-unknown", "layer_kinds[2].nodes[0].kind"),
        ("n-kv-exceeds-n-q", "layer_kinds[2].nodes[0].n_kv"),
        ("mistyped-value", "speculator.num_spec_tokens"),
    }


def test_a_part_that_cannot_be_read_brings_no_second_problem_about_what_hangs_on_it() -> None:
    # Nobody knows which of the names below are declared, read or aliased until the id and the op can be read.
    assert broken(edited(("- id: source", "- id: 7"))) == [("mistyped-value", "layer_kinds[0].id")]
    assert broken(edited(("{op: GEMM, role: draft_proj", "{op: gem, role: draft_proj"))) == [
        ("op-unknown", "layer_kinds[4].nodes[1].op")
    ]
    assert broken(edited(("n_q: 4, n_kv: 2", "n_q: four, n_kv: 2"))) == [
        ("mistyped-value", "layer_kinds[2].nodes[0].n_q")
    ]


def test_the_error_names_the_file_the_line_the_path_and_the_remedy_in_one_paragraph() -> None:
    with pytest.raises(InvalidGraph) as caught:
        load_graph(edited(("bytes_per_entry: 256", "bytes_per_entyr: 256")), "models/tiny/graph.yaml")
    said = str(caught.value)
    assert said.startswith("models/tiny/graph.yaml is not a valid model graph: line ")
    assert "layer_kinds[0].nodes[2].caches[2].bytes_per_entyr" in said
    assert "did you mean bytes_per_entry?" in said
    assert "\n" not in said
    assert caught.value.file == "models/tiny/graph.yaml"
    assert [problem.rule for problem in caught.value.problems] == ["unknown-key"]


def test_an_error_with_many_problems_stays_a_paragraph_and_keeps_them_all() -> None:
    with pytest.raises(InvalidGraph) as caught:
        load_graph(edited(("- {op: Elementwise, role: final_norm}\n", "- {op: GEMM}\n" * 40)), "graph.yaml")
    assert len(caught.value.problems) == 80
    assert "and 70 more" in str(caught.value)


def test_a_warning_does_not_stop_a_graph() -> None:
    text = edited(("  epilogue: [state]\n", ""))
    graph, found = inspect_graph(text, "graph.yaml")
    assert [(problem.rule, problem.severity) for problem in found] == [("layer-kind-unused", "warning")]
    assert load_graph(text) == graph


def test_a_graph_of_the_right_structure_comes_back_beside_its_errors() -> None:
    graph, found = inspect_graph(edited((HIDDEN, "hidden_size: 0")), "graph.yaml")
    assert graph is not None
    assert graph.globals_.hidden_size == 0
    assert [problem.rule for problem in found] == ["hidden-size"]


def test_a_stack_that_is_far_too_long_is_refused_unexpanded() -> None:
    assert broken(edited(("repeat: 2\n", "repeat: 1000000000000000\n"))) == [("stack-too-long", "stack")]


@pytest.mark.parametrize(
    "text",
    [
        edited(("epilogue: [state]", f"epilogue: [state, {', '.join(f'x{n}' for n in range(50_000))}]")),
        edited((NAME, NAME + "".join(f"\nname{n}: 1" for n in range(40_000)))),
        edited(("[5, 6]]", "[5, 6]" + ", [0, 1], [1, 0], [9, 9]" * 8_000 + "]")),
        edited(("epilogue: [state]", "epilogue: [" + "x" * 500_000 + "]"), ("- id: state", "- id: " + "xy" * 250_000)),
        edited(
            ("- {op: Elementwise, role: final_norm}\n", "- {op: GEMM, role: r, n: 1, k: 1, aliases: head.r}\n" * 9_000)
        ),
    ],
    ids=["names", "keys", "edges", "words", "aliases"],
)
def test_a_text_with_very_many_mistakes_is_answered(text: str) -> None:
    assert problems(text)


def test_a_graph_built_in_python_with_a_value_of_another_type_is_told_so() -> None:
    graph = load_graph(BASE)
    stack = Stack(prologue=("source",), pattern=("reader", "plain", "state"), repeat=True)
    assert [(problem.rule, problem.path, problem.line) for problem in check_graph(replace(graph, stack=stack))] == [
        ("mistyped-value", "stack.repeat", None)
    ]
