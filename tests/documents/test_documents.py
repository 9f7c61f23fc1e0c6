"""What the documents show is what happens: every block of them is run, in order, in a folder of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .blocks import DOCUMENTS, ROOT, agrees
from .reference import FILE, cli_reference
from .running import Document
from .scratch import Scratch


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("file", DOCUMENTS, ids=name)
def test_every_block_does_what_it_shows(file: Path, tmp_path: Path) -> None:
    flaws = list(Document(file, Scratch(tmp_path)).flaws())
    assert not flaws, "\n".join(flaws)


@pytest.mark.parametrize("file", DOCUMENTS, ids=name)
def test_links_lead_somewhere(file: Path) -> None:
    for target, place in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", file.read_text()):
        found = file.parent / target if target else file
        assert found.exists(), target
        if place:
            titles = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
            assert place in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}, place


def test_the_reference_of_the_command_is_what_the_command_says(tmp_path: Path) -> None:
    """``python -m tests.documents --write docs/reference/cli.md`` writes it anew."""
    assert FILE.read_text() == cli_reference(Scratch(tmp_path))


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        file = todo.pop()
        if file not in seen:
            seen.add(file)
            links = re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", file.read_text())
            todo += [(file.parent / link).resolve() for link in links]
    assert set(DOCUMENTS) - seen == set()


def test_three_dots_stand_for_what_may_differ() -> None:
    assert agrees("a\n...\n3 passed in ...s\n", "a\nb\nc\n3 passed in 0.1s\n")
    assert agrees("", "")
    assert not agrees("a\n", "a\nb\n")
    assert not agrees("3 passed in ...s\n", "2 passed in 0.1s\n")
