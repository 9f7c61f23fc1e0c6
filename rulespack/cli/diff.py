"""``rulespack diff``: what changed between two releases, for the catalog or for models of one's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rulespack.cli.asking import add_asking, add_tokens, asked, check_names
from rulespack.cli.flags import split
from rulespack.cli.terminal import Parser, Usage, add_format, complain, one_of, terminal_style, write
from rulespack.deployment import Deployment
from rulespack.releases import DEFAULT_ENGINE, releases, resolve

if TYPE_CHECKING:
    import argparse

    from rulespack.diff import Comparison, Question

#: The command's own options and how many words follow each; every other flag is the engine's.
OPTIONS: Final = {
    "--help": "0",
    "-h": "0",
    "--engine": "1",
    "--gpu": "1",
    "--env": "1",
    "--deployments": "1",
    "--tokens": "+",
    "--only": "1",
    "--exit-code": "0",
    "--format": "1",
}
#: How many models are named that serve no request of a length.
NAMED: Final = 5
FORMATS: Final = ("text", "md", "html", "json", "github")


def run(command: str, words: Sequence[str]) -> int:
    """Print the comparison; 1 where something differs and ``--exit-code`` asks to be told so."""
    arguments, rest = split(words, OPTIONS)
    options = _parser().parse_intermixed_args(rest)  # models may follow options
    if options.old is None or options.new is None:
        known = ", ".join(releases(options.engine))
        raise Usage(f"two releases are compared, the older first; there are packs for: {known or 'none'}")

    from rulespack.diff import TOKENS, compare_questions
    from rulespack.engine import engine

    compared = [resolve(release, options.engine) for release in (options.old, options.new)]
    old, new = (engine(release, engine=options.engine) for release in compared)
    questions = _questions(options, {**asked(options), **arguments})
    accepted = (old.accepts(), new.accepts())
    for deployment in {id(question.deployment): question.deployment for question in questions}.values():
        check_names(deployment, accepted)
    comparison = compare_questions(old, new, questions, engine=options.engine, tokens=options.tokens or TOKENS)
    _draw(comparison, options.format, only_changed=options.only == "changed")
    for sentence in _past(comparison, options.tokens):
        complain(sentence)
    return 1 if options.exit_code and comparison.differs else 0


def _questions(options: argparse.Namespace, stated: Mapping[str, Any]) -> list[Question]:
    """Each model under each deployment; a deployment that names its model is for that one alone."""
    from rulespack.catalog import locate
    from rulespack.cli.deployments import Named, check_models, load_deployments
    from rulespack.diff import Question, catalog_graph, catalog_models
    from rulespack.shelf import asked_graph

    if options.deployments is None:
        named: Sequence[Named] = (Named("default", Deployment.of(stated)),)
    else:
        named = load_deployments(options.deployments, stated)
        check_models(named)
    meant = [None if each.model is None else locate(each.model).resolve() for each in named]
    models: list[str] = options.models
    if not models:
        models = [
            *(catalog_models() if None in meant else []),
            *(each.model for each in named if each.model is not None),
        ]
    graph_of = asked_graph if options.models else catalog_graph
    questions: list[Question] = []
    known: dict[str, str] = {}
    for file, model in {locate(model).resolve(): model for model in models}.items():
        for each, its_file in zip(named, meant, strict=True):
            if its_file is None or its_file == file:
                graph = graph_of(model, each.deployment)
                if (other := known.setdefault(graph.name, model)) != model:
                    raise Usage(f"{other} and {model} are both called {graph.name}: compare them one at a time")
                questions.append(Question(graph, each.deployment, each.name))
    return questions


def _past(comparison: Comparison, tokens: Sequence[int]) -> Iterator[str]:
    """A sentence for each length that was asked for and is longer than both releases serve a model."""
    from rulespack.report.changes import many, title

    longest = {title(pair, comparison): pair.requests[-1].tokens for pair in comparison.pairs if pair.requests}
    for asked_for in dict.fromkeys(tokens):
        short = [f"{name} ({served:,})" for name, served in longest.items() if served < asked_for]
        if short:
            more = f" and {many(len(short) - NAMED, 'other')}" if len(short) > NAMED else ""
            named = ", ".join(short[:NAMED]) + more
            yield f"--tokens {asked_for:,} is past the longest request both releases serve of {named}: not compared"


def _draw(comparison: Comparison, form: str, *, only_changed: bool) -> None:
    if form == "json":
        from rulespack.report.diff_json import diff_document
        from rulespack.report.json import indented

        write(indented(diff_document(comparison, only_changed=only_changed)))
    elif form == "md":
        from rulespack.report.markdown import diff_markdown

        write(diff_markdown(comparison, only_changed=only_changed))
    elif form == "html":
        from rulespack.report.html import diff_html

        write(diff_html(comparison, only_changed=only_changed))
    elif form == "github":
        from rulespack.cli.github import report

        report(comparison, only_changed=only_changed)
    else:
        from rulespack.report.diff_text import diff_text

        write(diff_text(comparison, style=terminal_style(), only_changed=only_changed))


def _parser() -> Parser:
    parser = Parser(
        "diff",
        "What changed between two releases: for each model and deployment what stays, moves, or is refused, and why.",
        usage="rulespack diff OLD NEW [MODEL ...] [--deployments FILE] ...",
    )
    parser.epilog = "Every vLLM engine argument is taken as rulespack plan takes it; name the models before them."
    parser.add_argument("old", nargs="?", metavar="OLD", help="the release to compare with, such as 0.29.0")
    parser.add_argument("new", nargs="?", metavar="NEW", help="the release to look at, such as 0.31.0")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="models as for plan; the whole catalog if none")
    parser.add_argument("--engine", default=DEFAULT_ENGINE, metavar="NAME", help="the engine (vllm)")
    add_asking(parser)
    parser.add_argument(
        "--deployments", metavar="FILE", help="YAML: names with vLLM's arguments, or with a vllm serve command line"
    )
    add_tokens(parser, "lengths of requests to compare")
    parser.add_argument(
        "--only", type=one_of("changed"), metavar="changed", help="leave out what is the same or not modelled"
    )
    parser.add_argument("--exit-code", action="store_true", help="end with 1 where anything differs, as git diff does")
    add_format(parser, *FORMATS)
    return parser
