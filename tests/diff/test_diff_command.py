"""``rulespack diff`` as it is typed: formats, exit status, mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from in_process import Command

BOTH = ("diff", "0.29.0", "0.31.0")
MORIIO = ("--kv-transfer-config.kv_connector", "MoRIIOConnector", "--kv-transfer-config.kv_role", "kv_both")


def test_the_summary_first_and_then_what_changed(command: Command) -> None:
    done = command(*BOTH)
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert re.fullmatch(r"vllm 0\.29\.0 -> 0\.31\.0: \d+ models, 1 deployment", lines[0])
    order = ["holds less in the same memory", "gemma-3-4b-it: changed", "deepseek-v4.1-flash: newly served"]
    order += ["what the releases accept", "same"]
    places = [lines.index(line) for line in order]
    assert places == sorted(places)
    assert "  block size                   16 -> 64" in lines
    assert "  groups 0 to 4: block size 16 -> 64, page 65,536 (64 KiB) -> 262,144 (256 KiB), blocks per" in lines
    assert max(map(len, lines)) <= 100


def test_only_what_changed(command: Command) -> None:
    whole, changed = command(*BOTH), command(*BOTH, "--only", "changed")
    assert "\nsame\n" in whole.out
    assert "\nsame\n" not in changed.out
    assert "not modelled, so" not in changed.out
    assert whole.out.startswith(changed.out.rstrip("\n"))
    pairs = json.loads(command(*BOTH, "--only", "changed", "--format", "json").out)["pairs"]
    assert "same" not in {pair["status"] for pair in pairs}


def test_a_length_past_what_a_model_is_served_is_not_dropped_without_a_word(command: Command) -> None:
    models = ("gemma-3-4b-it", "qwen3-14b")
    done = command(*BOTH, *models, "--format", "json", "--tokens", "4k", "100000", "200000")
    assert done.status == 0
    past = "is past the longest request both releases serve of"
    assert done.err.splitlines() == [
        f"rulespack: --tokens 100,000 {past} qwen3-14b (40,960): not compared",
        f"rulespack: --tokens 200,000 {past} gemma-3-4b-it (131,072), qwen3-14b (40,960): not compared",
    ]
    compared = [[request["tokens"] for request in pair["requests"]] for pair in json.loads(done.out)["pairs"]]
    assert compared == [[4_000, 100_000, 131_072], [4_000, 40_960]]
    assert command(*BOTH, "qwen3-14b").err == ""
    assert re.search(r" and \d+ others: not compared$", command(*BOTH, "--tokens", "100M").err)


@pytest.mark.parametrize(("form", "mark"), [("text", "same"), ("md", "## Same"), ("html", "<h2>Same")])
def test_models_that_both_releases_refuse_are_not_said_to_be_the_same_without_a_word(
    command: Command, form: str, mark: str
) -> None:
    said = command(*BOTH, "qwen3-14b", "qwen3-0.6b", "-tp", "3", "--format", form).out
    assert f"{mark} (both refuse: 40 attention heads are not divisible by 3 ranks)" in said
    assert f"{mark} (both refuse: 16 attention heads are not divisible by 3 ranks)" in said
    served = command(*BOTH, "qwen3-14b", "--format", form).out
    assert mark in served
    assert "both refuse" not in served


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("qwen3-14b", "--exit-code"), 0),
        (("gemma-3-4b-it",), 0),
        (("gemma-3-4b-it", "--exit-code"), 1),
        (("qwen3-14b", "gemma-3-4b-it", "--exit-code", "--format", "json"), 1),
        (("--exit-code", "--format", "md", "deepseek-v4-flash"), 1),
        (("qwen3-14b", "--exit-code", "--num-gpu-blocks-override", "5"), 0),
    ],
)
def test_the_exit_status_says_whether_anything_differs_where_it_is_asked_to(
    command: Command, words: tuple[str, ...], status: int
) -> None:
    assert command(*BOTH, *words).status == status


def test_json_for_programs(command: Command) -> None:
    done = command(*BOTH, "gpt-oss-120b", "deepseek-v4.1-flash", *MORIIO, "--format", "json", "--tokens", "4k", "100")
    document = json.loads(done.out)
    assert (document["old"], document["new"], document["tokens"]) == ("0.29.0", "0.31.0", [4_000, 100])
    assert document["differs"] is True
    assert document["counts"] == {"changed": 1, "newly-served": 1}
    oss, flash = document["pairs"]
    assert oss["changes"][0] == {"key": "resolved.hybrid_kv_cache_manager", "old": False, "new": True}
    assert [request["tokens"] for request in oss["requests"]] == [100, 4_000, 131_072]
    assert oss["groups"][0]["kind"] == "split"
    assert {"rule", "because", "source"} <= oss["reasons"][0]["new"].keys()
    assert oss["old"]["plan"]["bytes_per_block"] == 1_179_648
    assert flash["old"]["refused"]["rule"] == "architecture-served"
    assert flash["new"]["plan"]["groups"] > 1
    assert [change["kind"] for change in document["accepts"]][:3] == [
        "cache_dtypes",
        "speculative_methods",
        "connectors",
    ]


def test_a_file_of_deployments(command: Command) -> None:
    Path("mine.yaml").write_text(
        "plain: {}\noffload: --kv-transfer-config.kv_connector MoRIIOConnector --kv-transfer-config.kv_role kv_both\n"
        "oss: vllm serve openai/gpt-oss-120b --gpu B200\n",
        encoding="utf-8",
    )
    asked = (*BOTH, "--deployments", "mine.yaml", "--format", "json")
    named = json.loads(command(*asked, "qwen3-14b", "gpt-oss-20b").out)
    assert [(pair["model"], pair["name"]) for pair in named["pairs"]] == [
        ("qwen3-14b", "plain"),
        ("qwen3-14b", "offload"),
        ("gpt-oss-20b", "plain"),
        ("gpt-oss-20b", "offload"),
    ]
    whole = json.loads(command(*asked, "--gpu", "A100").out)
    assert {pair["model"] for pair in whole["pairs"] if pair["name"] == "oss"} == {"gpt-oss-120b"}
    assert {pair["deployment"]["gpu"] for pair in whole["pairs"] if pair["name"] == "oss"} == {"B200"}
    assert {pair["deployment"]["gpu"] for pair in whole["pairs"] if pair["name"] == "plain"} == {"A100"}


def test_markdown_is_tables_that_hold(command: Command) -> None:
    text = command(*BOTH, "--format", "md").out
    assert text.startswith("# vllm 0.29.0 → 0.31.0\n")
    assert "| bytes per block | 327,680 (320 KiB) | 1,310,720 (1.25 MiB) | +300.0 % |" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table


def test_a_summary_and_annotations_for_github(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    done = command(*BOTH, "gemma-4-26b-a4b-nvfp4", "deepseek-v4-flash", "--format", "github")
    warning, notice = done.out.splitlines()
    assert warning.startswith("::warning title=gemma-4-26b-a4b-nvfp4%3A changed::0.29.0 -> 0.31.0: 0.11 %25 less")
    assert notice.startswith("::notice title=deepseek-v4-flash%3A newly accepted::0.29.0: refused, AssertionError")
    text = summary.read_text(encoding="utf-8")
    assert "## gemma-4-26b-a4b-nvfp4: changed" in text
    command(*BOTH, "qwen3-14b", "--format", "github")
    assert summary.read_text(encoding="utf-8").startswith(text), "a step may add to its summary"
    refused = command(*BOTH, "qwen3-14b", "--enable-bf16x3-router-gemm", "--format", "github").out
    assert refused.startswith("::error title=qwen3-14b%3A newly refused::")


def test_outside_of_github_the_summary_is_printed(command: Command) -> None:
    out = command(*BOTH, "gemma-3-4b-it", "--format", "github").out
    assert out.startswith("# vllm 0.29.0")
    assert out.splitlines()[-1].startswith("::warning title=gemma-3-4b-it")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("0.29.0",), "two releases are compared, the older first; there are packs for: 0.29.0, 0.31.0"),
        (("0.29.0", "0.31.1"), "no pack for vllm 0.31.1; releases there are packs for: 0.29.0, 0.31.0\n"),
        (("0.29.0", "0.31.0", "qwen3-14c"), "did you mean qwen3-14b?"),
        (("0.29.0", "0.31.0", "Qwen/Qwen3-14C"), "did you mean qwen3-14b?"),
        (("0.29.0", "0.31.0", "--kv-cache-dtpe", "fp8"), "did you mean --kv-cache-dtype?"),
        (("0.29.0", "0.31.0", "--kv-cache-dtype", "fp9"), "knows it; did you mean fp8?"),
        (("0.29.0", "0.31.0", "--attention-backend", "flash_atn"), "did you mean FLASH_ATTN?"),
        (("0.29.0", "0.31.0", "-sc.method", "eagle33"), "did you mean eagle3?"),
        (("0.29.0", "0.31.0", *MORIIO[:1], "MoriConnector"), "did you mean MoRIIOConnector?"),
        (("0.29.0", "0.31.0", "--gpu", "H20"), "did you mean H200?"),
        (("0.29.0", "0.31.0", "--format", "htm"), "did you mean html?"),
        (("0.29.0", "0.31.0", "--only", "change"), "did you mean changed?"),
        (("0.29.0", "0.31.0", "--deployments", "none.yaml"), "none.yaml: cannot be read"),
        (("0.29.0", "0.31.0", "--tokens", "many"), "expected lengths such as 4096 or 32k"),
    ],
)
def test_a_mistake_gets_one_sentence_and_the_nearest_right_word(
    command: Command, words: tuple[str, ...], said: str
) -> None:
    done = command("diff", *words)
    assert (done.status, done.out) == (2, "")
    assert said in done.err
    assert done.err.startswith("rulespack: ")
    assert done.err.count("\n") == 1


def test_a_backend_from_a_module_of_ones_own_is_no_mistake(command: Command) -> None:
    words = ("--kv-transfer-config", '{"kv_connector": "Mine", "kv_connector_module_path": "m", "kv_role": "kv_both"}')
    done = command(*BOTH, "qwen3-14b", *words)
    assert done.status == 0
    assert "not modelled" in done.out
