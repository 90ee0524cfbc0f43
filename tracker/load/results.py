"""What a run came to, as figures: latencies, the generator's own lateness, and what the server used.

A report's latency is from when it was due to its answer. An end's is from when the last of the reports was due without
which it could not be, to when the watcher saw it. Both count from the plan, so a server that stands still for a second
is seen by all that fell due in it. What was late because the harness had killed or taken over a producer is left out,
and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tracker.load.plan import Plan, Times
from tracker.load.servers import Use
from tracker.load.shared import PROBES_A_SECOND, REPEATED, TAKEN_OVER, SharedCounters
from tracker.load.verdict import Verdict, needed

_BUCKETS: Final = 240  #: pieces of time in a series
_LOOKS: Final = 40  #: moments at which the backlog is looked at
_BUSY: Final = 0.9  #: of a core: a process of producers that uses more cannot be trusted to be in time
_LATE_MS: Final = 0.5  #: what a generator may be late at least; else a quarter of the latencies that it measures


@dataclass(frozen=True, slots=True)
class Latency:
    """A distribution, in milliseconds; NaN where there was nothing."""

    count: int
    p50: float
    p90: float
    p99: float
    p999: float
    longest: float

    @classmethod
    def of(cls, seconds: NDArray[np.floating[Any]]) -> Latency:
        """
        >>> import numpy as np
        >>> Latency.of(np.array([0.001, 0.003])).p50
        2.0
        """
        if not len(seconds):
            return cls(0, *[float("nan")] * 5)
        found = np.percentile(seconds * 1e3, [50, 90, 99, 99.9, 100])
        return cls(len(seconds), *found.round(6).tolist())


@dataclass(frozen=True, slots=True)
class Sample:
    """What the processes used at a moment."""

    at: float  #: seconds after the start
    server: Use | None  #: the server; None: it is somebody else's
    processes: tuple[float, ...]  #: processor seconds of each process of producers, and of the watcher
    machine: float  #: processor seconds of everything on this machine


@dataclass(frozen=True, slots=True)
class Generator:
    """How well the load was made."""

    lag: Latency  #: how much later reports left than they would have if it had always been in time
    busiest: float  #: share of a core that the busiest of its processes used
    kept_up: bool
    repeated: int  #: reports that were sent once more
    taken_over: int  #: producers
    producers_killed: int  #: processes
    servers_killed: int
    left_out: int  #: reports that were late because a producer of theirs was killed or taken over


@dataclass(frozen=True, slots=True)
class Series:
    """The run in pieces of time; NaN where there was nothing."""

    at: tuple[float, ...]  #: seconds after the start: the middle of each
    report_p50: tuple[float, ...]  #: milliseconds
    report_p99: tuple[float, ...]
    end_p50: tuple[float, ...]
    end_p99: tuple[float, ...]
    floor_p50: tuple[float, ...]
    floor_p99: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """All of it."""

    planned: int  #: reports
    answered: int
    rate: float  #: reports answered a second, while it was measured
    backlog: tuple[float, float]  #: reports due and not answered: early in the measured time, and at its end
    backlog_grew: bool  #: more and more was left undone: no rate that can be sustained
    reports: Latency
    round_trips: Latency  #: of the same reports, from when they left: what a closed loop would have measured
    ends: Latency
    floor: Latency  #: of calls to a server that does nothing, in the same seconds; none if the tracker is elsewhere
    generator: Generator
    server: float | None  #: share of a core that the server used; None: it is somebody else's
    server_waited: float | None  #: share of the time in which it had work to do and no processor was free
    others: float | None  #: cores that were used by what has nothing to do with this; None: the server may be elsewhere
    series: Series
    samples: tuple[Sample, ...]
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        said: dict[str, Any] = _plain(asdict(self))
        return said | {"right": self.verdict.right}


def evaluate(
    plan: Plan,
    shared: SharedCounters,
    verdict: Verdict,
    samples: Sequence[Sample],
    producers_killed: int,
    servers_killed: int,
) -> Result:
    """The figures of a run that is over."""
    start = shared.start
    since, until = plan.measured
    due = plan.due
    answered = shared.answered != 0
    counted = answered & (shared.disturbed == 0)
    latencies = shared.answered - start - due
    measured = (due >= since) & (due < until)
    end_due, end_latencies = _ends(plan, shared)
    end_measured = (end_due >= since) & (end_due < until)
    lag = Latency.of(_lags(plan, shared)[counted & measured])
    reports = Latency.of(latencies[counted & measured])
    inside = [sample for sample in samples if since <= sample.at <= until]
    busiest = max(_shares(inside), default=0.0)
    probes = _probes(shared)
    early, late = _backlog(due, np.where(answered, shared.answered - start, np.inf), since, until)
    totals = shared.counters.sum(axis=0)
    in_time = answered & (shared.answered - start >= since) & (shared.answered - start < until)
    return Result(
        planned=plan.reports,
        answered=int(answered.sum()),
        rate=round(float(in_time.sum()) / (until - since), 3),
        backlog=(early, late),
        # Each producer may have one report under way without being behind.
        backlog_grew=late > 2 * early + plan.producers,
        reports=reports,
        round_trips=Latency.of((shared.answered - shared.sent)[counted & measured]),
        ends=Latency.of(end_latencies[end_measured]),
        floor=Latency.of(probes[1][probes[0] >= since]),
        generator=Generator(
            lag=lag,
            busiest=round(busiest, 3),
            kept_up=busiest <= _BUSY
            and not lag.p50 > max(_LATE_MS, reports.p50 / 4)
            and not lag.p99 > max(_LATE_MS, reports.p99 / 4),
            repeated=int(totals[REPEATED]),
            taken_over=int(totals[TAKEN_OVER]),
            producers_killed=producers_killed,
            servers_killed=servers_killed,
            left_out=int((measured & (shared.disturbed != 0)).sum()),
        ),
        server=_of_server(inside, lambda use: use.processor_seconds),
        server_waited=_of_server(inside, lambda use: use.waiting_seconds),
        others=_others(inside),
        series=_series(until, (due[counted], latencies[counted]), (end_due, end_latencies), probes),
        samples=tuple(samples),
        verdict=verdict,
    )


def _lags(plan: Plan, shared: SharedCounters) -> Times:
    """For each report, how much later it left than it would have if its producer had always been in time.

    Then it would have left when it was due and its producer free, and the producer would have been busy with each
    report for as long as it was. What waits in line for an answer is not late by this; what waits because the
    generator had left an earlier one late is.
    """
    busy = np.maximum(0.0, np.maximum(shared.free, shared.answered) - shared.sent)
    before = np.cumsum(busy, axis=1) - busy
    in_time = before + np.maximum.accumulate(plan.due - before, axis=1)
    lags: Times = np.maximum(0.0, shared.sent - shared.start - in_time)
    return lags


def _ends(plan: Plan, shared: SharedCounters) -> tuple[Times, Times]:
    """When each end that was seen was due, and how long after that it was seen; disturbed ones left out."""
    dues, latencies = [], []
    for source in range(plan.producers):
        expected = plan.expected(source)
        for number in range(plan.scenario.segments):
            ended = shared.ended[source, :, number]
            due = needed(plan, source, expected, number, plan.due)
            disturbed = needed(plan, source, expected, number, shared.disturbed.astype(float))
            counted = (ended != 0) & (disturbed == 0)
            dues.append(due[counted])
            latencies.append(ended[counted] - shared.start - due[counted])
    return np.concatenate(dues), np.concatenate(latencies)


def _probes(shared: SharedCounters) -> tuple[Times, Times]:
    """When each call to the server that does nothing was due, and how long after that it was answered."""
    made = np.flatnonzero(shared.probed)
    due = made / PROBES_A_SECOND
    return due, shared.probed[made] - shared.start - due


def _backlog(due: Times, answered: Times, since: float, until: float) -> tuple[float, float]:
    """How many reports were due and not answered, on average: in the first quarter and in the last."""
    moments = np.linspace(since, until, _LOOKS)
    waiting = np.searchsorted(np.sort(due, axis=None), moments) - np.searchsorted(np.sort(answered, axis=None), moments)
    quarter = _LOOKS // 4
    return float(waiting[:quarter].mean()), float(waiting[-quarter:].mean())


def _shares(inside: Sequence[Sample]) -> list[float]:
    """Share of a core that each process of producers, and the watcher, used while it was measured."""
    if len(inside) < 2:
        return []
    first, last = inside[0], inside[-1]
    pairs = zip(first.processes, last.processes, strict=True)
    return [(after - before) / (last.at - first.at) for before, after in pairs]


def _of_server(inside: Sequence[Sample], seconds: Callable[[Use], float]) -> float | None:
    """Seconds of a kind that the server had in each second."""
    if len(inside) < 2 or inside[0].server is None or inside[-1].server is None:
        return None
    return round((seconds(inside[-1].server) - seconds(inside[0].server)) / (inside[-1].at - inside[0].at), 3)


def _others(inside: Sequence[Sample]) -> float | None:
    server = _of_server(inside, lambda use: use.processor_seconds)
    if server is None:
        return None
    everything = (inside[-1].machine - inside[0].machine) / (inside[-1].at - inside[0].at)
    return round(max(0.0, everything - server - sum(_shares(inside))), 3)


def _series(
    until: float, reports: tuple[Times, Times], ends: tuple[Times, Times], probes: tuple[Times, Times]
) -> Series:
    width = max(1.0, until / _BUCKETS)
    count = int(np.ceil(until / width))
    columns = [_percentiles(due, latencies, width, count) for due, latencies in (reports, ends, probes)]
    return Series(
        at=tuple(((np.arange(count) + 0.5) * width).round(3).tolist()),
        report_p50=columns[0][0],
        report_p99=columns[0][1],
        end_p50=columns[1][0],
        end_p99=columns[1][1],
        floor_p50=columns[2][0],
        floor_p99=columns[2][1],
    )


def _percentiles(due: Times, latencies: Times, width: float, count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Median and 99th percentile of what fell due in each piece of time, in milliseconds."""
    order = np.argsort(due, kind="stable")
    edges = np.searchsorted(due[order], np.arange(count + 1) * width)
    pieces = [Latency.of(latencies[order][first:last]) for first, last in pairwise(edges)]
    return tuple(piece.p50 for piece in pieces), tuple(piece.p99 for piece in pieces)


def _plain(value: Any) -> Any:
    """JSON knows no NaN: null says that there was nothing."""
    match value:
        case float():
            return None if np.isnan(value) else value
        case dict():
            return {name: _plain(one) for name, one in value.items()}
        case tuple() | list():
            return [_plain(one) for one in value]
        case _:
            return value
