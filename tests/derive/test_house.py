"""The families stay apart: what two of them share lives beside them, not in one of them."""

from __future__ import annotations

import grimp

FAMILIES = "rulespack.derive.families"


def test_no_family_imports_another() -> None:
    graph = grimp.build_graph("rulespack", cache_dir=None)
    homes = graph.find_children(FAMILIES)
    for home in homes:
        own = {home} | graph.find_descendants(home)
        for module in own:
            others = {found for found in graph.find_modules_directly_imported_by(module) if found.startswith(FAMILIES)}
            assert others <= own, module
