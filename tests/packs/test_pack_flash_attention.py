"""The version of FlashAttention: which is built for a GPU, which a configuration forces, and what follows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from small_graphs import RELEASES, full, graph_of, plan, sliding

from rulespack import Refused
from rulespack.graph.model import Multimodal

DENSE = graph_of([full()] * 2)
IMAGES = graph_of([full()] * 2, multimodal=Multimodal(prefix_lm=True))
#: Windows of narrow heads beside full layers of wide ones, as Gemma 4 has them.
WIDE = graph_of([sliding(1024, d_h=256), full(d_h=512)] * 3, architecture="Gemma4ForConditionalGeneration")


def served(release: str, graph: Any, **deployment: Any) -> dict[str, int]:
    return plan(release, graph, **deployment).backends


def refusal(release: str, graph: Any, **deployment: Any) -> tuple[str, str | None, str | None]:
    with pytest.raises(Refused) as error:
        plan(release, graph, **deployment)
    return error.value.by, error.value.type, error.value.stage


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("gpu", ["A100", "L40S", "RTXPRO6000"])
def test_layers_of_several_head_sizes_take_triton_where_version_4_does_not_run(release: str, gpu: str) -> None:
    assert served(release, WIDE, gpu=gpu) == {"TRITON_ATTN": 6}


@pytest.mark.parametrize("release", RELEASES)
def test_what_the_models_class_forces_is_forced(release: str) -> None:
    """The forced backend is not passed over: what it cannot store is refused."""
    assert refusal(release, WIDE, gpu="A100", kv_cache_dtype="turboquant_k8v4") == ("engine", "ValueError", "construct")
    assert served(release, WIDE, gpu="A100", attention_backend="FLEX_ATTENTION") == {"FLEX_ATTENTION": 6}


@pytest.mark.parametrize("release", RELEASES)
def test_layers_of_several_head_sizes_keep_flash_attention_on_hopper(release: str) -> None:
    assert served(release, WIDE, gpu="H200") == {"FLASH_ATTN": 6}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("gpu", ["A100", "RTXPRO6000"])
def test_a_version_that_is_not_built_serves_no_images(release: str, gpu: str) -> None:
    asked = {"gpu": gpu, "attention_config": {"flash_attn_version": 4}}
    assert served(release, IMAGES, **asked) == {"TRITON_ATTN": 2}
    assert refusal(release, IMAGES, **asked, attention_backend="FLASH_ATTN") == ("engine", "ValueError", "construct")


@pytest.mark.parametrize("release", RELEASES)
def test_a_version_that_is_not_built_leaves_plain_layers_alone(release: str) -> None:
    assert served(release, DENSE, gpu="A100", attention_config={"flash_attn_version": 4}) == {"FLASH_ATTN": 2}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_version_that_is_not_built_stores_no_fp8(release: str, version: int) -> None:
    asked = {"kv_cache_dtype": "fp8", "attention_config": {"flash_attn_version": version}}
    assert served(release, DENSE, gpu="L40S", **asked) == {"FLASHINFER": 2}


@pytest.mark.parametrize("release", RELEASES)
def test_turboquant_forces_version_2(release: str) -> None:
    """Both layers are boundary layers, which keep the model's own dtype; version 2 knows no sinks."""
    sinks = graph_of([msgspec.structs.replace(full(), sinks=True)] * 2)
    assert served(release, sinks) == {"FLASH_ATTN": 2}
    triton_or_flashinfer = {"0.29.0": {"TRITON_ATTN": 2}, "0.31.0": {"FLASHINFER": 2}}
    assert served(release, sinks, kv_cache_dtype="turboquant_k8v4") == triton_or_flashinfer[release]


@pytest.mark.parametrize("release", RELEASES)
def test_the_kernel_for_heads_of_256_takes_no_other_block(release: str) -> None:
    graph = graph_of([full(d_h=256)] * 2)
    asked = {"gpu": "B200", "attention_backend": "FLASH_ATTN"}
    assert plan(release, graph, **asked).resolved.block_size == 128
    assert plan(release, graph, **asked, block_size=256).resolved.block_size == 256
    assert refusal(release, graph, **asked, block_size=64) == ("engine", "ValueError", "construct")
    assert plan(release, graph, **asked, block_size=64, attention_config={"flash_attn_version": 2}).groups
