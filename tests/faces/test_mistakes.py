"""What Python and the command say to a mistake: what is wrong with what was given, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import Run

import rulespack
from rulespack import BadDeployment, BadLength, Deployment, compare, load_model


@pytest.mark.parametrize("model", [None, 3, [], ["qwen3-14b"], b"qwen3-14b"])
def test_a_model_that_is_neither_name_nor_path(model: Any) -> None:
    with pytest.raises(TypeError, match=r"^a model is its name or a path, such as 'qwen3-14b', not "):
        load_model(model)


def test_models_to_compare_that_are_no_names() -> None:
    for models in (3, [None]):
        with pytest.raises(TypeError, match="a model is its name or a path"):
            compare("0.29.0", "0.31.0", models)  # type: ignore[arg-type]


@pytest.mark.parametrize("overrides", [[1], "sliding_window=3", 5])
def test_overrides_that_are_no_mapping(overrides: Any) -> None:
    with pytest.raises(BadDeployment, match=r"^hf_overrides: expected a mapping, got "):
        load_model("qwen3-14b", hf_overrides=overrides)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (0, "a request has at least 1 token, got 0"),
        (-5, "a request has at least 1 token, got -5"),
        ("4k", "expected a number of tokens, such as 4096, got '4k' (str)"),
        (4096.0, "expected a number of tokens, such as 4096, got 4096.0 (float)"),
        (True, "got True (bool)"),
        (None, "got None (NoneType)"),
        (40_961, "40960 is max_model_len; state a larger max_model_len to ask further"),
    ],
)
def test_a_length_that_no_request_has(tokens: Any, said: str) -> None:
    plan = rulespack.engine("0.31.0").plan(load_model("qwen3-14b"))
    with pytest.raises(BadLength) as caught:
        plan.request(tokens)
    assert str(caught.value).startswith("tokens: ")
    assert said in str(caught.value)
    if "max_model_len" not in said:
        with pytest.raises(BadLength):
            compare("0.29.0", "0.31.0", "qwen3-14b", tokens=[tokens])


def test_any_integer_is_a_length() -> None:
    class Counted:
        def __index__(self) -> int:
            return 4096

    plan = rulespack.engine("0.31.0").plan(load_model("qwen3-14b"))
    asked = plan.request(Counted())  # type: ignore[arg-type]
    assert asked == plan.request(4096)
    assert type(asked.tokens) is int


@pytest.mark.parametrize(
    ("deployments", "said"),
    [
        ([{"tensor_parallel_size": 2}], "names with the arguments of each"),
        ({"tensor_parallel_size": 2}, "the deployment 'tensor_parallel_size', got 2; one alone is Deployment(...)"),
    ],
)
def test_deployments_without_names(deployments: Any, said: str) -> None:
    with pytest.raises(BadDeployment) as caught:
        compare("0.29.0", "0.31.0", "qwen3-14b", deployments)
    assert said in str(caught.value)


def test_arguments_without_names() -> None:
    with pytest.raises(BadDeployment, match=r"stated by name, as in Deployment\(tensor_parallel_size=2\)"):
        Deployment({"tensor_parallel_size": 2})  # type: ignore[call-arg]
    with pytest.raises(BadDeployment, match=r"expected a Deployment, as Deployment\.of makes, got dict"):
        rulespack.engine("0.31.0").plan(load_model("qwen3-14b"), {"tensor_parallel_size": 2})  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["text", "html"])
def test_a_length_that_depends_on_a_memory_nobody_stated_is_refused_without_half_a_plan(run: Run, form: str) -> None:
    words = ("plan", "qwen3-14b", "--release", "0.31.0", "--max-model-len", "auto", "--format", form)
    done = run(*words)
    assert (done.status, done.out) == (1, "")
    assert "depends on memory: state kv_cache_memory_bytes" in done.err
    assert run(*words, "--kv-cache-memory-bytes", "64G").status == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("VLLM_USE_V2_MODEL_RUNER", "; did you mean VLLM_USE_V2_MODEL_RUNNER?"),
        ("VLLM_KV_CACHE_LAYOUTS", "; did you mean VLLM_KV_CACHE_LAYOUT?"),
        ("VLLM_FOO", " and ignores it: leave it out"),
        ("VLLM_ATTENTION_BACKEND", " and ignores it: leave it out"),
    ],
)
@pytest.mark.parametrize("release", rulespack.releases())
def test_a_variable_no_release_has_is_taken_for_another_only_where_one_is_near(
    release: str, name: str, said: str
) -> None:
    with pytest.raises(BadDeployment) as caught:
        rulespack.engine(release).plan(load_model("qwen3-14b"), Deployment(env={name: "1"}))
    assert str(caught.value) == f"env.{name}: vLLM {release} has no such environment variable{said}"


PLAN = ("plan", "--release", "0.31.0", "--model")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "qwen3-14b", "--relase", "0.31.0"), "did you mean --release?"),
        (("diff", "0.29.0", "0.31.0", "--deploymens", "x.yaml"), "did you mean --deployments?"),
        (("validate", "x", "--formt", "json"), "--formt: no option of this command; did you mean --format?"),
        (("show", "qwen3-14b", "qwen3-8b"), "'qwen3-8b' is one word too many"),
        (("diff", "0.29.0", "0.31.0", "qwen3-8b", "--kv-cache-dtype", "zz"), "knows it; known are auto, bfloat16, "),
        ((*PLAN, "nope"), "rulespack models lists the catalog"),
        ((*PLAN, "Nobody/Model-7B"), "name the config.json of that repository, downloaded"),
        ((*PLAN, "Qwen/Qwen3-99B"), "did you mean qwen3-8b? Else name the config.json of that repository"),
        ((*PLAN, r"C:\models\config.json"), "write the path with / between its folders"),
        ((*PLAN, "qwen3-14b", "--gpu", "H20"), '"memory_bytes": N}; did you mean H200?'),
        ((*PLAN, "qwen3-14b", "--tokens", "0"), "a request has at least 1 token, got '0'"),
    ],
)
def test_a_word_that_is_not_right_is_told_with_what_to_write(run: Run, words: tuple[str, ...], said: str) -> None:
    done = run(*words)
    assert (done.status, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1


FILES = {
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "fetch it with git lfs pull"),
    "page": (b"\n<!DOCTYPE html><html></html>", "is a web page, not JSON; download the raw file"),
    "gated": (b'{"error": "Access to this model is restricted"}', "is a server's answer, the string"),
    "latin": ('{"name": "caf\u00e9"}'.encode("latin-1"), "is not UTF-8 text (byte 13); save it as UTF-8"),
    "unknown": (b'{"architectures": ["NobodysForCausalLM"]}', "is not translated; write a graph.yaml of the model"),
    "newer": (b'{"architectures": ["Qwen33ForCausalLM"]}', "is not translated (Qwen3ForCausalLM, "),
}


@pytest.mark.parametrize(("content", "said"), FILES.values(), ids=FILES)
def test_a_file_that_is_no_configuration_is_told_as_what_it_is(
    run: Run, tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    for words in (("plan", "config.json", "--release", "0.31.0"), ("derive", "config.json")):
        done = run(*words)
        assert (done.status, done.out) == (1, "")
        assert said in done.err
        assert done.err.startswith("rulespack: config.json: ")
