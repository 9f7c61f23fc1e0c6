"""Pipeline stages that hold no cache, and caches a model class registers before it has any."""

from __future__ import annotations

from typing import Any

import pytest
from small_graphs import RELEASES, full, graph_of, plan

import rulespack
from rulespack import Deployment, Refused

DENSE = graph_of([full()] * 4)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("partition", "held"), [("0,4", [0, 4]), ("4,0", [4, 0]), ("2,0,2", [2, 0, 2]), ("1,3,0", [1, 3, 0])]
)
@pytest.mark.parametrize("memory", [{}, {"kv_cache_memory_bytes": 1 << 36}, {"max_model_len": -1}])
def test_a_stage_without_a_cache_is_a_crash_after_the_groups(
    release: str, partition: str, held: list[int], memory: dict[str, Any]
) -> None:
    with pytest.raises(Refused) as error:
        plan(
            release,
            DENSE,
            pipeline_parallel_size=len(held),
            env={"VLLM_PP_LAYER_PARTITION": partition},
            **memory,
        )
    answer = error.value
    assert (answer.by, answer.type, answer.stage) == ("engine", "AssertionError", "groups")
    assert answer.rule == "stage-holds-caches"
    assert answer.plan is not None
    assert [len(group.caches) for group in answer.plan.groups] == [4]
    assert f"stage {held.index(0)} holds no layer" in answer.reason


@pytest.mark.parametrize("release", RELEASES)
def test_stages_that_all_hold_caches_are_planned(release: str) -> None:
    answer = plan(release, DENSE, pipeline_parallel_size=2, env={"VLLM_PP_LAYER_PARTITION": "1,3"})
    assert answer.stages is not None
    assert [len(stage.groups[0]) for stage in answer.stages] == [1, 3]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("partition", ["2,2", "3", "all"])
def test_a_partition_is_read_without_stages_too(release: str, partition: str) -> None:
    assert plan(release, DENSE, env={"VLLM_PP_LAYER_PARTITION": "4"}).groups == plan(release, DENSE).groups
    with pytest.raises(Refused) as error:
        plan(release, DENSE, env={"VLLM_PP_LAYER_PARTITION": partition})
    answer = error.value
    assert (answer.by, answer.type, answer.stage) == ("engine", "ValueError", "construct")


@pytest.mark.parametrize(("gpu", "kernel"), [("H200", 64), ("B200", 128)])
@pytest.mark.parametrize("skipped", ["0", "sliding_window"])
def test_skipped_layers_of_deepseek_v41_double_its_block(gpu: str, kernel: int, skipped: str) -> None:
    """Its layers register their main kernel first, and once they are built the cache dtype is the packed record: one
    byte against two, although no layer heeds the flag."""
    graph = rulespack.load_model("deepseek-v4.1-flash")
    engine = rulespack.engine("0.31.0")
    usual = engine.plan(graph, Deployment(gpu=gpu))
    assert usual.resolved.block_size == kernel
    for asked in ({}, {"block_size": kernel}):
        answer = engine.plan(graph, Deployment(gpu=gpu, kv_cache_dtype_skip_layers=[skipped], **asked))
        assert answer.resolved.block_size == 2 * kernel
        assert answer.backends == usual.backends


@pytest.mark.parametrize(("release", "error"), [("0.29.0", "ValidationError"), ("0.31.0", None)])
def test_a_decoder_whose_configuration_names_no_class_has_one_stage(release: str, error: str | None) -> None:
    graph, deployment = (
        rulespack.load_model("qwen3-vl-30b-a3b-instruct"),
        rulespack.Deployment(pipeline_parallel_size=2),
    )
    engine = rulespack.engine(release)
    if error is None:
        assert engine.plan(graph, deployment).stages is not None
    else:
        with pytest.raises(rulespack.Refused) as caught:
            engine.plan(graph, deployment)
        assert (caught.value.by, caught.value.type, caught.value.stage) == ("engine", error, "construct")
    assert engine.plan(graph).groups


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_that_stops_after_its_groups_has_parted_them_over_the_stages(release: str) -> None:
    """The scheduler refuses 48 tokens beside a block of 16; the plan until then is that of the first stage."""
    graph = rulespack.load_model("gpt-oss-20b")
    with pytest.raises(Refused) as caught:
        rulespack.engine(release).plan(graph, Deployment(pipeline_parallel_size=2, prefix_match_unit=48))
    assert caught.value.stage == "scheduler"
    assert caught.value.plan is not None
    assert caught.value.plan.bytes_per_block == 196608
    assert caught.value.plan.stages is not None


@pytest.mark.parametrize("release", RELEASES)
def test_a_stage_of_states_alone_aligns_nothing(release: str) -> None:
    """Of eight stages of Jamba every other one holds no attention: its states keep the block they start from, and the
    engine goes on with the first stage's."""
    engine, graph = rulespack.engine(release), rulespack.load_model("jamba-v0.1")
    whole = engine.plan(graph, Deployment(pipeline_parallel_size=2))
    answer = engine.plan(graph, Deployment(pipeline_parallel_size=8))
    assert answer.stages is not None
    states = {spec.block_size: spec.page_size_bytes for spec in answer.specs if spec.type == "MambaSpec"}
    aligned = whole.resolved.block_size
    assert states == {16: 311_296, aligned: whole.specs[0].page_size_bytes}
    assert (answer.resolved.block_size, answer.resolved.scheduler_block_size) == (16, aligned)


@pytest.mark.parametrize("release", RELEASES)
def test_stages_that_begin_with_another_kernel_have_blocks_of_their_own(release: str) -> None:
    graph = rulespack.load_model("qwen3-8b")
    answer = rulespack.engine(release).plan(
        graph, Deployment(pipeline_parallel_size=3, kv_cache_dtype="turboquant_4bit_nc", max_model_len=2048)
    )
    assert answer.stages is not None
    assert [stage.bytes_per_block for stage in answer.stages] == [1_048_576, 524_288, 524_288]
    assert {spec.block_size for spec in answer.specs} == {32, 64}


def test_stages_that_support_other_layouts_crash() -> None:
    graph = rulespack.load_model("minimax-m3-full")
    with pytest.raises(Refused, match="stages support different KV cache layouts") as error:
        rulespack.engine("0.31.0").plan(graph, Deployment(gpu="B200", kv_cache_dtype="fp8", pipeline_parallel_size=2))
    assert (error.value.by, error.value.type, error.value.stage) == ("engine", "AssertionError", "groups")


@pytest.mark.parametrize("release", RELEASES)
def test_a_class_without_pipeline_stages_is_refused(release: str) -> None:
    with pytest.raises(Refused) as error:
        rulespack.engine(release).plan(rulespack.load_model("zamba2-2.7b"), Deployment(pipeline_parallel_size=2))
    assert (error.value.type, error.value.stage) == ("NotImplementedError", "config")


@pytest.mark.parametrize("ranks", [16, 32, 64])
def test_shared_experts_of_deepseek_v4_are_rounded_up_to_whole_blocks(ranks: int) -> None:
    engine, graph = rulespack.engine("0.31.0"), rulespack.load_model("deepseek-v4-flash")
    deployment = Deployment(tensor_parallel_size=ranks)
    assert engine.plan(graph, deployment).bytes_per_block == 1_002_240
    held = engine.weights(graph, deployment)
    assert (held is None) == (ranks > 2048 // 128)  # what a rank holds beyond its share is not modelled


SPLIT = {"tensor_parallel_size": 4, "data_parallel_size": 2, "enable_expert_parallel": True}


@pytest.mark.parametrize("release", RELEASES)
def test_qwen_4_takes_no_split_tokens(release: str) -> None:
    engine, graph = rulespack.engine(release), rulespack.load_model("qwen3.8-flash-next")
    with pytest.raises(Refused) as error:
        engine.plan(graph, Deployment(**SPLIT))
    assert (error.value.type, error.value.stage) == ("NotImplementedError", "construct")
    for missing in SPLIT:
        kept = {name: value for name, value in SPLIT.items() if name != missing}
        assert engine.plan(graph, Deployment(**kept)).groups


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("model", "said"), [("deepseek-v3.2", False), ("kimi-linear-48b-a3b-instruct", False), ("deepseek-v3", True)]
)
def test_weights_are_not_said_where_dense_layers_are_whole_beside_split_tokens(
    release: str, model: str, said: bool
) -> None:
    engine, graph = rulespack.engine(release), rulespack.load_model(model)
    assert (engine.weights(graph, Deployment(**SPLIT)) is not None) == said
    assert engine.weights(graph, Deployment(tensor_parallel_size=4)) is not None


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("model", "replicas"), [("qwen3-30b-a3b", 7), ("mixtral-8x7b-v0.1", 3), ("gpt-oss-20b", 7)])
def test_the_ranks_of_all_replicas_share_an_experts_width(release: str, model: str, replicas: int) -> None:
    engine, graph = rulespack.engine(release), rulespack.load_model(model)
    with pytest.raises(Refused) as error:
        engine.plan(graph, Deployment(data_parallel_size=replicas))
    assert (error.value.type, error.value.stage) == ("AssertionError", "construct")
    assert engine.plan(graph, Deployment(data_parallel_size=replicas, enable_expert_parallel=True)).groups
    assert engine.plan(graph, Deployment(data_parallel_size=2)).groups
