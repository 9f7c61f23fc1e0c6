"""vLLM's flags, spelled as its own parser takes them."""

from __future__ import annotations

from typing import Any

import pytest

from rulespack.cli.flag_kinds import OTHER_KINDS
from rulespack.cli.flags import modelled_flags, split, whole_number
from rulespack.cli.plan import OPTIONS
from rulespack.cli.terminal import Usage
from rulespack.deployment import Deployment
from rulespack.releases import known_arguments

#: A value of each kind, as it is typed and as it is read.
SAMPLES = {
    "int": (["64"], 64),
    "float": (["0.5"], 0.5),
    "bool": ([], True),
    "str": (["word"], "word"),
    "tuple[str, ...]": (["a", "b"], ["a", "b"]),
    "Mapping[str, Any]": (['{"key": 1}'], {"key": 1}),
}


def flags(*words: str) -> dict[str, Any]:
    stated, rest = split(["qwen3-14b", *words], OPTIONS)
    assert rest == ["qwen3-14b"]
    return stated


@pytest.mark.parametrize(("flag", "kind"), modelled_flags().items())
def test_every_modelled_argument_is_a_flag(flag: str, kind: str) -> None:
    typed, read = SAMPLES[kind]
    name = flag[2:].replace("-", "_")
    assert flags(flag, *typed) == {name: read}
    assert flags(flag.replace("-", "_").replace("__", "--", 1), *typed) == {name: read}
    Deployment(**flags(flag, *typed))


def test_the_modelled_arguments_are_those_of_a_deployment() -> None:
    names = {flag[2:].replace("-", "_") for flag in modelled_flags()}
    assert names == set(Deployment.__annotations__) - {"gpu", "env"}


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (["-tp", "2"], {"tensor_parallel_size": 2}),
        (["-tp=2"], {"tensor_parallel_size": 2}),
        (["-pp", "4", "-dp", "2"], {"pipeline_parallel_size": 4, "data_parallel_size": 2}),
        (["-dcp", "8", "-pcp", "2"], {"decode_context_parallel_size": 8, "prefill_context_parallel_size": 2}),
        (["-ep"], {"enable_expert_parallel": True}),
        (["-q", "fp8"], {"quantization": "fp8"}),
        (["-sc", '{"method": "ngram"}'], {"speculative_config": {"method": "ngram"}}),
        (["--tensor-parallel-size=2"], {"tensor_parallel_size": 2}),
        (["--tensor_parallel_size=2"], {"tensor_parallel_size": 2}),
        (["--device-memory-utilization", "0.8"], {"gpu_memory_utilization": 0.8}),
        (["--enable-prefix-caching"], {"enable_prefix_caching": True}),
        (["--no-enable-prefix-caching"], {"enable_prefix_caching": False}),
        (["--no_enable_prefix_caching"], {"enable_prefix_caching": False}),
        (["--no-disable-hybrid-kv-cache-manager"], {"disable_hybrid_kv_cache_manager": False}),
        (["--enforce-eager", "--no-enforce-eager"], {"enforce_eager": False}),
        (["--block-size", "16", "--block-size", "64"], {"block_size": 64}),
        (["--block-size", "None"], {"block_size": None}),
        (
            ["--kv-cache-dtype-skip-layers", "0", "sliding_window"],
            {"kv_cache_dtype_skip_layers": ["0", "sliding_window"]},
        ),
        (["--num-gpu-blocks-override", "-1"], {"num_gpu_blocks_override": -1}),
    ],
)
def test_spellings(words: list[str], stated: dict[str, Any]) -> None:
    assert flags(*words) == stated


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("32k", 32_000),
        ("32K", 32_768),
        ("25.6k", 25_600),
        ("1m", 10**6),
        ("1M", 1 << 20),
        ("80g", 80 * 10**9),
        ("80G", 80 << 30),
    ],
)
def test_lengths_with_a_suffix(text: str, number: int) -> None:
    assert flags("--max-model-len", text) == {"max_model_len": number}
    assert flags("--max-num-batched-tokens", text) == {"max_num_batched_tokens": number}
    assert flags("--kv-cache-memory-bytes", text) == {"kv_cache_memory_bytes": number}
    assert whole_number(text) == number


@pytest.mark.parametrize("text", ["auto", "-1", "AUTO"])
def test_a_length_the_engine_fits_itself(text: str) -> None:
    assert flags("--max-model-len", text) == {"max_model_len": -1}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-model-len", "1.5K"], "suffix k"),
        (["--block-size", "16k"], "expected an integer, got '16k'"),
        (["--block-size"], "a value must follow"),
        (["--block-size", "--enforce-eager"], "a value must follow"),
        (["--gpu-memory-utilization", "nan"], "expected a number"),
        (["--enforce-eager=true"], "say --enforce-eager or --no-enforce-eager"),
        (["--kv-transfer-config", "{no"], "not JSON"),
        (["--kv-transfer-config.", "x"], "a key is missing"),
        (["--kv-cache-dtype-skip-layers"], "at least one value"),
        (["--config", "serve.yaml"], "state its flags"),
        (["--port"], "a value must follow"),
        (["--port", "--enforce-eager"], "a value must follow"),
        (["--port", "http"], "expected an integer, got 'http'"),
        (["--seed", "None"], "expected an integer, got 'None'"),
        (["-n", "two"], "expected an integer, got 'two'"),
        (["--watermark", "high"], "expected a number, got 'high'"),
        (["--host"], "a value must follow"),
        (["--served-model-name"], "at least one value"),
        (["--cudagraph-capture-sizes", "1", "2", "x"], "expected an integer, got 'x'"),
        (["--enable-eplb=yes"], "say --enable-eplb or --no-enable-eplb"),
        (["--no-enable-eplb=yes"], "say --enable-eplb or --no-enable-eplb"),
        (["--eplb-config", "many"], "not JSON"),
        (["--no-port"], "no release there is a pack for has this flag"),
        (["--no-block-size"], "no release there is a pack for has this flag"),
    ],
)
def test_a_value_that_cannot_be_read_is_told_with_its_flag(words: list[str], said: str) -> None:
    with pytest.raises(Usage, match="^-") as caught:
        flags(*words)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (["--port", "8000"], {"port": 8000}),
        (["--max-log-len", "None"], {"max_log_len": None}),
        (["--served-model-name", "7b"], {"served_model_name": ["7b"]}),
        (["--revision", "1e5"], {"revision": "1e5"}),
        (["--max-num-queued-tokens", "32K"], {"max_num_queued_tokens": 32_768}),
        (["--cudagraph-capture-sizes", "1", "2"], {"cudagraph_capture_sizes": [1, 2]}),
        (["--allowed-origins", '["*"]'], {"allowed_origins": ["*"]}),
        (["--eplb-config", '{"window_size": 1k}'], {"eplb_config": {"window_size": 1000}}),
        (["--no-enable-eplb", "--enable-sleep-mode"], {"enable_eplb": False, "enable_sleep_mode": True}),
        (["--hf-token"], {"hf_token": True}),
        (["--hf-token", "abc"], {"hf_token": "abc"}),
    ],
)
def test_a_flag_that_changes_no_plan_is_read_as_strictly(words: list[str], stated: dict[str, Any]) -> None:
    assert flags(*words) == stated


def test_every_kind_is_that_of_a_flag_some_release_has() -> None:
    assert OTHER_KINDS.keys() <= known_arguments().keys()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kv-cache-memory-bytes", "64GB"], "write 64G (powers of 1024) or 64g (powers of 1000)"),
        (["--kv-cache-memory-bytes", "64 gib"], "write 64G (powers of 1024) or 64g"),
        (["--kv-cache-memory-bytes", "1.5GB"], "; write 1.5g (powers of 1000)"),
        (["--max-model-len", "128kb"], "write 128K (powers of 1024) or 128k"),
        (["--block-size", "16k"], "this flag takes no suffix: write the number out"),
        (["--max-loras", "1K"], "this flag takes no suffix: write the number out"),
    ],
)
def test_a_size_as_people_write_it_is_told_how_the_engine_reads_one(words: list[str], said: str) -> None:
    with pytest.raises(Usage) as caught:
        flags(*words)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (
            ["--kv-transfer-config.kv_connector", "NixlConnector", "--kv-transfer-config.kv_role=kv_both"],
            {"kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"}},
        ),
        (
            ["-sc.method", "ngram", "-sc.num_speculative_tokens", "3"],
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        ),
        (["--hf-overrides.text_config.num_layers", "4"], {"hf_overrides": {"text_config": {"num_layers": 4}}}),
        (["--attention_config.use_non_causal", "true"], {"attention_config": {"use_non_causal": True}}),
        (["--hf-overrides.list+", "a", "--hf-overrides.list+=b,c"], {"hf_overrides": {"list": ["a", "b", "c"]}}),
        (["--kv-transfer-config.kv_buffer_size", "80g"], {"kv_transfer_config": {"kv_buffer_size": 80 * 10**9}}),
        (
            ["--kv-transfer-config", '{"kv_buffer_size": 1K, "kv_role": "1K"}'],
            {"kv_transfer_config": {"kv_buffer_size": 1024, "kv_role": "1K"}},
        ),
        (["--kv-transfer-config", '{"a": 1}', "--kv-transfer-config.b", "2"], {"kv_transfer_config": {"b": 2}}),
    ],
)
def test_json_keys_one_by_one(words: list[str], stated: dict[str, Any]) -> None:
    assert flags(*words) == stated
