"""A model's identity, ``model.yaml``."""

from __future__ import annotations

import pytest

from rulespack.graph.check import check_identity
from rulespack.graph.load import inspect_identity, load_identity
from rulespack.graph.model import ModelIdentity, Source
from rulespack.graph.problems import InvalidModel

TEXT = """\
name: qwen3-14b
source:
  provider: huggingface
  repo: Qwen/Qwen3-14B
  revision: 40c069824f4251a91eefaf281ebe4c544efd3e18
  retrieved: 2026-09-16
"""


@pytest.mark.parametrize("date", ["2026-09-16", '"2026-09-16"', "'September 2026'"])
def test_an_identity_and_its_date_quoted_or_not(date: str) -> None:
    identity = load_identity(TEXT.replace("2026-09-16", date))
    assert identity == ModelIdentity(
        name="qwen3-14b",
        source=Source(
            provider="huggingface",
            repo="Qwen/Qwen3-14B",
            revision="40c069824f4251a91eefaf281ebe4c544efd3e18",
            retrieved=date.strip("\"'"),
        ),
    )


def test_the_date_may_be_left_out() -> None:
    assert load_identity(TEXT.replace("  retrieved: 2026-09-16\n", "")).source.retrieved is None


@pytest.mark.parametrize(
    ("old", "new", "rule", "path"),
    [
        ("name: qwen3-14b\n", "", "identity-name-empty", "name"),
        ("name: qwen3-14b", "name: ''", "identity-name-empty", "name"),
        (TEXT[TEXT.index("source") :], "", "identity-source-missing", "source"),
        ("  provider: huggingface\n", "", "identity-provider-missing", "source.provider"),
        ("huggingface", "''", "identity-provider-missing", "source.provider"),
        ("  repo: Qwen/Qwen3-14B\n", "", "identity-repo-missing", "source.repo"),
        ("Qwen/Qwen3-14B", "''", "identity-repo-missing", "source.repo"),
        ("  revision: 40c069824f4251a91eefaf281ebe4c544efd3e18\n", "", "identity-revision-missing", "source.revision"),
        ("40c069824f4251a91eefaf281ebe4c544efd3e18", "''", "identity-revision-missing", "source.revision"),
        ("40c069824f4251a91eefaf281ebe4c544efd3e18", "2026-09-16", "mistyped-value", "source.revision"),
        ("40c069824f4251a91eefaf281ebe4c544efd3e18", "12345678", "mistyped-value", "source.revision"),
        ("2026-09-16", "2026", "mistyped-value", "source.retrieved"),
        ("2026-09-16", "", "null-value", "source.retrieved"),
        ("name: qwen3-14b", "name: qwen3-14b\n_comment: ours", "unknown-key", "_comment"),
        ("  repo:", "  repository:", "unknown-key", "source.repository"),
        (TEXT, "", "empty-file", ""),
        (TEXT, "[a, b]", "mistyped-value", ""),
    ],
)
def test_an_identity_that_is_not_complete_is_refused(old: str, new: str, rule: str, path: str) -> None:
    assert TEXT.count(old) == 1
    _, problems = inspect_identity(TEXT.replace(old, new), "model.yaml")
    assert [(problem.rule, problem.path) for problem in problems] == [(rule, path)]
    with pytest.raises(InvalidModel, match=r"^model\.yaml is not a valid model identity: "):
        load_identity(TEXT.replace(old, new), "model.yaml")


def test_an_identity_built_in_python_is_checked_too() -> None:
    identity = ModelIdentity(name="", source=Source(provider="huggingface", repo="", revision="1"))
    assert [problem.rule for problem in check_identity(identity)] == ["identity-name-empty", "identity-repo-missing"]
