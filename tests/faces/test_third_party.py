"""Packs and overrides of others: a package that is installed beside the project is found by its entry points."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from command_line import Run

from tests.surroundings import CHECKOUT

SOURCES = Path(__file__).parent / "third_party"


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    """A folder with a package's modules, to be put on the path; :func:`installed` writes its entry points."""
    return Path(shutil.copytree(SOURCES, tmp_path / "site"))


def installed(folder: Path, entry_points: str) -> dict[str, str]:
    """The environment of a process that has the package installed."""
    information = folder / "acme-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(entry_points)
    return {"PYTHONPATH": os.pathsep.join((str(folder), CHECKOUT))}


def test_a_pack_of_another_engine(run: Run, acme: Path) -> None:
    env = installed(acme, "[rulespack.packs]\nacme_1_2 = acme_engine\n")
    assert run("releases", "--engine", "acme", env=env).out == "1.2.0\n"
    words = ("plan", "qwen3-14b", "--engine", "acme", "--release", "1.2.0")
    plan = json.loads(run(*words, "--format", "json", "--tokens", "33", env=env).out)
    assert plan["bytes_per_block"] == 32 * 4096 * 40
    assert plan["requests"][0]["blocks"] == 2
    assert plan["caches"][-1] == ["block.39", 0]
    text = run(*words, env=env)
    assert "qwen3-14b on acme 1.2.0" in text.out
    refused = run(*words, "-tp", "2", env=env)
    assert refused.status == 1
    assert "acme 1.2.0 refuses this: ValueError at stage config: this engine runs on one GPU" in refused.err
    question = {"engine": "acme", "release": "1.2.0", "model": "qwen3-14b"}
    answer = json.loads(run("batch", stdin=json.dumps(question).encode(), env=env).out)
    assert answer["plan"]["engine"] == "acme"


def test_an_override_answers_its_one_question_and_all_that_follows_hears_it(run: Run, acme: Path) -> None:
    env = installed(acme, "[rulespack.overrides]\nvllm_0_31.acme = acme_fork\n")
    words = ("qwen3-14b", "--format", "json", "--release")
    forked = json.loads(run("plan", *words, "0.31.0", env=env).out)
    plain = json.loads(run("plan", *words, "0.31.0").out)
    assert forked["resolved"]["cache_dtype"] == "fp8"
    assert forked["bytes_per_block"] * 2 == plain["bytes_per_block"]
    assert forked["reasons"][0]["source"] == "override"
    told_otherwise = ("plan", *words, "0.31.0", "--kv-cache-dtype", "bfloat16")
    assert json.loads(run(*told_otherwise, env=env).out) == json.loads(run(*told_otherwise).out)
    assert json.loads(run("plan", *words, "0.29.0", env=env).out) == json.loads(run("plan", *words, "0.29.0").out)


@pytest.mark.parametrize(
    ("entry_points", "said"),
    [
        ("[rulespack.packs]\nacme_next = acme_engine\n", "does not name an engine and a release"),
        ("[rulespack.packs]\nacme_2_0 = acme_engine\n", "the pack 'acme_2_0' says it is release '1.2.0'"),
    ],
)
def test_a_pack_that_is_not_what_its_name_says(run: Run, acme: Path, entry_points: str, said: str) -> None:
    env = installed(acme, entry_points)
    done = run("plan", "qwen3-14b", "--engine", "acme", "--release", "2.0", env=env)
    assert (done.status, done.out) == (1, "")
    assert said in done.err
