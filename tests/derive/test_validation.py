"""``validate`` finds what is wrong with a catalog, and says where."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rulespack.catalog import root
from rulespack.graph.problems import Problem
from rulespack.validation import validate


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    """A small catalog to break: two models of the real one."""
    for name in ("qwen3-14b", "mistral-small-4-119b-2603"):
        shutil.copytree(root() / name, tmp_path / "catalog" / name)
    return tmp_path / "catalog"


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def problems(*paths: Path) -> dict[str, list[Problem]]:
    """What is wrong, by file name; files without a problem left out."""
    return {Path(report.file).name: list(report.problems) for report in validate(paths) if report.problems}


def test_the_projects_own_catalog_is_clean() -> None:
    reports = validate([root()])
    assert [report.file for report in reports if report.problems] == []
    assert len(reports) == 3 * len(list(root().iterdir()))


def test_a_digit_of_a_graph_is_drift_and_is_pointed_at(catalog: Path) -> None:
    edit(catalog / "qwen3-14b" / "graph.yaml", "n: 7168", "n: 7169")
    (found,) = problems(catalog)["graph.yaml"]
    assert (found.rule, found.path) == ("drift", "layer_kinds[0].nodes[1].n")
    assert "7169" in found.message
    assert "7168" in found.message
    assert found.line is not None
    assert "7169" in (catalog / "qwen3-14b" / "graph.yaml").read_text().splitlines()[found.line - 1]


def test_a_digit_of_a_configuration_moves_its_digest_and_the_graph(catalog: Path) -> None:
    edit(catalog / "qwen3-14b" / "config.json", "17408", "17409")
    found = {problem.path: problem for problem in problems(catalog)["graph.yaml"]}
    assert found["derived_from.sha256"].rule == "digest"
    assert found["layer_kinds[0].nodes[7].k"].rule == "drift"
    assert "17409" in found["layer_kinds[0].nodes[7].k"].message


def test_a_fact_no_graph_states_still_moves_the_digest(catalog: Path) -> None:
    edit(catalog / "qwen3-14b" / "config.json", '"rope_theta": 1000000', '"rope_theta": 1000001')
    assert [problem.rule for problem in problems(catalog)["graph.yaml"]] == ["digest"]


def test_a_missing_layer_is_counted(catalog: Path) -> None:
    edit(catalog / "qwen3-14b" / "graph.yaml", "repeat: 40", "repeat: 39")
    (found,) = problems(catalog)["graph.yaml"]
    assert (found.path, found.rule) == ("stack.repeat", "drift")


def test_a_fact_that_was_left_out_is_drift(catalog: Path) -> None:
    edit(catalog / "qwen3-14b" / "graph.yaml", "  context_window: 40960\n", "")
    (found,) = problems(catalog)["graph.yaml"]
    assert (found.path, found.message) == ("global.context_window", "is not stated, and config.json derives to 40960")


def test_names_must_equal_the_folders(catalog: Path) -> None:
    (catalog / "qwen3-14b").rename(catalog / "qwen3-15b")
    found = problems(catalog)
    assert [(file, problem.rule, problem.path) for file, (problem,) in found.items()] == [
        ("graph.yaml", "name-not-folder", "name"),
        ("model.yaml", "name-not-folder", "name"),
    ]


@pytest.mark.parametrize("file", ["graph.yaml", "model.yaml", "config.json"])
def test_an_entry_must_be_complete(catalog: Path, file: str) -> None:
    (catalog / "qwen3-14b" / file).unlink()
    assert "entry-incomplete" in {problem.rule for problem in problems(catalog)[file]}


def test_an_identity_must_say_where_its_configuration_came_from(catalog: Path) -> None:
    edit(catalog / "qwen3-14b" / "model.yaml", "  repo: Qwen/Qwen3-14B\n", "")
    (found,) = problems(catalog)["model.yaml"]
    assert "repo" in found.path + found.message


def test_a_configuration_that_is_no_extract_is_told_apart(catalog: Path) -> None:
    edit(catalog / "qwen3-14b" / "config.json", "{", '{\n  "bos_token_id": 1,')
    assert [problem.rule for problem in problems(catalog)["config.json"]] == ["not-an-extract"]


def test_a_configuration_that_cannot_be_translated_says_which_key(catalog: Path) -> None:
    edit(catalog / "qwen3-14b" / "config.json", '"num_hidden_layers": 40', '"num_hidden_layers": "40"')
    (found,) = problems(catalog)["config.json"]
    assert (found.rule, found.path) == ("config-invalid", "num_hidden_layers")


def test_a_graph_must_name_the_configuration_beside_it(catalog: Path) -> None:
    edit(catalog / "qwen3-14b" / "graph.yaml", "path: config.json", "path: ../config.json")
    assert [problem.rule for problem in problems(catalog)["graph.yaml"]] == ["source-missing"]


def test_a_graph_of_another_deriver_is_drift(catalog: Path) -> None:
    edit(catalog / "qwen3-14b" / "graph.yaml", "deriver_version: 1", "deriver_version: 9")
    (found,) = problems(catalog)["graph.yaml"]
    assert (found.rule, found.path) == ("drift", "derived_from.deriver_version")


def test_one_models_folder_is_checked_like_an_entry(catalog: Path) -> None:
    edit(catalog / "qwen3-14b" / "graph.yaml", "k: 17408", "k: 17407")
    assert [problem.rule for problem in problems(catalog / "qwen3-14b")["graph.yaml"]] == ["drift"]
    assert problems(catalog / "mistral-small-4-119b-2603") == {}


def test_a_file_by_itself_is_checked_by_itself(catalog: Path, tmp_path: Path) -> None:
    graph = tmp_path / "mine.yaml"
    shutil.copy(catalog / "qwen3-14b" / "graph.yaml", graph)
    identity = catalog / "qwen3-14b" / "model.yaml"
    assert problems(graph, identity, catalog / "qwen3-14b" / "config.json") == {}
    edit(graph, "n: 7168", "n: -7168")
    edit(identity, "name: qwen3-14b", "name: [qwen3]")
    found = problems(graph, identity)
    assert {file: len(wrong) > 0 for file, wrong in found.items()} == {"mine.yaml": True, "model.yaml": True}


@pytest.mark.parametrize("content", [b"\xff", b"", b"{", b"kind: [", b"\0" * 100])
def test_a_file_that_cannot_be_read_is_a_problem_of_that_file(catalog: Path, content: bytes) -> None:
    for file in ("graph.yaml", "model.yaml", "config.json"):
        (catalog / "qwen3-14b" / file).write_bytes(content)
    reports = {Path(report.file).name: report.valid for report in validate([catalog / "qwen3-14b"])}
    assert reports == {"graph.yaml": False, "model.yaml": False, "config.json": False}


def test_what_is_not_there_is_a_problem_of_that_path(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path / "nowhere.json", "a\0b"):
        (report,) = validate([path])
        assert not report.valid
        assert report.file == str(path)


def test_a_folder_without_models_is_said_so(tmp_path: Path) -> None:
    (report,) = validate([tmp_path])
    assert [problem.rule for problem in report.problems] == ["no-model"]
