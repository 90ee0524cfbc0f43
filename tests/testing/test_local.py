"""A tracker in the process of its tests is a real one: others reach it, and it keeps what it has answered."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.testing.conftest import closed, define, received, report, sent
from tracker.client import Ended, FrontIdle, Reason, Stalled, TrackerClient, TrackerError
from tracker.testing import LocalTracker, ManualClock, like


def test_another_process_reaches_it(tracker: LocalTracker) -> None:
    define(tracker.client)
    program = f"from tracker.client import TrackerClient; print(TrackerClient({tracker.address!r}).jobs())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['shop']\n"


def test_a_journal_in_a_file_is_continued_at_the_same_address(tmp_path: Path) -> None:
    with LocalTracker(f"sqlite:{tmp_path}/tracker.db") as tracker:
        define(tracker.client)
        report(tracker.client, sent("monday"), closed("monday"))
        watch = TrackerClient(tracker.address).watch("shop")
        address = tracker.address
        tracker.restart()
        assert tracker.address == address
        report(tracker.client, received("monday"), producer="cook")
        tracker.assert_ended("shop", "orders", "berlin", "monday", elements=1)
        assert next(watch).kind == Ended("orders", "berlin", "monday", None, 1, Reason.COMPLETE, 0)
        watch.close()


def test_trackers_in_one_process_know_nothing_of_each_other() -> None:
    with LocalTracker() as one, LocalTracker() as other:
        define(one.client)
        assert (one.client.jobs(), other.client.jobs()) == (["shop"], [])


def test_many_start_and_stop_and_leave_no_thread() -> None:
    with LocalTracker() as tracker:
        tracker.client.jobs()
    before = set(threading.enumerate())
    for _ in range(20):
        with LocalTracker() as tracker:
            tracker.client.jobs()
    left = {thread for thread in threading.enumerate() if "tracker" in thread.name} - before
    assert not left


def test_the_process_keeps_its_own_settings() -> None:
    before = (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), sys.getswitchinterval())
    with LocalTracker():
        during = (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), sys.getswitchinterval())
    assert during == before


def test_a_limit_is_met_as_on_a_server() -> None:
    with LocalTracker(limits={"max_jobs": 1}) as tracker:
        define(tracker.client)
        with pytest.raises(TrackerError, match="max_jobs"):
            define(tracker.client, job="second")
    with pytest.raises(TypeError, match="max_job"):
        LocalTracker(limits={"max_job": 1})


def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="journal"):
        LocalTracker("redis").start()
    unstarted = LocalTracker()
    with pytest.raises(RuntimeError, match="before it is started"):
        _ = unstarted.address
    with LocalTracker() as tracker, pytest.raises(RuntimeError, match="runs already"):
        tracker.start()


def test_time_stands_still_and_passes_when_the_test_lets_it() -> None:
    clock = ManualClock(datetime(2026, 3, 1, tzinfo=timezone.utc))
    with LocalTracker(clock=clock) as tracker:
        define(tracker.client, stall_after=timedelta(minutes=10), expire_after=timedelta(hours=1))
        report(tracker.client, sent("monday"), closed("monday"))
        clock.advance(timedelta(minutes=9))
        assert tracker.client.list_events("shop").events == ()
        clock.advance(timedelta(days=1))
        stalled, *ended = tracker.client.list_events("shop").events
        assert (stalled.kind, stalled.at) == (
            Stalled("berlin", "monday", ("orders",), 1),
            datetime(2026, 3, 1, 0, 10, tzinfo=timezone.utc),
        )
        assert {each.at for each in ended} == {datetime(2026, 3, 1, 1, tzinfo=timezone.utc)}
        tracker.assert_events(
            "shop",
            [like(Ended, segment=segment, reason=Reason.EXPIRED) for segment in ("orders", "mails")],
            only=Ended,
        )
        assert clock.now() == datetime(2026, 3, 2, 0, 9, tzinfo=timezone.utc)


def test_one_clock_serves_several_trackers_and_those_that_start_again(tmp_path: Path) -> None:
    clock = ManualClock()
    with LocalTracker(f"sqlite:{tmp_path}/tracker.db", clock) as one, LocalTracker(clock=clock) as other:
        for each in (one, other):
            define(each.client, fronts=("schedule",), idle_after=timedelta(minutes=5))
        one.restart()
        clock.advance(timedelta(minutes=5))
        for each in (one, other):
            each.assert_events("shop", [FrontIdle("schedule", True)], timeout=0)
    clock.advance(timedelta(days=1))  # nothing runs by it any more


def test_an_explanation_counts_in_the_trackers_time() -> None:
    clock = ManualClock()
    with LocalTracker(clock=clock) as tracker:
        define(tracker.client)
        report(tracker.client, sent("monday"), commit=False)
        clock.advance(timedelta(hours=3))
        assert "3h ago" in tracker.explain("shop", "berlin", "monday")


def test_an_explanation_names_a_message_that_a_queue_has_redelivered(tracker: LocalTracker) -> None:
    define(tracker.client)
    report(tracker.client, sent("monday", 1), sent("monday", 2), closed("monday"))
    for cook in ("ann", "bob"):
        report(tracker.client, received("monday", 1), producer=cook)
    swapped = tracker.explain("shop", "berlin", "monday")
    assert "as many elements received as sent" in swapped
    assert "one was received twice and another one not at all" in swapped
    report(tracker.client, received("monday", 2), producer="cyd")
    assert not tracker.client.list_events("shop").events, "two receipts of one do not stand for another"
    assert "1 more received than sent" in tracker.explain("shop", "berlin", "monday")
    assert "received twice, as when a queue redelivers it" in tracker.explain("shop", "berlin", "monday")


def test_a_clock_does_not_go_back_and_has_a_time_zone() -> None:
    with pytest.raises(ValueError, match="cannot go back by 0:01:00"):
        ManualClock().advance(timedelta(minutes=-1))
    with pytest.raises(ValueError, match="no time zone"):
        ManualClock(datetime(2026, 1, 1))
