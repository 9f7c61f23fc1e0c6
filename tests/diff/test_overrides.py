"""``hf_overrides`` in diffs and pins: laid over the configuration of both releases, as ``rulespack plan`` lays them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from in_process import Command

import rulespack
from rulespack import Deployment, Refused, catalog
from rulespack.diff import Pair, compare
from rulespack.graph.dump import dump_graph

BOTH = ("diff", "0.29.0", "0.31.0")
MODEL = "gpt-oss-20b"


def planned(release: str, model: str | Path, overrides: dict[str, Any]) -> rulespack.Plan:
    """The plan as the library makes it of a graph that was loaded with the overrides."""
    graph = rulespack.load_model(model, hf_overrides=overrides)
    return rulespack.engine(release).plan(graph, Deployment(hf_overrides=overrides))


def expect_overridden(pair: Pair, model: str | Path, overrides: dict[str, Any]) -> None:
    for answer in (pair.old, pair.new):
        assert answer.plan is not None
        assert answer.plan.caches == planned(answer.release, model, overrides).caches
        assert answer.plan.specs == planned(answer.release, model, overrides).specs


@pytest.fixture
def vendors(tmp_path: Path) -> Path:
    """A folder with a vendor's configuration alone."""
    folder = tmp_path / "mine"
    folder.mkdir()
    shutil.copy(catalog.root() / MODEL / "config.json", folder)
    return folder


def test_both_releases_are_asked_of_the_overridden_model(vendors: Path) -> None:
    models = [MODEL, str(vendors), vendors / "config.json"]
    overrides = {"num_hidden_layers": 12, "layer_types": ["sliding_attention", "full_attention"] * 6}
    comparison = compare("0.29.0", "0.31.0", models, {"cut": {"hf_overrides": overrides}, "whole": {}})
    cut, whole = comparison.pairs[::2], comparison.pairs[1::2]
    for model, pair, uncut in zip(models, cut, whole, strict=True):
        expect_overridden(pair, model, overrides)
        assert pair.old.plan is not None
        assert uncut.old.plan is not None
        assert (len(pair.old.plan.caches), len(uncut.old.plan.caches)) == (12, 24)


FLAGS = {
    "json": ["--hf-overrides", '{"num_hidden_layers": 20}'],
    "dotted": ["--hf-overrides.num_hidden_layers", "20"],
}


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_flags_of_the_command(command: Command, flags: list[str]) -> None:
    (pair,) = json.loads(command(*BOTH, "qwen3-14b", *flags, "--format", "json").out)["pairs"]
    assert pair["status"] == "same"
    assert pair["old"]["plan"]["bytes_per_block"] == pair["new"]["plan"]["bytes_per_block"] == 20 * 16 * 4096


def test_a_file_of_deployments_overrides_each_its_own_way(command: Command) -> None:
    Path("ours.yaml").write_text(
        "half: {hf_overrides: {num_hidden_layers: 20}}\n"
        "line: >\n  vllm serve qwen3-14b --hf-overrides '{\"num_hidden_layers\": 10}'\n"
        "whole:\n"
    )
    done = command(*BOTH, "qwen3-14b", "--deployments", "ours.yaml", "--format", "json")
    cost = {pair["name"]: pair["new"]["plan"]["bytes_per_block"] for pair in json.loads(done.out)["pairs"]}
    assert cost == {"half": 20 * 65_536, "line": 10 * 65_536, "whole": 40 * 65_536}


def test_a_graph_that_stands_alone_is_refused_with_the_reason(command: Command) -> None:
    shutil.copy(catalog.root() / "qwen3-14b" / "graph.yaml", "mine.yaml")
    done = command(*BOTH, "mine.yaml", *FLAGS["json"])
    said = " ".join(done.out.split())
    assert done.status == 0
    assert "in neither release: hf_overrides change the configuration before a graph is derived from it" in said
    assert "load the model from its configuration with them" in said


@pytest.mark.parametrize(
    "overrides", ["[]", '"a"', "{", '{"num_hidden_layers": "many"}', '{"architectures": ["NobodysForCausalLM"]}']
)
def test_overrides_that_cannot_be_used_are_told_as_for_a_plan(command: Command, overrides: str) -> None:
    flags = ("qwen3-14b", "--hf-overrides", overrides)
    told = command("plan", *flags, "--release", "0.31.0")
    assert told.status != 0
    assert told.err.startswith("rulespack: ")
    for words in (BOTH, ("pin", "--release", "0.31.0")):
        done = command(*words, *flags)
        assert (done.status, done.out, done.err) == (told.status, "", told.err)
    assert not Path("test_kv_plans.py").exists()


def test_each_overridden_model_is_derived_once(monkeypatch: pytest.MonkeyPatch, vendors: Path) -> None:
    import rulespack.derive

    derived = []
    real = rulespack.derive.derive_file
    monkeypatch.setattr(rulespack.derive, "derive_file", lambda *a, **k: derived.append(a) or real(*a, **k))
    stated = {"hf_overrides": {"sliding_window": 256}}
    deployments = {f"tp{ranks}": {**stated, "tensor_parallel_size": ranks} for ranks in (1, 2, 4)}
    comparison = compare("0.29.0", "0.31.0", [vendors], deployments)
    assert (len(comparison.pairs), len(derived)) == (3, 1)


def test_a_graph_beside_its_configuration_is_derived_anew_unless_one_of_them_was_edited(vendors: Path) -> None:
    stated = {"hf_overrides": {"sliding_window": 256}}
    graph = vendors / "graph.yaml"
    text = dump_graph(rulespack.load_model(vendors))

    def status() -> str:
        (pair,) = compare("0.29.0", "0.31.0", [vendors], {"one": stated}).pairs
        return pair.status

    before = status()
    graph.write_text(text)
    beside = status()
    graph.write_text(text.replace("context_window: 131072", "context_window: 65536"))
    assert (before, beside, status()) == ("same", "same", "not-modelled")


def test_an_edited_configuration_is_derived_again(vendors: Path) -> None:
    stated = {"hf_overrides": {"sliding_window": 256}}

    def longest() -> int | None:
        (pair,) = compare("0.29.0", "0.31.0", [vendors], {"one": stated}).pairs
        return pair.new.plan and pair.new.plan.resolved.max_model_len

    before = longest()
    file = vendors / "config.json"
    file.write_text(file.read_text().replace('"max_position_embeddings": 131072', '"max_position_embeddings": 65536'))
    assert (before, longest()) == (131_072, 65_536)


def test_two_models_of_one_name_are_not_taken_for_one(command: Command) -> None:
    for folder in ("a/mine", "b/mine"):
        Path(folder).mkdir(parents=True)
        shutil.copy(catalog.root() / MODEL / "config.json", folder)
    done = command(*BOTH, "a/mine", "b/mine")
    assert (done.status, done.out) == (2, "")
    assert done.err == "rulespack: a/mine and b/mine are both called mine: compare them one at a time\n"
    assert command(*BOTH, "a/mine", "a/mine/config.json").out.startswith("vllm 0.29.0 -> 0.31.0: 1 model,")


@pytest.mark.parametrize(("value", "said"), [({1: 2}, "a key is a string, got 1"), ({"a": object()}, "hf_overrides.a")])
def test_overrides_that_no_json_states(value: dict[Any, Any], said: str) -> None:
    with pytest.raises(rulespack.BadDeployment, match=said):
        Deployment(hf_overrides=value)


def test_a_graph_under_overrides_is_asked_with_them_or_not_at_all() -> None:
    graph = rulespack.load_model("qwen3-14b", hf_overrides={"num_hidden_layers": 10})
    for stated in ({}, {"tensor_parallel_size": 2}, {"hf_overrides": {"num_hidden_layers": 12}}):
        with pytest.raises(Refused, match=r'derived under \{"num_hidden_layers":10\}') as caught:
            rulespack.engine("0.31.0").plan(graph, Deployment(**stated))
        assert caught.value.by == "pack"
    plan = rulespack.engine("0.31.0").plan(graph, Deployment(hf_overrides={"num_hidden_layers": 10}))
    assert len(plan.caches) == 10


def test_a_model_that_cannot_take_the_overrides_does_not_stop_a_comparison_of_all() -> None:
    overrides = {"num_hidden_layers": 8}
    comparison = compare("0.29.0", "0.31.0", None, {"cut": {"hf_overrides": overrides}})
    statuses = {pair.model: pair.status for pair in comparison.pairs}
    assert statuses["qwen3-14b"] != "not-modelled"
    assert statuses["kimi-linear-48b-a3b-instruct"] == "not-modelled"  # its lists name twenty-seven layers
    with pytest.raises(rulespack.RulespackError, match="do not name each of 8 layers"):
        compare("0.29.0", "0.31.0", ["kimi-linear-48b-a3b-instruct"], {"cut": {"hf_overrides": overrides}})
