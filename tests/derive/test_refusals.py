"""What cannot be translated is refused, with the file, the architecture and the key that stopped it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rulespack.catalog import names, root
from rulespack.derive import InvalidConfig, derive_file
from rulespack.derive.document import CONFIG_FILES

Write = Callable[..., Path]


def refused(folder: Path) -> InvalidConfig:
    with pytest.raises(InvalidConfig) as caught:
        derive_file(folder)
    assert str(folder) in str(caught.value)
    return caught.value


def test_an_architecture_nobody_serves_is_named(write: Write, llama: dict[str, Any]) -> None:
    error = refused(write({**llama, "architectures": ["MambaForCausalLM"]}))
    assert (error.path, error.architecture) == ("architectures", "MambaForCausalLM")
    assert "LlamaForCausalLM" in error.problem


@pytest.mark.parametrize("architectures", [None, [], "LlamaForCausalLM", [1]])
def test_a_file_must_name_its_architecture(write: Write, llama: dict[str, Any], architectures: object) -> None:
    assert refused(write({**llama, "architectures": architectures})).path.startswith("architectures")


@pytest.mark.parametrize(
    "key",
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size", "model_type"],
)
def test_a_missing_key_is_named(write: Write, llama: dict[str, Any], key: str) -> None:
    del llama[key]
    error = refused(write(llama))
    assert (error.path, error.architecture) == (key, "LlamaForCausalLM")
    assert "missing" in error.problem


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
@pytest.mark.parametrize("value", ["32", 32.0, True, None, [32], {}, -1, 0, 10**13])
def test_a_count_must_be_a_sane_integer(write: Write, llama: dict[str, Any], key: str, value: object) -> None:
    assert refused(write({**llama, key: value})).path == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tie_word_embeddings", "yes"),
        ("tie_word_embeddings", None),
        ("torch_dtype", "float8"),
        ("head_dim", "128"),
        ("num_key_value_heads", 5),
        ("rope_scaling", "yarn"),
        ("sliding_window", -1),
        ("layer_types", ["full_attention"]),
        ("layer_types", ["full_attention", "mamba", "full_attention", "full_attention"]),
        ("quantization_config", []),
    ],
)
def test_a_mistyped_or_senseless_value_is_named(write: Write, llama: dict[str, Any], key: str, value: object) -> None:
    assert refused(write({**llama, key: value})).path.startswith(key)


@pytest.mark.parametrize(
    ("key", "section", "path"),
    [
        ("rope_scaling", {"rope_type": "spiral", "factor": 2.0}, "rope_scaling.rope_type"),
        ("rope_scaling", {"factor": 2.0}, "rope_scaling.rope_type"),
        ("rope_scaling", {"rope_type": "linear", "factor": "2"}, "rope_scaling.factor"),
        ("quantization_config", {"quant_method": "awq"}, "quantization_config.quant_method"),
        ("quantization_config", {}, "quantization_config.quant_method"),
        (
            "quantization_config",
            {"quant_method": "fp8", "weight_block_size": [128]},
            "quantization_config.weight_block_size",
        ),
        ("quantization_config", {"quant_method": "modelopt", "quant_algo": "INT3"}, "quantization_config.quant_algo"),
    ],
)
def test_a_key_inside_an_object_is_named_by_its_path(
    write: Write, llama: dict[str, Any], key: str, section: object, path: str
) -> None:
    assert refused(write({**llama, key: section})).path == path


def test_a_key_of_a_nested_text_configuration_is_named_by_its_path(write: Write, llama: dict[str, Any]) -> None:
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    del llama["hidden_size"]
    assert refused(write({**outer, "text_config": llama})).path == "text_config.hidden_size"


def test_a_key_of_mistrals_own_format_is_named_in_its_own_words(write: Write) -> None:
    params = {"dim": 4096, "n_layers": "2", "n_heads": 32, "max_position_embeddings": 32768, "vocab_size": 32768}
    assert refused(write(params, "params.json")).path == "n_layers"


@pytest.mark.parametrize(
    ("key", "value"), [("num_experts_per_tok", 64), ("kv_lora_rank", None), ("index_topk", 2048), ("v_head_dim", 0)]
)
def test_a_latent_model_must_hang_together(write: Write, deepseek: dict[str, Any], key: str, value: object) -> None:
    assert refused(write({**deepseek, key: value})).path == key


@pytest.mark.parametrize(
    ("architecture", "key", "value"),
    [
        ("Qwen2ForCausalLM", "use_sliding_window", True),
        ("Qwen2ForCausalLM", "head_dim", 128),
        ("Gemma3ForCausalLM", "use_bidirectional_attention", True),
        ("Gemma4ForCausalLM", "num_kv_shared_layers", 2),
        ("GptOssForCausalLM", "layer_types", ["full_attention"] * 4),
    ],
)
def test_an_option_that_changes_shapes_is_refused_where_it_is_not_translated(
    write: Write, llama: dict[str, Any], architecture: str, key: str, value: object
) -> None:
    error = refused(write({**llama, "architectures": [architecture], key: value}))
    assert (error.path, error.architecture) == (key, architecture)


@pytest.mark.parametrize(
    ("key", "value", "stopped"),
    [
        ("kv_source_layer_ids", [8, 14, 20], "kv_source_layer_ids"),
        ("kv_source_layer_ids", [2, 3, 8, 14, 20], "index_source_layer_ids"),
        ("compress_ratios", [0] * 39, "compress_ratios"),
        ("compress_ratios", [0, 0, 4] + [1] * 37, "compress_ratios"),
        ("engram_layer_ids", [1], "engram_num_embeddings"),
        ("head_dim", 256, "head_dim"),
        ("num_key_value_heads", 2, "num_key_value_heads"),
    ],
)
def test_deepseek_v41s_lists_must_agree(key: str, value: object, stopped: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        derive_file(root() / "deepseek-v4.1-flash" / "config.json", overrides={"text_config": {key: value}})
    assert caught.value.path == f"text_config.{stopped}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "a list"),
        ("null", "null"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{"a": {"b": 1, "b": 1}}', "twice"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' * 40 + "1" + "}" * 40, "levels deep"),
        ('{"a": 1' + "0" * 5000 + "}", "number"),
    ],
)
def test_a_file_that_is_not_a_json_object_is_refused(write: Write, text: str, said: str) -> None:
    assert said in str(refused(write(text)))


def test_a_file_that_is_not_text_is_refused(write: Write) -> None:
    home = write("{}")
    (home / "config.json").write_bytes(b"\xff\xfe{}")
    assert "UTF-8" in str(refused(home))


def test_a_file_past_any_sane_size_is_refused(write: Write) -> None:
    assert "larger than" in str(refused(write('{"a": "' + "x" * 5_000_000 + '"}')))


def test_malformed_json_is_refused_with_its_line(write: Write) -> None:
    assert refused(write('{\n"a": 1,\n}')).line == 3


def test_a_folder_without_a_configuration_says_what_was_looked_for(tmp_path: Path) -> None:
    assert all(name in str(refused(tmp_path)) for name in CONFIG_FILES)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in str(refused(tmp_path / "config.json"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
CONFIGS = {name: next(file for file in CONFIG_FILES if (root() / name / file).exists()) for name in names()}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), name=st.sampled_from(sorted(CONFIGS)), value=JSON)
def test_any_value_in_place_of_a_fact_is_translated_or_refused(data: st.DataObject, name: str, value: object) -> None:
    from rulespack.derive.document import read_document

    file = root() / name / CONFIGS[name]
    facts = read_document(file).data
    text = facts.get("text_config", facts)
    key = data.draw(st.sampled_from(sorted(text)))
    overrides = {"text_config": {key: value}} if text is not facts else {key: value}
    with suppress(InvalidConfig):
        assert derive_file(file, overrides=overrides).layer_kinds
