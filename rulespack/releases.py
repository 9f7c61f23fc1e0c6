"""Which releases there are packs for, and the plugins that answer for one.

Packs are entry points of the group ``rulespack.packs``; the name says engine and release (``vllm_0_31``), so that none
is imported to learn which there are. Overrides are entry points of the group ``rulespack.overrides``, named
``<pack>.<name>`` (``vllm_0_31.acme``), and are asked before the pack.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points

import pluggy
from packaging.version import InvalidVersion, Version

from rulespack import hooks
from rulespack.errors import BadPack, UnknownRelease

PACKS = "rulespack.packs"
OVERRIDES = "rulespack.overrides"
DEFAULT_ENGINE = "vllm"


def parse_pack_name(name: str) -> tuple[str, Version]:
    """Engine and release of a pack's entry-point name: ``vllm_0_31`` is vllm 0.31.

    Raises BadPack where the name is not of that form.
    """
    engine, _, numbers = name.partition("_")
    try:
        return engine, Version(numbers.replace("_", "."))
    except InvalidVersion:
        raise BadPack(
            f"the entry point {name!r} of group {PACKS!r} does not name an engine and a release, as vllm_0_31 does"
        ) from None


@functools.cache
def installed() -> Mapping[str, Mapping[Version, EntryPoint]]:
    """The installed packs: engine -> release -> entry point, releases ascending.

    Raises BadPack where two packs are there for one release.
    """
    found: dict[str, dict[Version, EntryPoint]] = {}
    for entry in entry_points(group=PACKS):
        engine, version = parse_pack_name(entry.name)
        first = found.setdefault(engine, {}).setdefault(version, entry)
        if first.value != entry.value:
            raise BadPack(f"two packs are installed as {entry.name!r}: {first.value} and {entry.value}; uninstall one")
    return {engine: dict(sorted(packs.items())) for engine, packs in sorted(found.items())}


def releases(engine: str = DEFAULT_ENGINE) -> tuple[str, ...]:
    """The releases of ``engine`` there are packs for, oldest first, as three numbers (``0.31.0``)."""
    return tuple(_three_numbers(version) for version in installed().get(engine, {}))


def resolve(release: str, engine: str = DEFAULT_ENGINE, *, nearest: bool | None = None, switch: str = "nearest") -> str:
    """The release whose pack answers for ``release``.

    ``0.31.0``, ``v0.31.0`` and ``0.31.0+cu130`` all find 0.31.0. Any other version is an UnknownRelease error that
    names the releases there are, unless ``nearest`` admits the closest lower one (0.29.0 for 0.31.0rc1). Where it is
    False the error says that ``switch`` would; None is for askers who have no such choice.
    """
    packs = installed().get(engine)
    if not packs:
        known = ", ".join(installed()) or "none"
        raise UnknownRelease(f"no pack is installed for the engine {engine!r}; engines there are packs for: {known}")
    there = ", ".join(_three_numbers(version) for version in packs)
    try:
        asked = Version(release)
    except InvalidVersion:
        raise UnknownRelease(
            f"{release!r} is not a version; releases of {engine} there are packs for: {there}"
        ) from None
    public = Version(asked.public)
    if public in packs:
        return _three_numbers(public)
    lower = [version for version in packs if version < public]
    if nearest and lower:
        return _three_numbers(lower[-1])
    hint = (
        f"; the closest lower one is {_three_numbers(lower[-1])} (ask for it with {switch})"
        if lower and nearest is False
        else ""
    )
    raise UnknownRelease(f"no pack for {engine} {release}; releases there are packs for: {there}{hint}")


def is_release(asked: str, release: str) -> bool:
    """Whether ``asked`` is a spelling of ``release``, as v0.31.0 and 0.31.0+cu130 are of 0.31.0."""
    try:
        return Version(Version(asked).public) == Version(release)
    except InvalidVersion:
        return False


def plugin_manager(release: str, engine: str = DEFAULT_ENGINE, plugins: Sequence[object] = ()) -> pluggy.PluginManager:
    """One manager for one release: its pack, then the installed overrides, then ``plugins``, the last asked first.

    Raises BadPack where a plugin cannot be loaded or implements a hook there is none of, or where the pack's own
    ``pack_release`` is not the release its entry point names.
    """
    entry = installed()[engine][Version(release)]
    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks.PackSpec)
    _register(manager, entry)
    for override in sorted(entry_points(group=OVERRIDES), key=lambda e: e.name):
        if override.name.partition(".")[0] == entry.name:
            _register(manager, override)
    stated = manager.hook.pack_release()
    if not isinstance(stated, str) or not is_release(stated, release):
        raise BadPack(f"the pack {entry.name!r} says it is release {stated!r}")
    for plugin in plugins:
        manager.register(plugin)
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise BadPack(f"the plugin {manager.get_name(error.plugin)!r} cannot be used: {error}") from error
    return manager


def _register(manager: pluggy.PluginManager, entry: EntryPoint) -> None:
    try:
        manager.register(entry.load(), entry.name)
    except Exception as error:  # importing somebody else's module can fail in any way
        said = f"{type(error).__name__}: {error}"
        raise BadPack(f"the plugin {entry.name!r} ({entry.value}) cannot be used: {said}") from error


@functools.cache
def known_arguments() -> Mapping[str, str]:
    """Engine arguments beyond the modelled ones that any installed pack's release has: name -> kind.

    A pack that cannot be used has none; it says so where it is asked.
    """
    known: dict[str, str] = {}
    for engine, packs in installed().items():
        for version in packs:
            with contextlib.suppress(BadPack):
                known.update(plugin_manager(_three_numbers(version), engine).hook.known_arguments() or {})
    return known


def _three_numbers(version: Version) -> str:
    return f"{version.major}.{version.minor}.{version.micro}"
