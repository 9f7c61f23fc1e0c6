"""Figures other people published, measured or logged on real machines; none of them was computed here.

They come from other releases and other engines, so each is asked for under the deployment it was published for, and to
the digits it was published with.
"""

from __future__ import annotations

from typing import Any

import pytest

import rulespack
from rulespack import Deployment, Plan, Refused

from .cases import graph

GIB, MIB = 1 << 30, 1 << 20


@pytest.fixture(params=rulespack.releases())
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def plan(release: str, model: str, **deployment: Any) -> Plan:
    return rulespack.engine(release).plan(graph(model), Deployment(**deployment))


def test_a_block_of_gpt_oss_120b(release: str) -> None:
    """16 tokens in bf16 on one H200: 18 layers of each of two groups, 32 KiB a layer."""
    answer = plan(release, "gpt-oss-120b", gpu="H200")
    assert (answer.bytes_per_block, answer.resolved.block_size) == (589_824, 16)


@pytest.mark.parametrize(
    ("model", "tokens", "published"),
    [
        ("llama-3.1-8b-instruct", 1024, 0.125),
        ("llama-3.1-8b-instruct", 16_000, 1.95),
        ("llama-3.1-8b-instruct", 128_000, 15.62),
        ("llama-3.1-70b-instruct", 1024, 0.313),
        ("llama-3.1-70b-instruct", 16_000, 4.88),
        ("llama-3.1-70b-instruct", 128_000, 39.06),
    ],
)
def test_llama_3_1_in_gib(release: str, model: str, tokens: int, published: float) -> None:
    """huggingface.co/blog/llama31, "Inference memory requirements", FP16."""
    request = plan(release, model).request(tokens)
    assert request.bytes / GIB == pytest.approx(published, abs=0.0055)


@pytest.mark.parametrize(
    ("model", "published"),
    [
        ("mixtral-8x7b-v0.1", 256),
        ("llama-3.1-8b-instruct", 256),
        ("llama-3.1-70b-instruct", 640),
        ("yi-34b", 480),
    ],
)
def test_what_llama_cpp_allocates_for_2048_tokens_in_mib(release: str, model: str, published: int) -> None:
    """huggingface.co/dranger003/c4ai-command-r-v01-iMat.GGUF/discussions/6, for models of the same shape."""
    assert plan(release, model).request(2048).bytes == published * MIB


def test_what_llama_cpp_allocates_for_deepseek_v3(release: str) -> None:
    """10.72 GiB at 160k tokens, 61 latents of 576 in 16 bits, as users of V3.2 measured."""
    assert plan(release, "deepseek-v3").request(163_840).bytes / GIB == pytest.approx(10.72, abs=0.005)


def test_the_blocks_of_llama_3_1_8b_on_an_rtx_3090(release: str) -> None:
    """github.com/vllm-project/vllm/issues/10517: 3.81 GiB gave 1952 blocks, 2.89 GiB gave 1478."""
    for memory, published in ((3.81, 1952), (2.89, 1478)):
        least, most = (
            plan(release, "llama-3.1-8b-instruct", max_model_len=20_000, kv_cache_memory_bytes=int(held * GIB)).capacity
            for held in (memory - 0.005, memory + 0.005)
        )
        assert least is not None
        assert most is not None
        assert least.num_blocks <= published <= most.num_blocks


def test_what_gpt_oss_120b_needs_for_one_request(release: str) -> None:
    """github.com/vllm-project/vllm/issues/27508: 4.54 GiB for 131,072 tokens in batches of 1024, and 1.71 GiB at hand.

    That release scheduled synchronously.
    """
    asked = {"gpu": "H100", "max_num_batched_tokens": 1024, "async_scheduling": False}
    answer = plan(release, "gpt-oss-120b", **asked)
    assert answer.resolved.max_model_len == 131_072
    assert answer.blocks_per_request * answer.bytes_per_block / GIB == pytest.approx(4.54, abs=0.005)
    with pytest.raises(Refused, match="KV cache") as refused:
        plan(release, "gpt-oss-120b", **asked, kv_cache_memory_bytes=int(1.71 * GIB))
    assert (refused.value.by, refused.value.type, refused.value.stage) == ("engine", "ValueError", "groups")


def test_what_qwen3_30b_a3b_needs_for_262144_tokens(release: str) -> None:
    """github.com/vllm-project/vllm/issues/34076: 24.0 GiB, for the Coder, which has the shape of the VL model."""
    answer = plan(release, "qwen3-vl-30b-a3b-instruct")
    assert answer.resolved.max_model_len == 262_144
    assert answer.blocks_per_request * answer.bytes_per_block == 24 * GIB


def test_the_longest_request_of_mistral_small_4(release: str) -> None:
    """github.com/kaito-project/kaito/issues/2132: 1,048,576 tokens need 22.5 GiB; 17.39 GiB hold 810,208."""
    answer = plan(release, "mistral-small-4-119b-2603", gpu="H100")
    assert answer.blocks_per_request * answer.bytes_per_block / GIB == pytest.approx(22.5, abs=0.05)
    least, most = (
        plan(
            release,
            "mistral-small-4-119b-2603",
            gpu="H100",
            max_model_len=-1,
            kv_cache_memory_bytes=int(held * GIB),
        ).resolved.max_model_len
        for held in (17.385, 17.395)
    )
    assert least <= 810_208 <= most
