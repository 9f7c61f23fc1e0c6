"""The KV-cache plans this service is sized for."""

import pytest


@pytest.mark.rulespack_deployments("deployments.yaml", models=["gpt-oss-120b", "gemma-4-26b-a4b-nvfp4"])
def test_plan(model, deployment, rulespack_pin):
    rulespack_pin(model, deployment, tokens=[8_192, 100_000])


def test_what_the_autoscaler_counts_on(rulespack_pin):
    rulespack_pin("gpt-oss-120b", "vllm serve -tp 8", part="bytes_per_block")
    rulespack_pin(
        "gemma-4-26b-a4b-nvfp4",
        {"tensor_parallel_size": 8},
        part=["resolved.block_size", "bytes_per_block"],
        name="gemma",
    )
