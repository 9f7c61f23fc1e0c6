"""Times what people wait for: a warm plan, the command, the import, a sweep over the catalog.

``python tests/bench/run.py [--runs N] [--calls N]``, or ``python -m tests.bench``. Times depend on the machine, so the
command and the import are given against a bare interpreter of the same run, one after the other in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import Any, NamedTuple

import rulespack
from rulespack import Deployment, ModelGraph, Refused, catalog

#: The models that are proven against recordings; the rest of the catalog is in the sweep.
RECORDINGS = Path(__file__).parent.parent / "recordings"
PYTHON = sys.executable
COMMAND = ["plan", "qwen3-14b", "--release", "0.31.0"]


class Warm(NamedTuple):
    """Median microseconds of one model under one release: the plan, and the plan with its deployment."""

    release: str
    model: str
    plan: float
    whole: float


class Process(NamedTuple):
    """Milliseconds of one command over the runs."""

    name: str
    times: Sequence[float]


def deployments() -> Iterator[dict[str, Any]]:
    """Arguments that every model takes, no two alike."""
    number = 0
    while True:
        number += 1
        yield {"max_model_len": 2048 + number}
        yield {"max_model_len": 2048 + number, "gpu": "H100", "kv_cache_memory_bytes": (64 << 30) + number}
        yield {"max_model_len": 2048 + number, "max_num_batched_tokens": 4096 + number, "port": 8000}


def warm_plan(release: str, graph: ModelGraph, calls: int) -> Warm | None:
    """A plan under a new deployment each call; None where the release refuses the model."""
    engine = rulespack.engine(release)
    stated = deployments()
    plans, wholes = [], []
    try:
        for _ in range(10):
            engine.plan(graph, Deployment(**next(stated)))
    except Refused:
        return None
    for _ in range(calls):
        arguments = next(stated)
        start = perf_counter_ns()
        deployment = Deployment(**arguments)
        made = perf_counter_ns()
        engine.plan(graph, deployment)
        done = perf_counter_ns()
        plans.append((done - made) / 1000)
        wholes.append((done - start) / 1000)
    return Warm(release, graph.name, median(plans), median(wholes))


def warm_plans(calls: int) -> list[Warm]:
    """Every proven model under every release."""
    models = sorted({file.stem for file in RECORDINGS.glob("*/*.json")})
    timed = (
        warm_plan(release, graph, calls)
        for graph in map(rulespack.load_model, models)
        for release in rulespack.releases()
    )
    return [one for one in timed if one is not None]


def processes(runs: int) -> list[Process]:
    """A bare interpreter, the import and the command, ``runs`` times in turn after one that is not counted.

    That one leaves the compiled modules behind, as an installation does.
    """
    commands = {
        "python -c pass": [PYTHON, "-c", "pass"],
        "import rulespack": [PYTHON, "-c", "import rulespack"],
        f"rulespack {' '.join(COMMAND)}": [*script(), *COMMAND],
        "... --format json": [*script(), *COMMAND, "--format", "json"],
        "rulespack diff 0.29.0 0.31.0": [*script(), "diff", "0.29.0", "0.31.0"],
    }
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(runs + 1):
        for name, words in commands.items():
            start = perf_counter()
            subprocess.run(words, stdout=subprocess.DEVNULL, env=environment, check=True)
            if turn:
                times[name].append((perf_counter() - start) * 1000)
    return [Process(name, taken) for name, taken in times.items()]


def script() -> list[str]:
    """The installed command beside this interpreter, or the package run by it."""
    installed = Path(PYTHON).parent / "rulespack"
    return [str(installed)] if installed.exists() else [PYTHON, "-m", "rulespack"]


def drafting_plans(calls: int) -> list[Warm]:
    """Every recorded drafter once for its model and release, under the deployment it was recorded with."""
    timed, seen = [], set()
    for file in sorted(RECORDINGS.glob("*/*.json")):
        release = file.parent.name
        for case in json.loads(file.read_text(encoding="utf-8"))["cases"].values():
            drafter = case["deployment"].get("speculative_config")
            kind = None if drafter is None else (release, file.stem, drafter.get("method"), drafter.get("model"))
            if kind is None or kind in seen or "plan" not in case or "refused" in case:
                continue
            seen.add(kind)
            timed.append(drafting_plan(release, file.stem, case["deployment"], calls))
    return timed


def drafting_plan(release: str, model: str, arguments: dict[str, Any], calls: int) -> Warm:
    """A plan with a drafter, a new deployment each call."""
    engine, graph = rulespack.engine(release), rulespack.load_model(model)
    engine.plan(graph, Deployment.of(arguments))
    plans, wholes = [], []
    for number in range(calls):
        start = perf_counter_ns()
        deployment = Deployment.of({**arguments, "port": 8000 + number})
        made = perf_counter_ns()
        engine.plan(graph, deployment)
        done = perf_counter_ns()
        plans.append((done - made) / 1000)
        wholes.append((done - start) / 1000)
    return Warm(release, model, median(plans), median(wholes))


def sweep() -> tuple[float, float, int, int]:
    """Milliseconds to load the whole catalog and to plan it under every release, cold; the plans and the refusals."""
    start = perf_counter()
    graphs = [rulespack.load_model(name) for name in catalog.names()]
    loaded = perf_counter()
    planned = refused = 0
    for release in rulespack.releases():
        for graph in graphs:
            try:
                rulespack.engine(release).plan(graph)
                planned += 1
            except Refused:
                refused += 1
    return (loaded - start) * 1000, (perf_counter() - loaded) * 1000, planned, refused


def main() -> int:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description="Times a warm plan, the command, the import and a catalog sweep.")
    parser.add_argument("--runs", type=int, default=20, help="runs of each command (20)")
    parser.add_argument("--calls", type=int, default=200, help="warm plans of each model (200)")
    options = parser.parse_args()
    loading, planning, planned, refused = sweep()
    report_sweep(loading, planning, planned, refused)
    report_warm(warm_plans(options.calls))
    say("\nWith a drafter, under the deployments they were recorded with")
    report_warm(drafting_plans(options.calls), titled=False)
    report_processes(processes(options.runs))
    return 0


def report_sweep(loading: float, planning: float, planned: int, refused: int) -> None:
    """One pass over the catalog in a fresh process."""
    say("Catalog sweep, cold, every model under every release")
    say(f"  load    {loading:8.1f} ms  {len(catalog.names())} graphs")
    say(f"  plan    {planning:8.1f} ms  {planned} plans, {refused} refused")


def report_warm(timed: Sequence[Warm], *, titled: bool = True) -> None:
    """The medians over models, and the slowest."""
    if titled:
        say("\nWarm plan, a new deployment each call, reasons included: microseconds, median of each model")
    say(f"  {'':10}{'models':>7}{'median':>9}{'worst':>9}  worst model{'':22}{'with deployment':>16}")
    for release in (*rulespack.releases(), "all"):
        of = [one for one in timed if release in (one.release, "all")]
        worst = max(of, key=lambda one: one.plan)
        with_deployment = median(one.whole for one in of)
        say(
            f"  {release:10}{len(of):7}{median(one.plan for one in of):9.1f}{worst.plan:9.1f}  {worst.model:33}"
            f"{with_deployment:16.1f}"
        )
    say("  slowest: " + ", ".join(f"{w.model} {w.release} {w.plan:.0f}" for w in slowest(timed, 5)))


def slowest(timed: Sequence[Warm], count: int) -> list[Warm]:
    """The models that take longest."""
    return sorted(timed, key=lambda one: -one.plan)[:count]


def report_processes(timed: Sequence[Process]) -> None:
    """Every command against the bare interpreter, by the least and by the median time."""
    bare = timed[0]
    say(f"\nCold, {len(bare.times)} runs each in turn: milliseconds, and against a bare interpreter")
    say(f"  {'':46}{'min':>7}{'more':>7}{'ratio':>7}   {'median':>7}{'more':>7}{'ratio':>7}")
    for one in timed:
        columns = []
        for measure in (min, median):
            taken, against = float(measure(one.times)), float(measure(bare.times))
            columns.append(f"{taken:7.1f}{taken - against:7.1f}{taken / against:7.2f}")
        say(f"  {one.name:46}" + "   ".join(columns))


def say(line: str) -> None:
    """One line of the report, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
