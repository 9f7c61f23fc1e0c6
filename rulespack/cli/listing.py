"""``rulespack models`` and ``rulespack releases``: what there is to ask about, one name to a line."""

from __future__ import annotations

from collections.abc import Sequence

from rulespack.cli.terminal import Parser, Usage, add_format, write


def run(command: str, words: Sequence[str]) -> int:
    """Print the names."""
    return _models(words) if command == "models" else _releases(words)


def _models(words: Sequence[str]) -> int:
    parser = Parser("models", "The models of the catalog, by name; rulespack show says what each is.")
    add_format(parser)
    options = parser.parse_args(words)

    from rulespack.catalog import names

    _print(names(), options.format)
    return 0


def _releases(words: Sequence[str]) -> int:
    from rulespack.releases import DEFAULT_ENGINE, installed, releases

    parser = Parser("releases", "The releases there are packs for, oldest first.")
    parser.add_argument("--engine", default=DEFAULT_ENGINE, metavar="NAME", help=f"the engine ({DEFAULT_ENGINE})")
    add_format(parser)
    options = parser.parse_args(words)
    if options.engine not in installed():
        known = ", ".join(installed()) or "none"
        raise Usage(f"--engine: no pack is installed for {options.engine!r}; engines there are packs for: {known}")
    _print(releases(options.engine), options.format)
    return 0


def _print(names: Sequence[str], form: str) -> None:
    if form == "json":
        from rulespack.report.json import indented

        write(indented(names))
    elif names:
        write("\n".join(names))
