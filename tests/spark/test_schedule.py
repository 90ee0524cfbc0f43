"""Schedules by count: numbers that come before, while or after the rows, and what is missing is seen."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Counts, Marks, Schedule, Tracking, TrackingError, UsageError
from tests.client.processes import Server
from tests.spark.conftest import CLOSURE
from tests.spark.feed import START, Feed, row, rows_of

pytestmark = pytest.mark.spark


def at(hour: int) -> datetime:
    return (START + timedelta(hours=hour)).replace(tzinfo=UTC)


def start(tracking: Tracking, feed: Feed, front: Any, path: Path, channel: bool = False) -> Any:
    source = tracking.source(
        feed.stream(tracking.spark), "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=front
    )
    rows = source.where("kind <> 'z'")  # those are counted all the same
    if channel:
        clean = tracking.channel("clean", str(path / "clean"))
        rows.writeStream.channel(clean).option("checkpointLocation", path / "cp0").start()
        rows = tracking.receive(clean)
    writer = tracking.release(rows, aggs={"rows": F.count("*")}).writeStream
    writer.option("checkpointLocation", path / "cp").start(path / "out")
    return source


def results(tracking: Tracking, path: Path) -> list[tuple[str, int, int]]:
    tracking.process_all_available()
    return [(r[0], r[1].hour, r[2]) for r in rows_of(path / "out", tracking.spark, "tenant", "window.start", "rows")]


def accounts(tracking: Tracking, job: str) -> dict[tuple[str, int], tuple[int | None, int]]:
    """Return the expected and the sent elements of what is open, by tenant and hour."""
    found = {}
    for status in tracking.client.substreams(job):
        (account,) = [each for each in status.segments if each.segment == "in"]
        found[status.scope, datetime.fromisoformat(status.name.split("/")[0]).hour] = (account.expected, account.sent)
    return found


@pytest.fixture(params=["driver", pytest.param("executors", marks=pytest.mark.slow)])
def tracking(request: pytest.FixtureRequest, spark: SparkSession, tracker: Server, job: str) -> Iterator[Tracking]:
    tracking = Tracking(spark, job, tracker.address, probe=request.param)
    yield tracking
    tracking.stop()


@CLOSURE
@pytest.mark.thorough
def test_a_silent_tenant_is_seen_and_counts_may_come_later(
    tracking: Tracking, job: str, feed: Feed, tmp_path: Path
) -> None:
    source = start(tracking, feed, Schedule(), tmp_path)
    tracking.expect(source, [("a", at(0), 3), ("silent", at(0), 20)])
    assert accounts(tracking, job) == {("a", 0): (3, 0), ("silent", 0): (20, 0)}
    feed.put(row(1, 1), row(2, 2, kind="z"), row(3, 3, "b"))
    assert results(tracking, tmp_path) == []
    assert accounts(tracking, job) == {("a", 0): (3, 2), ("silent", 0): (20, 0), ("b", 0): (None, 1)}
    feed.put(row(4, 4))
    assert results(tracking, tmp_path) == [("a", 0, 2)]
    tracking.expect(source, [("b", at(0), 1)])  # after its rows: no batch is needed
    deadline = time.monotonic() + 60
    while ("b", 0) in accounts(tracking, job) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert results(tracking, tmp_path) == [("a", 0, 2), ("b", 0, 1)]
    with pytest.raises(TrackingError, match=r"EXPECT_CONFLICT.*revise=True"):
        tracking.expect(source, [("silent", at(0), 2)])
    tracking.expect(source, [("other", at(0), 1)])  # the number that was refused stops nothing
    tracking.expect(source, [("silent", at(0), 1)], revise=True)
    feed.put(row(5, 5, "silent"))
    assert results(tracking, tmp_path) == [("a", 0, 2), ("b", 0, 1), ("silent", 0, 1)]
    assert accounts(tracking, job) == {("other", 0): (1, 0)}
    tracking.stop()
    with pytest.raises(TrackingError, match="the query that reads 'in' has ended"):
        tracking.expect(source, [("never", at(0), 1)])


@pytest.mark.thorough
def test_a_control_file_is_read_while_idle_and_after_a_restart(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    control = tmp_path / "control.json"
    control.write_text("[]")

    def read() -> Counts:
        given = [(tenant, at(hour), count) for tenant, hour, count in json.loads(control.read_text())]
        return Counts(given, through=max((when for _, when, _ in given), default=None))

    schedule = Schedule(read, refresh=0.2)
    expected: list[tuple[str, int, int]] = []
    for hour in range(2):
        tracking = Tracking(spark, job, tracker.address)
        start(tracking, feed, schedule, tmp_path, channel=True)  # the same object, again
        feed.put(*[row(10 * hour + i, 60 * hour + i) for i in range(4)])
        assert results(tracking, tmp_path) == expected
        given = json.loads(control.read_text())
        (tmp_path / "new").write_text(json.dumps([*given, ("a", hour, 4)]))
        (tmp_path / "new").rename(control)
        expected.append(("a", hour, 4))
        deadline = time.monotonic() + 60
        while tracking.client.job(job).open_substreams and time.monotonic() < deadline:
            time.sleep(0.1)
        assert results(tracking, tmp_path) == expected
        tracking.stop()
    assert tracking.client.job(job).fronts[0].frontiers["*"] == int(at(2).timestamp()) * 1_000_000


@pytest.mark.thorough
def test_one_schedule_serves_an_exact_watermark(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """It knows what will come, so nothing is guessed: a row that is hours late still counts."""
    tracking = Tracking(spark, job, tracker.address)
    schedule = Schedule([(at(0), 3), (at(1), 2), (at(2), 1)])
    clicks = tracking.source(feed.stream(spark), "clicks", window=("ts", "1 hour"), front=schedule)
    counted = tracking.with_watermark(clicks, "ts", "windows").groupBy(F.window("ts", "1 hour"), "kind").count()
    writer = tracking.write_stream(counted, clicks).format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).start()

    def out() -> list[tuple[int, str, int]]:
        tracking.process_all_available()
        query.processAllAvailable()
        if not list((tmp_path / "out").glob("*.parquet")):
            return []
        rows = spark.read.parquet(str(tmp_path / "out")).select("window.start", "kind", "count").collect()
        return sorted((r[0].hour, r[1], r[2]) for r in rows)

    feed.put(row(1, 1), row(2, 61), row(3, 62, kind="y"), row(4, 121))
    assert out() == []  # the first hour is not complete, and holds the others
    feed.put(row(5, 2))
    assert out() == []
    feed.put(row(6, 3, kind="y"))
    everything = [(0, "x", 2), (0, "y", 1), (1, "x", 1), (1, "y", 1), (2, "x", 1)]
    deadline = time.monotonic() + 60
    while out() != everything and time.monotonic() < deadline:
        time.sleep(0.2)
    assert out() == everything
    tracking.stop()


def test_what_cannot_be_counted_on_is_refused(spark: SparkSession, tracker: Server, job: str, feed: Feed) -> None:
    tracking = Tracking(spark, job, tracker.address)
    marked = tracking.source(feed.stream(spark), "marked", scope="tenant", substream="kind", front=Marks("is_last"))
    named = tracking.source(feed.stream(spark), "named", scope="tenant", substream="kind", front=Schedule())
    with pytest.raises(UsageError, match=r"expect gives counts to a source with front=Schedule"):
        tracking.expect(marked, [("a", "x", 1)])
    with pytest.raises(UsageError, match="leave through= out"):
        tracking.expect(named, [("a", "x", 1)], through=at(1))
    with pytest.raises(UsageError, match="above zero"):
        Schedule(list, refresh=0)
    with pytest.raises(UsageError, match="twice"):
        tracking.source(feed.stream(spark), "twice", substream="kind", front=Schedule([("x", 1), ("x", 2)]))


@pytest.mark.parametrize("channel", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.slow
def test_a_schedule_given_again_after_a_drain_waits_for_the_rest_only(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, channel: bool
) -> None:
    counts = [("a", at(0), 3), ("b", at(0), 4), ("silent", at(0), 2), ("later", at(1), 1)]

    def begin(deployment: str) -> Tracking:
        tracking = Tracking(spark, job, tracker.address, deployment)
        start(tracking, feed, Schedule(counts), tmp_path, channel)
        return tracking

    tracking = begin("1")
    feed.put(*[row(i, i, "a") for i in range(3)], row(4, 4, "b"))
    assert results(tracking, tmp_path) == [("a", 0, 3)]
    assert accounts(tracking, job) == {("b", 0): (4, 1), ("silent", 0): (2, 0), ("later", 1): (1, 0)}
    tracking.drain(120)
    tracking = begin("2")
    assert accounts(tracking, job) == {("b", 0): (3, 0), ("silent", 0): (2, 0), ("later", 1): (1, 0)}
    feed.put(*[row(10 + i, i, "b") for i in range(3)], row(20, 1, "silent"), row(21, 61, "later"))
    everything = [("a", 0, 3), ("b", 0, 1), ("b", 0, 3), ("later", 1, 1)]
    assert results(tracking, tmp_path) == everything
    tracking.drain(120)
    tracking = begin("3")
    assert accounts(tracking, job) == {("silent", 0): (1, 0)}
    feed.put(row(30, 1, "silent"))
    assert results(tracking, tmp_path) == [*everything, ("silent", 0, 1), ("silent", 0, 1)]
    assert tracking.client.job(job).open_substreams == 0
    tracking.stop()


@pytest.mark.thorough
@CLOSURE
def test_counts_that_contradict_themselves_fail_the_query_and_say_what_to_do(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    given = [("a", at(0), 3)]
    tracking = Tracking(spark, job, tracker.address)
    start(tracking, feed, Schedule(lambda: given, refresh=0.1), tmp_path)
    feed.put(row(1, 1))
    assert results(tracking, tmp_path) == []
    given = [("a", at(0), 2)]

    def check() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            tracking.check()
            time.sleep(0.1)

    with pytest.raises(TrackingError, match=r"EXPECT_CONFLICT(.|\n)*Schedule\(…, revise=True\)"):
        check()
    tracking.stop()
    tracking = Tracking(spark, job, tracker.address)
    start(tracking, feed, Schedule(lambda: given, revise=True), tmp_path)
    feed.put(row(2, 2))
    assert results(tracking, tmp_path) == [("a", 0, 2)]
    tracking.stop()
