"""Draft checkpoints of their own as graphs: EAGLE-3, DFlash, DSpark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rulespack import load_model
from rulespack.catalog import names, root
from rulespack.derive import InvalidConfig, derive_file
from rulespack.graph.load import load_identity
from rulespack.graph.model import GEMM, Attention, DraftFacts, ModelGraph
from rulespack.graph.stack import layers, owned_caches

EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "draft_vocab_size": 32000,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "num_attention_heads": 32,
    "num_hidden_layers": 1,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
BLOCK = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "dflash_config": {"target_layer_ids": [1, 9, 17]},
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "num_attention_heads": 32,
    "num_hidden_layers": 3,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
SLIDING, FULL = "sliding_attention", "full_attention"


def derive(folder: Path, config: dict[str, Any], **changes: Any) -> ModelGraph:
    file = folder / "config.json"
    file.write_text(json.dumps({**config, **changes}))
    return derive_file(file, "draft")


def gemms(graph: ModelGraph) -> dict[str, GEMM]:
    nodes = [*graph.embedding, *graph.head, *(node for kind in graph.layer_kinds for node in kind.nodes)]
    return {node.role: node for node in nodes if isinstance(node, GEMM)}


def windows(graph: ModelGraph) -> list[int | None]:
    return [node.window for kind in layers(graph) for node in kind.nodes if isinstance(node, Attention)]


def test_an_eagle3_layer_reads_embedding_and_hidden_state_side_by_side(tmp_path: Path) -> None:
    graph = derive(tmp_path, EAGLE3)
    assert graph.globals_.draft == DraftFacts()
    assert gemms(graph)["qkv_proj"].k == 2 * 4096
    assert gemms(graph)["fc"].k == 3 * 4096
    assert gemms(graph)["lm_head"].n == 32000
    assert [use.cache.name for use in owned_caches(graph)] == ["kv"]


@pytest.mark.parametrize(
    ("changes", "states"),
    [
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}}, 4),
        ({"num_aux_hidden_states": 2}, 2),
        ({"eagle_config": {"use_aux_hidden_state": False}}, None),
    ],
)
def test_the_hidden_states_a_draft_reads_set_its_projection(
    tmp_path: Path, changes: dict[str, Any], states: int | None
) -> None:
    projection = gemms(derive(tmp_path, EAGLE3, **changes)).get("fc")
    assert (None if projection is None else projection.k) == (None if states is None else states * 4096)


@pytest.mark.parametrize(
    ("changes", "expected", "non_causal"),
    [
        ({}, [None] * 3, True),
        ({"layer_types": [SLIDING, SLIDING, FULL], "sliding_window": 2048}, [2048, 2048, None], True),
        ({"layer_types": [SLIDING] * 3, "sliding_window": 2048}, [2048] * 3, False),
        ({"dflash_config": {"use_swa": True, "swa_window_size": 512}}, [512] * 3, True),
        ({"layer_types": [FULL] * 3, "dflash_config": {"use_swa": True, "swa_window_size": 512}}, [512] * 3, True),
        ({"dflash_config": {"causal": True}}, [None] * 3, False),
        ({"is_causal": True, "dflash_config": {"causal": False}}, [None] * 3, False),
    ],
)
def test_windows_and_causality_of_a_block_drafter(
    tmp_path: Path, changes: dict[str, Any], expected: list[int | None], non_causal: bool
) -> None:
    graph = derive(tmp_path, BLOCK, **changes)
    assert windows(graph) == expected
    assert graph.globals_.draft == DraftFacts(non_causal=non_causal)


def test_sliding_layers_without_a_window_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="sliding_window"):
        derive(tmp_path, BLOCK, layer_types=[SLIDING] * 3)


@pytest.mark.parametrize("rank", [None, 256])
def test_a_dspark_draft_says_its_block_and_whether_its_head_can_be_built(tmp_path: Path, rank: int | None) -> None:
    changes = {"architectures": ["DSparkDraftModel"], "block_size": 7, "markov_rank": rank}
    graph = derive(tmp_path, BLOCK, **changes)
    assert graph.globals_.draft == DraftFacts(num_spec_tokens=7, non_causal=True, markov_head=rank is not None)
    assert ("markov_w2" in gemms(graph)) == (rank is not None)


def test_every_draft_of_the_catalog_names_the_model_it_was_made_for() -> None:
    drafts = {name for name in names() if load_model(name).globals_.draft is not None}
    made_for = {}
    for name in names():
        identity = load_identity((root() / name / "model.yaml").read_text(encoding="utf-8"), name)
        if identity.draft_for is not None:
            made_for[name] = identity.draft_for
    assert made_for.keys() == drafts
    assert set(made_for.values()) <= set(names())
