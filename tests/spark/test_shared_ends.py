"""Ended substreams where rows are elements of several at the tracker: over restarts, without Spark."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from spark_client.release.ends import EpochEnds, SharedEnds
from spark_client.release.parts import RowTally
from spark_client.release.state import PartialState
from spark_client.storage.folder import Folder
from spark_client.trackers import Place
from spark_client.windows.nested import Level, NestedWindows
from spark_client.windows.sessions import ENDED, SessionSteps
from spark_client.windows.substreams import Substream, Substreams
from tests.spark.test_growth import Rows
from tracker.client import Ended, Event, Late, Reason

QUERY = "query"
SESSIONS = SessionSteps(15, gap=30, at="at", scope="tenant")
LEVELS = (Level("1 hour", 60, 0, None), Level("1 day", 240, 0, None))
NESTED = NestedWindows(LEVELS, scope="tenant")


class Release:
    """The state of a release and what it makes of events, as its plan and stream: it aggregates nothing."""

    def __init__(self, rule: Substreams, path: Path) -> None:
        self.rule = rule
        self.stream = self
        self.segment = "in"
        self.completeness = True
        self.state = PartialState(Folder(path))
        self.ends = SharedEnds(cast(Any, self), self.state)


def kept_as(rule: Substreams, time: int) -> Substream:
    """Return the substream under which a row is kept."""
    if isinstance(rule, SessionSteps):
        return rule.substream("s", rule.end_after(time))
    starts = [(time - time % level.length, level.length) for level in LEVELS]
    return rule.substream("s", " ".join(f"{start}/{start + length}" for start, length in starts))


def events(ended: list[Substream], late: set[Substream], by_drain: bool = False) -> Iterator[Event]:
    at = time.time_ns()
    for each in ended:
        yield Event(0, at, "", Ended("in", each.scope, each.name, each.end_time, 1, Reason.COMPLETE, 0, by_drain))
    for each in sorted(late, key=str):
        yield Event(0, at, "", Late("in", each.scope, each.name, QUERY, 1, 1))


@pytest.mark.parametrize("rule", [SESSIONS, NESTED], ids=["sessions", "levels"])
@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 60))])
def test_each_row_is_in_one_result_of_each_kind_or_late(tmp_path: Path, rule: Substreams, seed: int) -> None:
    """Substreams end in any order, rows come at any time, and every few batches the driver is another one."""
    rng = random.Random(seed)
    release = Release(rule, tmp_path)
    over: set[Substream] = set()  # at the tracker
    named: set[Substream] = set()
    good: dict[Substream, int] = {}
    released: dict[tuple[int, Substream], int] = {}
    set_aside = came_late = 0
    pending: set[Substream] = set()  # announced as late of the batch before
    unread: list[Substream] = []
    for epoch in range(40):
        if rng.random() < 0.2:
            release = Release(rule, tmp_path)
        state = release.state
        state.load(epoch)
        state.settled = state.epoch
        ends = release.ends.read(list(events(unread, pending)), QUERY)
        unread, pending = [], set()
        set_aside += ends.late_rows
        for group, some in ends.groups.items():
            for each, parts in some.items():
                if rule is SESSIONS and (ENDED, True) not in group.marks:
                    assert not {*rule.tracked_as(each)} <= over
                    continue
                assert rule is NESTED or {*rule.tracked_as(each)} <= over
                assert (group.level, each) not in released, "it comes out once"
                released[group.level, each] = state.tally(each, parts).rows
        rows: dict[Substream, int] = {}
        if epoch < 30:
            for _ in range(rng.randrange(4)):
                each = kept_as(rule, 5 * epoch + rng.randrange(-120, 20))
                rows[each] = rows.get(each, 0) + 1
        known = {each for each in rows if ends.ended & {*rule.tracked_as(each)}}  # what the batch itself knows
        part = state.write_part(epoch, cast(Any, Rows()))
        state.add(part, epoch, {each: RowTally(number) for each, number in rows.items()}, known)
        release.ends.settle(ends)
        state.publish(epoch)
        for each, number in rows.items():
            tracked = {*rule.tracked_as(each)}
            named |= tracked
            pending |= tracked & over
            if tracked & over:
                came_late += number
                set_aside += number if each in known else 0
            else:
                good[each] = good.get(each, 0) + number
        due = sorted(named - over, key=str)
        for each in due:
            holds = rng.random() < 0.5 if epoch < 30 else False
            if each.end_time is not None and (each.end_time <= 5 * epoch - 100 or epoch >= 30) and not holds:
                over.add(each)
                unread.append(each)
    assert set_aside == came_late
    for level in range(len(LEVELS) if rule is NESTED else 1):
        assert {each: number for (at, each), number in released.items() if at == level} == good
    assert release.state.substreams == set()
    assert release.state.ended == {}


def test_a_day_waits_for_its_hours_and_shows_what_a_drain_closed(tmp_path: Path) -> None:
    release = Release(NESTED, tmp_path)
    state, ends = release.state, release.ends
    state.load(0)
    first, second = kept_as(NESTED, 10), kept_as(NESTED, 70)
    hour, day = NESTED.tracked_as(first)
    state.add(state.write_part(0, cast(Any, Rows())), 0, {first: RowTally(1), second: RowTally(2)}, set())
    state.publish(0)
    state.settled = 0

    def windows(found: EpochEnds) -> dict[tuple[int, str], set[Substream]]:
        groups = found.groups.items()
        return {(group.level, str(dict(group.marks)["_completeness"])): {*pieces} for group, pieces in groups}

    found = ends.read(events([day], set()), QUERY)
    assert windows(found) == {}, "another tracker's hours are open yet"
    ends.settle(found)
    state.publish(1)
    release = Release(NESTED, tmp_path)
    release.state.load(2)
    found = release.ends.read(events([hour], set()), QUERY)
    assert windows(found) == {(0, "whole"): {first}}
    release.ends.settle(found)
    last = NESTED.tracked_as(second)[0]
    found = release.ends.read(events([last], set(), by_drain=True), QUERY)
    assert windows(found) == {(0, "drained"): {second}, (1, "whole"): {first, second}}
    release.ends.settle(found)
    assert release.state.substreams == set()


@pytest.mark.parametrize("rule", [SESSIONS, NESTED], ids=["sessions", "levels"])
def test_a_drain_that_failed_before_publication_begins_again(tmp_path: Path, rule: Substreams) -> None:
    release = Release(rule, tmp_path)
    state = release.state
    state.load(0)
    first, second = kept_as(rule, 10), kept_as(rule, 70)
    state.add(state.write_part(0, cast(Any, Rows())), 0, {first: RowTally(1), second: RowTally(2)}, set())
    state.publish(0)
    over = sorted({*rule.tracked_as(first), *rule.tracked_as(second)}, key=str)
    drain = list(events(over, set(), by_drain=True))

    def begun() -> tuple[object, ...]:
        state.load(1)
        before = state.bad, state.place
        state.begin(state.acts, Place.of([5], ["log"]), 0)
        found = release.ends.read(drain, QUERY)
        return before, found.groups, found.gone, found.receipts, dict(state.ended), dict(state.drained), dict(state.cut)

    known = begun()
    assert known[0] == (0, None)
    assert known[2], "something is over"
    state.bad = 7  # as the batch had left it when the sink failed
    assert begun() == known
