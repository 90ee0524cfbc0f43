"""Sequences that are too rare for chance to meet, on which the core and the model have once differed or might.

Each is the shortest that shows a point of the contract; both must say the same, and what is written here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.core.differential import difference
from tests.model.lines import Driver, Line
from tracker.contract.status import SubstreamStatus
from tracker.core import Tracker

SECOND = 10**9


def define(deployment: str = "d1", fronts: Sequence[str] = (), **more: Any) -> Line:
    line = {"do": "define", "deployment": deployment, "segments": [["a", []]], "fronts": fronts, "ordering": "NONE"}
    return line | more


def start(run: str, mode: str = "STAGED", **more: Any) -> Line:
    return {"do": "open", "producer": run[0], "run": run, "mode": mode} | more


def report(run: str, epoch: int, unit: str, entries: Any = (), promises: Any = (), commit: bool = False) -> Line:
    said = {"do": "report", "producer": run[0], "run": run, "epoch": epoch, "units": [unit], "commit": commit}
    return said | {"entries": entries, "promises": promises}


def commit(run: str, **more: Any) -> Line:
    return {"do": "commit", "producer": run[0], "run": run} | more


def tick(seconds: int) -> Line:
    return {"do": "tick", "wait": seconds * SECOND}


SENT = ["t", "s", 10, "a", 7, 1, 0]
CLOSE = ["close", "", "t", "s", 10]


def last_of(*lines: Line) -> tuple[Any, list[Any]]:
    """Return the answer and the events of the last line, on which core and model agree as on all before it."""
    assert not difference([line | {"look": True} for line in lines])
    driver = Driver(Tracker("log"))
    *_, last = [driver.run(line) for line in lines]
    return last


def open_after(*lines: Line) -> SubstreamStatus:
    """Return the one open substream that the lines leave, on which core and model agree."""
    last_of(*lines)
    tracker = Tracker("log")
    driver = Driver(tracker)
    for line in lines:
        driver.run(line)
    (only,), _ = tracker.view("job").substreams()
    return only


def test_revoked_epochs_are_taken_one_after_the_other() -> None:
    """The content of the first is let go when that counts as committed, before the second is taken out."""
    assert last_of(
        define(),
        start("p1", "IMMEDIATE", seals=True),
        start("q1"),
        report("p1", 0, "u0", [SENT]),
        report("p1", 1, "u1", [["t", "s", 10, "a", 5, 1, 1], ["t", "s", 10, "a", 5, 0, 0]]),
        report("q1", 0, "c", promises=[CLOSE], commit=True),
        start("p2", "IMMEDIATE", resume_epoch=2),
    ) == ({"committed_epoch": 1}, [["ENDED", "a", "t", "s", 10, 1, "COMPLETE", 0]])


def test_a_refused_report_wakes_no_front() -> None:
    idle = {"idle_after": 5 * SECOND}
    assert last_of(
        define(fronts=("f", "g"), durations=idle),
        start("p1"),
        report("p1", 0, "u0", promises=[["frontier", "f", None, 1]], commit=True),
        tick(6),
        commit("p1", epoch=1, units=[], seal=True),
        report("p1", 1, "u1", [SENT]),
    ) == ({"code": "FAILED_PRECONDITION", "reason": "SEALED"}, [])


def test_who_claims_an_idle_front_wakes_it() -> None:
    assert last_of(
        define(fronts=("f", "g"), durations={"idle_after": 5 * SECOND}),
        start("p1"),
        tick(6),
        report("p1", 0, "u0", promises=[["frontier", "f", None, 1]], commit=True),
    ) == ({"outcome": "APPLIED"}, [["FRONT_IDLE", "f", False]])


@pytest.mark.parametrize("rest", [{}, {"units": ["u0"]}], ids=["staged", "committed before"])
def test_what_is_closed_because_a_front_turns_back_ends_at_once(rest: dict[str, Any]) -> None:
    """While all are idle each is waited for; as soon as one is awake, only that one. It need not promise anything."""
    assert last_of(
        define(fronts=("f", "g"), durations={"idle_after": 5 * SECOND}),
        start("p1"),
        report("p1", 0, "u0", [["t", "s", 10, "a", 0, 1, 1]], [["frontier", "f", None, 10]], commit=True),
        report("p1", 1, "u0"),
        commit("p1", epoch=1),
        tick(6),
        report("p1", 2 if not rest else 1, "u1") | rest,
    )[1] == [["FRONT_IDLE", "f", False], ["ENDED", "a", "t", "s", 10, 1, "COMPLETE", 0]]


def test_progress_is_not_said_again_of_a_segment_that_comes_back() -> None:
    other = [["b", []]]
    assert last_of(
        define(fronts=("f",), progress=True),
        start("p1"),
        report("p1", 0, "u0", promises=[["frontier", "f", None, 5]], commit=True),
        define("d2", ("f",), progress=True, segments=other),
        define("d3", ("f",), progress=True),
    ) == ({"created": False}, [])


def test_what_a_manifest_drops_does_not_excuse_an_overtaking_promise() -> None:
    assert last_of(
        define(fronts=("f",)),
        start("p1"),
        report("p1", 0, "dropped", promises=[["frontier", "f", None, 20]]),
        report("p1", 1, "later", [SENT]),
        commit("p1", epoch=0, units=[], promises=[["frontier", "f", None, 20]]),
    ) == ({"code": "FAILED_PRECONDITION", "reason": "EPOCH_STAGED"}, [])


def test_what_force_has_ended_is_forgotten_after_retention() -> None:
    tracker = Tracker("log")
    driver = Driver(tracker)
    for line in [
        define(durations={"retention": 5 * SECOND}),
        start("p1"),
        report("p1", 0, "u0", [["t", "s", None, "a", 7, 1, 0]], commit=True),
        define("d2", force=True, durations={"retention": 5 * SECOND}),
        tick(6),
    ]:
        driver.run(line)
    assert tracker.view("job").status().ended_substreams == 0


def test_a_stall_is_due_after_a_rebuild_when_it_was_before() -> None:
    lines = [
        define(durations={"stall_after": 20 * SECOND}),
        start("p1"),
        report("p1", 0, "u0", [SENT], [CLOSE], commit=True),
        tick(9),
        {"do": "abandon", "scope": "t", "name": "nobody", "wait": 4 * SECOND, "rebuild": True},
        tick(7),
    ]
    assert last_of(*lines) == ({}, [["STALLED", "t", "s", ["a"], 1]])


def test_a_floor_outlives_its_fronts() -> None:
    """Once the last front is taken away by force, what lies at or below the floor is still late."""
    assert last_of(
        define(fronts=("f",)),
        start("p1"),
        report("p1", 0, "u0", promises=[["frontier", "f", None, 20]], commit=True),
        define("d2", force=True),
        start("p2"),
        report("p2", 1, "u1", [SENT], commit=True),
    ) == ({"outcome": "APPLIED"}, [["LATE", "a", "t", "s", "p", 1, 0]])


def test_the_floor_is_raised_promise_by_promise_in_either_mode() -> None:
    for mode in ("STAGED", "IMMEDIATE"):
        assert last_of(
            define(fronts=("f",), progress=True),
            start("p1", mode),
            report("p1", 0, "u0", promises=[["frontier", "f", None, 5], ["finish", "f"]], commit=True),
            define("d2", ("g",), progress=True),
            start("p2", mode),
            report("p2", 1, "u1", [["t", "s", 5, "a", 7, 1, 0]], commit=True),
        ) == ({"outcome": "APPLIED"}, [["LATE", "a", "t", "s", "p", 1, 0]])


def test_what_was_kept_beyond_its_retention_is_not_lost_when_retention_grows() -> None:
    """A staged epoch kept it; the new retention counts from its end, too."""
    short, long = {"retention": 5 * SECOND}, {"retention": 60 * SECOND}
    tracker = Tracker("log")
    driver = Driver(tracker)
    for line in [
        define(durations=short),
        start("p1"),
        report("p1", 0, "u0", promises=[CLOSE], commit=True),
        report("p1", 1, "u1", [SENT]),
        tick(6),
        define(durations=long),
        tick(1),
        start("p2", resume_epoch=1),
        tick(30),
    ]:
        driver.run(line)
    assert tracker.view("job").status().ended_substreams == 1
    driver.run(tick(30))
    assert tracker.view("job").status().ended_substreams == 0


def test_what_an_epoch_closes_and_opens_again_has_not_changed() -> None:
    """The frontier closes it while g is idle; with f finished, g is waited for again. All that is one moment."""
    left = open_after(
        define(fronts=("f", "g"), durations={"idle_after": 5 * SECOND}),
        start("p1"),
        report("p1", 0, "u0", [SENT], commit=True),
        tick(6),
        report("p1", 1, "u1", promises=[["frontier", "f", None, 20], ["finish", "f"]], commit=True) | {"wait": SECOND},
    )
    assert not left.closed
    assert left.changed_ns == left.created_ns


def test_what_a_run_takes_back_and_promises_again_has_changed() -> None:
    """Settling is done with, whatever follows: for a moment it was open."""
    left = open_after(
        define(fronts=("f",)),
        start("p1", "IMMEDIATE"),
        start("q1"),
        report("q1", 0, "u0", [SENT], commit=True),
        report("p1", 0, "u0", promises=[["frontier", "f", None, 20]]),
        start("p2", "IMMEDIATE"),
        report("p2", 0, "u0", promises=[["frontier", "f", None, 20]]) | {"wait": SECOND},
    )
    assert left.closed
    assert left.changed_ns == left.created_ns + SECOND


def test_what_an_epoch_opens_and_closes_again_is_still_stalled() -> None:
    """It was announced as stalled, and nothing has come of it since: it is not announced again."""
    assert last_of(
        define(fronts=("f", "g"), durations={"idle_after": 5 * SECOND, "stall_after": 5 * SECOND}),
        start("p1"),
        report("p1", 0, "u0", [SENT], commit=True),
        tick(6),
        report("p1", 1, "u1", promises=[["frontier", "f", None, 20]], commit=True),
        tick(4),
        report("p1", 2, "u2", commit=True),
        tick(2),
        report("p1", 3, "u3", promises=[["finish", "f"], CLOSE], commit=True),
        tick(6),
    ) == ({}, [])


def test_an_added_front_has_closed_what_the_others_might_still_take_back() -> None:
    """Of the floor alone it is said that only firm promises count; who takes one back is waited for himself."""
    left = open_after(
        define(fronts=("f",)),
        start("p1", "IMMEDIATE"),
        report("p1", 0, "u0", [SENT], [["close", "f", "t", "s", 10]]),
        define("d2", ("f", "g")),
        start("p2", "IMMEDIATE", resume_epoch=0),
    )
    assert left.waiting_for == ("f",)


def test_an_idle_front_is_waited_for_where_it_expects_elements() -> None:
    """`f` is idle, so nothing else waits for it: but of `s` it has promised two elements, and one was sent."""
    left = open_after(
        define(fronts=("f", "g"), durations={"idle_after": 5 * SECOND}),
        start("p1"),
        start("q1"),
        report("p1", 0, "u0", [SENT], [["expect", "f", "t", "s", 10, "a", 2]], commit=True),
        report("q1", 0, "u0", promises=[["frontier", "g", None, 5]], commit=True),
        tick(4),
        report("q1", 1, "u1", promises=[["frontier", "g", None, 6]], commit=True),
        tick(4),
    )
    assert sorted(left.waiting_for) == ["f", "g"]


def test_an_added_front_starts_at_a_softly_promised_floor() -> None:
    """A frontier below it raises nothing, so it may be promised while an epoch is staged."""
    assert last_of(
        define(fronts=("f", "g")),
        start("p1", "IMMEDIATE"),
        report("p1", 0, "u0", promises=[["frontier", "f", None, 5]], commit=True),
        report("p1", 1, "u1", promises=[["frontier", "f", "t", 4]]),
        start("q1"),
        commit("q1", promises=[["frontier", "g", None, 5]]),
        define("d2", ("f", "g", "h")),
        start("r1"),
        report("r1", 0, "u0", [["t", "s", 10, "a", 7, 1, 0]]),
        commit("r1", promises=[["frontier", "h", "t", 3]]),
    ) == ({}, [])


RECEIVED = ["t", "s", 10, "a", 7, 0, 1]
ENDED = [["ENDED", "a", "t", "s", 10, 1, "COMPLETE", 0]]


def test_what_opens_again_and_is_closed_again_may_stall_again() -> None:
    stalled = [["STALLED", "t", "s", ["a"], 1]]
    lines = [
        define(fronts=("f",), durations={"stall_after": 5 * SECOND}),
        start("p1", "IMMEDIATE"),
        start("q1"),
        report("q1", 0, "u0", [SENT], commit=True),
        report("p1", 0, "u0", promises=[["frontier", "f", None, 20]]),
        tick(6),
    ]
    assert last_of(*lines) == ({}, stalled)
    again = [start("p2", "IMMEDIATE", resume_epoch=0), report("p2", 0, "u0", promises=[["frontier", "f", None, 20]])]
    assert last_of(*lines, *again, tick(6)) == ({}, stalled)


def test_a_firm_close_stays_when_another_close_is_withdrawn() -> None:
    left = open_after(
        define(),
        start("p1", "IMMEDIATE"),
        start("q1"),
        report("q1", 0, "u0", [SENT], [CLOSE], commit=True),
        report("p1", 0, "u0", promises=[CLOSE]),
        start("p2", "IMMEDIATE", resume_epoch=0),
    )
    assert left.closed


def test_what_is_due_is_done_on_the_nanosecond() -> None:
    late, due = 5 * SECOND - 1, 1
    wait = [{"do": "tick", "wait": late}, {"do": "tick", "wait": due}]
    closed = [start("p1"), report("p1", 0, "u0", [SENT], [CLOSE], commit=True)]
    for durations, event in [
        ({"expire_after": 5 * SECOND}, ["ENDED", "a", "t", "s", 10, 1, "EXPIRED", 1]),
        ({"stall_after": 5 * SECOND}, ["STALLED", "t", "s", ["a"], 1]),
    ]:
        assert last_of(define(durations=durations), *closed, wait[0]) == ({}, [])
        assert last_of(define(durations=durations), *closed, *wait) == ({}, [event])
    idle = define(fronts=("f",), durations={"idle_after": 5 * SECOND})
    assert last_of(idle, wait[0]) == ({}, [])
    assert last_of(idle, *wait) == ({}, [["FRONT_IDLE", "f", True]])


def test_idle_timers_start_again_at_recovery() -> None:
    lines = [
        define(fronts=("f", "g"), durations={"idle_after": 5 * SECOND}),
        start("p1"),
        {"do": "recovered", "wait": 4 * SECOND},
        tick(4),
    ]
    assert last_of(*lines) == ({}, [])
    assert last_of(*lines, tick(1)) == ({}, [["FRONT_IDLE", "f", True], ["FRONT_IDLE", "g", True]])


def test_what_a_later_epoch_held_is_not_released_by_an_earlier_one() -> None:
    lines = [
        define(),
        start("p1", "IMMEDIATE"),
        start("q1"),
        report("p1", 3, "u3"),
        report("p1", 5, "u5", [SENT]),
        start("p2", "IMMEDIATE", resume_epoch=3),
        report("p2", 3, "u3", [SENT]),
        start("p3", "IMMEDIATE", resume_epoch=3),
        report("p3", 3, "u3", [SENT, RECEIVED], commit=True),
        report("q1", 0, "u0", promises=[CLOSE], commit=True),
    ]
    assert last_of(*lines) == ({"outcome": "APPLIED"}, [])
    assert last_of(*lines, commit("p3", epoch=4)) == ({}, [])
    assert last_of(*lines, commit("p3", epoch=5)) == ({}, ENDED)


def test_what_two_producers_hold_waits_for_both() -> None:
    lines = [
        define(),
        start("p1", "IMMEDIATE"),
        start("q1", "IMMEDIATE"),
        start("r1"),
        report("p1", 0, "u0", [SENT]),
        report("q1", 0, "u0", [RECEIVED]),
        report("r1", 0, "u0", promises=[CLOSE], commit=True),
    ]
    # Before it is revoked it balances, but that is another sequence's point: here it is closed once both are held.
    lines = [
        *lines[:-1],
        start("p2", "IMMEDIATE", resume_epoch=0),
        start("q2", "IMMEDIATE", resume_epoch=0),
        lines[-1],
        report("q2", 0, "u0", [RECEIVED]),
        report("p2", 0, "u0", [SENT], commit=True),
    ]
    assert last_of(*lines) == ({"outcome": "APPLIED"}, [])
    assert last_of(*lines, commit("q2", epoch=0)) == ({}, ENDED)


def test_a_drain_is_not_cancelled_over_a_finish_that_is_staged() -> None:
    assert last_of(
        define(fronts=("f",)),
        start("p1"),
        {"do": "drain", "deployment": "d1", "drain_id": "x"},
        report("p1", 0, "u0", promises=[["finish", "f"]]),
        {"do": "cancel_drain", "deployment": "d1"},
    ) == ({"code": "FAILED_PRECONDITION", "reason": "DRAIN_IN_PROGRESS"}, [])


def test_the_seal_decides_and_not_a_later_manifest() -> None:
    assert last_of(
        define(),
        start("p1", seals=True),
        start("q1"),
        report("q1", 0, "u0", [RECEIVED], [CLOSE], commit=True),
        report("p1", 0, "u0", [SENT]),
        report("p1", 0, "u1", [["t", "s", 10, "a", 0, 1, 1]]),
        commit("p1", epoch=0, units=["u0", "u1"], seal=True),
        commit("p1", epoch=0, units=["u1"]),
    ) == ({}, [["ENDED", "a", "t", "s", 10, 2, "COMPLETE", 0]])


def test_numbers_go_with_their_segment() -> None:
    """Of a substream that has ended: a graph changes only where nothing is open."""
    both = [["t", "s", None, segment, 0, 1, 1] for segment in ("a", "b")]
    lines = [
        define(fronts=("f",), segments=[["a", []], ["b", []]]),
        start("p1"),
        report("p1", 0, "u0", both, [["expect", "f", "t", "s", None, "b", 1]], commit=True),
    ]
    tracker = Tracker("log")
    driver = Driver(tracker)
    counted = []
    for line in [*lines, define("d2", ("f",), segments=[["b", []], ["c", []]]), define("d3", ("f",))]:
        driver.run(line)
        counted.append(tracker.view("job").counts().expected)
    assert counted == [0, 0, 1, 1, 0]
    last_of(*lines, define("d2", ("f",), segments=[["b", []], ["c", []]]), define("d3", ("f",)), tick(1))


def test_numbers_are_forgotten_with_their_substream() -> None:
    lines = [
        define(fronts=("f",), durations={"retention": 5 * SECOND}),
        start("p1"),
        report("p1", 0, "u0", [["t", "s", None, "a", 0, 1, 1]], [["expect", "f", "t", "s", None, "a", 1]], commit=True),
    ]
    tracker = Tracker("log")
    driver = Driver(tracker)
    counted = []
    for line in [*lines, tick(4), tick(2)]:
        driver.run(line)
        counted.append(tracker.view("job").counts().expected)
    assert counted == [0, 0, 1, 1, 0]
    # Another substream may get the row: nothing is expected of it.
    another = report("p1", 1, "u1", [["t", "another", None, "a", 0, 1, 1]], commit=True)
    last_of(*lines, tick(6), another, tick(1))
