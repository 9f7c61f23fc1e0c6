"""``rulespack rules``: what every rule of a release decides, and in which release it moved."""

from __future__ import annotations

from collections.abc import Sequence

from rulespack.cli.terminal import Parser, add_format, terminal_style, write
from rulespack.releases import DEFAULT_ENGINE


def run(command: str, words: Sequence[str]) -> int:
    """Print the rules."""
    parser = Parser("rules", "What every rule of a release decides, in one line, and in which release it moved.")
    parser.add_argument("release", nargs="?", metavar="RELEASE", help="the release (the newest there is a pack for)")
    parser.add_argument("--engine", default=DEFAULT_ENGINE, metavar="NAME", help=f"the engine ({DEFAULT_ENGINE})")
    add_format(parser, "text", "md", "json")
    options = parser.parse_args(words)

    from rulespack.report.rules import rules_document, rules_markdown, rules_text
    from rulespack.rules import rules

    listed = rules(options.release, engine=options.engine)
    if options.format == "json":
        from rulespack.report.json import indented

        write(indented(rules_document(listed)))
    elif options.format == "md":
        write(rules_markdown(listed))
    else:
        write(rules_text(listed, terminal_style()))
    return 0
