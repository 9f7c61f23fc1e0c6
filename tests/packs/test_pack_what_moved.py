"""The newer pack holds what its release changed, and nothing that it did not."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import vllm_0_29
import vllm_0_31

PACKS = Path(__file__).parent.parent.parent / "packs"


def functions(pack: str) -> Iterator[tuple[str, str]]:
    """Every function of a pack: where it stands, and what it does regardless of its names and docstring."""
    for file in sorted((PACKS / pack).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                yield f"{file.parent.name}/{file.name}: {node.name}", nameless(node.args, body)


def nameless(arguments: ast.arguments, body: Sequence[ast.AST]) -> str:
    """A function with its parameters and local variables numbered in the order they come, and without annotations."""
    numbers: dict[str, str] = {}
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            numbers.setdefault(argument.arg, f"_{len(numbers)}")
    for node in (below for statement in body for below in ast.walk(statement)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            numbers.setdefault(node.id, f"_{len(numbers)}")
    text = "".join(map(ast.dump, body))
    return re.sub(r"(?<=Name\(id=')\w+", lambda found: numbers.get(found[0], found[0]), text)


def test_no_function_is_copied_from_the_earlier_pack() -> None:
    earlier = {text: where for where, text in functions("vllm_0_29") if text_says_something(text)}
    copied = [f"{where} is {earlier[text]}" for where, text in functions("vllm_0_31") if text in earlier]
    assert copied == []


def text_says_something(text: str) -> bool:
    """Whether a function is more than a bare return of a constant."""
    return "Call(" in text or "BinOp(" in text or "Compare(" in text


def test_no_table_is_copied_from_the_earlier_pack() -> None:
    earlier = [(where, value) for where, value in tables("vllm_0_29")]
    copied = [
        f"{where} is {before}"
        for where, value in tables("vllm_0_31")
        for before, known in earlier
        if value == known and value is not known
    ]
    assert copied == []


def tables(pack: str) -> Iterator[tuple[str, Any]]:
    """Every constant of a pack that lists three things or more."""
    for file in sorted((PACKS / pack).rglob("*.py")):
        module = importlib.import_module(pack if file.stem == "__init__" else f"{pack}.{file.stem}")
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, (tuple, list, frozenset, set, Mapping)) and len(value) > 2:
                yield f"{module.__name__}.{name}", value


def test_the_comparison_would_see_a_copy() -> None:
    texts = [text for _, text in functions("vllm_0_29")]
    assert len(texts) > 80
    assert sum(map(text_says_something, texts)) > 60
    one, other = (
        ast.parse(text).body[0] for text in ("def f(a):\n b = a + 1\n return b", "def g(c): d = c + 1; return d")
    )
    assert isinstance(one, ast.FunctionDef)
    assert isinstance(other, ast.FunctionDef)
    assert nameless(one.args, one.body) == nameless(other.args, other.body)


def test_the_newer_table_replaces_only_what_differs() -> None:
    """A field the newer pack names is another rule or another table, never the earlier one again."""
    named = moved_fields()
    assert len(named) > 10
    for field in named:
        earlier, newer = getattr(vllm_0_29.RULES, field), getattr(vllm_0_31.RULES, field)
        assert newer is not earlier, field
        assert callable(newer) or newer != earlier, f"{field} is stated again as it was"


def test_every_other_rule_is_the_earlier_one_itself() -> None:
    for field in set(vllm_0_31.RULES.__struct_fields__) - moved_fields():
        assert getattr(vllm_0_31.RULES, field) is getattr(vllm_0_29.RULES, field)


def moved_fields() -> set[str]:
    """The fields the newer pack's table names."""
    tree = ast.parse((PACKS / "vllm_0_31" / "__init__.py").read_text(encoding="utf-8"))
    (table,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "RULES"
    )
    assert isinstance(table, ast.Call)
    return {keyword.arg for keyword in table.keywords if keyword.arg is not None}


def test_moving_one_rule_moves_it_for_all_its_callers() -> None:
    """A rule is reached through the table it was given, so a table with one rule replaced is another release."""
    from small_graphs import full, graph_of

    from rulespack import Deployment, Engine
    from vllm_0_29.pack import Pack

    def preferred_block_size(rules: object, served: object) -> int:
        return 48

    rules = msgspec.structs.replace(vllm_0_31.RULES, preferred_block_size=preferred_block_size)
    answer = Engine("0.31.0", plugins=[Pack(rules)]).plan(graph_of([full()] * 2), Deployment())
    assert answer.resolved.block_size == 48
    assert answer.groups[0].block_size == 48
    assert answer.bytes_per_block == 2 * 48 * 8 * 128 * 4
    assert answer.resolved.scheduler_block_size == 48
