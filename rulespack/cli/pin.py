"""``rulespack pin``: a first test file that pins the plans of somebody's own models and deployments."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rulespack.cli.asking import add_asking, add_tokens, asked, check_names
from rulespack.cli.flags import split
from rulespack.cli.terminal import Parser, Usage, complain, write
from rulespack.deployment import Deployment
from rulespack.releases import DEFAULT_ENGINE, releases, resolve

if TYPE_CHECKING:
    import argparse

    from rulespack.cli.deployments import Named

#: The command's own options and how many words follow each; every other flag is the engine's.
OPTIONS: Final = {
    "--help": "0",
    "-h": "0",
    "--release": "1",
    "--gpu": "1",
    "--env": "1",
    "--deployments": "1",
    "--tokens": "+",
    "--out": "1",
    "--force": "0",
}
#: The widest line of the file that is written.
WIDTH: Final = 88

_HEAD: Final = '''"""KV-cache plans pinned for {engine} {release}, one file each in __snapshots__ beside this one.

pytest --snapshot-update            writes them; read what changed before you commit it
pytest --rulespack-release X        asks release X instead, and shows what changes
"""

import pytest

pytestmark = pytest.mark.rulespack_release("{release}")


'''


def run(command: str, words: Sequence[str]) -> int:
    """Write the file, and say what will be pinned; 1 where a question has no answer to pin."""
    arguments, rest = split(words, OPTIONS)
    options = _parser().parse_intermixed_args(rest)
    if options.release is None:
        known = ", ".join(releases()) or "none"
        raise Usage(f"--release is missing; releases there are packs for: {known}")
    out = Path(options.out)
    if out.exists() and not options.force:
        raise Usage(f"{out} is there already: name another with --out, or replace it with --force")
    stated = {**asked(options), **arguments}
    if options.deployments is None:
        named: Sequence[Named] = ()
        pairs = [(model, "default", Deployment.of(stated)) for model in options.models]
    else:
        from rulespack.cli.deployments import check_models, load_deployments

        if stated:
            raise Usage(f"{min(stated)}: with --deployments, say it in the file, where the tests find it")
        named = load_deployments(options.deployments)
        check_models(named)
        pairs = [(m, d.name, d.deployment) for d in named for m in ([d.model] if d.model else options.models)]
    if not pairs:
        raise Usage("MODEL is missing: name the models to pin (rulespack models lists the catalog)")
    if not _answered(options.release, pairs):
        return 1
    head = _HEAD.format(engine=DEFAULT_ENGINE, release=options.release)
    test = _test_of_file(options, named, out) if named else _test_of_flags(options, stated, out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(head + test, encoding="utf-8")
    write(
        f"\n{out} is written. Next: pytest {out} --snapshot-update (pip install 'rulespack[pytest]' has what it needs)"
    )
    return 0


def _answered(release: str, pairs: Sequence[tuple[str, str, Deployment]]) -> bool:
    """Print what each question is answered; False, and a complaint for each, where some have no answer."""
    from rulespack.diff import Question
    from rulespack.diff.comparison import answer
    from rulespack.engine import engine
    from rulespack.report.changes import answer_text
    from rulespack.shelf import asked_graph

    asked_of = engine(resolve(release))
    whole = True
    for model, name, deployment in pairs:
        check_names(deployment, [asked_of.accepts()])
        found = answer(asked_of, Question(asked_graph(model, deployment), deployment, name))
        if found.refusal is not None and found.refusal.by != "engine":
            complain(f"{model}, {name}: there is nothing to pin: {answer_text(found)}")
            whole = False
        else:
            write(f"{model}, {name}: {answer_text(found)}")
    return whole


def _test_of_file(options: argparse.Namespace, named: Sequence[Named], out: Path) -> str:
    file = _beside(options.deployments, out)
    called = [literal(file)]
    takes = "deployment"
    if options.models and not all(each.model for each in named):
        called.append(f"models={literal([_place(model, out) for model in options.models])}")
    if options.models or any(each.model for each in named):
        takes = "model, deployment"
    marker = _call("@pytest.mark.rulespack_deployments", called)
    return f"{marker}\ndef test_plan({takes}, rulespack_pin):\n    {_pin('deployment', options.tokens)}\n"


def _test_of_flags(options: argparse.Namespace, stated: Mapping[str, Any], out: Path) -> str:
    models = literal([_place(model, out) for model in options.models])
    marker = _call("@pytest.mark.parametrize", ['"model"', models])
    lines = [marker, "def test_plan(model, rulespack_pin):"]
    if stated:
        inside = ", ".join(f"{name}={literal(value)}" for name, value in stated.items())
        text = f"    deployment = dict({inside})"
        if len(text) > WIDTH:
            inside = "".join(f"        {name}={literal(value)},\n" for name, value in stated.items())
            text = f"    deployment = dict(\n{inside}    )"
        lines.append(text)
    lines.append(f"    {_pin('deployment' if stated else None, options.tokens)}")
    return "\n".join(lines) + "\n"


def _pin(deployment: str | None, tokens: Sequence[int]) -> str:
    said = ["model", *([deployment] if deployment else []), *([f"tokens={list(tokens)}"] if tokens else [])]
    return f"rulespack_pin({', '.join(said)})"


def _call(function: str, arguments: Sequence[str]) -> str:
    text = f"{function}({', '.join(arguments)})"
    if len(text) <= WIDTH:
        return text
    return f"{function}(\n" + "".join(f"    {argument},\n" for argument in arguments) + ")"


def literal(value: Any) -> str:
    """A value of JSON's kinds as Python writes it, with double quotes."""
    if isinstance(value, str):
        return msgspec.json.encode(value).decode()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(key)}: {literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(literal, value)) + "]"
    return repr(value)


def _place(model: str, out: Path) -> str:
    """A catalog name as it is, a path as the test finds it: from the folder of its file."""
    from rulespack.catalog import locate, root

    return model if root() in locate(model).parents else _beside(model, out)


def _beside(file: str, out: Path) -> str:
    path = Path(os.path.relpath(file, out.parent)).as_posix()
    return path if "/" in path or path.endswith((".yaml", ".yml")) else f"./{path}"


def _parser() -> Parser:
    parser = Parser(
        "pin",
        "Write a first test file that pins the plans of your own models and deployments; pytest does the rest.",
        usage="rulespack pin MODEL ... --release X [--deployments FILE] ...",
    )
    parser.epilog = "Every vLLM engine argument is taken as rulespack plan takes it; name the models before them."
    parser.add_argument("models", nargs="*", metavar="MODEL", help="models as for plan")
    parser.add_argument("--release", metavar="X", help="the release to pin, such as 0.29.0")
    add_asking(parser)
    parser.add_argument(
        "--deployments", metavar="FILE", help="YAML: names with vLLM's arguments, or with a vllm serve command line"
    )
    add_tokens(parser, "pin what requests of N tokens take, too")
    parser.add_argument(
        "--out", default="test_kv_plans.py", metavar="FILE", help="the file to write (default test_kv_plans.py)"
    )
    parser.add_argument("--force", action="store_true", help="replace the file where it is there already")
    return parser
