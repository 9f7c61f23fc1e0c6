"""A version string finds its pack, or says which there are."""

from __future__ import annotations

import pytest

import rulespack
from rulespack import UnknownRelease


def test_the_releases_there_are() -> None:
    assert rulespack.releases() == ("0.29.0", "0.31.0")
    assert rulespack.releases("acme") == ()


@pytest.mark.parametrize("asked", ["0.31.0", "v0.31.0", "0.31.0+cu130", "0.31", " 0.31.0 "])
def test_a_spelling_of_a_release_finds_its_pack(asked: str) -> None:
    assert rulespack.engine(asked).release == "0.31.0"


@pytest.mark.parametrize("asked", ["0.31.1", "0.31.0rc1", "0.31.0.post1", "0.31.0.dev3", "0.99", "0.28.0", "1!0.31.0"])
def test_another_version_is_an_error_that_names_the_releases(asked: str) -> None:
    with pytest.raises(UnknownRelease, match=r"0\.29\.0, 0\.31\.0") as error:
        rulespack.engine(asked)
    assert asked in str(error.value)


@pytest.mark.parametrize("asked", ["", "latest", "0.31.x", "vllm", "0,31", "0.31.0 or later"])
def test_what_is_no_version_is_said_to_be_none(asked: str) -> None:
    with pytest.raises(UnknownRelease, match=r"is not a version.*0\.29\.0, 0\.31\.0"):
        rulespack.engine(asked)


@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        ("0.31.0rc1", "0.29.0"),
        ("0.30.2", "0.29.0"),
        ("0.31.1", "0.31.0"),
        ("0.99", "0.31.0"),
        ("0.31.0.post1", "0.31.0"),
    ],
)
def test_nearest_takes_the_closest_lower_release_and_the_plan_says_so(asked: str, answers: str) -> None:
    engine = rulespack.engine(asked, nearest=True)
    plan = engine.plan(rulespack.load_model("qwen3-8b"))
    assert (engine.release, plan.release, plan.nearest) == (answers, answers, asked)


@pytest.mark.parametrize("asked", ["0.31.0", "v0.31.0", "0.31.0+cu130"])
def test_nearest_is_not_said_of_the_release_itself(asked: str) -> None:
    plan = rulespack.engine(asked, nearest=True).plan(rulespack.load_model("qwen3-8b"))
    assert (plan.release, plan.nearest) == ("0.31.0", None)


def test_nearest_never_takes_a_higher_release() -> None:
    with pytest.raises(UnknownRelease, match=r"0\.28\.0"):
        rulespack.engine("0.28.0", nearest=True)


def test_the_closest_lower_release_is_offered() -> None:
    with pytest.raises(UnknownRelease, match=r"closest lower one is 0\.29\.0 .*nearest"):
        rulespack.engine("0.31.0rc1")


def test_an_engine_without_packs_is_named_with_those_there_are() -> None:
    with pytest.raises(UnknownRelease, match=r"'sglang'.*vllm"):
        rulespack.engine("0.5", engine="sglang")


def test_an_engine_is_made_once() -> None:
    assert rulespack.engine("0.31.0") is rulespack.engine("0.31.0")
    assert repr(rulespack.engine("0.31.0")) == "<rulespack engine vllm 0.31.0>"
