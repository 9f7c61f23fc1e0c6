"""``rulespack plan``, end to end."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Run

from tests.surroundings import environment

PLAN = ("plan", "qwen3-14b", "--release", "0.31.0")


def test_a_plan_for_people(run: Run) -> None:
    done = run(*PLAN)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("qwen3-14b on vllm 0.31.0\n")
    for said in (
        "GPU H200 (default)",
        "40 x FullAttentionSpec",
        "2,621,440 (2.5 MiB)",
        "2,560 at 40,960 tokens",
        "6.25 GiB",
    ):
        assert said in done.out
    assert "because" not in done.out
    assert "\x1b" not in done.out


def test_why(run: Run) -> None:
    done = run(*PLAN, "--why")
    assert done.status == 0
    assert done.out.index("why\n") < done.out.index("cache-dtype: auto") < done.out.index("bytes-per-block: 2,621,440")
    assert "source   vllm/" in done.out
    assert "costs    6,710,886,400 (6.25 GiB) for the 2,560 blocks of a request of" in done.out


def test_a_plan_for_programs(run: Run) -> None:
    done = run(*PLAN, "-tp", "2", "--gpu", "b200", "--format", "json", "--tokens", "4096", "8k", "--port", "8001")
    plan = json.loads(done.out)
    assert list(plan) == [
        "schema_version",
        "engine",
        "release",
        "model",
        "deployment",
        "architecture",
        "resolved",
        "specs",
        "caches",
        "draft_caches",
        "groups",
        "bytes_per_block",
        "blocks_per_request",
        "backends",
        "weights",
        "requests",
        "reasons",
    ]
    assert plan["deployment"] == {"gpu": "b200", "tensor_parallel_size": 2, "port": 8001}
    assert plan["specs"][0].keys() == {"type", "block_size", "page_size_bytes", "dtype", "num_kv_heads", "head_size"}
    assert plan["caches"][39] == ["model.layers.39.self_attn.attn", 0]
    assert [request["tokens"] for request in plan["requests"]] == [4096, 8000]
    assert plan["requests"][0]["bytes"] == 4096 // 16 * plan["bytes_per_block"]
    assert plan["weights"]["model"]["elements"] == plan["weights"]["model"]["bytes"] // 2
    assert plan["reasons"][0].keys() == {"rule", "value", "inputs", "because", "source"}


def test_parts_of_a_plan_that_only_some_questions_have(run: Run) -> None:
    flags = ("--kv-cache-memory-bytes", "64G", "--pipeline-parallel-size", "2", "--format", "json")
    plan = json.loads(run(*PLAN, *flags).out)
    assert len(plan["stages"]) == 2
    assert plan["capacity"]["num_blocks"] > 0
    assert isinstance(plan["capacity"]["max_concurrency"], float)


def test_capacity_and_stages_are_told(run: Run) -> None:
    done = run(*PLAN, "--kv-cache-memory-bytes", "64G", "-pp", "2", env={"COLUMNS": "120"})
    assert "stage 1" in done.out
    assert "requests of 40,960 tokens" in done.out


def test_the_nearest_release_is_accepted_only_on_request(run: Run) -> None:
    refused = run("plan", "qwen3-14b", "--release", "0.31.0rc1")
    assert refused.status == 2
    assert refused.err.endswith("0.29.0, 0.31.0; the closest lower one is 0.29.0 (ask for it with --nearest)\n")
    done = run("plan", "qwen3-14b", "--release", "0.31.0rc1", "--nearest")
    assert done.status == 0
    assert "on vllm 0.29.0 (nearest lower to 0.31.0rc1" in done.out


@pytest.mark.parametrize("release", ["v0.31.0", "0.31.0+cu130", "0.31"])
def test_one_release_has_several_spellings(run: Run, release: str) -> None:
    assert run("plan", "qwen3-14b", "--release", release).out.startswith("qwen3-14b on vllm 0.31.0\n")


def test_the_engine_refuses(run: Run) -> None:
    done = run(*PLAN, "--kv-cache-memory-bytes", "1G")
    assert done.status == 1
    assert "vllm 0.31.0 refuses this: ValueError at stage groups: " in done.err
    assert "bytes per block     2,621,440" in done.out  # what had been decided by then
    assert done.err.count("\n") == 1


def test_the_engine_refuses_in_json(run: Run) -> None:
    done = run(*PLAN, "--kv-cache-memory-bytes", "1G", "--format", "json")
    answer = json.loads(done.out)
    assert done.status == 1
    assert answer["refused"]["by"] == "engine"
    assert (answer["refused"]["type"], answer["refused"]["stage"]) == ("ValueError", "groups")
    assert "capacity" not in answer["plan"]


def test_the_pack_refuses_what_it_does_not_model(run: Run) -> None:
    done = run(*PLAN, "--optimization-level", "0")
    assert (done.status, done.out) == (1, "")
    assert "the pack for vllm 0.31.0 does not model this: " in done.err
    assert "optimization_level" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["qwen3-14b", "--release", "0.31.0", "--tensor-paralel-size", "2"], "did you mean --tensor-parallel-size?"),
        (["qwen3-14b", "--release", "0.31.0", "-tpp", "2"], "did you mean"),
        (["qwen3-14b", "--release", "0.31.0", "--block-size", "many"], "--block-size: expected an integer"),
        (["qwen3-14b", "--release", "0.31.0", "--gpu", "H2000"], "did you mean H200?"),
        (["qwen3-14b", "--release", "0.31.0", "--gpu", "{no"], "--gpu: not JSON"),
        (["qwen3-14b", "--release", "0.31.0", "--env", "NAME"], "expected NAME=VALUE"),
        (["qwen3-14b", "--release", "0.31.0", "--tokens", "99999999"], "max_model_len, 40960"),
        (["qwen3-14b", "--release", "0.31.0", "--tokens", "many"], "expected lengths such as 4096 or 32k, got 'many'"),
        (["", "--release", "0.31.0"], "no model named ''"),
        (["qwen3-14b", "--release", "0.31.0", "--format", "xml"], "expected text or json or html"),
        (["qwen3-14b", "--release", "0.31.0", "another"], "'another' is one word too many"),
        (["qwen3-14b", "--release", "0.99"], "no pack for vllm 0.99"),
        (["qwen3-14b", "--release", "newest"], "is not a version"),
        (["qwen3-14b"], "--release is missing; releases there are packs for: 0.29.0, 0.31.0"),
        (["qwen3-14c", "--release", "0.31.0"], "did you mean qwen3-14b?"),
        (["--release", "0.31.0"], "MODEL is missing"),
    ],
)
def test_usage(run: Run, words: list[str], said: str) -> None:
    done = run("plan", *words)
    assert (done.status, done.out) == (2, "")
    assert said in done.err
    assert done.err.startswith("rulespack: ")
    assert done.err.count("\n") == 1


def test_a_file_that_is_no_graph_is_invalid(run: Run, tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text("kind: ModelGraph\n")
    done = run("plan", "graph.yaml", "--release", "0.31.0", "--format", "json")
    assert done.status == 1
    error = json.loads(done.out)["error"]
    assert error["type"] == "InvalidGraph"
    assert {problem["severity"] for problem in error["problems"]} == {"error"}
    assert "graph.yaml is not a valid model graph" in done.err


def test_a_vendor_configuration_gives_the_plan_of_its_graph(run: Run) -> None:
    config = Path(__file__).parents[2] / "models" / "qwen3-14b" / "config.json"
    named = json.loads(run(*PLAN, "--format", "json").out)
    for where in (config, config.parent):
        assert json.loads(run("plan", str(where), "--release", "0.31.0", "--format", "json").out) == named


def test_flags_beyond_the_modelled_ones(run: Run) -> None:
    words = ("--trust-remote-code", "--no-enable-log-requests", "--served-model-name", "a", "b", "--seed", "-1")
    plan = json.loads(run(*PLAN, *words, "--format", "json").out)
    assert plan["deployment"] == {
        "trust_remote_code": True,
        "enable_log_requests": False,
        "served_model_name": ["a", "b"],
        "seed": -1,
    }


def test_a_flag_may_stand_before_the_model(run: Run) -> None:
    words = (
        "plan",
        "--served-model-name",
        "ours",
        "--gpu=B200",
        "-tp",
        "2",
        "qwen3-14b",
        "--release=0.31.0",
        "--format=json",
    )
    plan = json.loads(run(*words).out)
    assert plan["deployment"] == {"gpu": "B200", "served_model_name": ["ours"], "tensor_parallel_size": 2}


def test_a_gpu_of_ones_own_and_the_environment(run: Run) -> None:
    gpu = {"capability": "9.0", "memory_bytes": 90 << 30, "name": "ours"}
    done = run(*PLAN, "--gpu", json.dumps(gpu), "--env", "VLLM_KV_CACHE_LAYOUT=HND", "--format", "json")
    plan = json.loads(done.out)
    assert plan["deployment"] == {"gpu": gpu, "env": {"VLLM_KV_CACHE_LAYOUT": "HND"}}
    assert plan["resolved"]["kv_cache_layout"] == "LBHNC"


@pytest.mark.parametrize("width", [40, 60, 80, 132])
def test_no_line_is_wider_than_the_terminal(run: Run, width: int) -> None:
    done = run("plan", "gemma-3-4b-it", "--release", "0.31.0", "--why", "--tokens", "4096", env={"COLUMNS": str(width)})
    assert done.status == 0
    assert max(map(len, done.out.splitlines())) <= width


def test_help_names_every_modelled_argument(run: Run) -> None:
    from rulespack.cli.flags import modelled_flags

    done = run("plan", "--help")
    assert done.status == 0
    for flag, kind in modelled_flags().items():
        assert (f"--[no-]{flag[2:]}" if kind == "bool" else flag) in done.out
    assert "Every vLLM engine argument is taken" in done.out


def on_a_terminal(env: dict[str, str]) -> str:
    """What the command writes to a terminal."""
    ours, theirs = pty.openpty()
    done = subprocess.Popen([sys.executable, "-m", "rulespack", *PLAN], stdout=theirs, env=environment(env))
    os.close(theirs)
    text = b""
    while True:
        try:
            more = os.read(ours, 4096)
        except OSError:  # the terminal is gone with its last writer
            break
        if not more:
            break
        text += more
    os.close(ours)
    assert done.wait() == 0
    return text.decode()


def test_emphasis_is_for_terminals_that_want_it() -> None:
    assert "\x1b[1m" in on_a_terminal({"TERM": "xterm"})
    assert "\x1b" not in on_a_terminal({"TERM": "xterm", "NO_COLOR": "1"})
    assert "\x1b" not in on_a_terminal({"TERM": "dumb"})


def test_a_reader_that_leaves_early_ends_the_command_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "rulespack", *PLAN, "--why"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=environment(),
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_terminal_without_the_letters_of_a_name(run: Run, tmp_path: Path) -> None:
    done = run("plan", "modèle", "--release", "0.31.0", env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert done.status == 2
    assert "mod" in done.err


@pytest.mark.parametrize("columns", ["1", "2", "7"])
@pytest.mark.parametrize("asked", [(*PLAN, "--tokens", "4096", "--why"), ("plan", "--help")], ids=["why", "help"])
def test_a_screen_of_hardly_a_column_gets_the_answer_of_a_narrow_one(
    run: Run, columns: str, asked: tuple[str, ...]
) -> None:
    done = run(*asked, env={"COLUMNS": columns})
    assert (done.status, done.err) == (0, "")
    assert done.out == run(*asked, env={"COLUMNS": "20"}).out


def test_what_a_drafter_costs_says_which_figure_is_which(run: Run) -> None:
    drafter = '{"method": "eagle3", "model": "gpt-oss-120b-eagle3-specforge", "num_speculative_tokens": 3}'
    asked = ("plan", "gpt-oss-120b", "--release", "0.31.0", "--speculative-config", drafter)
    plans = (run(*asked, "--format", "json"), run(*asked[:4], "--format", "json"))
    drafted, bare = (json.loads(done.out)["bytes_per_block"] for done in plans)
    for columns in ("40", "80", "120"):
        said = " ".join(run(*asked, env={"COLUMNS": columns}).out.split())
        assert f"bytes per block {drafted:,} with it, {bare:,} without" in said


def test_different_names_in_one_group_are_separated(run: Run) -> None:
    said = " ".join(run("plan", "glm-5.3-flash", "--release", "0.31.0").out.split())
    layers = "language_model.model.layers.{3-43/4}.self_attn"
    assert f"22 x MLAAttentionSpec: {layers}.indexer.k_cache, {layers}.attn" in said


def test_a_model_that_keeps_no_cache_is_said_to_keep_none(run: Run) -> None:
    done = run("plan", "all-minilm-l6-v2", "--release", "0.31.0", "--kv-cache-memory-bytes", "64G")
    assert done.status == 0
    assert done.out.endswith("\n\nThis model keeps no KV cache: no groups, no blocks, no bytes.\n")
    assert "group  block" not in done.out
    assert "keeps no KV cache" not in run(*PLAN).out
