"""Search for the highest rate that a tracker sustains, by runs at rates ever closer to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tracker.load.results import Result

_STEP: Final = 1.5
_CLOSE: Final = 1.1  #: the search ends when the lowest rate that failed is at most so many times the highest sustained
_MOST_RUNS: Final = 20
_BUSY_RUNS: Final = 4  #: runs in a row in which even a call that does nothing took too long: lower rates would not help


@dataclass(frozen=True, slots=True)
class Step:
    """One run of the search."""

    rate: float  #: reports a second that were asked for
    result: Result
    failed: str  #: why this rate was not sustained; empty: it was

    @property
    def sustained(self) -> bool:
        return not self.failed

    @property
    def only_slow(self) -> bool:
        """Return whether the run failed only because answers were slow: all was right, and no backlog grew."""
        return bool(self.failed) and self.result.verdict.right and not self.result.backlog_grew


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search.

    Args:
        steps: all runs, in their order.
        rate: the highest rate that was sustained, in reports a second; 0: none was.
        by_generator: above this rate the generator could not keep up, so the tracker may sustain more.
        too_busy: no rate was sustained, and even a call that does nothing exceeded the bound, however low the rate.
    """

    steps: tuple[Step, ...]
    rate: float
    by_generator: bool
    too_busy: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the result in a form for JSON."""
        steps = [
            {"rate": step.rate, "sustained": step.sustained, "failed": step.failed, "result": step.result.as_dict()}
            for step in self.steps
        ]
        return {"rate": self.rate, "by_generator": self.by_generator, "too_busy": self.too_busy, "steps": steps}


def find_rate(run: Callable[[float], Result], first: float, bound_ms: float, tell: Callable[[Step], None]) -> Search:
    """Find the highest rate at which the 99th percentiles stay within a bound and no backlog grows.

    A rate at which answers were only slow is tried once more, since other programs on the machine may have been the
    cause. A run that finds a fault ends the search: a fault matters more than a rate.

    Args:
        bound_ms: the longest 99th percentile of reports and of ends, in milliseconds.
    """

    def beyond(step: Step) -> bool:
        return not step.sustained and step.result.floor.p99 > bound_ms

    steps: list[Step] = []
    low, high = 0.0, 0.0  # the highest rate that was sustained, the lowest that was not; 0: not known
    rate = first
    too_busy = False
    while len(steps) < _MOST_RUNS and not too_busy and not (low and high and high <= low * _CLOSE):
        result = run(rate)
        step = Step(rate, result, why_not(result, bound_ms))
        steps.append(step)
        tell(step)
        too_busy = not low and len(steps) >= _BUSY_RUNS and all(map(beyond, steps[-_BUSY_RUNS:]))
        if result.verdict.faults:
            break
        if step.only_slow and [one.rate for one in steps].count(rate) == 1:
            continue
        if step.sustained:
            low = rate
            rate = round((low * high) ** 0.5 if high else rate * _STEP, 1)
        else:
            high = rate
            rate = round((low * high) ** 0.5 if low else rate / _STEP, 1)
    failed = [step for step in steps if not step.sustained and step.rate == high]
    by_generator = bool(failed) and not failed[-1].result.generator.kept_up
    return Search(tuple(steps), low, by_generator, too_busy)


def why_not(result: Result, bound_ms: float) -> str:
    """Return why a run's rate is not sustained; empty if it is."""
    if result.verdict.faults:
        return result.verdict.faults[0]
    if result.verdict.unanswered:
        return f"{result.verdict.unanswered:,} reports were not answered in time"
    if result.backlog_grew:
        return f"the backlog grew from {result.backlog[0]:.0f} reports to {result.backlog[1]:.0f}"
    if result.reports.p99 > bound_ms:
        return f"99 % of the reports took up to {result.reports.p99:.1f} ms"
    if result.ends.p99 > bound_ms:
        return f"99 % of the ends took up to {result.ends.p99:.1f} ms"
    return ""
