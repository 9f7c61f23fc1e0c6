"""The extract keeps what the deriver reads, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rulespack.catalog import load_model, names, root
from rulespack.derive import InvalidConfig, derive_file, extract, import_model
from rulespack.derive.document import find_config
from rulespack.graph.load import load_graph, load_identity
from rulespack.graph.model import ModelGraph, Source

Write = Callable[..., Path]

SOURCE = Source(provider="huggingface", repo="someone/some-model", revision="0123abc", retrieved="2026-01-31")


def facts(graph: ModelGraph) -> ModelGraph:
    """A graph but for where it came from."""
    source = msgspec.structs.replace(graph.derived_from, sha256="0" * 64)
    return msgspec.structs.replace(graph, derived_from=source)


def test_token_ids_initializers_and_versions_are_left_out(write: Write, llama: dict[str, Any]) -> None:
    kept = extract(write(llama))
    assert not kept.keys() & {"bos_token_id", "initializer_range", "transformers_version"}
    assert {key: llama[key] for key in kept} == kept


def test_an_extract_derives_to_the_same_graph(write: Write, deepseek: dict[str, Any]) -> None:
    vendor = write(deepseek, folder="one")
    graph = derive_file(vendor, "model")
    again = derive_file(write(extract(vendor), folder="two"), "model")
    assert facts(again) == facts(graph)
    assert again.derived_from.sha256 != graph.derived_from.sha256


@pytest.mark.parametrize("name", names())
def test_an_extract_of_an_extract_is_itself(name: str) -> None:
    file = find_config(root() / name)
    assert extract(file) == json.loads(file.read_text())


@pytest.mark.parametrize("name", names())
def test_every_committed_graph_is_what_its_extract_derives_to(name: str) -> None:
    assert derive_file(root() / name) == load_model(name)


def test_modelopts_own_file_is_folded_into_the_extract(write: Write, llama: dict[str, Any]) -> None:
    write(llama)
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "group_size": 16}}
    kept = extract(write(beside, "hf_quant_config.json"))
    assert kept["quantization_config"] == {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}


def test_importing_writes_a_whole_entry(write: Write, llama: dict[str, Any], tmp_path: Path) -> None:
    graph = import_model(write(llama), "some-model", tmp_path / "catalog", SOURCE)
    entry = tmp_path / "catalog" / "some-model"
    assert sorted(file.name for file in entry.iterdir()) == ["config.json", "graph.yaml", "model.yaml"]
    assert load_graph((entry / "graph.yaml").read_text()) == graph == derive_file(entry)
    assert load_identity((entry / "model.yaml").read_text()).source == SOURCE


def test_importing_an_entry_again_changes_nothing(write: Write, llama: dict[str, Any], tmp_path: Path) -> None:
    catalog = tmp_path / "catalog"
    import_model(write(llama), "some-model", catalog, SOURCE)
    before = {file.name: file.read_bytes() for file in (catalog / "some-model").iterdir()}
    import_model(catalog / "some-model", "some-model", catalog, SOURCE)
    assert {file.name: file.read_bytes() for file in (catalog / "some-model").iterdir()} == before


def test_a_configuration_that_cannot_be_translated_leaves_no_entry(write: Write, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig):
        import_model(write({"architectures": ["Unheard"]}), "some-model", tmp_path / "catalog", SOURCE)
    assert not (tmp_path / "catalog").exists()


def test_mistrals_own_format_stays_in_its_own_file(tmp_path: Path) -> None:
    import_model(root() / "mistral-small-4-119b-2603", "renamed", tmp_path, SOURCE)
    assert (tmp_path / "renamed" / "params.json").exists()
    assert load_graph((tmp_path / "renamed" / "graph.yaml").read_text()).name == "renamed"
