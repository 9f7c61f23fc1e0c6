"""How text is drawn: wrapped to a width, numbers readable, emphasis only where it is wanted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

#: The narrowest column of running text beside a name.
READABLE: Final = 32
#: The narrowest a screen is taken to be; one that says it is narrower wraps the lines itself.
NARROWEST: Final = 20


class Style(msgspec.Struct, frozen=True):
    """``width`` in columns, at least :data:`NARROWEST`, and whether escape codes for emphasis may be written."""

    width: int = 80
    emphasis: bool = False

    def __post_init__(self) -> None:
        if self.width < NARROWEST:
            msgspec.structs.force_setattr(self, "width", NARROWEST)

    def strong(self, text: str) -> str:
        """``text`` in bold, where that is possible."""
        return f"\x1b[1m{text}\x1b[0m" if self.emphasis else text

    def faint(self, text: str) -> str:
        """``text`` dimmed, where that is possible."""
        return f"\x1b[2m{text}\x1b[0m" if self.emphasis else text


def wrap(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width`` columns, broken at blanks, else after ``.``, ``,`` or ``/``.

    A width that leaves no room is one column.
    """
    width = max(width, 1)
    lines: list[str] = []
    line = ""
    for word in text.split():
        while True:
            joined = f"{line} {word}" if line else word
            if len(joined) <= width:
                line = joined
                break
            if line:
                lines.append(line)
                line = ""
                continue
            cut = max((word.rfind(mark, 0, width) + 1 for mark in ".,/"), default=0) or width
            lines.append(word[:cut])
            word = word[cut:]
    return [*lines, line] if line or not lines else lines


def pairs(rows: Iterable[tuple[str, str]], style: Style, indent: int = 2) -> list[str]:
    """Names and what they are, the names in a column of their own; the values below their names where it is narrow."""
    rows = list(rows)
    lead = max((len(name) for name, _ in rows), default=0) + indent + 2
    beside = style.width - lead >= READABLE
    lines = []
    for name, value in rows:
        start = f"{' ' * indent}{name}"
        if beside:
            first, *more = wrap(value, style.width - lead)
            lines.append(f"{start:<{lead}}{first}".rstrip())
            lines += [f"{' ' * lead}{line}" for line in more]
        else:
            lines.append(start)
            lines += [f"{' ' * (indent + 2)}{line}" for line in wrap(value, style.width - indent - 2)]
    return lines


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], style: Style) -> list[str]:
    """A table whose last column may be running text and whose other columns are numbers.

    The last column stands beside the others where all of it fits, else below them, its heading likewise; where the
    others do not fit either, or leave it no room below, each row becomes a paragraph.
    """
    widths = [max(len(cell) for cell in column) for column in zip(headings, *rows, strict=True)]
    lead = sum(widths[:-1]) + 2 * len(widths[:-1])
    beside = lead + widths[-1] <= style.width
    indent = widths[0] + 2
    if not beside and (lead > style.width or style.width - indent < NARROWEST // 2):
        return _stacked(headings, rows, style)
    lines: list[str] = []
    for row in (headings, *rows):
        said = [_numbers(row, widths) + (f"  {row[-1]}" if beside else "")]
        if not beside:
            said += [f"{' ' * indent}{line}" for line in wrap(row[-1], style.width - indent)]
        lines += map(style.faint, said) if row is headings else said
    return lines


def _numbers(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells[:-1], widths[:-1], strict=True))


def _stacked(headings: Sequence[str], rows: Sequence[Sequence[str]], style: Style) -> list[str]:
    lines: list[str] = []
    for row in rows:
        first, *more = wrap(f"{headings[0]} {row[0]}: {headings[-1]} {row[-1]}", style.width - 2)
        lines += [style.strong(first), *(f"  {line}" for line in more)]
        numbers = ", ".join(f"{heading} {cell}" for heading, cell in zip(headings[1:-1], row[1:-1], strict=True))
        lines += [f"  {line}" for line in wrap(numbers, style.width - 2)]
    return lines


def count(number: float) -> str:
    """A number with thousands separators; a fraction to two places."""
    return f"{number:,.2f}".rstrip("0").rstrip(".") if number % 1 else f"{int(number):,}"


def size(number: float) -> str:
    """Bytes, and from a kibibyte on the same in the largest fitting binary unit, in brackets."""
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if number >= 1 << power:
            return f"{count(number)} ({count(round(number / (1 << power), 2))} {unit})"
    return count(number)


_FIRST_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.|$)")


def layer_names(names: Iterable[str], between: str = ", ") -> str:
    """Engine layer names, those alike but for a number written once: ``model.layers.{0-39}.self_attn.attn``.

    ``between`` stands between names that are not alike.
    """
    alike: dict[tuple[str, str], list[int]] = {}
    for name in names:
        match = _FIRST_NUMBER.search(name)
        if match is None:
            alike[name, ""] = []
        else:
            alike.setdefault((name[: match.start()], name[match.end() :]), []).append(int(match.group()))
    return between.join(
        f"{before}{numbers[0] if len(numbers) == 1 else '{' + _ranges(numbers) + '}' if numbers else ''}{after}"
        for (before, after), numbers in alike.items()
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in order as ranges, with the step where it is not one: ``0-4,6``, ``0-40/2``."""
    parts = []
    at = 0
    while at < len(numbers):
        step = numbers[at + 1] - numbers[at] if at + 1 < len(numbers) else 1
        end = at
        while end + 1 < len(numbers) and numbers[end + 1] - numbers[end] == step:
            end += 1
        if end == at or (end == at + 1 and step != 1):
            parts.append(f"{numbers[at]}")
            at += 1
        else:
            parts.append(f"{numbers[at]}-{numbers[end]}" + (f"/{step}" if step != 1 else ""))
            at = end + 1
    return ",".join(parts)
