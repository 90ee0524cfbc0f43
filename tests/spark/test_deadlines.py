"""Results of windows that no source has promised: by a deadline, a threshold, and of a tenant that fell silent."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import RECEIPT_SCHEMA, Frontier, Marks, Schedule, Tracking, UsageError, session
from spark_client.storage.folder import Folder
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import START, Feed, row, rows_of
from tests.spark.waiting import soon
from tracker.client import FrontIdle, TrackerClient

pytestmark = pytest.mark.spark


class Hourly:
    """A release of each tenant's hours, with receipts."""

    def __init__(self, tracking: Tracking, rows: DataFrame, path: Path, **source: Any) -> None:
        self.tracking, self._path = tracking, path
        self.source = tracking.source(rows, "in", scope="tenant", **({"window": ("ts", "1 hour")} | source))
        released = tracking.release(self.source, aggs={"n": F.count("*")}, completeness=True)
        writer = released.writeStream.option("checkpointLocation", path / "cp")
        if "window" not in source:  # sessions have none
            writer = writer.receipts(path / "receipts")
        writer.start(path / "out")

    def results(self, spark: SparkSession) -> list[tuple[Any, ...]]:
        rows = rows_of(self._path / "out", spark, "tenant", "window.start", "n", "completeness")
        return [(tenant, (start - START) // timedelta(hours=1), *rest) for tenant, start, *rest in rows]

    def becomes(self, spark: SparkSession, *expected: tuple[Any, ...]) -> None:
        """Wait until these are the results, and process what there is meanwhile."""

        def there() -> bool:
            self.tracking.process_all_available()
            return self.results(spark) == [*expected]

        soon(there)

    def receipts(self, spark: SparkSession) -> list[tuple[Any, ...]]:
        rows = spark.read.schema(RECEIPT_SCHEMA).parquet(str(self._path / "receipts"))
        return sorted((r.scope, r.reason, r.expected, r.elements, r.results) for r in rows.collect())

    def late(self) -> int:
        return self.tracking.late(self._path / "cp").count()


Starts = Callable[..., Hourly]


@pytest.fixture
def starts(spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path) -> Starts:
    def start(front: Any, source: dict[str, Any] | None = None, **rules: Any) -> Hourly:
        tracking = BatchTracking(feed, spark, job, tracker.address, **rules)
        return Hourly(tracking, feed.stream(spark), tmp_path, front=front, **(source or {}))

    return start


@pytest.mark.thorough
def test_history_is_released_by_its_own_time(spark: SparkSession, feed: Feed, starts: Starts) -> None:
    """Tenant a has marked its first hour, b has not; hours of 2024 are not overdue as long as no row is later."""
    hourly = starts(Marks("is_last"), deadline="6 hours", deadline_by_event_time=True)
    feed.put(row(1, 5, "a"), row(2, 50, "a", last=True), row(3, 10, "b"), row(4, 20, "b"))
    hourly.tracking.process_all_available()
    assert hourly.results(spark) == [("a", 0, 2, "whole")]
    feed.put(row(5, 7 * 60, "c"))  # the window ends at 8: seven hours after the first
    hourly.tracking.process_all_available()
    hourly.becomes(spark, ("a", 0, 2, "whole"), ("b", 0, 2, "deadline"))
    feed.put(row(6, 30, "b"))
    hourly.tracking.process_all_available()
    assert hourly.late() == 1
    assert hourly.results(spark) == [("a", 0, 2, "whole"), ("b", 0, 2, "deadline")]
    assert hourly.receipts(spark) == [("a", "COMPLETE", None, 2, 1), ("b", "DEADLINE", None, 2, 1)]
    hourly.tracking.stop()


def test_nothing_has_to_come_for_a_deadline_to_pass(spark: SparkSession, feed: Feed, starts: Starts) -> None:
    hourly = starts(Marks("is_last"), deadline="6 hours")  # of 2024
    feed.put(row(1, 5, "a"))
    hourly.tracking.process_all_available()
    hourly.becomes(spark, ("a", 0, 1, "deadline"))
    hourly.tracking.stop()


@pytest.mark.thorough
def test_nineteen_of_twenty_rows_are_enough(spark: SparkSession, feed: Feed, starts: Starts) -> None:
    """Of b one in two came: it waits on."""
    hourly = starts(Schedule(), threshold=0.95, threshold_after="1 second")
    hourly.tracking.expect(hourly.source, [("a", START, 20), ("b", START, 2)])
    feed.put(*(row(each, 5, "a") for each in range(19)), row(20, 5, "b"))
    hourly.tracking.process_all_available()
    hourly.becomes(spark, ("a", 0, 19, "threshold"))
    assert hourly.receipts(spark) == [("a", "THRESHOLD", 20, 19, 1)]
    hourly.tracking.stop()


def test_a_tenant_that_fell_silent_is_released_and_goes_on(spark: SparkSession, feed: Feed, starts: Starts) -> None:
    hourly = starts(Marks("is_last"), scope_idle_after="1 second")
    feed.put(row(1, 5, "a"), row(2, 65, "a"), row(10, 5, "b"))
    hourly.tracking.process_all_available()
    assert hourly.results(spark) == []
    time.sleep(1.1)
    feed.put(row(11, 6, "b"))  # it goes on
    idle = [("a", 0, 1, "idle"), ("a", 1, 1, "idle")]
    hourly.becomes(spark, *idle)
    feed.put(row(3, 70, "a"), row(4, 130, "a", last=True))
    hourly.tracking.process_all_available()
    assert [result for result in hourly.results(spark) if result[0] == "a"] == [*idle, ("a", 2, 1, "whole")]
    assert hourly.late() == 1
    hourly.tracking.stop()


@pytest.mark.thorough
def test_what_follows_a_deadline_after_a_drain_is_its_rest(spark: SparkSession, feed: Feed, starts: Starts) -> None:
    """Neither of the two results of b is the whole of its window."""
    rules = {"deadline": "6 hours", "deadline_by_event_time": True}
    hourly = starts(Marks("is_last"), deployment="1", **rules)
    feed.put(row(1, 5, "b"), row(2, 6, "b"), row(3, 7, "a", last=True))
    hourly.tracking.process_all_available()
    feed.put(row(4, 7 * 60, "c"))
    hourly.tracking.process_all_available()
    hourly.becomes(spark, ("a", 0, 1, "whole"), ("b", 0, 2, "deadline"))
    hourly.tracking.drain(120)
    hourly = starts(Marks("is_last"), deployment="2", **rules)
    feed.put(row(5, 7, "b", last=True), row(6, 7, "d", last=True))
    hourly.tracking.process_all_available()
    assert [each for each in hourly.results(spark) if each[0] in "bd"] == [
        ("b", 0, 1, "rest"),
        ("b", 0, 2, "deadline"),
        ("d", 0, 1, "whole"),
    ]
    hourly.tracking.stop()


@pytest.mark.thorough
def test_a_device_that_fell_silent_does_not_keep_its_window(spark: SparkSession, feed: Feed, starts: Starts) -> None:
    """Each has a clock of its own. The one that goes on waits for itself alone, also when the query starts again."""
    front = Frontier("0 seconds", per_scope=True, idle_after="1 second")
    hourly = starts(front)
    feed.put(row(1, 5, "on"), row(2, 5, "off"))
    hourly.tracking.process_all_available()
    feed.put(row(3, 65, "on"), row(4, 65, "off"))
    hourly.tracking.process_all_available()
    assert hourly.results(spark) == [("off", 0, 1, "whole"), ("on", 0, 1, "whole")]
    hourly.tracking.stop()
    hourly = starts(front)
    time.sleep(1.1)
    feed.put(row(5, 125, "on"))
    hourly.becomes(spark, ("off", 0, 1, "whole"), ("off", 1, 1, "idle"), ("on", 0, 1, "whole"), ("on", 1, 1, "whole"))
    time.sleep(1.1)  # nobody goes on
    hourly.tracking.process_all_available()
    assert len(hourly.results(spark)) == 4
    feed.put(row(6, 70, "off"), row(7, 126, "off"), row(8, 190, "off"))
    hourly.tracking.process_all_available()
    assert ("off", 2, 1, "whole") in hourly.results(spark)
    assert hourly.late() == 1
    hourly.tracking.stop()


@pytest.mark.thorough
def test_a_partition_that_fell_silent_holds_nobody(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, starts: Starts
) -> None:
    """Its query goes on, also across a restart. When it is back, its rows of open windows count."""
    front = Frontier("0 seconds", partition="part", partitions=2, idle_after="1 second")
    hourly = starts(front)
    feed.put(row(1, 5), row(2, 6, part=1), row(3, 65))
    hourly.tracking.process_all_available()
    assert hourly.results(spark) == []
    hourly.tracking.stop()
    hourly = starts(front)
    time.sleep(1.1)
    feed.put(row(4, 66))
    hourly.becomes(spark, ("a", 0, 2, "idle"))
    feed.put(row(5, 130))
    idle = [("a", 0, 2, "idle"), ("a", 1, 2, "idle")]
    hourly.becomes(spark, *idle)
    client = TrackerClient(tracker.address)
    assert [each.idle for each in client.job(job).fronts] == [False, True]
    feed.put(row(6, 70, part=1), row(7, 131, part=1), row(10, 131))
    hourly.tracking.process_all_available()
    feed.put(row(8, 190), row(9, 190, part=1))
    hourly.tracking.process_all_available()
    hourly.becomes(spark, *idle, ("a", 2, 3, "whole"))
    assert [(kind.front, kind.idle) for kind in _idle_events(client, job)] == [("in/1", True), ("in/1", False)]
    assert hourly.late() == 1
    batch = feed.batch(spark).groupBy(F.window("ts", "1 hour")).count().orderBy("window").collect()
    assert [each["count"] for each in batch] == [2, 2 + hourly.late(), 3, 2]  # the last one is open
    hourly.tracking.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("probe", ["driver", "executors"])
def test_a_silent_partition_that_marks_nothing_holds_nobody(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, starts: Starts, probe: str
) -> None:
    hourly = starts(Marks("is_last", partition="part", partitions=2, idle_after="1 second"), probe=probe)
    feed.put(row(1, 5, part=1, last=True), row(2, 6, last=True), row(3, 65, part=1))
    hourly.becomes(spark, ("a", 0, 2, "whole"))
    time.sleep(1.1)
    feed.put(row(4, 67, last=True))  # the other one goes on
    hourly.becomes(spark, ("a", 0, 2, "whole"), ("a", 1, 2, "idle"))
    assert [(kind.front, kind.idle) for kind in _idle_events(TrackerClient(tracker.address), job)] == [("in/1", True)]
    hourly.tracking.stop()


def test_a_run_promises_for_no_partition_without_rows(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """A run that dies before its promise is made up for by the next one."""
    tracking = Tracking(spark, "nightly", "127.0.0.1:1")
    front = Frontier("0 seconds", partition="part", partitions=2, idle_after="2 days", each="run")
    stream: Any = tracking.source(feed.stream(spark), "in", window=("ts", "1 hour"), front=front)

    def promised(newest: tuple[int | None, int | None], taken: bool = True) -> list[tuple[str, int]]:
        run = stream.readable.plan.input.front.live(spark)
        run.look(Folder(tmp_path), None)
        run.of_observed({f"_newest_{part}": time for part, time in enumerate(newest)})
        run.ran()
        due = run.due()
        if taken:
            run.promised(due)
        return [(each.front, each.time) for each in due]

    assert promised((5, 6)) == [("in/0", 5), ("in/1", 6)]
    assert promised((7, None), taken=False) == [("in/0", 7)]
    assert promised((None, None)) == [("in/0", 7)]
    assert promised((None, 4)) == [("in/1", 4)]


def _idle_events(client: TrackerClient, job: str) -> list[FrontIdle]:
    return [event.kind for event in client.list_events(job).events if isinstance(event.kind, FrontIdle)]


@pytest.mark.parametrize(
    ("job", "first", "second"),
    [("1 second", None, "2 seconds"), (None, "1 second", "2 seconds")],
    ids=["job and front", "two fronts"],
)
def test_a_job_waits_for_silent_scopes_as_long_for_all_its_fronts(
    spark: SparkSession, feed: Feed, job: str | None, first: str | None, second: str
) -> None:
    tracking = Tracking(spark, "silent", "127.0.0.1:1", scope_idle_after=job)
    hours: Any = {"scope": "tenant", "window": ("ts", "1 hour")}
    tracking.source(
        feed.stream(spark), "a", front=Frontier("0 seconds", per_scope=True, idle_after=first or job), **hours
    )
    with pytest.raises(UsageError, match=r"give the same everywhere, also as Tracking\(scope_idle_after="):
        tracking.source(
            feed.stream(spark), "b", front=Frontier("0 seconds", per_scope=True, idle_after=second), **hours
        )
    with pytest.raises(UsageError, match="give per_scope=True, or partition="):
        Frontier("0 seconds", idle_after="1 second")


def test_a_front_asks_for_its_rule_before_the_job_is_defined(
    spark: SparkSession, tracker: Server, job: str, feed: Feed
) -> None:
    tracking = Tracking(spark, job, tracker.address, segments={"a": [], "b": []}, fronts=["a", "b"])
    hours: Any = {"scope": "tenant", "window": ("ts", "1 hour")}
    tracking.source(feed.stream(spark), "a", front=Frontier("0 seconds", per_scope=True), **hours)
    tracking.define()
    late = Frontier("0 seconds", per_scope=True, idle_after="1 second")
    with pytest.raises(UsageError, match="before the first query starts"):
        tracking.source(feed.stream(spark), "b", front=late, **hours)


@pytest.mark.thorough
def test_a_deadline_of_a_clock_without_a_zone_is_that_of_utc(spark: SparkSession, feed: Feed, conf: Any) -> None:
    rows = feed.stream(spark).withColumn("at", F.to_timestamp_ntz("ts"))

    def declare(name: str, zone: str, **rules: Any) -> None:
        conf("spark.sql.session.timeZone", zone)
        tracking = Tracking(spark, "wall", "127.0.0.1:1", **rules)
        tracking.source(rows, name, window=("at", "1 hour"), front=Frontier("1 hour"))

    declare("utc", "UTC", deadline="1 hour")
    declare("none", "America/New_York")
    declare("events", "America/New_York", deadline="1 hour", deadline_by_event_time=True)
    with pytest.raises(UsageError, match=r"on the session's clock .America/New_York., and a deadline"):
        declare("clock", "America/New_York", deadline="1 hour")


@pytest.mark.thorough
def test_a_session_that_a_deadline_has_ended_shows_it(spark: SparkSession, feed: Feed, starts: Starts) -> None:
    hourly = starts(None, {"window": ("ts", session("10 minutes"))}, deadline="1 hour")
    feed.put(row(1, 5, "a"), row(2, 8, "a"))
    hourly.tracking.process_all_available()
    hourly.becomes(spark, ("a", 0, 2, "deadline"))
    hourly.tracking.stop()
