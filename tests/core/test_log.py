"""A job's log, which may keep millions of events."""

from __future__ import annotations

import gc

from tests.core.test_readings import CLOSE, SENT, define, report, start
from tests.model.lines import JOB, Driver
from tracker.contract.events import Ended, Event
from tracker.contract.values import Reason
from tracker.core import Tracker


def test_the_garbage_collector_looks_at_no_kept_event() -> None:
    """A pass over a million would hold up everybody for a second."""
    core = Tracker("log")
    driver = Driver(core)
    for line in (define(fronts=("f",)), start("p1"), report("p1", 0, "u0", [SENT], [CLOSE], commit=True)):
        driver.run(line)
    for number, count in enumerate((1, 100), 1):  # one by one, and many at once
        names = [f"{number}-{n}" for n in range(count)]
        entries = [["t", name, None, "a", 7, sent, 1 - sent] for name in names for sent in (0, 1)]
        driver.run(report("p1", number, "u", entries, [["close", "", "t", name, None] for name in names], commit=True))
    driver.run({"do": "finish_front", "front": "f"})
    driver.run({"do": "abandon", "scope": "t", "name": "s"})
    gc.collect()
    for tracker in (core, Tracker.load(core.dump())):
        kept = tracker._jobs[JOB].log._events
        gc.collect()
        assert len(kept) == 102
        assert not any(map(gc.is_tracked, kept))
        last = tracker.view(JOB).events(101)[0][0]
        assert last == Event(102, driver.now, "d1", Ended("a", "t", "s", 10, 1, Reason.ABANDONED, 1))
