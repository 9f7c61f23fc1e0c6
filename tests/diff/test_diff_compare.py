"""Two releases compared through the library: what each status means, and what is told of a change."""

from __future__ import annotations

from typing import Any

import pytest

import rulespack
from rulespack import Deployment, Engine, UnknownModel, UnknownRelease, catalog, hookimpl
from rulespack.diff import STATUSES, TOKENS, Pair, catalog_models, compare

OLD, NEW = "0.29.0", "0.31.0"
MORIIO = {"kv_transfer_config": {"kv_connector": "MoRIIOConnector", "kv_role": "kv_both"}}


def pair(model: str, old: str | Engine = OLD, new: str | Engine = NEW, **stated: Any) -> Pair:
    (found,) = compare(old, new, [model], Deployment(**stated)).pairs
    return found


def said(found: Pair) -> dict[str, tuple[Any, Any]]:
    return {change.key: (change.old, change.new) for change in found.changes}


@pytest.mark.parametrize(
    ("model", "stated", "forward", "backward"),
    [
        ("qwen3-14b", {}, "same", "same"),
        ("gemma-3-4b-it", {}, "changed", "changed"),
        ("deepseek-v4.1-flash", {}, "newly-served", "no-longer-served"),
        ("deepseek-v4-flash", {}, "newly-accepted", "newly-refused"),
        ("qwen3-14b", {"kv_cache_dtype": "fp9"}, "same", "same"),
        ("qwen3-14b", {"tensor_parallel_size": 7}, "same", "same"),
        ("qwen3-14b", {"enable_bf16x3_router_gemm": True}, "newly-refused", "newly-accepted"),
        ("qwen3-14b", {"env": {"VLLM_ENABLE_GEMM_RS": "1"}}, "newly-accepted", "newly-refused"),
        ("qwen3-14b", {"hf_overrides": {"num_hidden_layers": 2}}, "same", "same"),
        ("qwen3-14b", {"scheduler_cls": "ours.Scheduler"}, "not-modelled", "not-modelled"),
        ("deepseek-v4-flash", {"kv_cache_dtype": "nvfp4_ds_mla"}, "refusal-changed", "refusal-changed"),
    ],
)
def test_every_status(model: str, stated: dict[str, Any], forward: str, backward: str) -> None:
    assert pair(model, **stated).status == forward
    assert pair(model, NEW, OLD, **stated).status == backward


def test_a_release_is_the_same_as_itself() -> None:
    for release in (OLD, NEW):
        comparison = compare(release, release)
        assert set(comparison.counts) <= {"same", "not-modelled"}
        assert comparison.accepts == ()
        assert comparison.gains() == comparison.losses() == ()


def test_backwards_every_change_is_turned_over() -> None:
    forward, backward = compare(OLD, NEW), compare(NEW, OLD)
    turned = {"newly-served": "no-longer-served", "newly-accepted": "newly-refused"}
    turned |= {value: key for key, value in turned.items()}
    for there, back in zip(forward.pairs, backward.pairs, strict=True):
        assert turned.get(there.status, there.status) == back.status
        assert {(c.key, c.old, c.new) for c in there.changes} == {(c.key, c.new, c.old) for c in back.changes}
        assert len(there.groups) == len(back.groups)
    assert [a.new for a in forward.accepts] == [a.gone for a in backward.accepts]


def test_the_whole_catalog_but_for_drafts() -> None:
    comparison = compare(OLD, NEW)
    assert {found.model for found in comparison.pairs} == {*catalog_models()}
    drafts = set(catalog.names()) - {found.model for found in comparison.pairs}
    assert all(rulespack.load_model(name).globals_.draft is not None for name in drafts)
    assert sum(comparison.counts.values()) == len(comparison.pairs) > 100
    assert list(comparison.counts) == [status for status in STATUSES if status in comparison.counts]
    assert comparison.differs


def test_a_changed_block_size_and_all_that_follows_from_it() -> None:
    found = pair("gemma-4-26b-a4b-nvfp4")
    changes = said(found)
    assert changes["resolved.block_size"] == (16, 64)
    assert changes["bytes_per_block"] == (327_680, 1_310_720)
    assert changes["backends.TRITON_ATTN"] == (30, None)
    assert changes["backends.TRITON_FLASH_ATTN"] == (None, 30)
    assert [(len(change.caches), change.changes[0].key) for change in found.caches] == [
        (25, "block_size"),
        (5, "block_size"),
    ]
    assert {group.kind for group in found.groups} == {"kept"}
    old, new = found.old.plan, found.new.plan
    assert old is not None
    assert new is not None
    assert changes["fixed_bytes"] == tuple(p.request(p.resolved.max_model_len).fixed_bytes for p in (old, new))


def test_groups_that_split_and_what_a_request_takes() -> None:
    """The connector keeps the hybrid manager from 0.31.0 on, so windows no longer take what full caches do."""
    found = pair("gpt-oss-120b", **MORIIO)
    (split,) = found.groups
    assert (split.kind, split.old, split.new, len(split.caches)) == ("split", (0,), (0, 1), 36)
    assert said(found)["resolved.hybrid_kv_cache_manager"] == (False, True)
    assert [request.tokens for request in found.requests] == [1_024, 8_192, 32_768, 131_072]
    assert [request.new_bytes < request.old_bytes for request in found.requests] == [False, False, True, True]
    longest = found.requests[-1]
    assert (longest.old_fixed_bytes, longest.new_fixed_bytes > 0) == (0, True)
    assert found.capacity == pytest.approx(longest.old_bytes / longest.new_bytes)
    (merged,) = pair("gpt-oss-120b", NEW, OLD, **MORIIO).groups
    assert (merged.kind, merged.old, merged.new) == ("merged", (0, 1), (0,))


def test_a_stated_memory_is_compared_in_the_engines_own_tokens() -> None:
    found = pair("gpt-oss-120b", kv_cache_memory_bytes=64 << 30, **MORIIO)
    old, new = found.old.plan, found.new.plan
    assert old is not None
    assert new is not None
    assert old.capacity is not None
    assert new.capacity is not None
    assert said(found)["capacity.tokens"] == (old.capacity.tokens, new.capacity.tokens)
    assert found.capacity == new.capacity.tokens / old.capacity.tokens > 1.7


def test_gains_and_losses_the_largest_first() -> None:
    comparison = compare(OLD, NEW, ["gpt-oss-120b", "gemma-3-4b-it", "qwen3-14b"], Deployment(**MORIIO))
    assert [found.model for found in comparison.gains()] == ["gemma-3-4b-it", "gpt-oss-120b"]
    assert comparison.gains(1) == comparison.gains()[:1]
    assert comparison.losses() == ()
    back = compare(NEW, OLD, ["gpt-oss-120b", "gemma-3-4b-it", "qwen3-14b"], Deployment(**MORIIO))
    assert [found.model for found in back.losses()] == ["gemma-3-4b-it", "gpt-oss-120b"]


def test_where_nothing_differs_no_request_does() -> None:
    """What a recording states decides what is the same; what is ours alone never says otherwise."""
    for found in compare(OLD, NEW, None, {"default": Deployment(), "fp8": Deployment(kv_cache_dtype="fp8")}).pairs:
        if found.status == "same":
            assert [*found.changes, *found.caches, *found.groups, *found.reasons] == []
            assert all(request.old_bytes == request.new_bytes for request in found.requests)


def test_reasons_that_differ_stand_side_by_side() -> None:
    found = pair("gpt-oss-120b", **MORIIO)
    rows = [(change.old and change.old.rule, change.new and change.new.rule) for change in found.reasons]
    assert ("hybrid-kv-cache-manager", "hybrid-kv-cache-manager") in rows
    assert ("one-group", "equal-page-groups") in rows
    manager = next(change for change in found.reasons if change.rule == "hybrid-kv-cache-manager")
    assert manager.old is not None
    assert manager.new is not None
    assert "MoRIIOConnector cannot" in manager.old.because
    assert (manager.old.value, manager.new.value) == (False, True)
    assert all(change.old != change.new for change in found.reasons)


def test_what_the_releases_accept() -> None:
    changes = {change.kind: change for change in compare(OLD, NEW, []).accepts}
    assert "nvfp4_ds_mla" in changes["cache_dtypes"].new
    assert "enable_bf16x3_router_gemm" in changes["arguments"].gone
    assert "TRITON_FLASH_ATTN" in changes["attention_backends"].new
    assert "DeepseekV41ForCausalLM" in changes["architectures"].new
    (moved,) = changes["connectors"].changed
    assert (moved.key, moved.old, moved.new) == ("MoRIIOConnector", False, True)
    assert "layouts" not in changes


@pytest.mark.parametrize("release", [OLD, NEW])
def test_what_is_accepted_is_what_the_release_takes(release: str) -> None:
    """Every name a release accepts is taken or refused for another reason; any other is refused as unknown."""
    graph = rulespack.load_model("qwen3-14b")
    engine = rulespack.engine(release)
    accepted = engine.accepts()

    def refusal(**stated: Any) -> str:
        try:
            engine.plan(graph, Deployment(**stated))
        except rulespack.Refused as refused:
            return refused.rule
        return ""

    assert not [name for name in accepted.cache_dtypes if refusal(kv_cache_dtype=name) == "cache-dtype-accepted"]
    assert refusal(kv_cache_dtype="fp9") == "cache-dtype-accepted"
    for name, hybrid in accepted.connectors.items():
        plan = engine.plan(graph, Deployment(kv_transfer_config={"kv_connector": name, "kv_role": "kv_both"}))
        assert plan.resolved.hybrid_kv_cache_manager == hybrid
    known = [name for name in accepted.attention_backends if refusal(attention_backend=name) == "backend-known"]
    assert known == []


def test_several_deployments_by_name_and_lengths_of_ones_own() -> None:
    stated = {"one": Deployment(), "two": {"tensor_parallel_size": 2}}
    comparison = compare(OLD, NEW, ["qwen3-14b", "gpt-oss-20b"], stated, tokens=[100, 50_000])
    assert [(found.model, found.name) for found in comparison.pairs] == [
        ("qwen3-14b", "one"),
        ("qwen3-14b", "two"),
        ("gpt-oss-20b", "one"),
        ("gpt-oss-20b", "two"),
    ]
    assert [request.tokens for request in comparison.pairs[0].requests] == [100, 40_960]
    assert [request.tokens for request in comparison.pairs[2].requests] == [100, 50_000, 131_072]
    assert TOKENS == (1_024, 8_192, 32_768, 131_072)


def test_a_release_against_a_fork_of_it() -> None:
    class StoresFp8:
        @hookimpl
        def resolve_cache_dtype(self, deployment: Deployment) -> str | None:
            return "fp8" if deployment.kv_cache_dtype == "auto" else None

    found = pair("qwen3-14b", NEW, Engine(NEW, plugins=[StoresFp8()]))
    assert said(found)["resolved.cache_dtype"] == ("auto", "fp8")
    assert found.capacity == 2.0


def test_pipeline_stages_are_compared_by_the_one_that_costs_most() -> None:
    found = pair("gpt-oss-120b", pipeline_parallel_size=2, **MORIIO)
    assert {key for key in said(found) if key.startswith("stages[")} >= {"stages[0].bytes_per_block"}
    assert found.capacity is not None
    assert found.capacity > 1


def test_a_question_that_cannot_be_used() -> None:
    with pytest.raises(UnknownRelease):
        compare(OLD, "0.99.0", ["qwen3-14b"])
    with pytest.raises(UnknownModel, match="did you mean qwen3-14b"):
        compare(OLD, NEW, ["qwen3-14c"])
    with pytest.raises(rulespack.BadDeployment, match="tensor_parallel_size"):
        compare(OLD, NEW, ["qwen3-14b"], {"mine": {"tensor_paralel_size": 2}})
    with pytest.raises(rulespack.BadDeployment, match="usage_context"):
        pair("qwen3-14b", usage_context="NOBODY")
