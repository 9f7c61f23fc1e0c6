"""The table that counts: equal, refused by the pack, wrong, for each release."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from .cases import recorded
from .compare import Kind, judged

README = Path(__file__).parent.parent.parent / "README.md"
MARK, END = "<!-- agreement -->", "<!-- /agreement -->"
KINDS: tuple[Kind, ...] = ("equal", "refused", "wrong")


def table() -> str:
    """The score of every release as a Markdown table."""
    scores: dict[str, Counter[str]] = {}
    models: dict[str, set[str]] = {}
    for case in recorded():
        scores.setdefault(case.release, Counter())[judged(case).kind] += 1
        models.setdefault(case.release, set()).add(case.model)
    lines = [
        "| vLLM | models | recorded cases | equal | refused by the pack | wrong |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for release, score in scores.items():
        counts = " | ".join(str(score[kind]) for kind in KINDS)
        lines.append(f"| {release} | {len(models[release])} | {score.total()} | {counts} |")
    return "\n".join(lines)


def listing() -> str:
    """Every case that is not equal, with its first differences."""
    lines = []
    for case in recorded():
        verdict = judged(case)
        if verdict.kind == "refused":
            lines.append(f"refused {case.id}: {verdict.rule}")
        elif verdict.kind == "wrong":
            lines.append(f"wrong   {case.id}")
            lines += [f"        {difference}" for difference in verdict.differences[:5]]
    return "\n".join(lines)


def shown() -> str | None:
    """The table as the README shows it, None where it has no place for one."""
    _, mark, after = README.read_text(encoding="utf-8").partition(MARK)
    return after.partition(END)[0].strip() if mark else None


def write() -> None:
    """Put the table where the README shows it."""
    before, mark, after = README.read_text(encoding="utf-8").partition(MARK)
    _, end, rest = after.partition(END)
    README.write_text(f"{before}{mark}\n{table()}\n{end}{rest}", encoding="utf-8")
