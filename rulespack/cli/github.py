"""A comparison where GitHub Actions shows it: the summary of the step, and annotations of the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rulespack.cli.terminal import write

if TYPE_CHECKING:
    from rulespack.diff import Comparison

#: The most a step's summary may hold, in bytes; GitHub drops a larger one whole.
SUMMARY_LIMIT: Final = 1024 * 1024
#: Where a step's summary is collected.
VARIABLE: Final = "GITHUB_STEP_SUMMARY"


def report(comparison: Comparison, *, only_changed: bool = False) -> None:
    """Add the Markdown to the file that ``GITHUB_STEP_SUMMARY`` names, as much as still fits, and print annotations.

    Without that variable, which is anywhere but in a step, the Markdown is printed above them.
    """
    from rulespack.report.annotations import annotation_lines
    from rulespack.report.markdown import fitted, markdown_parts

    parts = markdown_parts(comparison, only_changed=only_changed)
    more = "*{} more sections do not fit the summary of a step; `rulespack diff` prints them all.*\n"
    place = os.environ.get(VARIABLE)
    if place:
        summary = Path(place)
        held = summary.stat().st_size if summary.exists() else 0
        with summary.open("a", encoding="utf-8") as file:
            file.write(fitted(parts, SUMMARY_LIMIT - held - 1, more) + "\n")
    else:
        write(fitted(parts, SUMMARY_LIMIT, more))
    if lines := annotation_lines(comparison):
        write("\n".join(lines))
