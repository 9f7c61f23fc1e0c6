"""One file for each family of models, found by being in this folder.

A family module states ``FAMILY`` and imports no other family: what two families share lives in ``derive/blocks.py``.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from rulespack.derive.family import Family


@cache
def families() -> dict[str, Family]:
    """The family of each architecture that is translated."""
    found: dict[str, Family] = {}
    for module in sorted(iter_modules(__path__), key=lambda info: info.name):
        family: Family = import_module(f"{__name__}.{module.name}").FAMILY
        for architecture in family.serves:
            if architecture in found:
                raise RuntimeError(f"two families serve {architecture}")
            found[architecture] = family
    return found
