"""``rulespack batch``: one answer line for each line, whatever it holds."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Run

from rulespack import ModelGraph, batch, load_model, shelf
from rulespack.batch import MAX_LINE, Asker
from tests.surroundings import environment

MODELS = Path(__file__).parents[2] / "models"
QUESTION = {"release": "0.31.0", "model": "qwen3-14b"}


def ask(question: object) -> dict[str, Any]:
    """One question put to a fresh process's worth of state."""
    line = question if isinstance(question, bytes) else json.dumps(question).encode()
    answer = Asker().answer(line)
    assert b"\n" not in answer
    return json.loads(answer)  # type: ignore[no-any-return]


def error(question: object) -> dict[str, Any]:
    answer = ask(question)
    assert answer.keys() == {"id", "error"}
    return answer["error"]  # type: ignore[no-any-return]


def test_a_question_and_its_answer() -> None:
    answer = ask(
        {"id": "q1", "engine": "vllm", **QUESTION, "deployment": {"tensor_parallel_size": 2}, "tokens": [1, 40960]}
    )
    assert answer.keys() == {"id", "plan"}
    plan = answer["plan"]
    assert answer["id"] == "q1"
    assert plan["schema_version"] == 1
    assert plan["deployment"] == {"tensor_parallel_size": 2}
    assert [request["blocks"] for request in plan["requests"]] == [1, plan["blocks_per_request"]]


def test_the_command_prints_the_same_plan(run: Run) -> None:
    assert json.loads(run("plan", "qwen3-14b", "--release", "0.31.0", "--format", "json").out) == ask(QUESTION)["plan"]


def test_answers_come_in_order_and_for_every_line(run: Run) -> None:
    lines = [
        json.dumps({"id": 0, **QUESTION}).encode(),
        b"",
        b"not json",
        json.dumps({"id": 3, "release": "0.31.0", "model": "nothing"}).encode(),
        b'{"id": 4, "release": "0.31.0", "model": "qwen3-14b", "deployment": {"kv_cache_memory_bytes": 1}}\r',
        b"\xff\xfe",
        json.dumps({"id": 6, **QUESTION}).encode(),
    ]
    done = run("batch", stdin=b"\n".join(lines))
    answers = [json.loads(line) for line in done.out.splitlines()]
    assert (done.status, done.err) == (0, "")
    assert [answer["id"] for answer in answers] == [0, None, None, 3, 4, None, 6]
    assert ["plan" in answer for answer in answers] == [True, False, False, False, True, False, True]
    assert answers[4]["refused"]["by"] == "engine"
    assert answers[0]["plan"] == answers[6]["plan"]


def test_questions_from_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text(json.dumps(QUESTION) + "\n")
    assert json.loads(run("batch", "questions.jsonl").out)["id"] is None
    missing = run("batch", "no-such-file")
    assert (missing.status, missing.err) == (2, "rulespack: no-such-file: No such file or directory\n")


def test_a_coprocess_gets_each_answer_before_it_asks_again() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rulespack", "batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for number in range(3):
        process.stdin.write(json.dumps({"id": number, **QUESTION}).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == number
    process.stdin.close()
    assert process.wait() == 0
    process.stdout.close()


def test_a_reader_that_leaves_ends_the_batch_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    questions = json.dumps(QUESTION).encode() + b"\n"
    done = subprocess.run(
        [sys.executable, "-m", "rulespack", "batch"],
        input=questions,
        stdout=writing,
        stderr=subprocess.PIPE,
        env=environment(),
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    "written",
    [
        '"a"',
        '""',
        "0",
        "-7",
        "123456789012345678901234567890",
        "1.50",
        "1e2",
        "-0.1000000000000000055",
        '"\\ud800"',
        '"\\u00e9\\n"',
        "null",
    ],
)
def test_an_id_comes_back_as_it_was_written(written: str) -> None:
    answer = Asker().answer(b'{"id": %s, "model": "qwen3-14b", "release": "0.99"}' % written.encode())
    assert answer.startswith(b'{"id":%s,"error":' % written.encode())


@pytest.mark.parametrize("written", ["true", "[1]", "{}", "NaN", "[" * 40 + "]" * 40])
def test_an_id_that_is_none_is_an_error(written: str) -> None:
    answer = ask(b'{"id": %s, "release": "0.31.0", "model": "qwen3-14b"}' % written.encode())
    assert answer["id"] is None
    assert answer["error"]["type"] == "BadQuestion"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"", "the line is empty"),
        (b" \t ", "the line is empty"),
        (b"nonsense", "not JSON"),
        (b"{", "not JSON"),
        (b'{"id": 1} {"id": 2}', "not JSON"),
        (b"[]", "a question is a JSON object, not a list"),
        (b"7", "not 7"),
        (b"null", "not null"),
        (b'"' + b"x" * 500 + b'"', 'not "xxx'),
        (b"\xff{}", "not UTF-8"),
        (b'\xef\xbb\xbf{"id": 1}', "not JSON"),
        (b"{}", "release: missing"),
        (b'{"release": "0.31.0"}', "model: missing"),
        (b'{"release": 0.31, "model": "qwen3-14b"}', "release: expected a string, got 0.31"),
        (b'{"release": "0.31.0", "model": null}', "model: expected a string, got null"),
        (b'{"release": "0.31.0", "model": "a\\u0000b"}', "model: holds a character"),
        (b'{"release": "0.31.0", "model": "\\ud800"}', "model: holds a character"),
        (b'{"release": "0.31.0", "modle": "qwen3-14b"}', "modle: no key of a question; did you mean model?"),
        (b'{"release": "0.31.0", "model": "m", "model": "n"}', "the key 'model' is stated twice"),
        (
            b'{"release": "0.31.0", "model": "m", "deployment": {"dtype": "a", "dtype": "b"}}',
            "the key 'dtype' is stated twice",
        ),
        (b'{"release": "0.31.0", "model": "m", "tokens": NaN}', "NaN is not JSON"),
        (b'{"release": "0.31.0", "model": "m", "deployment": {"seed": -Infinity}}', "-Infinity is not JSON"),
        (
            b'{"release": "0.31.0", "model": "m", "deployment": {"seed": 1e999}}',
            "deployment.seed: the number is too large",
        ),
        (
            b'{"release": "0.31.0", "model": "m", "deployment": {"seed": 1%s}}' % (b"0" * 40),
            "deployment.seed: the integer is outside 64 bits",
        ),
        (
            b'{"release": "0.31.0", "model": "m", "deployment": {"seed": 1%s}}' % (b"0" * 9000),
            "a number that cannot be read",
        ),
        (
            b'{"release": "0.31.0", "model": "m", "deployment": {"tokenizer": "\\udc00"}}',
            "deployment.tokenizer: holds a character",
        ),
        (
            b'{"release": "0.31.0", "model": "m", "deployment": {"hf_overrides": %s1%s}}' % (b'{"a":' * 60, b"}" * 60),
            "levels deep",
        ),
        (
            b'{"release": "0.31.0", "model": "m", "deployment": %s%s}' % (b"[" * 100_000, b"]" * 100_000),
            "nested too deeply",
        ),
        (b'{"release": "0.31.0", "model": "qwen3-14b", "tokens": 7}', "tokens: expected a list of lengths, got 7"),
        (b'{"release": "0.31.0", "model": "qwen3-14b", "tokens": [0]}', "at least 1 token, got 0"),
        (b'{"release": "0.31.0", "model": "qwen3-14b", "tokens": [true]}', "at least 1 token, got true"),
        (b'{"release": "0.31.0", "model": "qwen3-14b", "tokens": [1.5]}', "at least 1 token, got 1.5"),
        (b'{"release": "0.31.0", "model": "qwen3-14b", "tokens": [40961]}', "40961 is past max_model_len, 40960"),
        (b'{"release": "0.31.0", "model": "qwen3-14b", "nearest": 1}', "nearest: expected true or false, got 1"),
        (b'"' + b" " * MAX_LINE + b'"', "longer than"),
    ],
    ids=range(35),
)
def test_a_line_that_is_no_question(line: bytes, said: str) -> None:
    told = error(line)
    assert told["type"] == "BadQuestion"
    assert said in told["message"]
    assert len(told["message"]) < 400


@pytest.mark.parametrize(
    ("changed", "kind", "said"),
    [
        ({"model": "qwen3-14c"}, "UnknownModel", "did you mean qwen3-14b?"),
        ({"model": "x" * 5000}, "UnknownModel", "no such file"),
        ({"release": "0.99"}, "UnknownRelease", "0.29.0, 0.31.0"),
        ({"engine": "other"}, "UnknownRelease", "no pack is installed for the engine 'other'"),
        ({"deployment": []}, "BadDeployment", "expected a mapping"),
        ({"deployment": None}, "BadDeployment", "expected a mapping"),
        ({"deployment": {"block_sise": 16}}, "BadDeployment", "did you mean block_size?"),
        ({"deployment": {"block_size": "16"}}, "BadDeployment", "block_size: expected an integer, got '16'"),
        ({"deployment": {"gpu": {"capability": "9.0"}}}, "BadDeployment", "gpu.memory_bytes"),
    ],
)
def test_a_question_that_names_what_there_is_not(changed: dict[str, Any], kind: str, said: str) -> None:
    told = error({**QUESTION, **changed})
    assert told["type"] == kind
    assert said in told["message"]


def test_a_graph_that_is_wrong_comes_with_its_problems(tmp_path: Path) -> None:
    file = tmp_path / "graph.yaml"
    file.write_text((MODELS / "qwen3-14b" / "graph.yaml").read_text().replace("n_kv: 8", "n_kv: 80"))
    told = error({"release": "0.31.0", "model": str(file)})
    assert told["type"] == "InvalidGraph"
    assert told["problems"][0].keys() == {"rule", "severity", "path", "message", "line"}


def test_the_nearest_release_answers_on_request() -> None:
    refused = ask({**QUESTION, "release": "0.31.0rc1"})["error"]
    assert refused["message"].endswith("the closest lower one is 0.29.0 (ask for it with nearest)")
    plan = ask({**QUESTION, "release": "0.31.0rc1", "nearest": True})["plan"]
    assert (plan["release"], plan["nearest"]) == ("0.29.0", "0.31.0rc1")


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    folder = shutil.copytree(MODELS / "qwen3-14b", tmp_path / "ours")
    asker = Asker()
    question = json.dumps({"release": "0.31.0", "model": str(folder)}).encode()
    first = json.loads(asker.answer(question))["plan"]
    graph = folder / "graph.yaml"
    graph.write_text(graph.read_text().replace("repeat: 40", "repeat: 8"))
    second = json.loads(asker.answer(question))["plan"]
    assert (len(first["caches"]), len(second["caches"])) == (40, 8)


def test_a_graph_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def load(file: Path, overrides: object) -> ModelGraph:
        read.append(file)
        return load_model(file)

    shelf.shelf.cache_clear()
    monkeypatch.setattr(shelf, "load_model", load)
    asker = Asker()
    for _ in range(3):
        asker.answer(json.dumps(QUESTION).encode())
    assert len(read) == 1


def test_a_fault_of_ours_is_told_and_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    asker = Asker()

    def broken(*_: object) -> None:
        raise KeyError("gone")

    shelf.shelf.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(shelf, "load_model", broken)
        told = json.loads(asker.answer(json.dumps({"id": 1, **QUESTION}).encode()))
    assert told["id"] == 1
    assert told["error"]["type"] == "InternalError"
    assert "KeyError: 'gone' (test_batch.py:" in told["error"]["message"]
    assert "plan" in json.loads(asker.answer(json.dumps(QUESTION).encode()))


def test_a_line_past_the_limit_is_told_and_the_next_one_answered() -> None:
    answers = io.BytesIO()
    batch.serve(io.BytesIO(b"x" * (3 * MAX_LINE) + b"\n" + json.dumps({"id": 2, **QUESTION}).encode()), answers)
    first, second = map(json.loads, answers.getvalue().splitlines())
    assert "longer than" in first["error"]["message"]
    assert (second["id"], "plan" in second) == (2, True)


def test_an_architecture_no_family_translates_is_refused_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["NobodysForCausalLM"]}))
    answer = ask({"id": 1, **QUESTION, "model": str(tmp_path)})
    assert answer["refused"]["by"] == "pack"
    assert answer["refused"]["rule"] == "configuration-translated"
    assert "NobodysForCausalLM" in answer["refused"]["reason"]


YARN = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}


@pytest.mark.parametrize(("release", "length"), [("0.29.0", 131072), ("0.31.0", 40960)])
def test_overrides_are_laid_over_the_configuration(release: str, length: int) -> None:
    question = {"release": release, "model": "qwen3-8b", "deployment": {"hf_overrides": YARN}}
    assert ask(question)["plan"]["resolved"]["max_model_len"] == length
    assert ask({**question, "deployment": {}})["plan"]["resolved"]["max_model_len"] == 40960


def test_overrides_of_a_graph_that_stands_alone_are_refused(tmp_path: Path) -> None:
    shutil.copy(MODELS / "qwen3-8b" / "graph.yaml", tmp_path)
    answer = ask({**QUESTION, "model": str(tmp_path / "graph.yaml"), "deployment": {"hf_overrides": YARN}})
    assert answer["refused"]["by"] == "pack"
    assert "hf_overrides" in answer["refused"]["reason"]


def test_an_override_that_no_configuration_can_have_names_its_key() -> None:
    told = error({**QUESTION, "deployment": {"hf_overrides": {"num_attention_heads": "many"}}})
    assert told["type"] == "InvalidConfig"
    assert "num_attention_heads" in told["message"]


@pytest.mark.parametrize(
    ("model", "overrides"),
    [
        ("glm-5.2", {"num_hidden_layers": 10}),
        ("qwen3-next-80b-a3b-instruct", {"full_attention_interval": 2}),
        ("kimi-linear-48b-a3b-instruct", {"num_hidden_layers": 8}),
    ],
)
def test_overrides_that_no_file_could_state_are_refused_by_the_pack(model: str, overrides: dict[str, Any]) -> None:
    """The engine lays them over a configuration that is checked and completed by then, and plans with some of them."""
    answer = ask({**QUESTION, "model": model, "deployment": {"hf_overrides": overrides}})
    assert answer["refused"]["by"] == "pack"
    assert "with hf_overrides" in answer["refused"]["reason"]
