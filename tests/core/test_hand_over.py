"""From the request of a hand-over until the next deployment: what is open waits, however long that takes.

Core and model agree on every sequence (`last_of`), and do what is written here.
"""

from __future__ import annotations

import pytest

from tests.core.test_readings import SECOND, SENT, commit, define, last_of, report, start, tick
from tests.model.lines import Driver, Line
from tracker.core import Tracker

HAND_OVER: Line = {"do": "drain", "deployment": "d1", "drain_id": "x", "mode": "HAND_OVER"}
CANCEL: Line = {"do": "cancel_drain", "deployment": ""}
DRAINED = ["DRAINED", "x", "HAND_OVER"]
FRONTIER = ["frontier", "f", None, 10]

IN, OUT = (["t", "s", 10, "in", 7, 1, 0], ["t", "s", 10, "in", 7, 0, 1])
KEPT, RELEASED = (["t", "s", 10, "kept", 9, 1, 0], ["t", "s", 10, "kept", 9, 0, 1])


def keeping(deployment: str = "d1", **durations: int) -> Line:
    """Return a job whose one query keeps state."""
    segments = [["in", ["kept"]], ["kept", []]]
    of_time = {name: seconds * SECOND for name, seconds in durations.items()}
    return define(deployment, ("f",), segments=segments, state_segments=["kept"], durations=of_time)


def close(run: str) -> Line:
    return {"do": "close", "producer": run[0], "run": run}


def handed_over(**durations: int) -> list[Line]:
    """Return commands that keep a closed substream in the state of a deployment that is handed over."""
    return [
        keeping("d1", **durations),
        start("p1"),
        report("p1", 0, "u0", [IN, OUT, KEPT], [FRONTIER], commit=True),
        HAND_OVER,
        close("p1"),
    ]


def test_nothing_stalls_or_expires_while_the_next_deployment_is_awaited() -> None:
    """However long it takes, its release is in time, and the substream's end complete."""
    patience = {"stall_after": 30, "expire_after": 60}
    assert last_of(*handed_over(**patience)) == ({}, [DRAINED])
    assert last_of(*handed_over(**patience), tick(3600)) == ({}, [])
    assert last_of(
        *handed_over(**patience),
        tick(3600),
        keeping("d2", **patience),
        start("p2"),
        report("p2", 1, "u1", [RELEASED], commit=True),
    ) == ({"outcome": "APPLIED"}, [["ENDED", "kept", "t", "s", 10, 1, "COMPLETE", 0]])


def test_no_tick_is_due_for_stalls_while_the_next_deployment_is_awaited() -> None:
    tracker = Tracker("log", retention=10**15)
    driver = Driver(tracker)
    for line in handed_over(stall_after=30, expire_after=60):
        driver.run(line)
    due = tracker.next_due()
    assert due is None or due - driver.now > 1000 * SECOND


def test_in_a_hand_over_what_is_in_flight_stalls_and_state_not() -> None:
    lines = [
        keeping(stall_after=30, expire_after=60),
        start("p1"),
        start("q1"),
        report("q1", 0, "u0", [["t", "lost", 10, "in", 5, 1, 0]], commit=True),
        report("p1", 0, "u0", [IN, OUT, KEPT], [FRONTIER], commit=True),
        HAND_OVER,
        close("p1"),
    ]
    assert last_of(*lines, tick(31)) == ({}, [["STALLED", "t", "lost", ["in"], 1]])
    expired = [["ENDED", "in", "t", "lost", 10, 1, "EXPIRED", 1], ["ENDED", "kept", "t", "lost", 10, 0, "EXPIRED", 0]]
    assert last_of(*lines, tick(61))[1] == [["STALLED", "t", "lost", ["in"], 1], *expired]
    assert last_of(*lines, tick(61), close("q1")) == ({}, [DRAINED])


def test_what_is_expected_does_not_stall_once_sources_stop() -> None:
    lines = [
        define(fronts=("f",), durations={"stall_after": 5 * SECOND}),
        start("p1"),
        report("p1", 0, "u0", promises=[["expect", "f", "t", "s", 10, "a", 2]], commit=True),
    ]
    assert last_of(*lines, tick(6)) == ({}, [["STALLED", "t", "s", ["a"], 0, 2, 0]])
    assert last_of(*lines, HAND_OVER, tick(6)) == ({}, [])


@pytest.mark.parametrize(
    "promise",
    [
        commit("p2", promises=[["frontier", "f", None, 20]]),
        commit("p2", epoch=0, promises=[["frontier", "f", None, 20]]),
        commit("p2", promises=[["expect", "f", "t", "r", 20, "in", 1]]),
        commit("p2", promises=[["finish", "f"]]),
        {"do": "finish_front", "front": "f"},
    ],
)
def test_no_promise_is_accepted_before_the_next_deployment(promise: Line) -> None:
    """It would end what was handed over, and nobody could deliver what the next deployment sends of it."""
    refused = {"code": "FAILED_PRECONDITION", "reason": "DRAINED"}
    open_substream = report("p1", 1, "u1", [["t", "r", 20, "in", 0, 1, 1]], commit=True)
    lines = [*handed_over()[:3], open_substream, *handed_over()[3:], start("p2")]
    assert last_of(*lines, promise) == (refused, [])
    assert last_of(*lines, promise, {"do": "tick"}) == ({}, [])


def test_a_hand_over_that_is_done_is_not_cancelled() -> None:
    assert last_of(*handed_over(), CANCEL) == ({"code": "FAILED_PRECONDITION", "reason": "DRAINED"}, [])
    assert last_of(*handed_over()[:-1], CANCEL) == ({"state": "CANCELLED"}, [["DRAIN_CANCELLED", "x"]])


def test_a_commit_repeated_after_a_finished_drain_is_answered_as_before() -> None:
    finish = commit("p1", epoch=0, promises=[["finish", "a"]])
    drain = {"do": "drain", "deployment": "d1", "drain_id": "x"}
    lines = [define(fronts=("a",)), start("p1"), drain, finish]
    assert last_of(*lines) == ({}, [["DRAINED", "x"]])
    assert last_of(*lines, finish) == ({}, [])


@pytest.mark.parametrize("word", [report("p2", 1, "u1"), report("p2", 0, "u1"), report("p2", 1, "u1", [SENT])])
def test_no_front_turns_back_before_the_next_deployment(word: Line) -> None:
    """Two idle fronts wait for each other. If one of them turned back, what it has closed would end at once."""
    lines = [
        define(fronts=("f", "g"), durations={"idle_after": 5 * SECOND}),
        start("p1"),
        report("p1", 0, "u0", [["t", "s", 10, "a", 0, 1, 1]], [["frontier", "f", None, 10]], commit=True),
        tick(6),
        HAND_OVER,
        close("p1"),
        start("p2"),
    ]
    assert last_of(*lines, word)[1] == []
    assert last_of(*lines, word, define("d2", ("f", "g")), start("p3"), report("p3", 1, "u1"))[1] == [
        ["FRONT_IDLE", "f", False],
        ["ENDED", "a", "t", "s", 10, 1, "COMPLETE", 0],
    ]


def test_a_hand_over_waits_for_a_revoked_epoch_to_be_committed_again() -> None:
    """Its rows are processed again, so they are still to come; the drain's status names who has to commit them."""
    again = {"entries": [["t", "s", 10, "a", 7, 1, 1], ["t", "s", 10, "a", 7, 0, 0]]}
    lines = [
        define(fronts=("f",)),
        start("p1", "IMMEDIATE"),
        report("p1", 0, "u0") | again,
        start("p2", "IMMEDIATE", resume_epoch=0),
        HAND_OVER,
        close("p2"),
    ]
    assert last_of(*lines) == ({}, [])
    tracker = Tracker("log")
    driver = Driver(tracker)
    for line in lines:
        driver.run(line)
    assert tracker.view("job").drain_status().uncommitted_producers == ("p",)
    then = [start("p3", "IMMEDIATE"), report("p3", 0, "u0", commit=True) | again]
    assert last_of(*lines, *then, close("p3")) == ({}, [DRAINED])
    committed_ends = define("d2", ("f",), committed_ends=True)
    assert last_of(*lines, *then, close("p3"), committed_ends) == ({"created": False}, [])
    assert last_of(*lines, {"do": "forget", "producer": "p"}) == ({}, [DRAINED])


@pytest.mark.parametrize("end", [CANCEL, define("d2", ("f", "g"), force=True, durations={"idle_after": 600 * SECOND})])
def test_no_front_turns_idle_for_a_hand_over_cancelled_late(end: Line) -> None:
    """Also by force. A front that had stopped for it is given the whole time to start again."""
    lines = [
        define(fronts=("f", "g"), durations={"idle_after": 600 * SECOND}),
        start("p1"),
        start("q1"),
        report("p1", 0, "u0", [SENT], [["frontier", "f", None, 10]], commit=True),
        report("q1", 0, "u0", promises=[["frontier", "g", None, 5]], commit=True),
        HAND_OVER,
        close("q1"),
        tick(3600),
        end,
    ]
    assert last_of(*lines, tick(599)) == ({}, [])
    assert last_of(*lines, tick(600)) == ({}, [["FRONT_IDLE", "f", True], ["FRONT_IDLE", "g", True]])


def test_nothing_stalls_or_expires_for_a_hand_over_cancelled_late() -> None:
    """The holder of the state had stopped for it, and is given the whole time to start again and release it."""
    patience = {"stall_after": 30, "expire_after": 60}
    lines = [*handed_over(**patience)[:3], start("q1"), *handed_over(**patience)[3:], tick(3600), CANCEL]
    assert last_of(*lines, tick(29)) == ({}, [])
    assert last_of(*lines, tick(30)) == ({}, [["STALLED", "t", "s", ["kept"], 1]])
    release = [start("p2"), report("p2", 1, "u1", [RELEASED], commit=True)]
    assert last_of(*lines, tick(59), *release)[1] == [["ENDED", "kept", "t", "s", 10, 1, "COMPLETE", 0]]
