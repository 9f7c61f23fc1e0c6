"""The pytest plugin ``rulespack``: the fixture ``rulespack_pin``, two markers, ``--rulespack-release``.

pytest imports this module wherever the project is installed, so it imports nothing of it: the rest is loaded by the
first test that asks for the fixture, a marker, or the option.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from rulespack.testing.pins import Pin

#: The ini setting and the marker that say which release pins are for.
RELEASE: Final = "rulespack_release"
DEPLOYMENTS: Final = "rulespack_deployments"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option and the ini setting."""
    group = parser.getgroup("rulespack", "pinned KV-cache plans")
    group.addoption(
        "--rulespack-release",
        metavar="X",
        help="ask release X what is pinned for another, such as 0.31.0; a failure shows what changed between the two",
    )
    parser.addini(RELEASE, "the release that plans are pinned for where a test does not say another")


def pytest_configure(config: pytest.Config) -> None:
    """Name the markers; refuse a release there is no pack for, and pins of one release written for another."""
    config.addinivalue_line("markers", f"{RELEASE}(release): the engine's release the pins of a test are for")
    config.addinivalue_line(
        "markers",
        f"{DEPLOYMENTS}(file, models=()): run a test with each deployment of a YAML file as its argument "
        "`deployment`, and with the model the deployment names, or each of `models`, as `model`",
    )
    other = config.getoption("--rulespack-release")
    if other is None:
        return
    from rulespack.errors import UnknownRelease
    from rulespack.releases import resolve

    try:
        resolve(other)
    except UnknownRelease as error:
        raise pytest.UsageError(f"--rulespack-release: {error}") from None
    if config.getoption("update_snapshots", False) or config.getoption("update_new_snapshots_only", False):
        raise pytest.UsageError(
            f"--rulespack-release asks {other} what is pinned for another release and writes nothing: to pin {other}, "
            f"say so in {RELEASE} (a marker, or a setting of pytest's ini file) and run --snapshot-update alone"
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with each deployment of the file its marker names."""
    marker = metafunc.definition.get_closest_marker(DEPLOYMENTS)
    if marker is None or "deployment" not in metafunc.fixturenames:
        return
    from rulespack.testing.cases import cases

    names, values, ids = cases(metafunc.definition.path, marker, wants_model="model" in metafunc.fixturenames)
    metafunc.parametrize(names, values, ids=ids)


@pytest.fixture
def rulespack_pin(request: pytest.FixtureRequest) -> Pin:
    """``rulespack_pin(model, deployment)`` compares a plan with the file it is pinned in; see ``Pin``."""
    if not request.config.pluginmanager.hasplugin("syrupy"):
        pytest.fail("rulespack_pin keeps its files with syrupy: pip install 'rulespack[pytest]'", pytrace=False)
    from rulespack.testing.pins import Pin

    marker = request.node.get_closest_marker(RELEASE)
    stated: tuple[Any, ...] = marker.args if marker is not None else ()
    return Pin(
        request.getfixturevalue("snapshot"),
        folder=request.path.parent,
        release=stated[0] if stated else request.config.getini(RELEASE) or None,
        other=request.config.getoption("--rulespack-release"),
        width=request.config.get_terminal_writer().fullwidth,
    )
