"""Faults that others' bug reports describe: a fast clock, a silent tenant, a late uploader, a drain, a replay, …

A fault is a plan of its rows and what each engine is set to (a `Case`); a drain and a replayed batch have modules of
their own (`drains`, `replays`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.exactness import drains, peers, replays
from benchmarks.exactness.engine import Engine, UnavailableError
from benchmarks.exactness.judge import Verdict, judge
from benchmarks.exactness.queries import LENGTH, tumbling
from benchmarks.exactness.report import Fault, Windows
from benchmarks.exactness.tracked import COUNTS, Promise, Tracked
from benchmarks.exactness.watermarks import Watermark
from benchmarks.exactness.workload import MINUTE, Plan, Site, Workload, make
from examples.flights.progress import Progress
from spark_client import Frontier, Marks

_SHARED = (0, 1, 2)
_TWO = (Site("north", _SHARED), Site("south", _SHARED))


@dataclass(frozen=True)
class Case:
    """A fault, and what engines are set to for it.

    Attributes:
        plan: of the rows; nothing is out of order but what the fault itself delays. Its name is the fault's.
        promise: of the tracker's, beside counts; None: counts only.
        short: minutes of every engine's short delay.
        long: minutes of Spark's long one; None: it is not tried.
        waits: also try Flink without an idle timeout, since a partition is silent for longer than that.
        unique: Spark and the tracker's promise take each row once, though none comes twice; Spark also without that.
        now: the plan's times are moved so that it ends now, since the machine's clock matters.
    """

    plan: Plan
    promise: Promise | None = None
    short: int = 5
    long: int | None = 40
    waits: bool = False
    unique: bool = False
    now: bool = False


def _plan(name: str, sites: Sequence[Site] = _TWO, minutes: int = 84, **more: Any) -> Plan:
    """Return a plan whose windows of the first 40 minutes are measured: a delay of 40 minutes ends them, too."""
    return Plan(name, minutes, tuple(sites), due=40, slow=0, quiet=0, **more)


CASES: Sequence[Case] = (
    Case(Plan("the last window, and no more data", 30, _TWO, slow=0, quiet=20), long=None),
    Case(Plan("a consumer that lags", 40, _TWO, lag={2: 15}, slow=0, quiet=20), long=None),
    Case(
        _plan("a fast clock", (replace(_TWO[0], fast=(12, 360)), _TWO[1])),
        Promise('`Frontier("5 minutes")`', front=lambda _: Frontier("5 minutes"), counted=False),
        now=True,
    ),
    Case(
        _plan(
            "a silent tenant",
            (Site("north", (0,)), Site("east", (1,)), Site("west", (2,), closed=(25, 84))),
            lag={1: 12},
        ),
        Promise(
            '`Frontier("5 minutes", per_scope=True, idle_after="5 minutes")`',
            front=lambda _: Frontier("5 minutes", per_scope=True, idle_after="5 minutes"),
            counted=False,
        ),
        waits=True,
    ),
    Case(
        _plan("a late uploader", minutes=90, uploads={0: 1, 1: 1, 2: 14}),
        Promise(
            '`Marks("last", partition="part", partitions=3)`',
            front=lambda partitions: Marks("last", partition="part", partitions=partitions),
            counted=False,
        ),
        waits=True,
    ),
    Case(
        _plan("an outage and a deadline", (*_TWO, Site("east", _SHARED, away=(12, 16), back=50))),
        Promise(
            'counts, `Tracking(deadline="20 minutes", deadline_by_event_time=True)`',
            rules={"deadline": "20 minutes", "deadline_by_event_time": True},
        ),
    ),
    Case(
        _plan("one instant in several batches", period=5),
        Promise(
            '`Frontier("0 seconds")`, rows deduplicated',
            front=lambda _: Frontier("0 seconds"),
            counted=False,
            unique=True,
        ),
        short=0,
        unique=True,
    ),
)
#: Parts of the names that engines have in the table of all faults, whatever the delay or promise in a fault.
SHORT, LONG, PROMISED = "short delay", "delay of 40 minutes", "promise"
IDLE, AS_IT_COMES = "no idle timeout", "not deduplicated"


def _spark(case: Case) -> Iterator[tuple[str, Engine]]:
    yield f"Spark, {SHORT}", Watermark(f"{case.short} minutes", unique=case.unique)
    if case.unique:
        yield f"Spark, {SHORT}, {AS_IT_COMES}", Watermark(f"{case.short} minutes")
    if case.long:
        yield f"Spark, {LONG}", Watermark(f"{case.long} minutes", unique=case.unique)


def _ours(case: Case) -> Iterator[tuple[str, Engine]]:
    yield "Spark with the tracker, counts", Tracked(COUNTS)
    if case.promise:
        yield f"Spark with the tracker, {PROMISED}", Tracked(case.promise)


def _flink(case: Case) -> Iterator[tuple[str, Engine]]:
    yield f"Flink, {SHORT}", peers.flink(case.short, 5)
    if case.waits:
        yield f"Flink, {SHORT}, {IDLE}", peers.flink(case.short, None)


_ENGINES: Mapping[str, Callable[[Case], Iterator[tuple[str, Engine]]]] = {
    "spark": _spark,
    "ours": _ours,
    "flink": _flink,
    "beam": lambda case: iter([(f"Beam, {SHORT}", peers.beam(case.short))]),
    "bytewax": lambda case: iter([(f"Bytewax, {SHORT}", peers.bytewax(case.short))]),
    "streams": lambda case: iter([(f"Kafka Streams, {SHORT}", peers.streams(case.short))]),
}
OTHERS: Mapping[str, Callable[[Sequence[str], Progress], list[Fault]]] = {
    drains.FAULT: drains.run,
    replays.FAULT: replays.run,
}
#: Faults by number, as the command line has them.
NAMES: Mapping[str, str] = {
    str(number): name for number, name in enumerate([*(case.plan.name for case in CASES), *OTHERS], 1)
}


def run(engines: Sequence[str], progress: Progress, numbers: Sequence[str] = tuple(NAMES)) -> Iterator[Fault]:
    """Let engines, by the names of the command line, meet faults, by number, and yield what came of each."""
    chosen = {NAMES[number] for number in numbers}
    for case in CASES:
        if case.plan.name in chosen:
            for engine in engines:
                for row, each in _ENGINES[engine](case):
                    yield from _met(case, row, each, progress)
    for name, other in OTHERS.items():
        if name in chosen:
            yield from other(engines, progress)


def _met(case: Case, row: str, engine: Engine, progress: Progress) -> Iterator[Fault]:
    progress.say(f"{case.plan.name}: {engine.name}")
    workload = make(_moved_to_now(case.plan) if case.now else case.plan)
    with tempfile.TemporaryDirectory(prefix="exactness-", ignore_cleanup_errors=True) as directory:
        try:
            made = engine.run(workload, ["tumbling"], Path(directory), lambda how_far: progress.show(how_far))
        except UnavailableError as error:
            progress.say(f"left out: {error}")
            return
    run = made["tumbling"]
    due = _due(workload)
    truth = {key: each for key, each in tumbling(workload.rows).items() if key.end <= due}
    verdict = judge(truth, (each for each in run.emitted if each.key.end <= due), workload.steps)
    yield Fault(case.plan.name, engine.name, verdict.exact, described(verdict, run.aside), figures(row, verdict))


def _due(workload: Workload) -> int:
    """Return by when the windows end that are measured."""
    plan = workload.plan
    return workload.steps[-1].until if plan.due is None else plan.begins + plan.due * MINUTE


def _moved_to_now(plan: Plan) -> Plan:
    """Return a plan that ends when the present window of the machine's clock begins."""
    length = (plan.minutes + plan.quiet) * MINUTE
    return replace(plan, begins=(int(time.time() * 1000) - length) // LENGTH * LENGTH)


def figures(row: str, verdict: Verdict) -> Windows:
    """Return a verdict's figures for the table of all faults."""
    longest, marked = verdict.longest_delay, max(verdict.marked_delays, default=None)
    return Windows(
        row=row,
        windows=verdict.windows,
        right=verdict.right,
        lost=verdict.lost,
        longest=None if longest is None else round(longest, 1),
        marked=verdict.marked,
        marked_after=None if marked is None else round(marked, 1),
    )


def described(verdict: Verdict, aside: int | None = None) -> str:
    """Return the outcome in a sentence."""
    parts = [f"{verdict.right} of {verdict.windows} windows right"]
    parts += [f"{verdict.never} never came"] if verdict.never else []
    parts += [f"{verdict.wrong} wrong"] if verdict.wrong else []
    parts += [f"{verdict.lost:,} rows lost"] if verdict.lost else []
    parts += [f"{verdict.doubled} came twice"] if verdict.doubled else []
    parts += [f"{verdict.extra} of no window"] if verdict.extra else []
    parts += [f"{verdict.marked} marked as incomplete"] if verdict.marked else []
    parts += [f"{aside:,} rows set aside"] if aside else []
    if verdict.longest_delay is not None:
        parts.append(f"longest delay {verdict.longest_delay:.1f} minutes")
    if verdict.marked_delays:
        parts.append(f"the marked {verdict.marked_delays[-1]:.1f} minutes after their end at most")
    return "; ".join(parts)
