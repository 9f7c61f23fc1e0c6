"""The environment that commands under test get: the same on every machine, whatever runs the tests.

A variable of the machine changes what a command prints: ``CI`` how much pytest's summary tells, ``COLUMNS`` where lines
break, ``GITHUB_ACTIONS`` how differences are annotated. So nothing is passed on but what a process needs to run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
#: What ``PYTHONPATH`` says of the checkout.
CHECKOUT: Final = os.pathsep.join((str(ROOT), str(ROOT / "packs")))
#: What a process needs to find programs, its home, a place for files and the letters of names.
NEEDED: Final = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE")


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """What a process needs, the checkout's own modules, and ``extra``.

    Whether the project is installed as it stands or as a copy, the command runs what the tests stand beside. Nothing is
    compiled to disk, so that two processes never write into the checkout at once.
    """
    needed = {name: os.environ[name] for name in NEEDED if name in os.environ}
    return needed | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": CHECKOUT} | (extra or {})


#: An environment that does not know the checkout.
AWAY: Final = environment({"PYTHONPATH": ""})
