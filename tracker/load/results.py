"""The figures of a run, and the verdict: each end announced once, with the right count, and none too early.

The figures are latencies, the generator's own lateness, what the server used, and on which machine.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tracker.load.plan import Expected, Plan, Times, segment
from tracker.load.scenario import Scenario
from tracker.load.servers import Use
from tracker.load.shared import PROBES_A_SECOND, REPEATED, TAKEN_OVER, SharedCounters

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN: Final = 3  #: examples of each kind of fault


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the checks.

    Args:
        faults: what must not happen; one sentence for each kind, with examples.
        unanswered: reports of the plan that were not sent or not answered.
        checked: ends that were compared with the plan.
    """

    faults: tuple[str, ...]
    unanswered: int
    checked: int

    @property
    def right(self) -> bool:
        """Return whether all reports were sent and answered, and exactly the expected ends came."""
        return not self.faults and not self.unanswered


def judge(plan: Plan, shared: SharedCounters) -> Verdict:
    """Compare the announced ends with the plan."""
    found: dict[str, list[str]] = {}
    checked = 0
    sent, answered = (np.where(times == 0, np.inf, times) for times in (shared.sent, shared.answered))
    for source in range(plan.producers):
        expected = plan.expected(source)
        for number in range(plan.scenario.segments):
            checked += int(plan.exists.sum())
            times = shared.times[source, :, number]
            elements = shared.elements[source, :, number]
            seen = times > 0
            early = shared.ended[source, :, number] < needed(plan, source, expected, number, sent)
            finished = np.isfinite(needed(plan, source, expected, number, answered))
            kinds = {
                "ended before all of it was reported": seen & early,
                "did not end, though all of it was reported and answered": plan.exists & ~seen & finished,
                "ended more than once": times > 1,
                "ended with a wrong number of elements": seen & (elements != expected.elements),
            }
            for kind, wrong in kinds.items():
                for place in np.flatnonzero(wrong):
                    example = f"{_name(plan, source, int(place))} on {segment(number + 1)}"
                    if kind.endswith("elements"):
                        example += f" ({elements[place]:,} for {expected.elements[place]:,})"
                    found.setdefault(kind, []).append(example)
    faults = [f"{len(examples):,} {kind}: {_some(examples)}" for kind, examples in found.items()]
    return Verdict((*shared.faults(), *faults), int((shared.answered == 0).sum()), checked)


def needed(plan: Plan, source: int, expected: Expected, number: int, times: Times) -> Times:
    """Return, for each of a source's substreams, the latest time of the reports without which it cannot end.

    Args:
        number: the segment on which the substreams end, counted from 0.
        times: a time for each report, by producer and tick.
    """
    latest: Times = times[source][plan.close_ticks].astype(float)
    used = expected.last_ticks >= 0
    last = expected.last_ticks[used]
    for stage in range(number + 2):
        handled = plan.handled(source, stage)[last]
        latest[used] = np.maximum(latest[used], times[plan.handler(source, stage)][handled])
    return latest


def _name(plan: Plan, source: int, place: int) -> str:
    slot, generation = divmod(place, plan.generations)
    [scope], [name] = plan.names(source, np.array([slot]), np.array([generation]))
    return f"{scope}/{name}"


def _some(examples: list[str]) -> str:
    more = len(examples) - _SHOWN
    return ", ".join(examples[:_SHOWN]) + (f", and {more:,} more" if more > 0 else "")


_LIBRARIES = ("substream-tracker", "numpy", "grpcio", "protobuf")


def machine() -> dict[str, str]:
    """Return the machine, its load, and the versions of the software, by name."""
    described = {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "load": ", ".join(f"{load:.1f}" for load in os.getloadavg()) + " (1, 5, 15 min, before the run)",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    return described | {library: version(library) for library in _LIBRARIES}


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# A report's latency is the time from when it was due to its answer. An end cannot come before certain reports; its
# latency is the time from when the last of these was due to when the watcher saw the end. Both count from the plan:
# if the server stands still for a second, all reports that became due in that second show it. Reports that were late
# because the test had killed or taken over a producer are left out, and counted.

_BUCKETS: Final = 240  #: the number of pieces of time in a series
_LOOKS: Final = 40  #: the number of moments at which the backlog is counted
_BUSY: Final = 0.9  #: of a core: a process of producers that uses more may not send in time
_LATE_MS: Final = 0.5  #: a generator may be as late as this, or a quarter of the measured latencies if that is more


@dataclass(frozen=True, slots=True)
class Latency:
    """A distribution of latencies, in milliseconds; NaN if there were none."""

    count: int
    p50: float
    p90: float
    p99: float
    p999: float
    longest: float

    @classmethod
    def of(cls, seconds: NDArray[np.floating[Any]]) -> Latency:
        """Return the distribution of latencies that are given in seconds.

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
    """Resource use of the processes at a moment."""

    at: float  #: seconds after the start
    server: Use | None  #: the server; None: this test has not started it
    processes: tuple[float, ...]  #: processor seconds of each process of producers, and of the watcher
    machine: float  #: processor seconds of all programs on this machine


@dataclass(frozen=True, slots=True)
class Generator:
    """Performance of the load's generator."""

    lag: Latency  #: how much later reports left than if the generator had always been in time
    busiest: float  #: share of a core that the busiest of its processes used
    kept_up: bool
    repeated: int  #: reports that were sent once more
    taken_over: int  #: runs that were taken over
    producers_killed: int  #: processes of producers that were killed
    servers_killed: int
    left_out: int  #: reports that were late because their producer was killed or taken over


@dataclass(frozen=True, slots=True)
class Series:
    """The course of a run, in pieces of time; NaN for pieces without figures."""

    at: tuple[float, ...]  #: the middle of each piece, in seconds after the start
    report_p50: tuple[float, ...]  #: milliseconds
    report_p99: tuple[float, ...]
    end_p50: tuple[float, ...]
    end_p99: tuple[float, ...]
    floor_p50: tuple[float, ...]
    floor_p99: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """All figures of a run."""

    planned: int  #: the number of reports in the plan
    answered: int
    rate: float  #: reports answered a second, in the measured time
    backlog: tuple[float, float]  #: reports due and not answered: early in the measured time, and at its end
    backlog_grew: bool  #: whether the backlog grew, so that the rate cannot be sustained
    reports: Latency
    round_trips: Latency  #: of the same reports, from when they left: a closed loop would measure this
    ends: Latency
    floor: Latency  #: of calls to a server that does nothing, in the same seconds; none with a remote tracker
    generator: Generator
    server: float | None  #: share of a core that the server used; None: this test has not started it
    server_waited: float | None  #: share of the time in which the server had work to do and no processor was free
    others: float | None  #: cores that other programs used; None: the server may run on another machine
    series: Series
    samples: tuple[Sample, ...]
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        """Return all figures in a form for JSON."""
        found: dict[str, Any] = _plain(asdict(self))
        return found | {"right": self.verdict.right}


def evaluate(
    plan: Plan,
    shared: SharedCounters,
    verdict: Verdict,
    samples: Sequence[Sample],
    producers_killed: int,
    servers_killed: int,
) -> Result:
    """Compute the figures of a finished run.

    Args:
        samples: what the processes used, in the order of time.
    """
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
    """Return, for each report, how much later it left than if its producer had always been in time.

    A producer in time sends a report when the report is due and the producer is free, and is busy with each report as
    long as it really was. So the wait for an earlier report's answer does not count here; the delay because the
    generator sent an earlier report late does.
    """
    busy = np.maximum(0.0, np.maximum(shared.free, shared.answered) - shared.sent)
    before = np.cumsum(busy, axis=1) - busy
    in_time = before + np.maximum.accumulate(plan.due - before, axis=1)
    lags: Times = np.maximum(0.0, shared.sent - shared.start - in_time)
    return lags


def _ends(plan: Plan, shared: SharedCounters) -> tuple[Times, Times]:
    """Return when each end was due, and how much later it was seen; without ends that the test has disturbed."""
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
    """Return when each call to the server that does nothing was due, and how much later it was answered."""
    made = np.flatnonzero(shared.probed)
    due = made / PROBES_A_SECOND
    return due, shared.probed[made] - shared.start - due


def _backlog(due: Times, answered: Times, since: float, until: float) -> tuple[float, float]:
    """Return the mean number of reports that were due and not answered, in the first quarter and in the last."""
    moments = np.linspace(since, until, _LOOKS)
    waiting = np.searchsorted(np.sort(due, axis=None), moments) - np.searchsorted(np.sort(answered, axis=None), moments)
    quarter = _LOOKS // 4
    return float(waiting[:quarter].mean()), float(waiting[-quarter:].mean())


def _shares(inside: Sequence[Sample]) -> list[float]:
    """Return the share of a core that each process of producers, and the watcher, used in the measured time."""
    if len(inside) < 2:
        return []
    first, last = inside[0], inside[-1]
    pairs = zip(first.processes, last.processes, strict=True)
    return [(after - before) / (last.at - first.at) for before, after in pairs]


def _of_server(inside: Sequence[Sample], seconds: Callable[[Use], float]) -> float | None:
    """Return how many seconds of a kind the server had in each second."""
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
    at = tuple(((np.arange(count) + 0.5) * width).round(3).tolist())
    of_reports, of_ends, of_probes = (_percentiles(*each, width, count) for each in (reports, ends, probes))
    return Series(at, *of_reports, *of_ends, *of_probes)


def _percentiles(due: Times, latencies: Times, width: float, count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return median and 99th percentile, in milliseconds, of what became due in each piece of time."""
    order = np.argsort(due, kind="stable")
    edges = np.searchsorted(due[order], np.arange(count + 1) * width)
    pieces = [Latency.of(latencies[order][first:last]) for first, last in pairwise(edges)]
    return tuple(piece.p50 for piece in pieces), tuple(piece.p99 for piece in pieces)


def _plain(value: Any) -> Any:
    """Replace NaN, which JSON does not have, by None."""
    match value:
        case float():
            return None if np.isnan(value) else value
        case dict():
            return {name: _plain(one) for name, one in value.items()}
        case tuple() | list():
            return [_plain(one) for one in value]
        case _:
            return value


_MEDIAN: Final = "#2f6690"
_TAIL: Final = "#c8553d"
_DISK: Final = "#d9912b"
_FLOOR: Final = "#999999"
_PALE: Final = "#e8e8e8"


def draw(scenario: Scenario, name: str, result: Result, path: Path) -> None:
    """Draw a run, and write the picture as a PNG."""
    from matplotlib.figure import Figure  # only this needs it, and writes files without a display

    uses = [(sample.at, sample.server) for sample in result.samples if sample.server is not None]
    rows = 3 if uses else 2
    figure = Figure(figsize=(11, 2.4 * rows + 0.8), layout="constrained")
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    series = result.series
    _latency(axes[0], series, series.report_p50, series.report_p99, "Reports: from due to answered")
    _latency(axes[1], series, series.end_p50, series.end_p99, "Ends: from due to seen by the watcher")
    if uses:
        at = [moment for moment, _ in uses]
        axes[2].plot(at, [use.memory / (1 << 20) for _, use in uses], color=_MEDIAN, label="memory")
        axes[2].plot(at, [use.disk / (1 << 20) for _, use in uses], color=_DISK, label="disk")
        axes[2].set_ylim(bottom=0)
        _dress(axes[2], "The tracker's memory and disk", "size, MiB")
    since, until = scenario.warm_up, scenario.warm_up + scenario.duration
    for axis in axes:
        axis.set_xlim(0, until)
        axis.axvspan(0, since, color=_PALE, zorder=0)
    axes[-1].set_xlabel("time after the start, s (grey: the warm-up, which is not counted)")
    figure.suptitle(
        f"{name}: {scenario.rate:g} reports/s, {scenario.producers} producers, {scenario.segments} segments, "
        f"{scenario.open:,} substreams open, {scenario.open / scenario.lifetime:,.0f} ending every second",
        fontsize=11,
    )
    figure.savefig(path, dpi=110)


def _latency(axis: Axes, series: Series, p50: tuple[float, ...], p99: tuple[float, ...], title: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    if not all(map(math.isnan, series.floor_p99)):
        axis.plot(series.at, series.floor_p99, color=_FLOOR, linewidth=0.9, label="p99 of a call that does nothing")
    axis.plot(series.at, p99, color=_TAIL, linewidth=1.2, label="p99")
    axis.plot(series.at, p50, color=_MEDIAN, linewidth=1.2, label="p50")
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    _dress(axis, title, "latency, ms")


def _dress(axis: Axes, title: str, quantity: str) -> None:
    axis.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axis.set_ylabel(quantity)
    axis.grid(axis="y", color=_PALE)
    axis.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, fontsize=9, borderpad=0)
    axis.spines[["top", "right"]].set_visible(False)
