"""Very many fronts: what one of them does is not looked for in all the others. And the groups that they make."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.test_readings import SENT, define, report, start
from tests.model.lines import Driver
from tracker.core import Tracker
from tracker.core.fronts import Front


@pytest.mark.parametrize("at_once", [True, False], ids=["in one epoch", "one by one"])
def test_each_finish_looks_at_few_fronts(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """When each looked at all, ten thousand finishes took twenty minutes."""
    looks = 0

    def counted(read: Callable[[Front, str | None], int]) -> Callable[[Front, str | None], int]:
        def read_and_count(front: Front, scope: str | None) -> int:
            nonlocal looks
            looks += 1
            return read(front, scope)

        return read_and_count

    names = [f"f{n}" for n in range(300)]
    driver = Driver(Tracker("log"))
    frontiers = [["frontier", name, None, 5] for name in names] + [["frontier", "f0", "t", 7]]
    for line in (define(fronts=names), start("p1"), report("p1", 0, "u", [SENT], frontiers, commit=True)):
        driver.run(line)
    driver.run(report("p1", 1, "u", promises=[["finish", "f299"]], commit=True))
    for name in ("closing_time", "committed_time"):
        monkeypatch.setattr(Front, name, counted(getattr(Front, name)))
    finishes = [["finish", name] for name in names[:299]]
    for epoch, promises in enumerate([finishes] if at_once else [[each] for each in finishes], 2):
        assert driver.run(report("p1", epoch, "u", promises=promises, commit=True))[0] == {"outcome": "APPLIED"}
    assert looks < 20 * len(names)
    received = [*SENT[:5], 0, 1]
    _, events = driver.run(report("p1", 1000, "u", [received], commit=True))
    assert events == [["ENDED", "a", "t", "s", 10, 1, "COMPLETE", 0]]


def test_segments_with_the_same_fronts_share_a_group_after_a_restart() -> None:
    """With a group for each segment everything that is closed costs as many times as much."""
    tracker = Tracker("log")
    driver = Driver(tracker)
    segments = [["a", ["b"]], ["b", ["c"]], ["c", []]]
    frontier = [["frontier", "f0", None, 5]]
    for line in (
        define(segments=segments, fronts=["f0"]),
        start("p1"),
        report("p1", 0, "u", [SENT], frontier, commit=True),
    ):
        driver.run(line)
    loaded = Tracker.load(tracker.dump())
    assert [len(each._jobs["job"].fronts.groups) for each in (tracker, loaded)] == [1, 1]
