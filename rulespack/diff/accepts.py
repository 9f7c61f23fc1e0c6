"""What two releases accept, name by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rulespack.diff.model import AcceptsChange, Change
from rulespack.hooks import Accepts


def accepts_changes(old: Accepts, new: Accepts) -> tuple[AcceptsChange, ...]:
    """The kinds of name that differ, in the order of :class:`~rulespack.hooks.Accepts`."""
    return tuple(_changes(old, new))


def _changes(old: Accepts, new: Accepts) -> Iterator[AcceptsChange]:
    for kind in Accepts.__struct_fields__:
        was, is_now = getattr(old, kind), getattr(new, kind)
        changed: tuple[Change, ...] = ()
        if isinstance(was, Mapping):
            changed = tuple(
                Change(name, was[name], is_now[name]) for name in was if was[name] != is_now.get(name, was[name])
            )
        gone = tuple(name for name in was if name not in is_now)
        came = tuple(name for name in is_now if name not in was)
        if gone or came or changed:
            yield AcceptsChange(kind=kind, gone=gone, new=came, changed=changed)
