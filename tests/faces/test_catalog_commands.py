"""``models``, ``releases``, ``show``, ``derive``, ``validate`` and the command itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import Run

import rulespack

MODELS = Path(__file__).parents[2] / "models"


def test_models(run: Run) -> None:
    done = run("models")
    assert done.status == 0
    assert done.out.splitlines() == sorted(folder.name for folder in MODELS.iterdir())
    assert json.loads(run("models", "--format", "json").out) == done.out.splitlines()


def test_releases(run: Run) -> None:
    assert run("releases").out == "0.29.0\n0.31.0\n"
    assert json.loads(run("releases", "--format", "json").out) == list(rulespack.releases())
    unknown = run("releases", "--engine", "other")
    assert (unknown.status, unknown.out) == (2, "")
    assert "engines there are packs for: vllm" in unknown.err


def test_show(run: Run) -> None:
    done = run("show", "deepseek-v4.1-flash")
    assert done.status == 0
    for said in ("DeepseekV41ForCausalLM", "15 x csa1_reader", "40 x swa (window)", "1,790", "dspark, 5 tokens a step"):
        assert said in done.out


def test_show_for_programs(run: Run) -> None:
    said = json.loads(run("show", "qwen3-14b", "--format", "json").out)
    assert said["layers"] == {"dense": 40}
    assert said["caches"] == [
        {"layers": 40, "name": "kv", "kind": "kv", "bytes_per_entry": 4096, "tokens_per_entry": 1}
    ]
    target = said["parameters"]["target"]
    assert abs(target["elements"] / 14_768_307_200 - 1) < 0.005
    assert target["bytes"] == 2 * target["elements"]


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("layout", [[], ["--tensor-parallel-size", "8"]])
def test_show_keeps_the_width(run: Run, width: int, layout: list[str]) -> None:
    lines = run("show", "deepseek-v4.1-flash", *layout, env={"COLUMNS": str(width)}).out.splitlines()
    assert max(map(len, lines)) <= width


def test_show_says_what_one_rank_holds(run: Run) -> None:
    done = run("show", "gpt-oss-120b", "-tp", "8", "--enable-expert-parallel")
    assert done.status == 0
    title, *_ = (line for line in done.out.splitlines() if line.startswith("one rank"))
    assert title == "one rank of tensor_parallel_size 8, enable_expert_parallel"
    for said in ("experts_down, mxfp4", "together (7.61 GiB)", "each sequence holds 589,824 (576 KiB)"):
        assert said in done.out
    assert "one rank" not in run("show", "gpt-oss-120b").out


def test_show_what_one_rank_holds_for_programs(run: Run) -> None:
    asked = ["show", "deepseek-v4.1-flash", "--tensor-parallel-size", "8", "--format", "json"]
    rank = json.loads(run(*asked).out)["rank"]
    assert rank["layout"] == {"tensor_parallel_size": 8}
    assert sum(weight["bytes"] for weight in rank["weights"]) == rank["bytes"]
    assert {"role": "lm_head", "dtype": "bf16", "elements": 82_739_200, "bytes": 165_478_400} in rank["weights"]
    assert rank["host"]["bytes"] > 20 * 10**9 > rank["speculator"]["bytes"] > 10**9
    assert rank["state_bytes_per_sequence"] == {
        "bytes": 3_088_384,
        "recurrent": 0,
        "rings": 98_304,
        "windows": 2_990_080,
    }


def test_show_as_a_model_is_served_on_a_gpu(run: Run) -> None:
    asked = ["show", "deepseek-v4.1-flash", "--tensor-parallel-size", "8", "--format", "json", "--gpu"]
    sizes = [
        next(
            weight["dtype"]
            for weight in json.loads(run(*asked, gpu).out)["rank"]["weights"]
            if weight["role"] == "wo_a"
        )
        for gpu in ("H200", "B200")
    ]
    assert sizes == ["bf16", "fp8"]
    refused = run(*asked, "A100")
    assert refused.status == 1
    assert "does not describe GPUs of compute capability family 8" in refused.out + refused.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["-tp", "3"],
            "qwen3-14b: KV heads 8 cannot be shared evenly by 3 ranks; choose a --tensor-parallel-size that divides 8",
        ),
        (["-tp", "0"], "expected a number of ranks, got '0'"),
        (["--data-parallel-size", "two"], "expected a number of ranks, got 'two'"),
    ],
)
def test_show_of_a_layout_that_cannot_be(run: Run, flags: list[str], said: str) -> None:
    done = run("show", "qwen3-14b", *flags)
    assert (done.status, done.out) == (2, "")
    assert said in done.err


def test_derive_gives_the_committed_graph(run: Run, tmp_path: Path) -> None:
    committed = (MODELS / "qwen3-14b" / "graph.yaml").read_text()
    config = str(MODELS / "qwen3-14b" / "config.json")
    assert run("derive", config).out == committed
    done = run("derive", config, "--name", "ours", "--out", "graph.yaml")
    assert (done.status, done.out) == (0, "")
    assert (tmp_path / "graph.yaml").read_text() == committed.replace("name: qwen3-14b", "name: ours")
    assert run("plan", "graph.yaml", "--release", "0.31.0").out.startswith("ours on vllm 0.31.0\n")


def test_derive_tells_what_it_cannot_translate(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["OtherForCausalLM"]}')
    done = run("derive", "config.json")
    assert (done.status, done.out) == (1, "")
    assert "config.json: architectures: the architecture OtherForCausalLM is not translated" in done.err


def test_derive_cannot_write_there(run: Run) -> None:
    done = run("derive", str(MODELS / "qwen3-14b"), "--out", "no/such/folder/graph.yaml")
    assert (done.status, done.err) == (1, "rulespack: no/such/folder/graph.yaml: No such file or directory\n")


def test_validate(run: Run, tmp_path: Path) -> None:
    ours = shutil.copytree(MODELS / "qwen3-14b", tmp_path / "qwen3-14b")
    clean = run("validate", "qwen3-14b")
    assert (clean.status, clean.out, clean.err) == (0, "3 files, 0 errors, 0 warnings\n", "")
    graph = ours / "graph.yaml"
    graph.write_text(graph.read_text().replace("n: 7168", "n: 7169"))
    wrong = run("validate", "qwen3-14b", "absent")
    assert wrong.status == 1
    first, second, summary = wrong.out.splitlines()
    line = graph.read_text().splitlines().index("  - {op: GEMM, role: qkv_proj, n: 7169, k: 5120, tp: column}") + 1
    assert first.startswith(f"qwen3-14b/graph.yaml:{line}: error: layer_kinds[0].nodes[1].n: is 7169")
    assert first.endswith("[drift]")
    assert second.startswith("absent: error: cannot be read")
    assert summary == "4 files, 2 errors, 0 warnings"


def test_validate_for_programs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text("kind: ModelGraph\nname: [\n")
    done = run("validate", "graph.yaml", str(MODELS / "qwen3-14b" / "model.yaml"), "--format", "json")
    wrong, clean = json.loads(done.out)
    assert done.status == 1
    assert (wrong["file"], wrong["valid"]) == ("graph.yaml", False)
    assert wrong["problems"][0].keys() == {"rule", "severity", "path", "message", "line"}
    assert (clean["valid"], clean["problems"]) == (True, [])


def test_version_and_help(run: Run) -> None:
    assert run("--version").out == f"rulespack {rulespack.__version__}\n"
    told = run("--help")
    assert told.status == 0
    for command in ("plan", "batch", "models", "releases", "show", "derive", "validate"):
        assert f"\n  {command} " in told.out
        helped = run(command, "--help")
        assert (helped.status, helped.err) == (0, "")
        assert helped.out.startswith(f"usage: rulespack {command}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plam"], "no command named 'plam'; did you mean plan?"),
        (["validate"], "the following arguments are required: PATH"),
        (["show"], "the following arguments are required: MODEL"),
        (["show", "nothing-like-it"], "no model named 'nothing-like-it'"),
        (["models", "extra"], "'extra' is one word too many"),
    ],
)
def test_usage(run: Run, words: list[str], said: str) -> None:
    done = run(*words)
    assert (done.status, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_nothing_asked_is_help_and_usage(run: Run) -> None:
    done = run()
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("usage: rulespack COMMAND")
