"""The check can fail: an announcement that is broken on purpose is found, whatever is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tracker.load.plan import Plan
from tracker.load.results import judge, needed
from tracker.load.scenario import read
from tracker.load.shared import SharedCounters


@pytest.fixture
def plan() -> Plan:
    said = {"rate": 40, "duration": 3, "producers": 2, "processes": 1, "open": 40, "lifetime": 1, "segments": 2}
    return Plan(read(said))


@pytest.fixture
def shared(plan: Plan, tmp_path: Path) -> SharedCounters:
    """Return the counters of a good run: each report answered at once, each end seen right after."""
    shared = SharedCounters(tmp_path, plan, create=True)
    shared.start = 1_000.0
    shared.sent[:] = shared.start + plan.due
    shared.answered[:] = shared.sent + 0.001
    for source in range(plan.producers):
        expected = plan.expected(source)
        for number in range(plan.scenario.segments):
            places = np.flatnonzero(plan.exists)
            shared.ended[source, places, number] = needed(plan, source, expected, number, shared.answered)[places]
            shared.elements[source, places, number] = expected.elements[places]
            shared.times[source, places, number] = 1
    return shared


def test_what_is_right_is_found_right(plan: Plan, shared: SharedCounters) -> None:
    verdict = judge(plan, shared)
    assert verdict.right
    assert verdict.checked == plan.ends == shared.times.sum()


def _lost(shared: SharedCounters, place: tuple[int, int, int]) -> None:
    shared.times[place] = shared.ended[place] = shared.elements[place] = 0


def _twice(shared: SharedCounters, place: tuple[int, int, int]) -> None:
    shared.times[place] += 1


def _too_few(shared: SharedCounters, place: tuple[int, int, int]) -> None:
    shared.elements[place] -= 10


def _early(shared: SharedCounters, place: tuple[int, int, int]) -> None:
    shared.ended[place] -= 0.002


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (_lost, "1 did not end, though all of it was reported and answered: tenant-3/1-3-1 on segment-02"),
        (_twice, "1 ended more than once: tenant-3/1-3-1 on segment-02"),
        (_too_few, "1 ended with a wrong number of elements: tenant-3/1-3-1 on segment-02 "),
        (_early, "1 ended before all of it was reported: tenant-3/1-3-1 on segment-02"),
    ],
)
def test_one_wrong_announcement_is_found(
    plan: Plan, shared: SharedCounters, broken: Callable[[SharedCounters, tuple[int, int, int]], None], told: str
) -> None:
    broken(shared, (1, 3 * plan.generations + 1, 1))
    verdict = judge(plan, shared)
    assert not verdict.right
    [fault] = verdict.faults
    assert fault.startswith(told)


def test_what_the_load_did_not_finish_is_not_the_trackers_fault(plan: Plan, shared: SharedCounters) -> None:
    """A report without an answer makes the run incomplete; the ends that hang on it may or may not have come."""
    shared.answered[1, -1] = 0
    for place in np.argwhere(shared.ended >= shared.sent[1, -1]):
        _lost(shared, tuple(place))
    verdict = judge(plan, shared)
    assert verdict.faults == ()
    assert verdict.unanswered == 1
    assert not verdict.right


def test_an_end_whose_report_was_never_sent_came_too_early(plan: Plan, shared: SharedCounters) -> None:
    tick = int(plan.close_ticks[0])
    shared.sent[0, tick] = shared.answered[0, tick] = 0
    assert any("ended before all of it was reported: tenant-0/0-0-0" in fault for fault in judge(plan, shared).faults)


def test_many_faults_are_counted_and_a_few_shown(plan: Plan, shared: SharedCounters) -> None:
    shared.times[0, :, 0] *= 2
    [fault] = judge(plan, shared).faults
    assert fault.startswith(f"{plan.exists.sum():,} ended more than once: tenant-0/0-0-0 on segment-01, ")
    assert fault.endswith(f", and {plan.exists.sum() - 3:,} more")


def test_what_others_wrote_down_counts(plan: Plan, shared: SharedCounters) -> None:
    shared.fault("something\nstrange")
    assert judge(plan, shared).faults == ("something strange",)
