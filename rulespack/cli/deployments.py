"""A file of named deployments: YAML, each name with vLLM's arguments or with a ``vllm serve`` command line.

chat:
  tensor_parallel_size: 2
  kv_cache_dtype: fp8
batch: VLLM_USE_V2_MODEL_RUNNER=0 vllm serve openai/gpt-oss-120b -tp 8 --max-model-len 32k
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rulespack.cli.flags import split
from rulespack.cli.terminal import Usage
from rulespack.deployment import Deployment
from rulespack.errors import BadDeployment
from rulespack.graph.document import Document, Unreadable, read_document
from rulespack.graph.load import read_bounded
from rulespack.graph.scalars import Odd

#: What a command line may begin with.
SERVE: Final = (
    ("vllm", "serve"),
    ("python", "-m", "vllm.entrypoints.openai.api_server"),
    ("python3", "-m", "vllm.entrypoints.openai.api_server"),
)
#: What of a command line is no engine argument, and how many words follow each.
OPTIONS: Final = {"--model": "1", "--gpu": "1", "--env": "1"}

#: What a shell would read as its own, outside of quotes, with the word it stands in.
_SHELL: Final = re.compile(r"""(?:[^\s'"\\;&|<>]|\\.|'[^']*'|"(?:\\.|[^"\\])*")*([;&|<>]\S*)?""", re.DOTALL)
#: What helps where YAML takes the JSON in a command line for a mapping of its own.
_MAPPING_HINT: Final = "; a command line that holds ': ' stands below its name, indented, after `name: >`"
_VARIABLE: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


class Named(msgspec.Struct, frozen=True):
    """A deployment under its name in the file, and the model it is for, None where it is for any.

    ``where`` is its place: the file, the line and the name.
    """

    name: str
    deployment: Deployment
    model: str | None = None
    where: str = ""


def load_deployments(file: str | Path, common: Mapping[str, Any] | None = None) -> tuple[Named, ...]:
    """The deployments of a file, in its order; ``common`` holds for each that does not state the same itself.

    Raises BadDeployment with the file, the name and what is wrong there: text that is no YAML, an argument or a flag
    that no release has (with the nearest one), a value that cannot be read.
    """
    try:
        document = read_document(read_bounded(Path(file)), "the file")
    except OSError as error:
        raise BadDeployment(f"{file}: cannot be read: {error.strerror or error}") from None
    except Unreadable as error:
        at = f":{error.problem.line}" if error.problem.line else ""
        hint = _MAPPING_HINT if "mapping values" in error.problem.message else ""
        raise BadDeployment(f"{file}{at}: {error.problem.message}{hint}") from None
    for problem in document.problems:
        raise BadDeployment(f"{file}:{problem.line}: {problem.path}: {problem.message}")
    if not isinstance(document.data, dict) or not document.data:
        raise BadDeployment(f"{file}: expected names of deployments, each with its arguments or a command line")
    return tuple(_named(str(file), document, name, common or {}) for name in document.data)


def _named(file: str, document: Document, name: Any, common: Mapping[str, Any]) -> Named:
    where = f"{file}:{document.line((name,))}: {name}"
    said = document.data[name]
    try:
        if isinstance(said, str):
            stated = read_command_line(said)
        elif said is None:
            stated = {}
        elif isinstance(said, dict):
            stated = {str(key).replace("-", "_"): _plain(str(key), value) for key, value in said.items()}
        else:
            raise BadDeployment("expected a mapping of arguments, or a vllm serve command line")
        model = stated.pop("model", None)
        if model is not None and not isinstance(model, str):
            raise BadDeployment(f"model: expected a name or a path, got {model!r}")
        return Named(str(name), Deployment.of({**common, **stated}), model, where)
    except (BadDeployment, Usage) as error:
        raise BadDeployment(f"{where}: {error}") from None


def check_models(named: Iterable[Named]) -> None:
    """Raise BadDeployment with the place of the first deployment whose model there is none of."""
    from rulespack.catalog import UnknownModel, locate

    for each in named:
        try:
            if each.model is not None:
                locate(each.model)
        except UnknownModel as error:
            raise BadDeployment(f"{each.where}: model: {error}") from None


def read_command_line(text: str) -> dict[str, Any]:
    """The arguments of a command line as vLLM parses it, with ``model``, ``gpu`` and ``env`` where it states them.

    It begins with ``vllm serve``, or with a flag; variables before it, as in a shell, are the engine's environment.
    Raises Usage.
    """
    text = text.replace("\\\n", " ")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise Usage(f"not a command line: {str(error).lower()}") from None
    if (shell := next((found for found in _SHELL.finditer(text) if found[1]), None)) is not None:
        raise Usage(f"{shell[0]!r} is for a shell: leave it out, or put it in quotes if it is a flag's value")
    environment: dict[str, str] = {}
    while words and (variable := _VARIABLE.fullmatch(words[0])):
        environment[variable[1]] = variable[2]
        words.pop(0)
    for start in SERVE:
        if tuple(words[: len(start)]) == start:
            words = words[len(start) :]
            break
    else:
        if not words or not words[0].startswith("-"):
            raise Usage(f"a command line begins with vllm serve, or with a flag, not with {' '.join(words[:2])!r}")
    stated, rest = split(words, OPTIONS)
    options = dict(_options(rest))
    positional = options.pop("", [])
    if len(positional) > 1:
        raise Usage(f"{positional[1]!r} is no flag, and the model is {positional[0]} already")
    models = [*positional, *options.get("--model", [])]
    environment |= {name: value for name, _, value in (word.partition("=") for word in options.get("--env", []))}
    return {
        **stated,
        **({"model": models[0]} if models else {}),
        **({"gpu": options["--gpu"][-1]} if "--gpu" in options else {}),
        **({"env": environment} if environment else {}),
    }


def _options(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """What :func:`split` left, by option; words of no option under the empty name."""
    found: dict[str, list[str]] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        option, equals, value = word.partition("=")
        if option not in OPTIONS:
            found.setdefault("", []).append(word)
        elif equals:
            found.setdefault(option, []).append(value)
        elif left:
            found.setdefault(option, []).append(left.pop(0))
        else:
            raise Usage(f"{option}: a value must follow")
    yield from found.items()


def _plain(key: str, value: object) -> Any:
    if isinstance(value, Odd):
        raise BadDeployment(f"{key}: {value.text} could be read as {value.reads}; put it in quotes or write it out")
    if isinstance(value, dict):
        return {str(inner): _plain(f"{key}.{inner}", below) for inner, below in value.items()}
    if isinstance(value, list):
        return [_plain(f"{key}[{position}]", below) for position, below in enumerate(value)]
    return value
