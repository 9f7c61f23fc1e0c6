"""YAML text read into plain data, strictly and within bounds, with the line of everything kept aside.

The reader takes libyaml's events one by one rather than a finished tree, so that a document past the limits is put down
where it passes them, however it is made: size, depth, number of values after aliases are expanded.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from rulespack.graph.problems import Path, Problem, show_path
from rulespack.graph.scalars import Odd, plain

#: The largest file, in bytes. The largest graph of the catalog is a small part of it.
MAX_BYTES: Final = 2 * 1024 * 1024
#: The deepest nesting of mappings and lists. The schema itself needs eight levels.
MAX_DEPTH: Final = 32
#: The most values a document may hold, everything an alias repeats counted again.
MAX_VALUES: Final = 100_000

# Without the C parser (a PyYAML built without libyaml) the same events come from the slower Python one.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NOTHING: Final = object()
_TOO_DEEP: Final = f"mappings and lists are nested deeper than {MAX_DEPTH} levels"


class Unreadable(Exception):
    """A document that cannot be read on from here; ``problem`` says why."""

    def __init__(self, problem: Problem) -> None:
        """The reading stops at ``problem``."""
        super().__init__(problem)
        self.problem = problem


class Document(msgspec.Struct, frozen=True):
    """A document's ``data``, the ``problems`` met on reading it, and whether it holds a null anywhere.

    ``marks`` has, for each mapping and list by its ``id()``, where its entries stand, by key or position; ``partial``
    the mappings that hold less than was written, because a key of theirs could not be used.
    """

    data: Any
    marks: dict[int, dict[Any, Any]]
    problems: tuple[Problem, ...]
    has_null: bool
    partial: frozenset[int]

    def line(self, path: Path) -> int:
        """The line, from 1, of what stands at ``path``, or of the nearest thing around it that is there."""
        here, line = self.data, 1
        for mark in self.marks.get(id(here), {}).values():
            line = int(mark.line) + 1
            break
        for step in path:
            mark = self.marks.get(id(here), {}).get(step)
            if mark is None:
                break
            line = int(mark.line) + 1
            here = here[step]
        return line


def read_document(text: str | bytes, file: str) -> Document:
    """The one document of ``text``, which messages call ``file``. Raises :class:`Unreadable`."""
    data = _utf8(text, file)
    reader = _Reader(data)
    try:
        reader.run()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        said = [getattr(error, part, None) for part in ("context", "problem", "reason")]
        reason = ", ".join(str(part) for part in said if part) or str(error)
        # What is missing at the end is found past the last line.
        line = None if mark is None else min(mark.line + 1, data.rstrip(b"\n").count(b"\n") + 1)
        # libyaml looks ahead of the events, and so may meet its own limit before the reader meets MAX_DEPTH.
        if "nesting depth" in reason:
            raise _stop("too-deep", _TOO_DEEP, line) from None
        raise _stop("not-yaml", f"this is not YAML: {reason}", line) from None
    if reader.root is None:
        raise _stop("empty-file", f"{file} is empty: there is no YAML document in it")
    return Document(reader.root, reader.marks, tuple(reader.problems), reader.has_null, frozenset(reader.partial))


def _utf8(text: str | bytes, file: str) -> bytes:
    """The text as UTF-8 bytes, no more than MAX_BYTES of them."""
    if len(text) > MAX_BYTES:
        raise _stop("too-large", f"{file} is larger than {MAX_BYTES} bytes, the most that is read")
    if isinstance(text, str):
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise _stop("not-utf8", f"{file} holds half of a surrogate pair, which is no text") from None
    try:
        text.decode()
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise _stop("not-utf8", f"byte {error.start} of {file} is not UTF-8: save it as UTF-8", line) from None
    return text


def _stop(rule: str, message: str, line: int | None = None, path: Path = ()) -> Unreadable:
    return Unreadable(Problem(rule=rule, severity="error", path=show_path(path), message=message, line=line))


class _Reader:
    """Builds the data from events. ``here`` is the open mapping or list, ``outer`` what is open around it."""

    def __init__(self, data: bytes) -> None:
        self.next_event = _Loader(data).get_event
        self.root: Any = None
        self.marks: dict[int, dict[Any, Any]] = {}
        self.problems: list[Problem] = []
        self.has_null = False
        self.partial: set[int] = set()
        self.values = 0
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.plain: dict[str, object] = {}
        self.here: Any = None
        self.here_marks: dict[Any, Any] = {}
        self.key: Any = _NOTHING
        self.key_mark: Any = None
        self.outer: list[tuple[Any, dict[Any, Any], Any, Any]] = []
        self.opened: list[tuple[Any, int]] = []

    def run(self) -> None:
        """Read events to the end of the text."""
        next_event, documents = self.next_event, 0
        while (event := next_event()) is not None:
            kind = type(event)
            if kind is ScalarEvent:
                self.scalar(event)
            elif kind is MappingStartEvent:
                self.open(event, {})
            elif kind is SequenceStartEvent:
                self.open(event, [])
            elif kind is MappingEndEvent or kind is SequenceEndEvent:
                self.close()
            elif kind is AliasEvent:
                self.alias(event)
            elif kind is DocumentStartEvent:
                documents += 1
                if documents > 1:
                    raise _stop("several-documents", "a second YAML document starts here; keep one", _line(event))

    def scalar(self, event: Any) -> None:
        """A scalar, as a key or as a value."""
        text = event.value
        value: object = text
        if event.tag is not None:
            self.tag(event)
        elif event.implicit[0]:
            value = self.plain.get(text, _NOTHING)
            if value is _NOTHING:
                value = self.plain[text] = plain(text)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, 1)
        self.count(1, event)
        if self.key is _NOTHING and type(self.here) is dict:
            self.take_key(value, text, event)
            return
        if value is None:
            self.has_null = True
        self.put(value, event.start_mark)

    def take_key(self, value: object, text: str, event: Any) -> None:
        """The next key of the open mapping; one that cannot be used leaves its value out of the data."""
        self.key, self.key_mark = value, event.start_mark
        if value == "<<" and event.implicit[0]:
            self.problem("merge-key", "merge keys (<<) are not part of the format: write the keys out", event)
        elif type(value) is not str:
            reads = value.reads if isinstance(value, Odd) else type(value).__name__
            self.problem("key-not-text", f"the key {text} is read as {reads}, not as text: quote it", event, text)
        elif value in self.here:
            self.problem("repeated-key", f"{value} stands here a second time: keep one", event, text)
        else:
            return
        if value not in self.here:
            self.partial.add(id(self.here))
        self.key = Odd(text, "a key that cannot be used")

    def put(self, value: Any, mark: Any) -> None:
        """A finished value into whatever is open."""
        here = self.here
        if type(here) is list:
            self.here_marks[len(here)] = mark
            here.append(value)
        elif here is None:
            self.root = value
        else:
            if type(self.key) is str:
                here[self.key] = value
                self.here_marks[self.key] = self.key_mark
            self.key = _NOTHING

    def open(self, event: Any, container: Any) -> None:
        """A mapping or a list starts."""
        if event.tag is not None:
            self.tag(event)
        if self.key is _NOTHING and type(self.here) is dict:
            message = "a mapping or a list cannot be a key: write the key as text"
            raise _stop("key-not-text", message, _line(event), self.path())
        if len(self.outer) == MAX_DEPTH:
            raise _stop("too-deep", _TOO_DEEP, _line(event), self.path())
        self.count(1, event)
        self.outer.append((self.here, self.here_marks, self.key, self.key_mark))
        self.opened.append((event, self.values))
        self.here, self.key = container, _NOTHING
        self.here_marks = self.marks[id(container)] = {}

    def close(self) -> None:
        """The open mapping or list ends."""
        container = self.here
        event, before = self.opened.pop()
        self.here, self.here_marks, self.key, self.key_mark = self.outer.pop()
        if event.anchor is not None:
            self.anchors[event.anchor] = (container, self.values - before + 1)
        self.put(container, event.start_mark)

    def alias(self, event: Any) -> None:
        """What an anchor marked, once more."""
        if event.anchor not in self.anchors:
            message = (
                f"*{event.anchor} refers to nothing that is complete before it: anchor it (&{event.anchor}) earlier"
            )
            raise _stop("unknown-anchor", message, _line(event), self.path())
        value, size = self.anchors[event.anchor]
        self.count(size, event)
        if self.key is _NOTHING and type(self.here) is dict:
            self.take_key(Odd("*" + event.anchor, "an alias"), "*" + event.anchor, event)
        else:
            self.put(value, event.start_mark)

    def count(self, size: int, event: Any) -> None:
        """Account for ``size`` more values."""
        self.values += size
        if self.values > MAX_VALUES:
            message = f"the document holds more than {MAX_VALUES} values once its aliases are expanded"
            raise _stop("too-many-values", message, _line(event), self.path())

    def tag(self, event: Any) -> None:
        """An explicit tag, which the format has no use for."""
        self.problem("yaml-tag", f"remove the tag {event.tag}; quote the value if it is text", event)

    def path(self) -> Path:
        """Where the next value goes."""
        steps: list[str | int] = []
        for here, key in [(entry[0], entry[2]) for entry in self.outer] + [(self.here, self.key)]:
            if type(here) is list:
                steps.append(len(here))
            elif here is not None and key is not _NOTHING:
                steps.append(key.text if isinstance(key, Odd) else str(key))
        return tuple(steps)

    def problem(self, rule: str, message: str, event: Any, key: str | None = None) -> None:
        """Note something wrong that does not stop the reading; ``key`` is the key in question as written."""
        path = self.path() if key is None else (*self.path()[:-1], key)
        self.problems.append(
            Problem(rule=rule, severity="error", path=show_path(path), message=message, line=_line(event))
        )


def _line(event: Any) -> int:
    """The line an event starts on, from 1."""
    return int(event.start_mark.line) + 1
