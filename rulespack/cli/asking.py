"""What commands share that ask for plans: the GPU, the environment, lengths, and names that no release knows."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rulespack.cli.flags import whole_number
from rulespack.cli.terminal import Usage
from rulespack.deployment import GPUS, Deployment
from rulespack.errors import meant

if TYPE_CHECKING:
    from rulespack.hooks import Accepts


def add_asking(parser: argparse.ArgumentParser) -> None:
    """The ``--gpu`` and ``--env`` options."""
    parser.add_argument(
        "--gpu",
        metavar="GPU",
        help=f'{", ".join(GPUS)} (H200 if left out), or {{"capability": "9.0", "memory_bytes": N}}',
    )
    parser.add_argument(
        "--env", action="append", metavar="NAME=VALUE", help="an environment variable of the engine; may be repeated"
    )


def add_tokens(parser: argparse.ArgumentParser, told: str) -> None:
    """The ``--tokens`` option, one length or several."""
    parser.add_argument("--tokens", type=length, nargs="+", action="extend", default=[], metavar="N", help=told)


def asked(options: argparse.Namespace) -> dict[str, Any]:
    """The GPU and the environment, as a deployment states them. Raises Usage."""
    stated: dict[str, Any] = {}
    if options.gpu is not None:
        stated["gpu"] = options.gpu
        if options.gpu.lstrip().startswith("{"):
            try:
                stated["gpu"] = json.loads(options.gpu)
            except ValueError as error:
                raise Usage(f"--gpu: not JSON ({error})") from None
    if options.env:
        stated["env"] = {}
        for setting in options.env:
            name, equals, value = setting.partition("=")
            if not equals or not name:
                raise Usage(f"--env: expected NAME=VALUE, got {setting!r}")
            stated["env"][name] = value
    return stated


def length(text: str) -> int:
    """A length in tokens, such as 4096 or 32k, for argparse."""
    try:
        tokens = whole_number(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected lengths such as 4096 or 32k, got {text!r}") from None
    if tokens < 1:
        raise argparse.ArgumentTypeError(f"a request has at least 1 token, got {text!r}")
    return tokens


def check_names(deployment: Deployment, accepted: Sequence[Accepts]) -> None:
    """Raise Usage for a name of the deployment that none of the releases knows, with the nearest that one does."""
    connector = (deployment.kv_transfer_config or {}).get("kv_connector")
    own_module = (deployment.kv_transfer_config or {}).get("kv_connector_module_path")
    method = (deployment.speculative_config or {}).get("method")
    backend = deployment.attention_backend
    asked_for = (
        ("kv_cache_dtype", deployment.kv_cache_dtype, [name for one in accepted for name in one.cache_dtypes]),
        ("kv_connector", None if own_module else connector, [name for one in accepted for name in one.connectors]),
        ("method", method, [name for one in accepted for name in one.speculative_methods]),
        (
            "attention_backend",
            None if backend is None or backend.lower() == "auto" else backend.upper(),
            [name for one in accepted for name in one.attention_backends],
        ),
    )
    for what, name, known in asked_for:
        if name is not None and name not in known:
            known_are = f"; known are {', '.join(sorted(set(known)))}"
            near = meant(name, known) or meant(str(name).upper(), known, known_are)
            raise Usage(f"{what} {name!r}: no release that was asked knows it{near}")
