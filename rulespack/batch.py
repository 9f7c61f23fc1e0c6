"""Questions as JSON lines, one answer line for each, in order, whatever a line holds.

``docs/plan.md`` has the keys. A program in any language can keep the command running and ask it line by line: every
answer is flushed before the next question is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final

from rulespack.deployment import Deployment
from rulespack.engine import engine
from rulespack.errors import Refused, RulespackError, meant
from rulespack.kv.plan import Plan
from rulespack.releases import DEFAULT_ENGINE
from rulespack.report.json import compact, error_document, plan_document, printable, refusal_document
from rulespack.shelf import asked_graph

#: The longest line that is read as a question, in bytes.
MAX_LINE: Final = 4 * 1024 * 1024
#: The deepest nesting of a deployment.
MAX_DEPTH: Final = 32
#: The keys of a question.
KEYS: Final = ("id", "engine", "release", "model", "deployment", "tokens", "nearest")
#: Integers outside this range are no engine argument.
INTEGERS: Final = range(-(1 << 63), 1 << 63)


class BadQuestion(RulespackError):
    """A question that cannot be read, or that misses or misuses a key."""


class InternalError(RulespackError):
    """A fault of ours, told instead of an answer so that the next question still gets one."""


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer every line of ``questions`` until it ends, each answer flushed before the next line is read."""
    ask = Asker()
    for line in lines(questions):
        answers.write(ask.answer(line) + b"\n")
        answers.flush()


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a stream without their ends; of a line past :data:`MAX_LINE` only so much that it can be told."""
    while line := stream.readline(MAX_LINE + 2):
        if len(line) > MAX_LINE + 1 and not line.endswith(b"\n"):
            while rest := stream.readline(MAX_LINE):
                if rest.endswith(b"\n"):
                    break
        yield line.rstrip(b"\r\n") if len(line) <= MAX_LINE + 1 else line


class Asker:
    """Answers questions, one after another."""

    def __init__(self) -> None:
        self._flaws: list[str] = []
        self._decoder = json.JSONDecoder(object_pairs_hook=self._object, parse_constant=self._constant)

    def answer(self, line: bytes) -> bytes:
        """The answer to one line, as one line of JSON. Never raises for anything the line holds."""
        identity = b"null"
        try:
            question = self._read(line)
            identity = _identity(question, line)
            return _joined(identity, self._answered(question))
        except RulespackError as error:
            return _joined(identity, error_document(error))
        except Refused as refused:
            return _joined(identity, refusal_document(refused))
        except Exception as fault:  # a co-process must outlive our own faults
            return _joined(identity, error_document(InternalError(fault_text(fault))))

    def _read(self, line: bytes) -> dict[str, Any]:
        if len(line) > MAX_LINE:
            raise BadQuestion(f"the line is longer than {MAX_LINE} bytes")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadQuestion(f"the line is not UTF-8 text (byte {error.start})") from None
        if not text.strip():
            raise BadQuestion("the line is empty; a question is a JSON object")
        self._flaws.clear()
        try:
            question = self._decoder.decode(text)
        except json.JSONDecodeError as error:
            raise BadQuestion(f"the line is not JSON: {error.msg} (column {error.colno})") from None
        except RecursionError:
            raise BadQuestion("the line is nested too deeply") from None
        except ValueError as error:
            raise BadQuestion(f"the line holds a number that cannot be read: {error}") from None
        if not isinstance(question, dict):
            raise BadQuestion(f"a question is a JSON object, not {_kind(question)}")
        return question

    def _object(self, members: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(members)
        if len(found) < len(members):
            seen: set[str] = set()
            for key, _ in members:
                if key in seen:
                    self._flaws.append(f"the key {key!r} is stated twice in one object")
                seen.add(key)
        return found

    def _constant(self, name: str) -> float:
        self._flaws.append(f"{name} is not JSON")
        return math.nan

    def _answered(self, question: Mapping[str, Any]) -> dict[str, Any]:
        if self._flaws:
            raise BadQuestion(self._flaws[0])
        for key in question:
            if key not in KEYS:
                near = f"; it has {', '.join(KEYS)}"
                raise BadQuestion(f"{key}: no key of a question{meant(key, KEYS, near)}")
        if not _is_identity(question.get("id")):
            raise BadQuestion(f"id: expected a string or a number, got {_kind(question['id'])}")
        _check_values("deployment", question.get("deployment"))
        release = _text(question, "release")
        answering = engine(
            release,
            engine=_text(question, "engine", DEFAULT_ENGINE),
            nearest=_switch(question, "nearest"),
        )
        deployment = Deployment.of(question.get("deployment", {}))
        tokens = _lengths(question)
        graph = asked_graph(_text(question, "model"), deployment)
        plan = answering.plan(graph, deployment)
        _check_lengths(plan, tokens)
        return {"plan": plan_document(plan, tokens, answering.weights(graph, deployment))}


def _check_lengths(plan: Plan, tokens: list[int]) -> None:
    for length in tokens:
        if length > plan.resolved.max_model_len:
            raise BadQuestion(
                f"tokens: {length} is past max_model_len, {plan.resolved.max_model_len}; "
                "state a larger max_model_len to ask further"
            )


def _joined(identity: bytes, document: dict[str, Any]) -> bytes:
    return b'{"id":' + identity + b"," + compact(document)[1:]


def _identity(question: Mapping[str, Any], line: bytes) -> bytes:
    """The question's id as JSON, exactly as it was asked; null where it is none that can be echoed."""
    said = question.get("id")
    if not _is_identity(said):
        return b"null"
    if isinstance(said, float):  # as it was written: 1e2 is not to come back as 100.0
        return str(json.loads(line, parse_float=str)["id"]).encode()
    return json.dumps(said).encode()


def _is_identity(said: object) -> bool:
    return said is None or (isinstance(said, (str, int, float)) and not isinstance(said, bool) and said == said)


def _text(question: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = question.get(key, default)
    if not isinstance(value, str):
        raise BadQuestion(f"{key}: missing" if key not in question else f"{key}: expected a string, got {_kind(value)}")
    if "\0" in value or printable(value) != value:
        raise BadQuestion(f"{key}: holds a character that no name has")
    return value


def _switch(question: Mapping[str, Any], key: str) -> bool:
    value = question.get(key, False)
    if not isinstance(value, bool):
        raise BadQuestion(f"{key}: expected true or false, got {_kind(value)}")
    return value


def _lengths(question: Mapping[str, Any]) -> list[int]:
    tokens = question.get("tokens", [])
    if not isinstance(tokens, list):
        raise BadQuestion(f"tokens: expected a list of lengths, got {_kind(tokens)}")
    for length in tokens:
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise BadQuestion(f"tokens: expected lengths of at least 1 token, got {_kind(length)}")
    return tokens


def _check_values(path: str, value: object, depth: int = 0) -> None:
    """Refuse what no engine argument is: a number without bounds, text that is no Unicode, endless nesting."""
    if depth > MAX_DEPTH:
        raise BadQuestion(f"{path[:60]}...: nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_values(path, key)
            _check_values(f"{path}.{key}", inner, depth + 1)
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            _check_values(f"{path}[{position}]", inner, depth + 1)
    elif isinstance(value, str):
        if not value.isascii() and printable(value) != value:
            raise BadQuestion(f"{path}: holds a character that is no Unicode")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise BadQuestion(f"{path}: the number is too large")
    elif isinstance(value, int) and value not in INTEGERS:
        raise BadQuestion(f"{path}: the integer is outside 64 bits")


def _kind(value: object) -> str:
    """A JSON value in words, short however long it is."""
    if value is None:
        return "null"
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and value not in INTEGERS:
        return "an integer outside 64 bits"
    said = json.dumps(value)
    return said if len(said) <= 60 else said[:60] + "..."


def fault_text(fault: Exception) -> str:
    """A fault in one line: what it was and the innermost place it came from."""
    trace = fault.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" ({trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})"
    return f"{type(fault).__name__}: {fault}{place}; please report this"
