"""``rulespack plan``: one model, one release, vLLM's own flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rulespack.cli.asking import add_asking, add_tokens, asked
from rulespack.cli.flags import ALIASES, modelled_flags, split
from rulespack.cli.terminal import Parser, Usage, add_format, complain, terminal_style, write
from rulespack.deployment import Deployment
from rulespack.errors import Refused, RulespackError
from rulespack.releases import DEFAULT_ENGINE, releases, resolve

if TYPE_CHECKING:
    from rulespack.engine import Engine
    from rulespack.graph.model import ModelGraph
    from rulespack.graph.weights import Parameters
    from rulespack.kv.plan import Plan
    from rulespack.report.why import Explanation

#: The command's own options and how many words follow each; every other flag is the engine's.
OPTIONS = {
    "--help": "0",
    "-h": "0",
    "--model": "1",
    "--release": "1",
    "--engine": "1",
    "--nearest": "0",
    "--gpu": "1",
    "--env": "1",
    "--tokens": "+",
    "--why": "0",
    "--format": "1",
}


def run(command: str, words: Sequence[str]) -> int:
    """Print the plan, or why there is none."""
    arguments, rest = split(words, OPTIONS)
    parser = _parser()
    if {"-h", "--help"} & {*rest}:
        parser.epilog = _flags_help()
    options = parser.parse_args(rest)
    model = options.flagged_model if options.model is None else options.model
    if model is None:
        raise Usage("MODEL is missing: name it first, before the engine's flags (rulespack models lists the catalog)")
    if options.release is None:
        known = ", ".join(releases(options.engine))
        raise Usage(f"--release is missing; releases there are packs for: {known or 'none'}")
    try:
        return _plan(model, options, arguments)
    except RulespackError as error:
        if options.format == "json":
            from rulespack.report.json import error_document, indented

            write(indented(error_document(error)))
        raise


def _plan(model: str, options: Any, arguments: Mapping[str, Any]) -> int:
    from rulespack.engine import engine
    from rulespack.shelf import asked_graph

    resolve(options.release, options.engine, nearest=options.nearest, switch="--nearest")  # complains of our own flag
    answering = engine(options.release, engine=options.engine, nearest=options.nearest)
    deployment = Deployment(**asked(options), **arguments)
    graph = asked_graph(model, deployment)
    refused: Refused | None = None
    plan: Plan | None
    weights: Parameters | None = None
    try:
        plan = answering.plan(graph, deployment)
        weights = answering.weights(graph, deployment) if options.format == "json" else None
    except Refused as error:
        plan, refused = error.plan, error
    if plan is not None:
        for length in options.tokens:
            if not 1 <= length <= plan.resolved.max_model_len:
                raise Usage(f"--tokens: {length} is not between 1 and max_model_len, {plan.resolved.max_model_len}")
    if options.format == "json":
        from rulespack.report.json import indented, plan_document, refusal_document

        if refused is not None:
            write(indented(refusal_document(refused)))
        elif plan is not None:
            write(indented(plan_document(plan, options.tokens, weights)))
    elif plan is not None:
        write(_drawn(plan, refused, answering, graph, deployment, options, lambda: asked_graph(model, Deployment())))
    if refused is not None:
        complain(refusal_sentence(refused, answering.engine, answering.release))
        return 1
    return 0


def _drawn(
    plan: Plan,
    refused: Refused | None,
    answering: Engine,
    graph: ModelGraph,
    deployment: Deployment,
    options: Any,
    plain: Callable[[], ModelGraph],
) -> str:
    """The plan for people: text, or a page. ``plain`` loads the graph without the deployment's ``hf_overrides``."""
    explanation: Explanation | None = None
    if options.why or options.format == "html":
        from rulespack.diff import Answer, Refusal
        from rulespack.report.why import explain

        refusal = None if refused is None else Refusal.of(refused)
        explanation = explain(answering, graph, deployment, Answer(plan.release, plan, refusal), plain)
        if options.format == "html":
            from rulespack.report.html import plan_html

            return plan_html(plan, explanation, options.tokens, refusal)
    from rulespack.report.text import plan_text

    requests = [plan.request(length) for length in options.tokens]
    undrafted = _undrafted(answering, graph, deployment) if plan.draft_caches else None
    return plan_text(plan, requests, style=terminal_style(), explanation=explanation, undrafted=undrafted)


def _undrafted(answering: Engine, graph: ModelGraph, deployment: Deployment) -> Plan | None:
    """The plan of the same deployment without its drafter, as far as the release makes one."""
    stated = {name: value for name, value in deployment.stated.items() if name != "speculative_config"}
    try:
        return answering.plan(graph, Deployment(**stated))
    except Refused as refused:
        return refused.plan


def refusal_sentence(refused: Refused, engine: str, release: str) -> str:
    """A refusal as one paragraph: who refuses, how the release stops, why, by which rule, and where that stands."""
    where = f" [{refused.rule}{f'; {refused.source}' if refused.source else ''}]"
    if refused.by == "engine":
        return f"{engine} {release} refuses this: {refused.type} at stage {refused.stage}: {refused.reason}{where}"
    return f"the pack for {engine} {release} does not model this: {refused.reason}{where}"


def _parser() -> Parser:
    parser = Parser(
        "plan",
        "The KV-cache plan of one model under one release and vLLM's own flags.",
        usage="rulespack plan MODEL --release X ...",
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a catalog name, a graph.yaml, a config.json, or a folder"
    )
    parser.add_argument("--model", dest="flagged_model", metavar="MODEL", help="the same, as vLLM once spelled it")
    parser.add_argument("--release", metavar="X", help="the engine's release, such as 0.31.0")
    parser.add_argument("--engine", default=DEFAULT_ENGINE, metavar="NAME", help="the engine (vllm)")
    parser.add_argument("--nearest", action="store_true", help="accept the closest lower release there is a pack for")
    add_asking(parser)
    add_tokens(parser, "what one request of N tokens pins")
    parser.add_argument(
        "--why", action="store_true", help="explain it: what each argument does, why each decision fell, what it cost"
    )
    add_format(parser, "text", "json", "html")
    return parser


def _flags_help() -> str:
    import textwrap

    short = {name: alias for alias, name in ALIASES.items() if not alias.startswith("--")}
    said = []
    for flag, kind in modelled_flags().items():
        alias = short.get(flag[2:].replace("-", "_"))
        spelled = f"--[no-]{flag[2:]}" if kind == "bool" else flag
        said.append(f"{spelled} ({alias})" if alias else spelled)
    text = (
        "Every vLLM engine argument is taken as vLLM takes it: --flag value, --flag=value, --no-flag, underscores for "
        "dashes, JSON, dotted JSON keys (--kv-transfer-config.kv_connector NixlConnector), 32k for 32,000 and 32K for "
        "32,768. These can change the plan; others are accepted and echoed where the release has them and they cannot:"
    )
    width = min(terminal_style().width - 2, 100)
    flags = textwrap.fill(", ".join(said), width - 2, break_on_hyphens=False)
    return f"{textwrap.fill(text, width)}\n\n{textwrap.indent(flags, '  ')}"
