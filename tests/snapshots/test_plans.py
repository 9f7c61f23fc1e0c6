"""What each pack answers for each model of the catalog, pinned: a change of behaviour is a change of text in review.

``pytest tests/snapshots --snapshot-update`` writes what the packs say now; read the diff before you commit it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from snapshot_text import answer_text, reason_lines, resolved_lines
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
from syrupy.location import PyTestLocation

import rulespack
from rulespack import Deployment, Plan, Refused
from rulespack.graph.model import Attention, ModelGraph
from rulespack.graph.vocabulary import LATENT_KINDS

SNAPSHOTS = Path(__file__).parent / "__snapshots__"
#: The models of the catalog that are proven against recordings.
MODELS = sorted({file.stem for file in (Path(__file__).parent.parent / "recordings").glob("*/*.json")})

DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "default": {},
    "kv_cache_dtype fp8": {"kv_cache_dtype": "fp8"},
    "tensor_parallel_size 8": {"tensor_parallel_size": 8},
    "gpu B200": {"gpu": "B200"},
    "disable_hybrid_kv_cache_manager": {"disable_hybrid_kv_cache_manager": True},
    "pipeline_parallel_size 2": {"pipeline_parallel_size": 2},
    "block_size 64": {"block_size": 64},
}
#: Asked of models with a latent cache, which decode context parallelism is for.
SHARDED = {"decode_context_parallel_size 8 of 8": {"tensor_parallel_size": 8, "decode_context_parallel_size": 8}}


class PlanFile(SingleFileSnapshotExtension):
    """One text file for each release and model: ``__snapshots__/<release>/<model>.txt``."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"

    @classmethod
    def dirname(cls, *, test_location: PyTestLocation) -> str:
        return str(Path(test_location.filepath).parent / SNAPSHOTS.name / asked(test_location, "release"))

    @classmethod
    def get_snapshot_name(cls, *, test_location: PyTestLocation, index: int | str = 0) -> str:
        return asked(test_location, "model")

    @classmethod
    def matches_test_location(cls, *, test_location: PyTestLocation, snapshot_location: str) -> bool:
        return snapshot_location == cls.get_location(test_location=test_location, index=0)


def asked(test_location: PyTestLocation, name: str) -> str:
    """A parameter of the test that asks; empty for the tests of others, which syrupy looks through as well."""
    call = getattr(test_location.item, "callspec", None)
    return str(call.params.get(name, "")) if call is not None else ""


@pytest.fixture
def plan_file(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(PlanFile)


@pytest.mark.parametrize("release", rulespack.releases())
@pytest.mark.parametrize("model", MODELS)
def test_the_answers_for_a_model(release: str, model: str, plan_file: SnapshotAssertion) -> None:
    graph = rulespack.load_model(model)
    default = ask(release, graph, {})
    known = {*resolved_lines(default), *reason_lines(default)} if isinstance(default, Plan) else set()
    texts = [f"{model} on vLLM {release}; what is resolved, and why, as under default where it is not said again.\n"]
    for title, stated in (DEPLOYMENTS | (SHARDED if latent(graph) else {})).items():
        texts.append(answer_text(title, ask(release, graph, stated), known if stated else set()))
    assert "\n".join(texts) == plan_file


def test_no_snapshot_is_left_over() -> None:
    files = {(file.parent.name, file.stem) for file in SNAPSHOTS.rglob("*") if file.is_file()}
    assert files == {(release, model) for release in rulespack.releases() for model in MODELS}


def ask(release: str, graph: ModelGraph, stated: dict[str, Any]) -> Plan | Refused:
    try:
        return rulespack.engine(release).plan(graph, Deployment(**stated))
    except Refused as refused:
        return refused


def latent(graph: ModelGraph) -> bool:
    nodes = (node for kind in graph.layer_kinds for node in kind.nodes)
    return any(isinstance(node, Attention) and node.kind in LATENT_KINDS for node in nodes)
