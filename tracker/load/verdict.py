"""Verdict on a tracker: each end announced once, with the right count, and none too early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tracker.load.plan import Expected, Plan, Times, segment
from tracker.load.shared import SharedCounters

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
    """Compare the announced ends with the plan.

    Args:
        plan: which ends must come.
        shared: which ends came, and when reports were sent and answered.
    """
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
        source: the producer that sends the substreams.
        expected: the source's expected ends.
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
