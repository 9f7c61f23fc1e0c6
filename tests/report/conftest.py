"""Pages as the command writes them, and a browser to look at them with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from headless import VARIABLE, Browser, Drawn, find_browser

from rulespack.cli import main


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium. Where RULESPACK_BROWSER is ``required``, as in CI, there must be one."""
    path = find_browser()
    if path is None:
        pytest.skip(f"no Chromium is installed; {VARIABLE}=required makes this a failure")
    with Browser(path, tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    """The file a command writes as a page; written once for all who look at it."""
    folder = tmp_path_factory.mktemp("pages")
    pages: dict[tuple[str, ...], Path] = {}

    def draw(*words: str) -> Path:
        if words not in pages:
            file = folder / f"{len(pages)}.html"
            with file.open("w", encoding="utf-8") as out, pytest.MonkeyPatch.context() as patch:
                patch.setattr("sys.stdout", out)
                main([*words, "--format", "html"])
            pages[words] = file
        return pages[words]

    return draw
