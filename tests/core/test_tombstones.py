"""Ended substreams stay ended, also once they are forgotten: what comes of them is late and never a second life."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.differential import difference
from tests.core.test_readings import define, last_of, report, start, tick
from tests.model.lines import JOB, Driver, Line
from tracker.contract.refusal import Refused
from tracker.core import Tracker, tombstones
from tracker.core.codec import dump_tombstones, load_tombstones
from tracker.core.tombstones import Tombstones

hashes = tombstones._hashes

SECOND = 10**9
FOREVER = {"retention": 5 * SECOND}
names = st.tuples(st.sampled_from(["", "t", "u"]), st.text("ab", min_size=1, max_size=3))


def _crowded(substreams: Iterable[tuple[str, str]]) -> tuple[Any, Any]:
    """Return hashes of which the first 64 bits are nearly always shared."""
    high, low = hashes(substreams)
    return high % np.uint64(3), low


@pytest.mark.parametrize("crowded", [False, True], ids=["apart", "crowded"])
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.tuples(st.lists(names, max_size=8, unique=True), st.integers(0, 90 * SECOND))),
            st.tuples(st.just("wait"), st.integers(1, 40 * SECOND)),
            st.tuples(st.just("remember"), st.sampled_from([SECOND // 2, 8 * SECOND, 64 * SECOND])),
            st.tuples(st.just("load"), st.none()),
        ),
        max_size=30,
    )
)
@settings(max_examples=200, deadline=None)
def test_a_name_is_remembered_for_as_long_as_is_asked(crowded: bool, steps: list[tuple[str, Any]]) -> None:
    """A name that does not count any more never counts again, though more is asked later; one added after that does."""
    with mock.patch.object(tombstones, "_hashes", _crowded if crowded else hashes):
        stones, now, remember = Tombstones(), 1_700_000_000 * SECOND, 8 * SECOND
        seconds: dict[tuple[str, str], set[int]] = defaultdict(set)
        for what, value in steps:
            if what == "add":
                added, age = value
                stones.add(added, [now - age] * len(added))
                for each in added:
                    seconds[each].add(-(-(now - age) // SECOND))
            elif what == "load":
                stones = load_tombstones(dump_tombstones(stones))
            else:
                now += value if what == "wait" else 0
                remember = value if what == "remember" else remember
                stones.forget_until(now - remember)
                stones.sweep(remember)
                for each in seconds:
                    seconds[each] = {second for second in seconds[each] if second > (now - remember) // SECOND}
            asked = [(scope, name) for scope in ("", "t", "u") for name in ("a", "b", "ab", "ba", "aab")]
            assert stones.has([*asked, *seconds]).tolist() == [bool(seconds[each]) for each in [*asked, *seconds]]
            if not len(stones):
                assert stones.next_sweep(remember) is None


def test_a_snapshot_of_any_version_has_the_same_hashes() -> None:
    stones = Tombstones()
    stones.add([("tenant", "session"), ("", "ü")], [SECOND, 3 * SECOND - 1])
    dump = dump_tombstones(stones)
    assert {name: column.tolist() for name, column in dump.items() if name not in ("until", "swept")} == {
        "high": [5391285008009221450, 15598914689174877646],
        "low": [3222475143, 172658849],
        "second": [3, 1],
    }


def test_sweeping_when_due_keeps_little_and_is_seldom_called() -> None:
    remember, sweeps = 80 * SECOND, 0
    stones = Tombstones()
    for now in range(1000 * SECOND, 1600 * SECOND, SECOND):
        if now < 1400 * SECOND:
            stones.add([("t", str(now))], [now])
        due = stones.next_sweep(remember)
        if due is not None and due <= now:
            sweeps += 1
            stones.forget_until(now - remember)
            stones.sweep(remember)
            again = stones.next_sweep(remember)
            assert again is None or again > now
        assert len(stones) <= 80 + 80 // 8 + 2
    assert (len(stones), stones.next_sweep(remember)) == (0, None)
    assert sweeps <= 600 // (80 // 8)


def test_however_often_time_passes_old_ones_are_removed_seldom() -> None:
    """Each removal goes through all that are kept."""
    remember, removals = 80 * SECOND, 0
    stones = Tombstones()
    for now in range(1000 * SECOND, 1600 * SECOND, SECOND):
        stones.add([("t", str(now))], [now])
        before = len(stones)
        stones.forget_until(now - remember)
        stones.sweep(remember)
        removals += len(stones) < before
    assert 0 < removals <= 600 // (80 // 8)


def test_a_scope_and_a_name_are_told_from_another_division() -> None:
    stones = Tombstones()
    stones.add([("ab", "c"), ("", "1:ab")], [SECOND] * 2)
    assert stones.has([("ab", "c"), ("a", "bc"), ("abc", ""), ("", "1:ab"), ("a", "b")]).tolist() == [
        True,
        False,
        False,
        True,
        False,
    ]


def test_tombstones_take_16_bytes_each_and_go_when_they_count_no_more() -> None:
    stones = Tombstones()
    for turn in range(100):
        now = (1000 + turn) * SECOND
        stones.add([("t", f"{turn}/{i}") for i in range(100)], [now] * 100)
        if turn == 49:
            assert sum(column.nbytes for run in stones._runs for column in run) == 16 * 5_000
            assert len(stones._runs) <= 8
        if turn >= 50:
            stones.forget_until(now - 8 * SECOND)
            stones.sweep(8 * SECOND)
    assert len(stones) <= 1_000


# ---------------------------------------------------------------- in a job

SESSION: list[Any] = ["t", "session", None, "a", 0, 1, 1]
WINDOW: list[Any] = ["t", "window", 10, "a", 0, 1, 1]


@pytest.mark.parametrize("entry", [SESSION, WINDOW], ids=["named", "window"])
@pytest.mark.parametrize("fronts", [(), ("f",), ("f", "g")], ids=["alone", "one", "two"])
@pytest.mark.parametrize("rebuild", [False, True])
def test_what_was_closed_by_name_has_no_second_life(entry: list[Any], fronts: tuple[str, ...], rebuild: bool) -> None:
    closes = [["close", front, *entry[:3]] for front in fronts or [""]]
    assert last_of(
        define(fronts=fronts, durations=FOREVER),
        start("p1"),
        report("p1", 0, "u0", [entry], closes, commit=True),
        tick(6),
        report("p1", 1, "u1", [entry], commit=True) | {"rebuild": rebuild},
        tick(3600) | {"rebuild": rebuild},
        report("p1", 2, "u2", [entry], commit=True),
    ) == ({"outcome": "APPLIED"}, [["LATE", "a", *entry[:2], "p", 1, 1]])


def test_an_epoch_that_was_staged_while_it_was_forgotten_is_late() -> None:
    assert last_of(
        define(durations=FOREVER),
        start("p1"),
        report("p1", 0, "u0", [SESSION], [["close", "", *SESSION[:3]]], commit=True),
        report("p1", 1, "u1", [SESSION]),
        tick(6),
        tick(6),
        commit_of("p1", 1),
        tick(6),
        report("p1", 2, "u2", [SESSION]),
        commit_of("p1", 2),
    ) == ({}, [["LATE", "a", "t", "session", "p", 1, 1]])


def commit_of(run: str, epoch: int) -> Line:
    return {"do": "commit", "producer": run[0], "run": run, "epoch": epoch}


def test_after_remember_a_name_may_begin_anew() -> None:
    lines = [
        define(durations=FOREVER | {"remember": 60 * SECOND}),
        start("p1"),
        report("p1", 0, "u0", [SESSION], [["close", "", *SESSION[:3]]], commit=True),
        tick(59),
        report("p1", 1, "u1", [SESSION], commit=True),
    ]
    assert last_of(*lines)[1] == [["LATE", "a", "t", "session", "p", 1, 1]]
    again = report("p1", 2, "u2", [SESSION], [["close", "", *SESSION[:3]]], commit=True)
    assert last_of(*lines, tick(10), again)[1] == [["ENDED", "a", "t", "session", None, 1, "COMPLETE", 0]]


def test_a_new_life_of_the_job_is_one_of_its_substreams() -> None:
    close = [["close", "", *SESSION[:3]]]
    assert last_of(
        define(durations=FOREVER),
        start("p1"),
        report("p1", 0, "u0", [SESSION], close, commit=True),
        tick(6),
        {"do": "close", "producer": "p", "run": "p1"},
        {"do": "drain", "deployment": "d1", "drain_id": "x"},
        define("d2", durations=FOREVER),
        start("p2"),
        report("p2", 1, "u1", [SESSION], close, commit=True),
    )[1] == [["ENDED", "a", "t", "session", None, 1, "COMPLETE", 0]]


def test_a_deployment_with_other_segments_and_fronts_remembers() -> None:
    other = {"segments": [["a", ["b"]], ["b", []]], "durations": FOREVER}
    assert last_of(
        define(durations=FOREVER),
        start("p1"),
        report("p1", 0, "u0", [SESSION], [["close", "", *SESSION[:3]]], commit=True),
        tick(6),
        define("d2", ("f",), **other),
        report("p1", 1, "u1", [["t", "session", None, "b", 0, 1, 1]], commit=True),
    )[1] == [["LATE", "b", "t", "session", "p", 1, 1]]


def test_windows_that_were_closed_by_name_are_not_kept_for_ever() -> None:
    """Marks move no committed watermark: once, each of them kept its window for as long as there was the job."""
    tracker = Tracker("log")
    driver = Driver(tracker)
    lines = [define(fronts=("f",), durations=FOREVER), start("p1")]
    for day in range(20):
        entries = [["t", f"{day}/{i}", 10 * day, "a", 0, 1, 1] for i in range(100)]
        closes = [["close", "f", *entry[:3]] for entry in entries]
        lines += [report("p1", day, "u", entries, closes, commit=True), tick(6)]
    for line in lines:
        driver.run(line)
    status = tracker.view(JOB).status()
    assert (status.open_substreams, status.ended_substreams) == (0, 0)
    assert len(tracker._jobs[JOB].tombstones) == 2_000
    # Where a floor comes to lie above what has ended, it needs no tombstone.
    for line in [report("p1", 20, "u", [WINDOW], [["frontier", "f", None, 1000]], commit=True), tick(6)]:
        driver.run(line)
    assert len(tracker._jobs[JOB].tombstones) == 2_000
    assert not difference(lines)


def test_who_waits_for_what_is_forgotten_is_told() -> None:
    tracker = Tracker("log")
    driver = Driver(tracker)
    for line in [
        define(durations=FOREVER),
        start("p1"),
        report("p1", 0, "u0", [SESSION], [["close", "", *SESSION[:3]]], commit=True),
        tick(6),
    ]:
        driver.run(line)
    with pytest.raises(Refused, match="EVENTS_EXPIRED"):
        tracker.view(JOB).ended("a", "t", "session")
    assert tracker.view(JOB).ended("a", "t", "another") is None
