"""Closing without a promise: a deadline, a threshold, a scope or a front that fell silent.

Core and model agree on every sequence (`last_of`), and do what is written here.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.test_hand_over import HAND_OVER, close
from tests.core.test_readings import SECOND, define, last_of, report, start, tick
from tests.model.lines import START, Line

HOUR = 3600  # seconds
END = START // 1000 + 10**6  #: an end time (µs), one second after the first line


def job(fronts: Any = ("f",), segments: Any = (("a", ()),), **rules: int) -> Line:
    return define(fronts=fronts, segments=[[name, list(feeds)] for name, feeds in segments], durations=rules)


def element(name: str = "s", end: int | None = END, scope: str = "t", label: int = 7) -> list[list[Any]]:
    """Return an element that is sent, and has arrived."""
    return [[scope, name, end, "a", label, 1, 0], [scope, name, end, "a", label, 0, 1]]


def expect(elements: int, front: str = "f", name: str = "s", **more: Any) -> list[Any]:
    return ["expect", front, "t", name, END, more.get("segment", "a"), elements]


def ended(reason: str, name: str = "s", end: int | None = END, scope: str = "t", sent: int = 1, **more: Any) -> Any:
    expected = [False, more["expected"]] if "expected" in more else []
    return ["ENDED", more.get("segment", "a"), scope, name, end, sent, reason, 0, *expected]


def test_a_substream_ends_by_its_deadline_with_what_there_is() -> None:
    lines = [job(deadline=5 * SECOND), start("p1"), report("p1", 0, "u0", element(), commit=True)]
    assert last_of(*lines, tick(5)) == ({}, [])
    assert last_of(*lines, tick(6)) == ({}, [ended("DEADLINE")])


def test_what_comes_after_the_deadline_is_late() -> None:
    lines = [job(deadline=5 * SECOND), start("p1"), report("p1", 0, "u0", element(), commit=True), tick(6)]
    late = [["LATE", "a", "t", "s", "p", 1, 1]]
    assert last_of(*lines, report("p1", 1, "u1", element(), commit=True)) == ({"outcome": "APPLIED"}, late)


def test_without_an_end_time_the_deadline_counts_from_its_naming() -> None:
    lines = [job(deadline=5 * SECOND), start("p1"), report("p1", 0, "u0", element(end=None), commit=True)]
    assert last_of(*lines, tick(4)) == ({}, [])
    assert last_of(*lines, tick(5)) == ({}, [ended("DEADLINE", end=None)])


def test_what_is_in_flight_at_the_deadline_arrives_first() -> None:
    sent, received = element()
    lines = [job(deadline=5 * SECOND), start("p1"), report("p1", 0, "u0", [sent], commit=True), tick(6)]
    assert last_of(*lines, tick(HOUR)) == ({}, [])
    assert last_of(*lines, report("p1", 1, "u1", [received], commit=True))[1] == [ended("DEADLINE")]


def test_a_released_state_passes_through_after_the_deadline() -> None:
    """A release's results follow its end; the next segment has to wait for them."""
    segments = (("a", ("kept",)), ("kept", ("b",)), ("b", ()))
    hold = ["t", "s", END, "kept", 9, 1, 0]
    lines = [
        job(segments=segments, deadline=5 * SECOND),
        start("p1"),
        report("p1", 0, "u0", [*element(), hold], commit=True),
        tick(6),
    ]
    assert last_of(*lines)[1] == [ended("DEADLINE")]
    results = [["t", "s", END, "b", 3, 1, 0], ["t", "s", END, "kept", 9, 0, 1], ["t", "s", END, "b", 3, 0, 1]]
    rest = [ended("DEADLINE", segment="kept"), ended("DEADLINE", segment="b")]
    assert last_of(*lines, report("p1", 1, "u1", results, commit=True))[1] == rest


def test_a_promise_that_comes_before_the_end_makes_it_complete() -> None:
    sent, received = element()
    promise = [["frontier", "f", None, END]]
    lines = [job(deadline=5 * SECOND), start("p1"), report("p1", 0, "u0", [sent], commit=True), tick(6)]
    assert last_of(*lines, report("p1", 1, "u1", [received], promise, commit=True))[1] == [ended("COMPLETE")]


def test_what_was_too_late_upstream_is_missing_downstream_whatever_is_promised_then() -> None:
    on_b = ["t", "s", END, "b", 9]
    lines = [
        job(segments=(("a", ("b",)), ("b", ())), deadline=5 * SECOND),
        start("p1"),
        report("p1", 0, "u0", [*element(), [*on_b, 1, 0]], commit=True),
        tick(6),
        report("p1", 1, "late", element(label=5), [["frontier", "f", None, END]], commit=True),
    ]
    assert last_of(*lines[:4])[1] == [ended("DEADLINE")]
    assert last_of(*lines, report("p1", 2, "u2", [[*on_b, 0, 1]], commit=True))[1] == [ended("DEADLINE", segment="b")]


def test_a_count_is_not_met_downstream_because_its_substream_was_given_up() -> None:
    on_b = ["t", "s", END, "b", 9]
    lines = [
        job(segments=(("a", ("b",)), ("b", ())), deadline=5 * SECOND),
        start("p1"),
        report("p1", 0, "u0", [*element(), [*on_b, 1, 0]], [expect(3)], commit=True),
        tick(6),
    ]
    assert last_of(*lines)[1] == [ended("DEADLINE", expected=3)]
    assert last_of(*lines, report("p1", 1, "u1", [[*on_b, 0, 1]], commit=True))[1] == [ended("DEADLINE", segment="b")]


def test_a_drain_makes_nothing_complete_that_the_deadline_has_closed() -> None:
    sent, received = element()
    lines = [
        job(deadline=5 * SECOND),
        start("p1"),
        report("p1", 0, "u0", [sent], commit=True),
        tick(6),
        {"do": "drain", "deployment": "d1", "drain_id": "x"},
        report("p1", 1, "u1", [], [["finish", "f"]], commit=True),
    ]
    assert last_of(*lines, report("p1", 2, "u2", [received], commit=True))[1][0] == ended("DEADLINE")


@pytest.mark.parametrize("ordering", ["NONE", "SCOPE", "GLOBAL"])
def test_what_only_waited_for_earlier_ones_is_complete(ordering: str) -> None:
    """The later one is closed by name, and waits for the earlier one."""
    later = END + 1
    lines = [
        job(deadline=5 * SECOND) | {"ordering": ordering},
        start("p1"),
        report("p1", 0, "u0", [*element(), *element("later", later)], [["close", "f", "t", "later", later]], True),
        tick(7),
    ]
    complete = ended("COMPLETE", "later", later)
    assert last_of(*lines)[1] == [ended("DEADLINE")] + [complete] * (ordering != "NONE")


def test_a_deadline_by_event_time_passes_with_what_is_reported() -> None:
    """History: the clock is decades ahead."""
    lines = [
        job(deadline=20 * 1000, deadline_by_event_time=True),
        start("p1"),
        report("p1", 0, "u0", element("old", 10), commit=True),
    ]
    assert last_of(*lines, tick(HOUR)) == ({}, [])
    enough = report("p1", 1, "u1", element("new", 30), commit=True)
    assert last_of(*lines, enough, tick(1)) == ({}, [])
    assert last_of(*lines, enough, report("p1", 2, "u2", element("newer", 31), commit=True), tick(1))[1] == [
        ended("DEADLINE", "old", 10)
    ]


@pytest.mark.parametrize(("ahead", "ends_at"), [(2 * SECOND, 7), (40 * 24 * HOUR * SECOND, None)], ids=["near", "far"])
def test_event_time_runs_no_further_than_the_clock(ahead: int, ends_at: int | None) -> None:
    """Of two wrong clocks the near one ends nothing sooner than the clock would, the far one nothing at all."""
    lines = [
        job(deadline=5 * SECOND, deadline_by_event_time=True),
        start("p1"),
        report("p1", 0, "u0", [*element(), *element("wrong", END + (ahead + 5 * SECOND) // 1000)], commit=True),
    ]
    seconds = [at for at in range(1, 20) if last_of(*lines, *map(tick, [1] * at))[1]]
    assert seconds[:1] == ([] if ends_at is None else [ends_at])


def test_an_expected_substream_is_no_event_time() -> None:
    """A timetable knows tomorrow's flights; that does not make it tomorrow."""
    assert last_of(
        job(deadline=20 * 1000, deadline_by_event_time=True),
        start("p1"),
        report("p1", 0, "u0", element("old", 10), [expect(3)], commit=True),
        tick(1),
    ) == ({}, [])


@pytest.mark.parametrize(("sent", "ends"), [(18, False), (19, True)])
def test_nineteen_of_twenty_are_enough_once_nothing_comes(sent: int, ends: bool) -> None:
    entries = [["t", "s", END, "a", 0, sent, sent]]
    lines = [
        job(threshold_ppm=950_000, threshold_after=600 * SECOND),
        start("p1"),
        report("p1", 0, "u0", entries, [expect(20)], commit=True),
        tick(599),
    ]
    assert last_of(*lines) == ({}, [])
    assert last_of(*lines, tick(75))[1] == [ended("THRESHOLD", sent=sent, expected=20)] * ends


def test_a_threshold_does_not_stand_for_another_fronts_promise() -> None:
    lines = [
        job(fronts=("f", "g"), threshold_ppm=500_000, threshold_after=8 * SECOND),
        start("p1"),
        report("p1", 0, "u0", element(), [expect(2)], commit=True),
        tick(9),
    ]
    assert last_of(*lines) == ({}, [])
    other = report("p1", 1, "u1", (), [["finish", "g"]], commit=True)
    assert last_of(*lines, other, tick(9))[1] == [ended("THRESHOLD", expected=2)]


def test_a_silent_scope_is_not_waited_for_and_others_are() -> None:
    quiet = [*element("s"), *element("next", END + 10)]
    lines = [
        job(scope_idle_after=8 * SECOND),
        start("p1"),
        report("p1", 0, "u0", quiet, commit=True),
        tick(8),
        report("p1", 1, "u1", element("x", scope="awake"), commit=True),
    ]
    assert last_of(*lines, tick(1))[1] == [ended("IDLE"), ended("IDLE", "next", END + 10)]
    back = report("p1", 2, "u2", element("after", END + 20), commit=True)
    assert last_of(*lines, tick(1), back) == ({"outcome": "APPLIED"}, [])


def test_a_job_that_is_silent_as_a_whole_has_no_silent_scope() -> None:
    both = [*element(), *element("x", scope="other")]
    lines = [job(scope_idle_after=8 * SECOND), start("p1"), report("p1", 0, "u0", both, commit=True)]
    assert last_of(*lines, tick(HOUR)) == ({}, [])


@pytest.mark.parametrize("rule", [{"deadline": 30 * SECOND}, {}], ids=["deadline", "promise"])
def test_an_end_is_no_sign_that_others_go_on(rule: dict[str, int]) -> None:
    """In an outage of all sources a deadline passes, or a timetable promises: no scope is silent for that."""
    both = [*element(), *element("x", END + 10**9, scope="other")]
    lines = [job(scope_idle_after=8 * SECOND, **rule), start("p1"), report("p1", 0, "u0", both, commit=True), tick(29)]
    lines += [tick(5) if rule else report("p1", 1, "u1", (), [["close", "f", "t", "s", END]], commit=True)]
    assert last_of(*lines)[1] == [ended("DEADLINE" if rule else "COMPLETE")]
    assert last_of(*lines, tick(5), tick(5))[1] == last_of(*lines, tick(5))[1] == []


def test_one_open_window_keeps_its_scope_awake() -> None:
    lines = [job(scope_idle_after=8 * SECOND), start("p1"), report("p1", 0, "u0", element(), commit=True), tick(7)]
    awake = [*element("next"), *element("x", scope="awake")]
    lines += [report("p1", 1, "u1", awake[:2], commit=True), tick(7)]
    assert last_of(*lines, report("p1", 2, "u2", awake[2:], commit=True), tick(1)) == ({}, [])


def test_who_expects_more_of_a_silent_scope_waits() -> None:
    lines = [job(scope_idle_after=8 * SECOND), start("p1")]
    lines += [report("p1", 0, "u0", element(), [expect(2)], commit=True), tick(HOUR)]
    assert last_of(*lines, report("p1", 1, "u1", element("x", scope="awake"), commit=True), tick(1)) == ({}, [])


LATER = END + 10


def frontier(front: str, time: int) -> list[Any]:
    return ["frontier", front, None, time]


def fell_silent(**rules: Any) -> list[Line]:
    """Return lines of two partitions of a source: f has promised a window since g fell silent."""
    return [
        job(fronts=("f", "g"), front_idle_after=8 * SECOND, **rules),
        start("p1"),
        report("p1", 0, "u0", [*element(), *element("later", LATER)], [frontier("g", 1), frontier("f", 1)], True),
        tick(8),
        report("p1", 1, "u1", (), [frontier("f", END)], True),
    ]


def test_a_silent_front_is_named_and_not_waited_for() -> None:
    """Its producer goes on for the other one, so it is no idle front. The other one is waited for."""
    lines = fell_silent()
    assert last_of(*lines)[1] == []
    assert last_of(*lines, tick(1))[1] == [["FRONT_IDLE", "g", True], ended("IDLE")]
    lines += [tick(1), report("p1", 2, "u2", (), [frontier("f", LATER)], True)]
    assert last_of(*lines)[1] == []
    assert last_of(*lines, tick(1))[1] == [ended("IDLE", "later", LATER)]


def test_a_silent_front_comes_back_and_moves_nobody() -> None:
    """Open substreams count what it sends and wait for it, ended ones have it late."""
    lines = [*fell_silent(), tick(1)]
    rows = [*element(label=5), *element("later", LATER, label=5), *element("third", LATER + 10)]
    back = report("p1", 2, "u2", rows, [frontier("g", END)], True)
    assert last_of(*lines, back)[1] == [["FRONT_IDLE", "g", False], ["LATE", "a", "t", "s", "p", 1, 1]]
    lines += [back, report("p1", 3, "u3", (), [frontier("f", LATER)], True), tick(1)]
    assert last_of(*lines) == ({}, [])
    ends = report("p1", 4, "u4", (), [frontier("g", LATER)], True)
    assert last_of(*lines, ends)[1] == [ended("COMPLETE", "later", LATER, sent=2)]


def test_fronts_that_are_silent_together_are_waited_for() -> None:
    lines = fell_silent()[:3]
    assert last_of(*lines, report("p1", 1, "u1", element(label=3), commit=True), tick(HOUR)) == ({}, [])


def test_a_front_is_silent_by_those_that_feed_the_same_segments() -> None:
    """A timetable that was promised once is no partition of a source that goes on."""
    segments = (("a", ()), ("b", ()))
    spec = job(fronts=("f", "g"), segments=segments, front_idle_after=8 * SECOND)
    lines = [spec | {"front_segments": [["f", ["a"]], ["g", ["b"]]]}, *fell_silent()[1:]]
    assert last_of(*lines, tick(HOUR)) == ({}, [])


def test_a_front_whose_promise_is_staged_is_not_silent() -> None:
    lines = fell_silent()
    lines[2:2] = [start("q1"), report("q1", 0, "staged", (), [frontier("g", END)])]
    lines[4] = report("p1", 0, "u0", [*element(), *element("later", LATER)], [frontier("f", 1)], True)
    assert last_of(*lines, tick(1)) == ({}, [])
    committed = report("q1", 0, "more", (), commit=True)
    assert last_of(*lines, tick(1), committed)[1] == [ended("COMPLETE")]


def test_what_a_silent_front_expects_is_waited_for() -> None:
    lines = fell_silent()
    lines[2]["promises"] += [expect(2, "g")]
    assert last_of(*lines, tick(1))[1] == [["FRONT_IDLE", "g", True]]


def test_a_front_counts_its_silence_anew_after_a_hand_over() -> None:
    lines = [*fell_silent()[:4], HAND_OVER, close("p1"), tick(HOUR)]
    lines += [job(fronts=("f", "g"), front_idle_after=8 * SECOND) | {"deployment": "d2"}, start("p2")]
    lines += [report("p2", 1, "u1", (), [frontier("f", END)], True), tick(7)]
    assert last_of(*lines) == ({}, [])
    lines += [tick(1), report("p2", 2, "u2", (), [frontier("f", END + 1)], True)]
    assert last_of(*lines, tick(1))[1] == [["FRONT_IDLE", "g", True], ended("IDLE")]


def test_without_the_rule_a_silent_front_is_waited_for_again() -> None:
    lines = [*fell_silent(), tick(1), job(fronts=("f", "g"))]
    assert last_of(*lines)[1] == [["FRONT_IDLE", "g", False]]
    assert last_of(*lines, report("p1", 2, "u2", (), [frontier("f", LATER)], True), tick(HOUR)) == ({}, [])


def test_expiry_covers_what_is_expected_where_the_job_asks_for_it() -> None:
    lines = [start("p1"), report("p1", 0, "u0", element(), [expect(2)], commit=True), tick(9)]
    assert last_of(job(expire_after=8 * SECOND), *lines) == ({}, [])
    asked = job(expire_after=8 * SECOND, expire_expected=True)
    assert last_of(asked, *lines)[1] == [ended("EXPIRED", expected=2)]


def test_what_has_not_begun_does_not_expire() -> None:
    """Counts may be known long before their elements come."""
    asked = job(expire_after=8 * SECOND, expire_expected=True)
    lines = [asked, start("p1"), report("p1", 0, "u0", (), [expect(2)], commit=True), tick(HOUR)]
    assert last_of(*lines) == ({}, [])
    lines += [report("p1", 1, "u1", element(), commit=True), tick(7)]
    assert last_of(*lines) == ({}, [])
    assert last_of(*lines, tick(2))[1] == [ended("EXPIRED", expected=2)]


@pytest.mark.parametrize("rule", [{"deadline": SECOND}, {"scope_idle_after": SECOND}])
def test_nothing_is_given_up_in_a_hand_over(rule: dict[str, int]) -> None:
    lines = [job(**rule), start("p1"), report("p1", 0, "u0", element(), commit=True), HAND_OVER, close("p1")]
    assert last_of(*lines, tick(HOUR)) == ({}, [])
    goes_on = job(**rule) | {"deployment": "d2"}
    other = report("p2", 1, "u1", element("x", END + HOUR * 10**6, scope="awake"), commit=True)
    lines += [goes_on, start("p2")]
    if "scope_idle_after" in rule:
        lines += [tick(2), other]
    assert last_of(*lines, tick(2))[1] == [ended("DEADLINE" if "deadline" in rule else "IDLE")]


@pytest.mark.parametrize("rules", [{"threshold_ppm": 5}, {"threshold_after": 5}, {"threshold_ppm": 1_000_001}])
def test_a_threshold_is_a_share_and_a_time(rules: dict[str, int]) -> None:
    refused = {"code": "INVALID_ARGUMENT", "reason": "MALFORMED"}
    assert last_of(job(**rules)) == (refused, [])
