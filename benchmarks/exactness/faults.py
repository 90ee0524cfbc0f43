"""Faults that others' bug reports describe: no data after the last window, a lagging consumer, a drain, a replay.

The first two are workloads for every engine; a drain and a replayed batch have modules of their own (`drains`,
`replays`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.exactness import drains, peers, replays
from benchmarks.exactness.engine import Engine, UnavailableError
from benchmarks.exactness.judge import Verdict, judge
from benchmarks.exactness.queries import tumbling
from benchmarks.exactness.report import Fault
from benchmarks.exactness.tracked import Tracked
from benchmarks.exactness.watermarks import Watermark
from benchmarks.exactness.workload import Plan, Site, make
from examples.flights.progress import Progress

_SHARED = (0, 1, 2)
#: Workloads of every engine, by name: nothing is out of order but what the fault itself delays.
PLANS: Mapping[str, Plan] = {
    "the last window, and no more data": Plan(
        "last", 30, (Site("north", _SHARED), Site("south", _SHARED)), slow=0, quiet=20
    ),
    "a consumer that lags": Plan(
        "lag", 40, (Site("north", _SHARED), Site("south", _SHARED)), lag={2: 15}, slow=0, quiet=20
    ),
}
_ENGINES: Mapping[str, Callable[[], Sequence[Engine]]] = {
    "spark": lambda: [Watermark("5 minutes")],
    "ours": lambda: [Tracked()],
    "flink": lambda: [peers.flink(5, 5)],
    "beam": lambda: [peers.beam(5)],
    "bytewax": lambda: [peers.bytewax(5)],
    "streams": lambda: [peers.streams(5)],
}


def run(engines: Sequence[str], progress: Progress) -> list[Fault]:
    """Let engines, by the names of the command line, meet every fault that they can meet here."""
    found = [
        fault
        for name, plan in PLANS.items()
        for engine in engines
        for each in _ENGINES[engine]()
        for fault in _met(name, plan, each, progress)
    ]
    return [*found, *drains.run(engines, progress), *replays.run(engines, progress)]


def _met(name: str, plan: Plan, engine: Engine, progress: Progress) -> list[Fault]:
    progress.say(f"{name}: {engine.name}")
    workload = make(plan)
    with tempfile.TemporaryDirectory(prefix="exactness-", ignore_cleanup_errors=True) as directory:
        try:
            made = engine.run(workload, ["tumbling"], Path(directory), lambda how_far: progress.show(how_far))
        except UnavailableError as error:
            progress.say(f"left out: {error}")
            return []
    verdict = judge(tumbling(workload.rows), made["tumbling"].emitted, workload.steps)
    return [Fault(name, engine.name, verdict.exact, described(verdict))]


def described(verdict: Verdict) -> str:
    """Return the outcome in a sentence."""
    parts = [f"{verdict.right} of {verdict.windows} windows right"]
    parts += [f"{verdict.never} never came"] if verdict.never else []
    parts += [f"{verdict.wrong} wrong, {verdict.lost:,} rows lost"] if verdict.wrong else []
    parts += [f"{verdict.doubled} came twice"] if verdict.doubled else []
    if verdict.longest_delay is not None:
        parts.append(f"longest delay {verdict.longest_delay:.1f} minutes")
    return "; ".join(parts)
