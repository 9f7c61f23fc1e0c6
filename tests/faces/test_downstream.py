"""Somebody's own project pins its plans: ``tests/downstream``, run in an environment with the installed wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Protocol

import pytest

from tests.surroundings import AWAY, ROOT

SAMPLE = ROOT / "tests" / "downstream"
RULESPACK_MODULES = (
    "sorted(name for name in sys.modules if name.startswith(('rulespack.', 'vllm_', 'msgspec', 'yaml')))"
)


class Pytest(Protocol):
    """Runs pytest with these words in the project's folder; gives its exit status and what it printed."""

    def __call__(self, *words: str) -> tuple[int, str]: ...


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the sample project."""
    return Path(shutil.copytree(SAMPLE, tmp_path / "project"))


@pytest.fixture
def run_pytest(installed: Path, project: Path) -> Pytest:
    def run(*words: str) -> tuple[int, str]:
        command = [str(installed / "bin" / "python"), "-m", "pytest", "-p", "no:cacheprovider", *words]
        done = subprocess.run(command, cwd=project, env=AWAY, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def pins(project: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in (project / "__snapshots__").rglob("*.txt")}


def failures(output: str) -> dict[str, str]:
    """The report of each failed test, by the test's name."""
    reports = re.split("^-+ snapshot report summary", output.partition("= FAILURES =")[2], flags=re.MULTILINE)[0]
    parts = re.split(r"^_+ (test_\S+) _+$", reports, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_pins_hold_on_the_release_they_are_for_in_two_processes_as_well(run_pytest: Pytest) -> None:
    status, output = run_pytest("-n", "2")
    assert (status, "5 passed" in output) == (0, True), output


def test_another_release_fails_with_the_diff_of_what_changed_and_only_there(run_pytest: Pytest) -> None:
    status, output = run_pytest("--rulespack-release", "0.31.0")
    failed = failures(output)
    assert status == 1
    assert list(failed) == [
        "test_plan[gemma-4-26b-a4b-nvfp4-chat]",
        "test_plan[gemma-4-26b-a4b-nvfp4-long]",
        "test_what_the_autoscaler_counts_on",
    ]
    chat = failed["test_plan[gemma-4-26b-a4b-nvfp4-chat]"]
    assert "vllm 0.29.0 -> 0.31.0: 1 model" in chat
    assert re.search(r"^  block size +16 -> 64$", chat, re.MULTILINE)
    assert re.search(r"^  bytes per block +163,840 \(160 KiB\) -> 655,360", chat, re.MULTILINE)
    assert "request of 100,000 tokens" in chat
    assert "0.31.0  TRITON_FLASH_ATTN: the first in order for this GPU" in chat
    assert "Traceback" not in output
    assert "specs[" not in chat


def test_a_part_that_is_pinned_is_all_that_is_compared_and_shown(run_pytest: Pytest) -> None:
    _, output = run_pytest("--rulespack-release", "0.31.0", "-k", "autoscaler")
    report = failures(output)["test_what_the_autoscaler_counts_on"]
    assert "-bytes_per_block: 81920\n+resolved.block_size: 64\n+bytes_per_block: 327680\n" in report
    assert "scheduler block size" not in report


def test_a_pin_is_one_file_that_says_what_was_asked_and_each_fact_on_a_line(run_pytest: Pytest, project: Path) -> None:
    before = pins(project)
    shutil.rmtree(project / "__snapshots__")
    status, output = run_pytest()
    reports = failures(output).values()
    assert (status, [report.count("nothing is pinned in") for report in reports]) == (1, [1] * 5)
    assert run_pytest("--snapshot-update", "-n", "2")[0] == 0
    assert pins(project) == before
    assert not any("reasons." in text or "weights." in text for text in before.values())
    assert before["test_what_the_autoscaler_counts_on[gemma].txt"] == (
        "gemma-4-26b-a4b-nvfp4 on vllm 0.29.0\n  tensor_parallel_size: 8\n\n"
        "resolved.block_size: 16\nbytes_per_block: 81920\n"
    )


def test_a_pin_that_is_no_longer_the_answer_shows_the_lines_that_differ(run_pytest: Pytest, project: Path) -> None:
    file = project / "__snapshots__" / "test_kv_plans" / "test_what_the_autoscaler_counts_on.txt"
    file.write_text(file.read_text().replace("bytes_per_block: 73728", "bytes_per_block: 73727"))
    status, output = run_pytest("-k", "autoscaler")
    assert status == 1
    assert "-bytes_per_block: 73727\n+bytes_per_block: 73728\n" in output
    for words in (["--rulespack-release", "0.31.0"], ["--rulespack-release", "0.29.0"]):
        assert "-bytes_per_block: 73727\n+bytes_per_block: 73728\n" in run_pytest("-k", "autoscaler", *words)[1]


def test_the_release_that_is_asked_instead_is_named_right_and_writes_no_pin(run_pytest: Pytest) -> None:
    status, output = run_pytest("--rulespack-release", "0.31")
    assert status == 1
    status, output = run_pytest("--rulespack-release", "0.30.0")
    assert status == 4
    assert "--rulespack-release: no pack for vllm 0.30.0; releases there are packs for: 0.29.0, 0.31.0\n" in output
    status, output = run_pytest("--rulespack-release", "0.31.0", "--snapshot-update")
    assert status == 4
    assert "to pin 0.31.0, say so in rulespack_release" in output


QUESTIONS = {
    'rulespack_pin("qwen3-14c")': "did you mean qwen3-14b?",
    'rulespack_pin("qwen3-14b", {"tensor_paralel_size": 2})': "did you mean tensor_parallel_size?",
    'rulespack_pin("qwen3-14b", "vllm serve --max-modl-len 4k")': "did you mean --max-model-len?",
    'rulespack_pin("gpt-oss-120b", "vllm serve qwen3-14b")': "serves qwen3-14b, and what is pinned is gpt-oss-120b",
    'rulespack_pin("qwen3-14b", part="group")': "did you mean groups?",
    'rulespack_pin("qwen3-14b", part="capacity")': "this plan has no capacity: there is nothing to pin",
    'rulespack_pin("qwen3-14b", release="0.30.0")': "releases there are packs for: 0.29.0, 0.31.0\n",
    'rulespack_pin("qwen3-14b", {"scheduler_cls": "ours.Scheduler"})': "has no answer to pin",
    'rulespack_pin("./qwen3-14b")': "no model named './qwen3-14b'",
}


def test_a_question_that_cannot_be_used_is_one_sentence(run_pytest: Pytest, project: Path) -> None:
    tests = [f"def test_{number}(rulespack_pin):\n    {call}\n" for number, call in enumerate(QUESTIONS)]
    (project / "test_kv_plans.py").write_text("\n\n".join(tests))
    status, output = run_pytest()
    failed = failures(output)
    assert status == 1
    for number, (call, sentence) in enumerate(QUESTIONS.items()):
        assert sentence in failed[f"test_{number}"], (call, output)
        assert len(failed[f"test_{number}"].strip().splitlines()) == 1
    (project / "pyproject.toml").write_text("")
    assert output.count("which release is this pinned for?") == 0
    assert (
        "which release is this pinned for? Say rulespack_release" in failures(run_pytest("-k", "test_0")[1])["test_0"]
    )


OVERRIDDEN = """
def test_short(rulespack_pin):
    rulespack_pin("qwen3-14b", {"hf_overrides": {"num_hidden_layers": 20}}, part="bytes_per_block")

def test_line(rulespack_pin):
    line = "vllm serve --hf-overrides.num_hidden_layers 10"
    rulespack_pin("./vendors", line, part="bytes_per_block")

def test_alone(rulespack_pin):
    rulespack_pin("./graph.yaml", {"hf_overrides": {"num_hidden_layers": 20}})

def test_bad(rulespack_pin):
    rulespack_pin("qwen3-14b", {"hf_overrides": {"num_hidden_layers": "many"}})
"""


def test_overrides_are_laid_over_what_is_pinned(run_pytest: Pytest, project: Path) -> None:
    catalog = ROOT / "models" / "qwen3-14b"
    (project / "vendors").mkdir()
    shutil.copy(catalog / "config.json", project / "vendors")
    shutil.copy(catalog / "graph.yaml", project)
    (project / "test_kv_plans.py").write_text(OVERRIDDEN)
    failed = failures(run_pytest("--snapshot-update", "-k", "alone or bad")[1])
    assert "hf_overrides change the configuration before a graph is derived" in failed["test_alone"]
    assert "qwen3-14b/config.json with hf_overrides: num_hidden_layers: is the string" in failed["test_bad"]
    assert run_pytest("--snapshot-update", "-k", "short or line")[0] == 0
    kept = pins(project)
    assert kept["test_short.txt"].endswith(f"bytes_per_block: {20 * 65_536}\n")
    assert 'hf_overrides: {"num_hidden_layers":20}' in kept["test_short.txt"]
    assert kept["test_line.txt"].endswith(f"bytes_per_block: {10 * 65_536}\n")
    assert run_pytest("-k", "short or line", "--rulespack-release", "0.31.0")[0] == 0


def test_what_the_engine_refuses_is_an_answer_and_can_be_pinned(run_pytest: Pytest, project: Path) -> None:
    (project / "test_kv_plans.py").write_text(
        "def test_too_little(rulespack_pin):\n"
        '    rulespack_pin("qwen3-14b", {"kv_cache_memory_bytes": 1}, part="refused")\n'
    )
    assert run_pytest("--snapshot-update")[0] == 0
    assert "refused.by: engine\nrefused.type: ValueError\nrefused.stage: groups\n" in "".join(pins(project).values())
    assert run_pytest("--rulespack-release", "0.31.0")[0] == 0


def test_weights_and_reasons_are_pinned_where_a_test_names_them(run_pytest: Pytest, project: Path) -> None:
    (project / "test_kv_plans.py").write_text(
        "def test_held(rulespack_pin):\n"
        '    rulespack_pin("qwen3-14b", {"tensor_parallel_size": 2}, part=["weights", "reasons.cache-dtype"])\n'
    )
    assert run_pytest("--snapshot-update")[0] == 0
    (text,) = pins(project).values()
    assert "weights.model: elements=7383941120 bytes=14767882240\n" in text
    assert "reasons.cache-dtype: auto: left to the model's own dtype\n" in text
    assert "groups" not in text


def test_a_test_runs_with_each_deployment_of_a_file_and_the_model_it_names(run_pytest: Pytest, project: Path) -> None:
    (project / "deployments.yaml").write_text("chat: vllm serve qwen3-14b -tp 2\nany:\n  gpu: B200\n")
    (project / "test_kv_plans.py").write_text(
        "import pytest\n\n"
        '@pytest.mark.rulespack_deployments("deployments.yaml", models=["gpt-oss-20b", "qwen3-8b"])\n'
        "def test_plan(model, deployment):\n    assert deployment.stated\n"
    )
    _, output = run_pytest("--collect-only", "-q")
    assert re.findall(r"\[(.*)\]", output) == ["qwen3-14b-chat", "gpt-oss-20b-any", "qwen3-8b-any"]
    (project / "deployments.yaml").write_text("chat:\n  tensor_paralel_size: 2\n")
    _, output = run_pytest()
    assert "deployments.yaml:1: chat: tensor_paralel_size" in output
    assert "did you mean tensor_parallel_size?" in output


def test_pytest_starts_without_the_core(run_pytest: Pytest, project: Path) -> None:
    shutil.rmtree(project / "__snapshots__")
    (project / "test_kv_plans.py").write_text(
        "import sys\n\ndef test_nothing():\n"
        f"    assert {RULESPACK_MODULES} == ['rulespack.testing', 'rulespack.testing.plugin']\n"
    )
    status, output = run_pytest()
    assert status == 0, output


def test_the_command_writes_a_first_test_file(run_pytest: Pytest, installed: Path, project: Path) -> None:
    def pin(*words: str) -> tuple[int, str]:
        command = [str(installed / "bin" / "rulespack"), "pin", *words]
        done = subprocess.run(command, cwd=project, env=AWAY, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    status, output = pin(
        "qwen3-14b", "--release", "0.29.0", "-tp", "2", "--tokens", "4096", "--out", "own/test_first.py"
    )
    assert status == 0, output
    assert "qwen3-14b, default: cache dtype auto, 40 caches in 1 group" in output
    status, output = pin(
        "gpt-oss-20b", "--release", "0.29.0", "--deployments", "deployments.yaml", "--out", "own/test_b.py"
    )
    assert status == 0, output
    assert '"../deployments.yaml"' in (project / "own" / "test_b.py").read_text()
    assert run_pytest("own", "--snapshot-update")[0] == 0
    assert len(pins(project / "own")) == 3
    assert run_pytest("own")[0] == 0

    status, output = pin("qwen3-14b", "--release", "0.29.0", "--out", "own/test_first.py")
    assert (status, "is there already" in output) == (2, True)
    status, output = pin(
        "qwen3-14b", "--release", "0.29.0", "--scheduler-cls", "ours.Scheduler", "--out", "own/test_c.py"
    )
    assert (status, "there is nothing to pin" in output) == (1, True)
    assert not (project / "own" / "test_c.py").exists()
    assert pin("--release", "0.29.0")[0] == 2
