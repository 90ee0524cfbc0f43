"""Open windows that are moved to those of another length: at the tracker, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import pytest

from spark_client.errors import TrackingError, UsageError
from spark_client.release.moving import Move
from spark_client.windows.fixed import Fixed
from spark_client.windows.substreams import Substreams
from tracker.client import Ended, JobSpec, Report
from tracker.client.producer import Producer
from tracker.testing import LocalTracker

HOUR = 3_600_000_000
HOURS = Fixed(HOUR, scope="tenant")
DAYS = Fixed(24 * HOUR, scope="tenant")
END = 450_001 * HOUR  #: of an hour
DAY = 18_751 * 24 * HOUR  #: the end of its day


#: Where one is killed, by the method.
STEPS = {"before the report": "report_in_pieces", "before the commit": "commit", "after the commit": "commit"}


@pytest.fixture
def tracker() -> Iterator[LocalTracker]:
    with LocalTracker() as tracker:
        fronts = {name: [name] for name in ("orders", "clicks")}
        segments: dict[str, list[str]] = {"orders": [], "clicks": []}
        spec = JobSpec(job="shop", deployment="1", segments=segments, fronts=fronts, committed_ends=True)
        tracker.client.define_job(spec)
        yield tracker


def batch(tracker: LocalTracker, segment: str, rows: dict[str, int], rule: Fixed = HOURS, end: int = END) -> None:
    """Run a batch of the source's query: so many rows of each scope, in the window with that end."""
    with tracker.client.open_producer("shop", f"of {segment}", uuid4().hex) as producer:
        report = producer.epoch()
        for scope, count in rows.items():
            report.add(segment, scope, rule.window_name(end), 0, count, count, end)
        report.report(commit=True)


def moving(tracker: LocalTracker, rules: Mapping[str, Substreams], segment: str = "orders") -> Move:
    return Move(tracker.client, "shop", f"of {segment}", HOURS, DAYS, segment, {segment: DAYS, **rules})


def opened(tracker: LocalTracker) -> set[tuple[str, str, str, int]]:
    """Return each open window's scope, whose it is, whether it is an hour or a day, and how many rows it has there."""
    return {
        (each.scope, account.segment, "hour" if each.name == HOURS.window_name(each.end_time) else "day", account.sent)
        for each in tracker.client.substreams("shop")
        for account in each.segments
        if account.sent and each.end_time is not None
    }


def events(tracker: LocalTracker) -> list[object]:
    return [event.kind for event in tracker.client.list_events("shop").events]


def test_the_windows_of_another_source_stay_open_and_take_in_more_rows(tracker: LocalTracker) -> None:
    batch(tracker, "orders", {"a": 3})
    batch(tracker, "clicks", {"b": 2})
    moving(tracker, {"clicks": HOURS}).carry_out()
    assert opened(tracker) == {("a", "orders", "day", 3), ("b", "clicks", "hour", 2)}
    batch(tracker, "clicks", {"b": 4})
    batch(tracker, "orders", {"a": 4}, DAYS, DAY)
    assert opened(tracker) == {("a", "orders", "day", 7), ("b", "clicks", "hour", 6)}
    ended = [event for event in events(tracker) if isinstance(event, Ended)]
    assert {(event.scope, event.elements) for event in ended if event.elements} == {("a", 3)}


@pytest.mark.parametrize("end", [END, END - HOUR], ids=["the same hour", "another hour"])
@pytest.mark.parametrize("rules", [{"clicks": HOURS}, {}], ids=["declared here", "by another application"])
def test_a_scope_that_another_source_has_windows_of_is_refused(
    tracker: LocalTracker, end: int, rules: dict[str, Substreams]
) -> None:
    """The other source's rows of the hours that are moved may still come: they would be late."""
    batch(tracker, "orders", {"a": 3, "c": 1})
    batch(tracker, "clicks", {"a": 2}, end=end)
    before = opened(tracker), events(tracker), tracker.client.job("shop").producers
    for step in (moving(tracker, rules).check, moving(tracker, rules).carry_out):
        with pytest.raises(UsageError, match=r"of the scope 'a' is open on 'orders' .* while 'clicks' has windows"):
            step()
    assert (opened(tracker), events(tracker), tracker.client.job("shop").producers) == before


def test_a_source_whose_windows_change_has_its_part_moved(tracker: LocalTracker) -> None:
    batch(tracker, "orders", {"a": 3})
    batch(tracker, "clicks", {"a": 2, "b": 1})
    moving(tracker, {"clicks": DAYS}).carry_out()
    assert opened(tracker) == {("a", "orders", "day", 3), ("a", "clicks", "day", 2), ("b", "clicks", "hour", 1)}
    moving(tracker, {"orders": DAYS}, "clicks").carry_out()
    assert opened(tracker) == {("a", "orders", "day", 3), ("a", "clicks", "day", 2), ("b", "clicks", "day", 1)}


class DiesError(BaseException):
    pass


@pytest.mark.parametrize("dies_at", ["before the report", "before the commit", "after the commit"])
def test_one_that_was_killed_is_repeated_and_comes_to_the_same_end(
    tracker: LocalTracker, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    batch(tracker, "orders", {"a": 3, "b": 1})
    commit = Producer.commit

    def die(producer: Producer, *args: Any, **kwargs: Any) -> None:
        if dies_at == "after the commit":
            commit(producer, *args, **kwargs)
        raise DiesError

    with monkeypatch.context() as dying:
        dying.setattr(Report if dies_at == "before the report" else Producer, STEPS[dies_at], die)
        with pytest.raises(DiesError):
            moving(tracker, {}).carry_out()
    moving(tracker, {}).check()
    for _ in range(2):
        moving(tracker, {}).carry_out()
        assert opened(tracker) == {("a", "orders", "day", 3), ("b", "orders", "day", 1)}
        # Nothing is staged, and nothing stays open that would hold a hand-over.
        assert all(each.closed and not each.staged_epochs for each in tracker.client.job("shop").producers)


def test_another_one_that_was_killed_is_named(tracker: LocalTracker) -> None:
    batch(tracker, "orders", {"a": 3})
    tracker.client.open_producer("shop", "of clicks.moved", "run")
    with pytest.raises(TrackingError, match=r"these run: of clicks\.moved\. .* repeat the restore first"):
        moving(tracker, {}).check()
