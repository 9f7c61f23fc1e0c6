"""The deployments of a file as the parameters of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

from rulespack.cli.deployments import load_deployments
from rulespack.errors import RulespackError


def cases(
    test_file: Path, marker: pytest.Mark, *, wants_model: bool
) -> tuple[list[str], list[tuple[Any, ...]], list[str]]:
    """Names, values and ids for ``parametrize``: each deployment, with its model where the test takes one.

    The file is looked for beside the test's. A deployment that names its model is for that one alone, any other is for
    each of the marker's ``models``. Where neither names one, the test's ``model`` is left to other parameters.
    """
    try:
        named = load_deployments(test_file.parent / _file(marker))
    except RulespackError as error:
        _refuse(str(error))
    models = marker.kwargs.get("models", ())
    models = [models] if isinstance(models, str) else list(models)
    if not wants_model or not (models or any(each.model for each in named)):
        return ["deployment"], [(each.deployment,) for each in named], [each.name for each in named]
    values: list[tuple[Any, ...]] = []
    ids: list[str] = []
    for each in named:
        its = [each.model] if each.model else models
        if not its:
            _refuse(f"{each.name} names no model: add one to it, or models=[...] to the marker {marker.name}")
        values += [(model, each.deployment) for model in its]
        ids += [f"{model_name(model)}-{each.name}" for model in its]
    return ["model", "deployment"], values, ids


def model_name(model: str) -> str:
    """A short name for a model given by name or path: a file goes by its folder's name."""
    path = Path(model)
    return (path.parent.name or path.stem) if path.suffix in (".json", ".yaml", ".yml") else path.name


def _file(marker: pytest.Mark) -> str:
    if len(marker.args) != 1 or not isinstance(marker.args[0], str) or set(marker.kwargs) - {"models"}:
        _refuse(
            f'the marker {marker.name} takes the name of a file, and models=[...]: {marker.name}("deployments.yaml")'
        )
    return marker.args[0]


def _refuse(message: str) -> NoReturn:
    raise pytest.fail.Exception(message, pytrace=False) from None
