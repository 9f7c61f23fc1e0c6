"""An interpreter with packages of others."""

from __future__ import annotations

from pathlib import Path

import pytest
from other_packages import ACME, Interpreter


@pytest.fixture
def interpreter(tmp_path: Path) -> Interpreter:
    """Nothing installed beside rulespack yet."""
    return Interpreter(tmp_path / "metadata")


@pytest.fixture(scope="session")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    """Acme's package installed."""
    interpreter = Interpreter(tmp_path_factory.mktemp("acme") / "metadata")
    interpreter.install(ACME)
    return interpreter
