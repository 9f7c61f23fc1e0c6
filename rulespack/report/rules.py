"""The rules as text, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rulespack.report.style import Style, pairs
from rulespack.rules import ListedRule

HEAD = """# The rules

<!-- Written by `rulespack rules --format md`; a test fails where it is stale. -->

Every decision of a plan and every refusal names the rule it comes from. The names are stable: they stand in a plan's
`reasons`, in `refused`, and in what `rulespack plan --why` prints, together with the values the rule saw and the file
and function of the release. Here is what each rule decides, and where it moved: the release, and the steps of it that
are not what they were.
"""


def rules_text(rules: Sequence[ListedRule], style: Style) -> str:
    """One line for each rule under its topic, with the releases it came with and moved in."""
    parts = []
    for topic, members in _topics(rules):
        said = [(rule.name, rule.line + _history(rule)) for rule in members]
        parts.append("\n".join([style.strong(topic), *pairs(said, style)]))
    return "\n\n".join(parts) + "\n"


def _history(rule: ListedRule) -> str:
    since = [f"since {rule.since}"] if rule.since else []
    moved = [f"moved in {', '.join(moved.release for moved in rule.moved)}"] if rule.moved else []
    said = ", ".join(since + moved)
    return f" ({said})" if said else ""


def rules_markdown(rules: Sequence[ListedRule]) -> str:
    """The whole reference: the rules by topic, then what moved in each release, step by step."""
    lines = [HEAD]
    for topic, members in _topics(rules):
        lines += [f"## {topic}", "", "| rule | what it decides | moved |", "| --- | --- | --- |"]
        lines += [f"| `{rule.name}` | {rule.line} | {_moved(rule)} |" for rule in members]
        lines.append("")
    for release, steps in _releases(rules).items():
        lines += [f"## What moved in {release}", ""]
        lines.append("The steps that decide the rules above, as far as they are not what they were.")
        lines.append("")
        lines += [f"- **{step}**: {said}" for step, said in steps.items()]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _moved(rule: ListedRule) -> str:
    said = [f"since {rule.since}"] if rule.since else []
    for moved in rule.moved:
        said.append(f"{moved.release}: {', '.join(step for step, _ in moved.steps)}")
    return "; ".join(said)


def _releases(rules: Sequence[ListedRule]) -> dict[str, dict[str, str]]:
    """What moved in each release: each step once, the steps sorted."""
    found: dict[str, dict[str, str]] = {}
    for rule in rules:
        for moved in rule.moved:
            found.setdefault(moved.release, {}).update(moved.steps)
    return {release: dict(sorted(steps.items())) for release, steps in found.items()}


def rules_document(rules: Sequence[ListedRule]) -> list[dict[str, object]]:
    """One object for each rule."""
    return [
        {
            "name": rule.name,
            "line": rule.line,
            "topic": rule.topic,
            "since": rule.since,
            "moved": [{"release": moved.release, "steps": dict(moved.steps)} for moved in rule.moved],
        }
        for rule in rules
    ]


def _topics(rules: Sequence[ListedRule]) -> Iterator[tuple[str, list[ListedRule]]]:
    found: dict[str, list[ListedRule]] = {}
    for rule in rules:
        found.setdefault(rule.topic, []).append(rule)
    yield from found.items()
