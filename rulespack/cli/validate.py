"""``rulespack validate``: what is wrong with graphs, identities, configurations and whole catalogs."""

from __future__ import annotations

from collections.abc import Sequence

from rulespack.cli.terminal import Parser, add_format, write


def run(command: str, words: Sequence[str]) -> int:
    """Print every problem found; 1 where one of them is an error."""
    parser = Parser("validate", "Say what is wrong with graphs, identities, configurations and whole catalogs.")
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a catalog, a model's folder, a graph.yaml, model.yaml or config.json"
    )
    add_format(parser)
    options = parser.parse_args(words)

    from rulespack.validation import validate

    reports = validate(options.paths)
    if options.format == "json":
        from rulespack.report.json import indented

        write(indented(reports))
    else:
        found = [(report.file, problem) for report in reports for problem in report.problems]
        for file, problem in found:
            where = f"{file}:{problem.line}" if problem.line is not None else file
            at = f"{problem.path}: " if problem.path else ""
            write(f"{where}: {problem.severity}: {at}{problem.message} [{problem.rule}]")
        errors = sum(problem.severity == "error" for _, problem in found)
        write(f"{_count(len(reports), 'file')}, {_count(errors, 'error')}, {_count(len(found) - errors, 'warning')}")
    return 0 if all(report.valid for report in reports) else 1


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
