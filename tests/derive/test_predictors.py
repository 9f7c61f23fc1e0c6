"""The draft modules a checkpoint carries beside its layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rulespack.catalog import load_model, root
from rulespack.derive import InvalidConfig, derive_file
from rulespack.derive.errors import NotTranslated
from rulespack.graph.model import GEMM, Attention, Gather, ModelGraph, Speculator
from rulespack.graph.stack import Use, layers, uses
from rulespack.graph.weights import parameters

Write = Callable[..., Path]


def drafter(graph: ModelGraph) -> Speculator:
    assert graph.speculator is not None
    return graph.speculator


def draft_caches(graph: ModelGraph) -> list[Use]:
    """The caches the draft's layers own, in the order they run."""
    return [use for use in uses(graph, layers(graph, drafter(graph).stack)) if use.cache.owned]


@pytest.mark.parametrize("model", ["deepseek-v3", "deepseek-r1", "glm-4.7-flash"])
def test_a_predictor_keeps_one_latent_like_the_layers_before_it(model: str) -> None:
    graph = load_model(model)
    draft = drafter(graph)
    assert (draft.method, draft.modules, draft.num_spec_tokens, draft.drafting) == ("mtp", 1, 1, None)
    assert [(use.cache.name, use.node.op, use.cache.bytes_per_entry) for use in draft_caches(graph)] == [
        ("kv", "Attention", 576 * 2)
    ]


@pytest.mark.parametrize("model", ["deepseek-v3.2", "glm-5", "glm-5.2-fp8", "glm-5.3-nvfp4"])
def test_a_sparse_predictor_selects_for_itself(model: str) -> None:
    """GLM 5.2 and 5.3 share selections from layer to layer, and the layer past the last would share one too."""
    graph = load_model(model)
    assert drafter(graph).modules == 1
    assert [use.cache.name for use in draft_caches(graph)] == ["index", "kv"]


def test_a_predictor_norms_two_inputs_and_projects_them_to_one() -> None:
    graph = load_model("deepseek-v3")
    (kind,) = layers(graph, drafter(graph).stack)
    assert [node.role for node in kind.nodes[:4]] == ["mtp_enorm", "mtp_hnorm", "mtp_eh_proj", "input_norm"]
    assert kind.edges[:3] == ((0, 2), (1, 2), (2, 3))
    projection = kind.nodes[2]
    assert isinstance(projection, GEMM)
    assert (projection.n, projection.k, projection.weight_dtype) == (7168, 2 * 7168, "bf16")


def test_a_predictor_reads_the_tables_of_its_target_and_adds_none() -> None:
    graph = load_model("deepseek-v3")
    draft = drafter(graph)
    tables = [node for node in (*draft.embedding, *draft.head) if isinstance(node, (Gather, GEMM))]
    assert [node.aliases for node in tables] == ["embedding.embed_tokens", "head.lm_head"]
    assert {"mtp_embed_tokens", "mtp_lm_head"}.isdisjoint(parameters(graph).by_role("speculator"))


def test_a_tied_head_is_the_embedding_to_the_predictor_too(write: Write, deepseek: dict[str, Any]) -> None:
    graph = derive_file(write({**deepseek, "tie_word_embeddings": True}))
    assert drafter(graph).head[-1].aliases == "embedding.embed_tokens"


def test_several_modules_are_listed_one_after_another(write: Write, deepseek: dict[str, Any]) -> None:
    graph = derive_file(write({**deepseek, "num_nextn_predict_layers": 3}))
    draft = drafter(graph)
    assert (draft.modules, draft.num_spec_tokens) == (3, 3)
    assert draft.stack.pattern == ("mtp_moe",) * 3
    assert draft.stack.repeat == 1
    assert [use.layer for use in draft_caches(graph)] == [0, 1, 2]


def test_a_deepseek_v3_that_does_not_count_its_modules_has_the_one_its_class_supplies(
    write: Write, deepseek: dict[str, Any]
) -> None:
    assert drafter(derive_file(write(deepseek))).modules == 1


@pytest.mark.parametrize("stated", [0, None])
def test_a_checkpoint_that_counts_no_modules_carries_none(write: Write, deepseek: dict[str, Any], stated: int) -> None:
    assert derive_file(write({**deepseek, "num_nextn_predict_layers": stated})).speculator is None


@pytest.mark.parametrize(
    "model", ["deepseek-v2-lite", "kimi-k2-instruct", "kimi-k2.5", "mistral-small-4-119b-2603", "qwen3-8b"]
)
def test_models_without_a_predictor_have_none(model: str) -> None:
    assert load_model(model).speculator is None


def test_modules_are_counted_by_model_type_where_the_engine_does(write: Write, deepseek: dict[str, Any]) -> None:
    kimi = {**deepseek, "model_type": "kimi_k2", "num_nextn_predict_layers": 1}
    assert derive_file(write(kimi)).speculator is None


@pytest.mark.parametrize("stated", [-1, 65, "one", True])
def test_an_absurd_number_of_modules_is_refused(write: Write, deepseek: dict[str, Any], stated: object) -> None:
    with pytest.raises(InvalidConfig, match="num_nextn_predict_layers"):
        derive_file(write({**deepseek, "num_nextn_predict_layers": stated}))


@pytest.mark.parametrize("model", ["deepseek-v4-flash", "deepseek-v4-pro"])
def test_deepseek_v4_predicts_with_a_window_and_no_compressed_cache(model: str) -> None:
    graph = load_model(model)
    assert (drafter(graph).method, drafter(graph).modules) == ("mtp", 1)
    (use,) = draft_caches(graph)
    assert (use.cache.name, use.cache.window, use.node.op) == ("swa", 128, "Attention")
    roles = parameters(graph).by_role("speculator")
    assert {"mtp_e_proj", "mtp_h_proj", "mtp_hc_head_fn"} <= roles.keys()
    assert "hash_expert_ids" not in roles


@pytest.mark.parametrize(("model", "rank"), [("deepseek-v4-flash-0731", 256), ("deepseek-v4-pro-0813", 512)])
def test_a_deepseek_v4_with_dspark_drafts_a_block_with_three_window_layers(model: str, rank: int) -> None:
    graph = load_model(model)
    draft = drafter(graph)
    assert (draft.method, draft.num_spec_tokens, draft.drafting) == ("dspark", 5, "parallel_block")
    uses = draft_caches(graph)
    assert [(use.layer, use.cache.name, use.cache.window) for use in uses] == [(n, "swa", 128) for n in range(3)]
    assert {use.node.window for use in uses if isinstance(use.node, Attention)} == {128 + 5}
    assert parameters(graph).by_role("speculator")["markov_w2"].elements == 129280 * rank


def test_a_deepseek_v4_says_how_many_dspark_layers_it_has(tmp_path: Path) -> None:
    data = json.loads((root() / "deepseek-v4-flash-0731" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**data, "n_mtp_layers": 2, "enable_confidence_head": False}))
    draft = drafter(derive_file(tmp_path))
    assert draft.stack.pattern == ("dspark", "dspark")
    assert [node.role for node in draft.sequential_head] == ["markov_w1", "markov_w2"]


@pytest.mark.parametrize("model", ["qwen3-next-80b-a3b-instruct", "qwen3.5-4b", "qwen3.5-35b-a3b", "qwen3.6-27b-nvfp4"])
def test_a_model_of_gated_delta_nets_predicts_with_full_attention(model: str) -> None:
    graph = load_model(model)
    assert drafter(graph).modules == 1
    (use,) = draft_caches(graph)
    assert (use.cache.name, use.cache.kind, use.node.op) == ("kv", "kv", "Attention")


def test_the_modules_of_a_qwen_share_one_projection_which_ranks_share(write: Write, qwen: dict[str, Any]) -> None:
    qwen["text_config"]["mtp_num_hidden_layers"] = 2
    graph = derive_file(write(qwen))
    draft = drafter(graph)
    assert (draft.modules, draft.stack.pattern) == (2, ("mtp_full_dense",) * 2)
    assert [node.role for node in draft.embedding][-2:] == ["mtp_eh_proj", "mtp_eh_out"]
    assert parameters(graph).by_role("speculator")["mtp_eh_proj"].elements == 1024 * 2 * 1024


def test_an_nvfp4_qwen_keeps_its_predictor_in_its_own_dtype() -> None:
    assert set(parameters(load_model("qwen3.5-397b-a17b-nvfp4")).by_dtype("speculator")) == {"bf16"}


def test_one_module_of_a_nemotron_is_two_layers() -> None:
    graph = load_model("nvidia-nemotron-3-ultra-550b-a55b-bf16")
    draft = drafter(graph)
    assert (draft.modules, draft.num_spec_tokens) == (1, 1)
    assert draft.stack.pattern == ("mtp_attention", "mtp_moe")
    assert [(use.layer, use.cache.name) for use in draft_caches(graph)] == [(0, "kv")]


def test_a_nemotron_may_state_its_predictor_by_a_pattern(write: Write, nemotron: dict[str, Any]) -> None:
    stated = {**nemotron, "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "**E"}
    assert drafter(derive_file(write(stated))).stack.pattern == ("mtp_attention", "mtp_attention_2", "mtp_moe")


def test_a_nemotron_without_a_count_carries_no_predictor(write: Write, nemotron: dict[str, Any]) -> None:
    assert derive_file(write({**nemotron, "mtp_layers_block_type": ["attention", "moe"]})).speculator is None


@pytest.mark.parametrize(
    "stated",
    [
        {"num_nextn_predict_layers": 2},
        {"num_nextn_predict_layers": 1, "mtp_layers_block_type": ["mamba", "moe"]},
        {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "M"},
    ],
)
def test_a_nemotron_predictor_its_class_does_not_run_is_refused(
    write: Write, nemotron: dict[str, Any], stated: dict[str, Any]
) -> None:
    with pytest.raises(NotTranslated, match="draft class"):
        derive_file(write({**nemotron, **stated}))


@pytest.mark.parametrize("model", ["hy3-preview", "mimo-7b-base"])
def test_a_model_of_plain_attention_predicts_with_a_layer_of_its_last_kind(model: str) -> None:
    graph = load_model(model)
    target = layers(graph)[-1]
    (kind,) = layers(graph, drafter(graph).stack)
    assert [node.role for node in kind.nodes if node in target.nodes] == [node.role for node in target.nodes]


def test_mimo_v2_predicts_with_one_window_layer_without_experts(write: Write) -> None:
    """Whatever number of modules the file states, the engine runs the first."""
    data = json.loads((root() / "mimo-v2-flash" / "config.json").read_text())
    graph = derive_file(write({**data, "num_nextn_predict_layers": 3}))
    assert (drafter(graph).modules, drafter(graph).stack.pattern) == (1, ("mtp_sliding_dense",))
    (use,) = draft_caches(graph)
    assert (use.cache.window, use.node.op) == (128, "Attention")
    held = {weight.role: weight.dtype for weight in parameters(graph).weights if weight.part == "speculator"}
    assert (held["qkv_proj"], held["o_proj"]) == ("fp8", "bf16")


def test_an_ernie_says_that_it_carries_a_predictor(write: Write) -> None:
    """Its published file does not; the engine's module is a dense Llama layer."""
    assert load_model("ernie-4.5-21b-a3b-pt").speculator is None
    data = json.loads((root() / "ernie-4.5-21b-a3b-pt" / "config.json").read_text())
    assert drafter(derive_file(write({**data, "num_nextn_predict_layers": 1}))).stack.pattern == ("mtp_dense",)


def test_a_glm_4_moe_has_the_module_its_class_supplies(write: Write) -> None:
    data = {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "moe_intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 32000,
        "max_position_embeddings": 8192,
        "n_routed_experts": 32,
        "num_experts_per_tok": 4,
        "dtype": "bfloat16",
    }
    assert drafter(derive_file(write(data))).stack.pattern == ("mtp_moe",)
    assert derive_file(write({**data, "num_nextn_predict_layers": 0})).speculator is None


def test_minimax_m3_predicts_with_as_many_layers_as_it_has_modules() -> None:
    graph = load_model("minimax-m3-full")
    assert drafter(graph).modules == 7
    assert drafter(graph).stack.pattern == ("mtp_sparse_moe",) * 7
    assert [(use.layer, use.cache.name) for use in draft_caches(graph)][:4] == [
        (0, "index"),
        (0, "kv"),
        (1, "index"),
        (1, "kv"),
    ]


def test_glm_5_3_flash_predicts_with_a_sparse_layer_of_one_residual_stream() -> None:
    graph = load_model("glm-5.3-flash")
    assert [use.cache.name for use in draft_caches(graph)] == ["index", "tail", "kv"]
    (kind,) = layers(graph, drafter(graph).stack)
    assert {"input_norm", "post_attn_norm"} <= {node.role for node in kind.nodes}
    assert not any((node.role or "").startswith("hc_") for node in kind.nodes)


def test_qwen4_exp_predicts_with_full_attention_over_its_streams() -> None:
    graph = load_model("qwen3.8-flash-next")
    draft = drafter(graph)
    assert [use.cache.name for use in draft_caches(graph)] == ["raw_key", "index", "kv"]
    assert {"mtp_fc_embedding", "mtp_fc_hidden"} <= {node.role for node in draft.embedding}
    # The streams' mixer takes the final norm's place.
    assert "mtp_final_norm" not in {node.role for node in draft.head}


def test_hunyuan_4_predicts_with_a_sparse_layer_of_one_residual_stream() -> None:
    graph = load_model("hy4-preview")
    assert [use.cache.name for use in draft_caches(graph)] == ["index", "kv"]
    (kind,) = layers(graph, drafter(graph).stack)
    assert not any((node.role or "").startswith("hc_") for node in kind.nodes)


@pytest.mark.parametrize(("stated", "experts"), [("BF16", {"bf16"}), ("NONE", {"fp8"}), ("FP8", {"fp8"})])
def test_hunyuan_4_may_store_its_predictor_in_another_format(write: Write, stated: str, experts: set[str]) -> None:
    data = json.loads((root() / "hy4-preview" / "config.json").read_text())
    quantized = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    graph = derive_file(write({**data, "quantization_config": quantized, "mtp_quant_algo": stated}))
    held = [weight for weight in parameters(graph).weights if weight.part == "speculator"]
    assert {weight.dtype for weight in held if weight.op == "GroupedGEMM"} == experts


def test_a_step_predicts_where_it_lists_no_layer_types(write: Write) -> None:
    """The engine's draft class looks its layers up past the end of the list, which its configuration class cuts."""
    data = json.loads((root() / "step-3.7-flash-hf-shape" / "config.json").read_text())["text_config"]
    data |= {"architectures": ["Step3p5ForCausalLM"], "num_nextn_predict_layers": 3}
    assert derive_file(write(data)).speculator is None
    unlisted = {key: value for key, value in data.items() if key not in ("layer_types", "attention_other_setting")}
    graph = derive_file(write(unlisted))
    assert drafter(graph).modules == 3
    assert drafter(graph).stack.pattern == ("mtp_full_dense", "mtp_sliding_dense", "mtp_full_dense")


def test_dots3_predicts_without_experts_and_with_a_table_of_its_own() -> None:
    graph = load_model("dots3-note")
    draft = drafter(graph)
    assert draft.stack.pattern == ("mtp_sliding_dense",)
    assert [use.cache.name for use in draft_caches(graph)] == ["swa"]
    assert parameters(graph).by_role("speculator")["mtp_embed_tokens"].elements == 152064 * 5120


def test_dots3_may_type_its_draft_modules(write: Write) -> None:
    data = json.loads((root() / "dots3-note" / "config.json").read_text())
    typed = {**data, "mtp_layer_types": ["full_attention"]}
    assert [use.cache.name for use in draft_caches(derive_file(write(typed)))] == ["index", "kv"]
    for wrong in (["full_attention"] * 2, ["half_attention"]):
        with pytest.raises(InvalidConfig, match="mtp_layer_types"):
            derive_file(write({**data, "mtp_layer_types": wrong}))


def test_a_kimi_k3_with_a_module_predicts_with_latent_attention_and_plain_residuals(write: Write) -> None:
    """The published one counts none."""
    assert load_model("kimi-k3").speculator is None
    data = json.loads((root() / "kimi-k3" / "config.json").read_text())
    data["text_config"]["num_nextn_predict_layers"] = 1
    graph = derive_file(write(data))
    (kind,) = layers(graph, drafter(graph).stack)
    assert kind.id == "mtp_mla_moe"
    assert {node.bytes_per_token for node in kind.nodes if node.role in ("input_norm", "post_attn_norm")} == {None}


def test_an_inkling_counts_its_modules_beside_its_text_configuration(write: Write) -> None:
    data = json.loads((root() / "inkling" / "config.json").read_text())
    assert derive_file(write(data)).speculator is None
    stated = {"num_nextn_predict_layers": 2, "local_layer_ids": [0], "chain_hidden_post_norm": True}
    graph = derive_file(write({**data, "mtp_config": stated}))
    assert drafter(graph).stack.pattern == ("mtp_sliding_dense", "mtp_full_dense")
    assert [use.cache.name for use in draft_caches(graph)] == ["conv_state", "kv"] * 2
    assert [node.role for node in drafter(graph).head] == ["mtp_final_norm", "mtp_lm_head"]
    unchained = derive_file(write({**data, "mtp_config": {**stated, "chain_hidden_post_norm": False}}))
    assert [node.role for node in drafter(unchained).head] == ["mtp_lm_head"]
