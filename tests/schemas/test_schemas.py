"""The published JSON Schemas: files as they are printed, which hold for what there is and for nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

import rulespack
from rulespack import Deployment, Refused
from rulespack.batch import Asker
from rulespack.catalog import names, root
from rulespack.report.json import indented, plan_document
from rulespack.schemas import SCHEMAS

PUBLISHED = Path(__file__).parents[2] / "docs" / "schemas"
DEPLOYMENTS: list[dict[str, Any]] = [
    {},
    {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "kv_cache_memory_bytes": 64 << 30},
    {"gpu": {"capability": "9.0", "memory_bytes": 1 << 37}, "kv_cache_dtype": "fp8"},
]


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(SCHEMAS[name]())


def flaws(name: str, document: Any) -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in validator(name).iter_errors(document)]


def strict(schema: Any) -> Any:
    """A schema that takes no key it does not name."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if "properties" in schema and isinstance(schema.get("type"), str):
        closed["additionalProperties"] = False
    return closed


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_published_schema_is_a_schema_and_the_one_the_command_prints(name: str) -> None:
    """``rulespack schema NAME > docs/schemas/NAME.schema.json`` writes it anew."""
    Draft202012Validator.check_schema(SCHEMAS[name]())
    assert (PUBLISHED / f"{name}.schema.json").read_text() == indented(SCHEMAS[name]()) + "\n"


@pytest.mark.parametrize("release", rulespack.releases())
def test_every_plan_keeps_to_its_schema_and_has_no_other_key(release: str) -> None:
    check = Draft202012Validator(strict(SCHEMAS["plan"]()))
    seen: set[str] = set()
    for model in names()[::3]:
        graph = rulespack.load_model(model)
        for stated in DEPLOYMENTS:
            deployment = Deployment.of(stated)
            try:
                plan = rulespack.engine(release).plan(graph, deployment)
            except Refused:
                continue
            document = json.loads(indented(plan_document(plan, [1, 100])))
            assert [error.message for error in check.iter_errors(document)] == []
            seen |= document.keys()
    assert seen == SCHEMAS["plan"]()["properties"].keys() - {"nearest", "weights"}


def test_a_plan_with_weights_keeps_to_its_schema() -> None:
    graph = rulespack.load_model("mixtral-8x7b-v0.1")
    plan = rulespack.engine("0.31.0").plan(graph)
    document = json.loads(indented(plan_document(plan, weights=rulespack.resident_weights(graph))))
    assert document["weights"]["model"]["by_format"]["bf16"]["bytes"] > 0
    assert flaws("plan", document) == []


QUESTIONS = [
    {"id": 1, "release": "0.31.0", "model": "qwen3-14b", "deployment": {"tensor_parallel_size": 2}, "tokens": [4096]},
    {"id": "x", "release": "0.31.0rc1", "model": "qwen3-14b", "nearest": True},
    {"release": "0.31.0", "model": "qwen3-14b", "deployment": {"kv_cache_memory_bytes": 1 << 30}},
    {"release": "0.31.0", "model": "qwen3-14b", "deployment": {"quantization": "gguf"}},
    {"release": "0.31.0", "model": "qwen3-14c"},
    {"release": "0.31.0", "model": "qwen3-14b", "deployment": {"tensor_paralel_size": 2}},
]


def test_every_kind_of_answer_keeps_to_its_schema() -> None:
    ask = Asker()
    kinds = []
    for question in QUESTIONS:
        assert flaws("question", question) == []
        answer = json.loads(ask.answer(json.dumps(question).encode()))
        assert flaws("answer", answer) == []
        kinds.append(sorted(answer.keys() - {"id"}))
    assert kinds == [["plan"], ["plan"], ["plan", "refused"], ["refused"], ["error"], ["error"]]


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("question", {"model": "qwen3-14b"}),
        ("question", {"release": "0.31.0", "model": "qwen3-14b", "token": [1]}),
        ("answer", {"id": 1}),
        ("answer", {"id": 1, "refused": {"by": "engine", "rule": "a", "reason": "b"}}),
        ("answer", {"id": 1, "error": {"type": "UnknownModel", "message": "no"}, "plan": {}}),
    ],
)
def test_what_is_no_question_or_answer_is_told(name: str, document: dict[str, Any]) -> None:
    assert flaws(name, document)


VALUES: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    -2,
    4096,
    0.5,
    "",
    "auto",
    "H200",
    [],
    ["a", 3],
    [True],
    {},
    {"a": "b"},
    {"a": 1},
]
VALUES += [{"a": True}, {"a": None}, {"a": {"b": [1]}}, {"capability": "9.0", "memory_bytes": 1}]
VALUES += [{"capability": 9.5, "memory_bytes": 1}, {"capability": "9.0", "memory_bytes": 0}, {"capability": "9.0"}]
VALUES += [{"capability": "9.0", "memory_bytes": 1, "name": 3}, {"capability": "9.0", "memory_bytes": 1, "memory": 2}]


@pytest.mark.parametrize("argument", Deployment.__annotations__)
def test_a_question_takes_exactly_the_values_that_a_deployment_takes(argument: str) -> None:
    """A GPU's name apart: the schema says which there are, and leaves telling one wrong to the answer."""
    taken = []
    for value in VALUES:
        question = {"release": "0.31.0", "model": "qwen3-14b", "deployment": {argument: value}}
        try:
            Deployment.of({argument: value})
        except rulespack.BadDeployment as error:
            accepted = "no GPU named" in str(error)
        else:
            accepted = True
            taken.append(value)
        assert (flaws("question", question) == []) == accepted, value
    assert 1 < len(taken) < len(VALUES)


def graph(model: str) -> dict[str, Any]:
    return dict(yaml.load((root() / model / "graph.yaml").read_text(), Loader=yaml.CSafeLoader))


@pytest.mark.parametrize("model", names())
def test_every_graph_of_the_catalog_keeps_to_the_schema_editors_use(model: str) -> None:
    assert flaws("graph", graph(model)) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["kind"], "Graph"),
        (["global", "hiden_size"], 5120),
        (["global", "weight_dtype"], "bfloat16"),
        (["global", "context_window"], None),
        (["derived_from", "sha256"], "abc"),
        (["layer_kinds", 0, "nodes", 2, "kind"], "mha"),
        (["layer_kinds", 0, "nodes", 2, "rows"], 1),
        (["layer_kinds", 0, "nodes", 1, "tp"], "columns"),
        (["layer_kinds", 0, "nodes", 1, "n"], "7168"),
        (["layer_kinds", 0, "nodes", 4, "tp"], "row"),
        (["layer_kinds", 0, "nodes", 1, "op"], "Gemm"),
    ],
)
def test_a_mistake_in_a_graph_is_underlined(path: list[Any], value: Any) -> None:
    document = graph("qwen3-14b")
    inner: Any = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    assert flaws("graph", document)
