"""A vendor configuration file as a strictly read JSON document.

A repeated key is refused: two readers of such a file may disagree about what it says. ``Infinity`` and ``NaN``, which
vendors write although JSON has neither, are let through and refused where a number is read.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import msgspec

from rulespack.derive.errors import InvalidConfig

#: The vendor files a model folder may hold, in the order they are looked for.
CONFIG_FILES: Final = ("config.json", "params.json")
#: ModelOpt writes the quantization beside the configuration; the engine reads it where config.json has none.
MODELOPT_FILE: Final = "hf_quant_config.json"
FORMATS: Final = {"config.json": "hf_config_json", "params.json": "mistral_params_json"}
#: The largest configuration that is read, in bytes; real ones are a few kilobytes.
MAX_BYTES: Final = 4 * 1024 * 1024
#: The deepest nesting that is read.
MAX_DEPTH: Final = 32


#: What is found where a configuration was to be, by how it begins, and what to do then.
INSTEAD: Final = {
    b"version https://git-lfs": "is a pointer of Git LFS, not the file itself; fetch it with git lfs pull",
    b"<": "is a web page, not JSON; download the raw file",
}


class Document(msgspec.Struct, frozen=True):
    """One configuration file: where it is, its dialect, what it says and the digest of its bytes.

    ``overrides`` is what was laid over what it says, as canonical JSON.
    """

    path: Path
    format: str
    data: dict[str, Any]
    sha256: str
    overrides: str | None = None


def find_config(path: Path) -> Path:
    """The configuration file ``path`` names: the file itself, or the one its folder holds.

    Raises InvalidConfig where there is none.
    """
    if not path.is_dir():
        return path
    for name in CONFIG_FILES:
        if (path / name).is_file():
            return path / name
    raise InvalidConfig(str(path), "", f"the folder holds none of {', '.join(CONFIG_FILES)}; name one of them")


def read_document(path: Path) -> Document:
    """Read a ``config.json`` or ``params.json``, or the one a folder holds.

    A ``hf_quant_config.json`` beside it is folded in as ``quantization_config`` where the file itself states none, as
    the engine does (0.31.0, transformers_utils/config.py). Raises InvalidConfig for anything unreadable.
    """
    file = find_config(path)
    raw = read_bytes(file)
    data = parse(raw, file)
    dialect = dialect_of(file, data)
    beside = file.parent / MODELOPT_FILE
    if dialect == "hf_config_json" and data.get("quantization_config") is None and beside.is_file():
        data = {**data, "quantization_config": parse(read_bytes(beside), beside)}
    return Document(path=file, format=dialect, data=data, sha256=hashlib.sha256(raw).hexdigest())


def dialect_of(file: Path, data: dict[str, Any]) -> str:
    """Which dialect a file is written in: by its name, else by the keys only one of the two dialects has."""
    known = FORMATS.get(file.name)
    if known is not None:
        return known
    return "mistral_params_json" if "dim" in data and "architectures" not in data else "hf_config_json"


def read_bytes(file: Path) -> bytes:
    """The bytes of a configuration file, InvalidConfig where it cannot be read or is not of a sane size."""
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidConfig(str(file), "", f"cannot be read: {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:
        raise InvalidConfig(
            str(file), "", f"is larger than {MAX_BYTES} bytes; a model configuration is a few kilobytes"
        )
    return raw


def parse(raw: bytes, file: Path) -> dict[str, Any]:
    """A JSON object, strictly read."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise InvalidConfig(str(file), key, "the key is stated twice; keep one of them")
            found[key] = value
        return found

    try:
        data = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise InvalidConfig(str(file), "", f"is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except json.JSONDecodeError as error:
        for start, instead in INSTEAD.items():
            if raw.lstrip()[: len(start)].lower() == start:
                raise InvalidConfig(str(file), "", instead) from None
        problem = f"is not JSON at column {error.colno}: {error.msg}"
        raise InvalidConfig(str(file), "", problem, line=error.lineno) from None
    except RecursionError:
        raise InvalidConfig(str(file), "", "is nested too deeply to be a model configuration") from None
    except ValueError as error:
        if isinstance(error, InvalidConfig):
            raise
        raise InvalidConfig(str(file), "", f"holds a number that cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise InvalidConfig(str(file), "", f"holds {describe(data)}; a configuration is a JSON object")
    if isinstance(data.get("error"), str) and "architectures" not in data:
        raise InvalidConfig(
            str(file), "error", f"is a server's answer, {describe(data['error'])}; download the file with access to it"
        )
    _check_depth(data, file)
    return data


def _check_depth(data: Any, file: Path) -> None:
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, (dict, list))
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise InvalidConfig(str(file), "", f"is nested more than {MAX_DEPTH} levels deep")


def describe(value: object) -> str:
    """A JSON value in words, for a message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the string {json.dumps(value[:60])}"
    if isinstance(value, (int, float)):
        return f"the number {str(value)[:40]}"
    return "a list" if isinstance(value, list) else "an object"
