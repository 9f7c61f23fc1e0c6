"""The ``rulespack`` command: what a release decides, asked from a shell.

Exit status: 0 an answer, 1 a refusal or something invalid, 2 a command line that cannot be used.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from rulespack import __version__

#: Command -> the module that runs it, and one line on what it does.
COMMANDS: Final = {
    "plan": ("rulespack.cli.plan", "the KV-cache plan of a model under a release and vLLM's own flags"),
    "diff": ("rulespack.cli.diff", "what changed between two releases, for the catalog or models of your own"),
    "batch": ("rulespack.cli.batch", "answer questions given as JSON lines"),
    "models": ("rulespack.cli.listing", "the models of the catalog"),
    "releases": ("rulespack.cli.listing", "the releases there are packs for"),
    "rules": ("rulespack.cli.rules", "what every rule decides, and in which release it moved"),
    "show": ("rulespack.cli.show", "what a model is: layers, caches, parameters"),
    "derive": ("rulespack.cli.derive", "a vendor's config.json as a model graph"),
    "pin": ("rulespack.cli.pin", "write a first test file that pins the plans of your own deployments"),
    "schema": ("rulespack.cli.schema", "the JSON Schema of graph.yaml, of plans, of questions and answers"),
    "validate": ("rulespack.cli.validate", "check graphs, identities and whole catalogs"),
}
#: The status a shell gives a command that its reader left, 128 and SIGPIPE.
READER_GONE: Final = 141
#: The status a shell gives a command that was interrupted, 128 and SIGINT.
INTERRUPTED: Final = 130


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line (the process's own by default) and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a letter still gets the rest
    try:
        try:
            status = _run(list(sys.argv[1:] if words is None else words))
        except SystemExit as leaving:  # how argparse ends after --help
            status = int(leaving.code or 0)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to say at exit either
        return READER_GONE
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _run(words: list[str]) -> int:
    from rulespack.cli.terminal import Usage, complain, write

    if not words:
        sys.stderr.write(_help() + "\n")
        return 2
    command = words[0]
    if command in ("-h", "--help", "help"):
        write(_help())
        return 0
    if command == "--version":
        write(f"rulespack {__version__}")
        return 0
    try:
        if command not in COMMANDS:
            from rulespack.errors import meant

            raise Usage(f"no command named {command!r}{meant(command, COMMANDS)} (see rulespack --help)")
        return _answer(command, words[1:])
    except Usage as error:
        complain(f"{error}")
        return 2


def _answer(command: str, words: list[str]) -> int:
    from rulespack.cli.terminal import Usage, complain
    from rulespack.errors import RulespackError

    try:
        return int(importlib.import_module(COMMANDS[command][0]).run(command, words))
    except (Usage, BrokenPipeError):
        raise
    except RulespackError as error:
        complain(f"{error}")
        return _status_of(error)
    except OSError as error:
        complain(f"{error.filename or command}: {error.strerror or error}")
        return 1
    except Exception as fault:  # ours: told in one paragraph like everything else
        if sys.flags.dev_mode:
            raise
        from rulespack.batch import fault_text

        complain(f"{fault_text(fault)} (python -X dev -m rulespack shows the traceback)")
        return 1


def _status_of(error: Exception) -> int:
    """1 where something that was named is invalid, 2 where the command line names what there is not."""
    from rulespack.catalog import UnknownModel
    from rulespack.errors import BadDeployment, UnknownRelease

    return 2 if isinstance(error, (BadDeployment, UnknownModel, UnknownRelease)) else 1


def _help() -> str:
    lines = [
        "usage: rulespack COMMAND ...",
        "",
        "How a vLLM release lays out its KV cache for a model, without a GPU.",
        "",
    ]
    width = max(map(len, COMMANDS)) + 2
    lines += [f"  {name:<{width}}{summary}" for name, (_, summary) in COMMANDS.items()]
    lines += ["", "  rulespack COMMAND --help says more; rulespack --version which version this is.", ""]
    lines += ["  rulespack plan qwen3-14b --release 0.31.0 --tensor-parallel-size 2 --why"]
    return "\n".join(lines)
