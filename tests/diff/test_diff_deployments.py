"""A file of named deployments: mappings as vLLM's arguments, command lines as vLLM parses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from in_process import Command

from rulespack import BadDeployment, Deployment
from rulespack.cli.deployments import Named, load_deployments


def read(tmp_path: Path, text: str, common: dict[str, Any] | None = None) -> dict[str, Named]:
    file = tmp_path / "deployments.yaml"
    file.write_text(text, encoding="utf-8")
    return {named.name: named for named in load_deployments(file, common)}


def test_arguments_and_command_lines(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        r"""
        chat: {tensor_parallel_size: 2, kv-cache-dtype: fp8}
        plain:
        served: >
          VLLM_USE_V2_MODEL_RUNNER=0 vllm serve openai/gpt-oss-120b \
            -tp 8 --max-model-len 32k --served-model-name a b --no-enable-prefix-caching
        module: python -m vllm.entrypoints.openai.api_server --model qwen3-14b --gpu B200
        flags: --kv-transfer-config.kv_connector NixlConnector --kv-transfer-config.kv_role kv_both
        """,
    )
    assert list(found) == ["chat", "plain", "served", "module", "flags"]
    assert found["chat"].deployment == Deployment(tensor_parallel_size=2, kv_cache_dtype="fp8")
    assert found["plain"].deployment == Deployment()
    assert found["served"].model == "openai/gpt-oss-120b"
    assert found["served"].deployment == Deployment(
        tensor_parallel_size=8,
        max_model_len=32_000,
        served_model_name=["a", "b"],
        enable_prefix_caching=False,
        env={"VLLM_USE_V2_MODEL_RUNNER": "0"},
    )
    assert (found["module"].model, found["module"].deployment) == ("qwen3-14b", Deployment(gpu="B200"))
    assert found["flags"].deployment.kv_transfer_config == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}


def test_a_model_among_the_arguments_is_whom_they_are_for(tmp_path: Path) -> None:
    found = read(tmp_path, "mine: {model: qwen3-14b, block_size: 32}\n")
    assert (found["mine"].model, found["mine"].deployment) == ("qwen3-14b", Deployment(block_size=32))


def test_what_is_common_holds_where_nothing_else_is_stated(tmp_path: Path) -> None:
    found = read(tmp_path, "a: {gpu: H100}\nb: -tp 2\n", {"gpu": "B200", "tensor_parallel_size": 4})
    assert found["a"].deployment == Deployment(gpu="H100", tensor_parallel_size=4)
    assert found["b"].deployment == Deployment(gpu="B200", tensor_parallel_size=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: vllm serve x --tensor-paralel-size 2", "deployments.yaml:1: a: --tensor-paralel-size: no release"),
        ("a: vllm serve x --tensor-paralel-size 2", "did you mean --tensor-parallel-size?"),
        ("a: {}\nb: {kv_cache_dtyp: fp8}", "deployments.yaml:2: b: kv_cache_dtyp: no release"),
        ("a: {kv_cache_dtyp: fp8}", "did you mean kv_cache_dtype?"),
        ("a: {tensor_parallel_size: two}", "expected an integer, got 'two'"),
        ("a: {gpu: H20}", "did you mean H200?"),
        ("a: {block_size: 1_6}", "block_size: 1_6 could be read as a number"),
        ("a: ollama run x", "begins with vllm serve, or with a flag, not with 'ollama run'"),
        ("a: vllm serve x y", "'y' is no flag, and the model is x already"),
        ('a: "vllm serve \'x"', "no closing quotation"),
        ("a: vllm serve x --config f.yaml", "a vLLM configuration file is not read here"),
        ("a: [1]", "expected a mapping of arguments, or a vllm serve command line"),
        ("a: {model: 3}", "model: expected a name or a path, got 3"),
        ("a: {}\na: {}", "deployments.yaml:2"),
        ("- a", "expected names of deployments"),
        ("", "there is no YAML document"),
        ("a: {", "this is not YAML"),
        ("a: vllm serve x -cc '{\"b\": 1}'", "that holds ': ' stands below its name, indented, after `name: >`"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadDeployment) as error:
        read(tmp_path, text)
    assert said in str(error.value)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("rest", "word"),
    [
        ("> log 2>&1", ">"),
        ("2>&1", "2>&1"),
        ("| tee log", "|"),
        ("&& echo done", "&&"),
        ("-tp 2; echo done", "2;"),
        ("< /dev/null", "<"),
        ("&", "&"),
        ("--served-model-name 'a b'>log", "'a b'>log"),
    ],
)
def test_what_only_a_shell_reads_is_no_value_of_a_flag(tmp_path: Path, rest: str, word: str) -> None:
    with pytest.raises(BadDeployment) as error:
        read(tmp_path, f"a: {{}}\nb: >-\n  vllm serve qwen3-14b --served-model-name mine {rest}\n")
    assert f"deployments.yaml:2: b: {word!r} is for a shell" in str(error.value)


def test_what_a_shell_would_read_is_a_value_in_quotes(tmp_path: Path) -> None:
    found = read(tmp_path, r"""a: vllm serve x --served-model-name 'a|b' "c \" > d" e\;f g""")
    assert found["a"].deployment == Deployment(served_model_name=["a|b", 'c " > d', "e;f", "g"])


@pytest.mark.parametrize("words", [("diff", "0.29.0", "0.31.0"), ("pin", "--release", "0.31.0")])
def test_a_misspelt_model_is_named_with_its_place(command: Command, tmp_path: Path, words: tuple[str, ...]) -> None:
    file = tmp_path / "deployments.yaml"
    file.write_text("a: {model: qwen3-14b}\nb: vllm serve qwen3-14c -tp 2\n", encoding="utf-8")
    done = command(*words, "--deployments", str(file))
    assert (done.status, done.out) == (2, "")
    assert f"{file}:2: b: model: no model named 'qwen3-14c'" in done.err
    assert "did you mean qwen3-14b?" in done.err


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadDeployment, match="cannot be read: No such file"):
        load_deployments(tmp_path / "none.yaml")
