"""A model from whatever names it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rulespack.catalog import UnknownModel, load_model, locate, names, root
from rulespack.graph.problems import InvalidGraph

Write = Callable[..., Path]


def test_the_catalog_lists_its_models_in_order() -> None:
    listed = names()
    assert listed == sorted(listed)
    assert {"qwen3-14b", "gpt-oss-120b", "deepseek-v4.1-flash"} <= set(listed)
    assert all((root() / name / "graph.yaml").is_file() for name in listed)


def test_a_catalog_name_is_a_model() -> None:
    assert load_model("qwen3-14b").name == "qwen3-14b"


def test_a_model_may_be_a_graph_a_configuration_or_a_folder() -> None:
    entry = root() / "gemma-2-9b"
    graph = load_model("gemma-2-9b")
    assert load_model(entry) == load_model(entry / "graph.yaml") == load_model(str(entry / "config.json")) == graph


def test_a_folder_is_read_by_its_graph_first(write: Write, llama: dict[str, Any]) -> None:
    home = write(llama)
    assert load_model(home).globals_.architecture == "LlamaForCausalLM"
    shutil.copy(root() / "qwen3-8b" / "graph.yaml", home)
    assert load_model(home).globals_.architecture == "Qwen3ForCausalLM"


def test_a_catalog_name_goes_before_a_folder_of_that_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(root() / "yi-34b", tmp_path / "qwen3-14b")
    monkeypatch.chdir(tmp_path)
    assert load_model("qwen3-14b").globals_.architecture == "Qwen3ForCausalLM"
    assert load_model("./qwen3-14b").globals_.architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("qwen3-14", "qwen3-14b"),
        ("Qwen/Qwen3-14", "qwen3-14b"),
        ("deepseek-v4.1", "deepseek-v4.1-flash"),
        ("gpt_oss_20b", "gpt-oss-20b"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(asked: str, meant: str) -> None:
    with pytest.raises(UnknownModel, match="did you mean") as caught:
        load_model(asked)
    assert caught.value.nearest == meant


@pytest.mark.parametrize("asked", ["", "\0", "no/such/file.yaml", "x" * 5000, "..", "."])
def test_what_is_no_model_is_said_so(asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(UnknownModel):
        load_model(asked)


def test_a_folder_without_a_model_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"graph\.yaml, config\.json, params\.json"):
        locate(tmp_path)


def test_a_graph_that_is_invalid_is_refused_with_its_file(tmp_path: Path) -> None:
    text = (root() / "qwen3-8b" / "graph.yaml").read_text()
    (tmp_path / "graph.yaml").write_text(text.replace("kind: ModelGraph", "kind: Model"))
    with pytest.raises(InvalidGraph, match=str(tmp_path)):
        load_model(tmp_path)
