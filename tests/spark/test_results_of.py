"""Jobs in a chain: the second ends a substream when all that the first has written of it was read, and not before."""

from __future__ import annotations

import logging
import shutil
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, ResultsOf, Tracking, TrackingError, UsageError
from spark_client.fronts.front import SourceRows
from spark_client.windows.calendars import CalendarRule, CalendarWindows
from spark_client.windows.fixed import Fixed
from spark_client.windows.named import Named
from spark_client.windows.substreams import Substream, Substreams
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.dying import Driver, KilledError
from tests.spark.feed import START, Feed, row, rows_of
from tests.spark.waiting import soon

pytestmark = pytest.mark.spark

RESULTS = "tenant string, window struct<start: timestamp, end: timestamp>, kind string, rows long, epoch int"
HOUR = 3_600_000_000


def hourly(spark: SparkSession, address: str, feed: Feed, path: Path, job: str) -> Tracking:
    """Start the first job: rows by tenant, hour and kind."""
    tracking = BatchTracking(feed, spark, f"{job}-hourly", address)
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=Marks("is_last")
    )
    released = tracking.release(source.where("kind <> 'z'"), ["kind"], aggs={"rows": F.count("*")})
    writer = released.writeStream.option("checkpointLocation", path / "cp1").receipts(path / "receipts")
    writer.start(path / "hourly")
    return tracking


def chained(spark: SparkSession, address: str, path: Path, job: str, **more: Any) -> Tracking:
    """Start the second job: what the first has written, added up by tenant and hour."""
    (path / "hourly").mkdir(exist_ok=True)
    tracking = Tracking(spark, f"{job}-sums", address)
    raw = spark.readStream.schema(RESULTS).option("maxFilesPerTrigger", 1).parquet(str(path / "hourly"))
    front = ResultsOf(path / "receipts", job=f"{job}-hourly", segment="in", refresh=0.05, **more)
    source = tracking.source(raw, "results", scope="tenant", window=("window.start", "1 hour"), front=front)
    released = tracking.release(source, aggs={"rows": F.sum("rows"), "kinds": F.count("*")})
    writer = released.writeStream.option("checkpointLocation", path / "cp2").receipts(path / "receipts2")
    writer.start(path / "sums")
    return tracking


def ended(tracking: Tracking) -> set[tuple[str, int]]:
    """Return the substreams that have ended in a job, by tenant and hour."""
    found = tracking.client.substreams(tracking.job, include_ended=True)
    done = [each for each in found if all(account.ended for account in each.segments)]
    return {(each.scope, datetime.fromisoformat(each.name.split("/")[0]).hour) for each in done}


def has_ended(tracking: Tracking, whole: list[tuple[str, int]]) -> bool:
    tracking.check()
    return ended(tracking) >= set(whole)


def batch(spark: SparkSession, feed: Feed, hours: list[tuple[str, int]]) -> list[tuple[Any, ...]]:
    """Return the right results of the second job, from the raw rows."""
    rows = feed.batch(spark).where("kind <> 'z'").groupBy("tenant", F.window("ts", "1 hour"))
    table = rows.agg(F.count("*").alias("rows"), F.count_distinct("kind").alias("kinds"))
    found = [(r[0], r[1].hour, r[2], r[3]) for r in table.select("tenant", "window.start", "rows", "kinds").collect()]
    return sorted(each for each in found if each[:2] in hours)


def sums(spark: SparkSession, path: Path) -> list[tuple[Any, ...]]:
    rows = rows_of(path / "sums", spark, "tenant", "window.start", "rows", "kinds")
    return [(tenant, start.hour, *rest) for tenant, start, *rest in rows]


def put_everything(feed: Feed) -> list[tuple[str, int]]:
    """Put three hours: one of three kinds, one without any result, one of another tenant; and one that stays open."""
    feed.put(row(1, 1, kind="x"), row(2, 61, "b", kind="z"), row(3, 5, kind="y"), row(4, 61, "c"))
    feed.put(row(5, 9, kind="w", last=True), row(6, 70, "b", kind="z", last=True), row(7, 130, "open"))
    feed.put(row(8, 110, "c", kind="y", last=True), row(9, 131, "open"))
    return [("a", 0), ("b", 1), ("c", 1)]


@pytest.mark.thorough
def test_a_substream_ends_in_the_second_job_with_all_first_results(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    whole = put_everything(feed)
    with ExitStack() as jobs:
        first = jobs.enter_context(hourly(spark, tracker.address, feed, tmp_path, job))
        first.process_all_available()
        # The receipts are there before any result is: what is missing can be seen, of a tenant without a row, too.
        shutil.move(tmp_path / "hourly", tmp_path / "kept back")
        second = jobs.enter_context(chained(spark, tracker.address, tmp_path, job))
        soon(lambda: ("b", 1) in ended(second))
        second.process_all_available()
        expected = {each.scope: each.segments[0] for each in second.client.substreams(second.job)}
        assert {scope: (account.sent, account.expected) for scope, account in expected.items()} == {
            "a": (0, 3),
            "c": (0, 2),
        }
        for epoch in sorted((tmp_path / "kept back").glob("epoch=*")):
            epoch.rename(tmp_path / "hourly" / epoch.name)
        second.process_all_available()
        assert sums(spark, tmp_path) == batch(spark, feed, whole)
    with chained(spark, tracker.address, tmp_path, job) as second:  # the promises come again
        second.process_all_available()
        assert ended(second) == set(whole)
        status = second.client.job(second.job)
        assert (status.open_substreams, status.late_reports) == (0, 0)
    assert sums(spark, tmp_path) == batch(spark, feed, whole)
    receipts = rows_of_receipts(spark, tmp_path / "receipts2")
    assert receipts == [("a", "COMPLETE", 3, 3, 1), ("b", "COMPLETE", 0, 0, 0), ("c", "COMPLETE", 2, 2, 1)]


def rows_of_receipts(spark: SparkSession, path: Path) -> list[tuple[Any, ...]]:
    columns = ("scope", "reason", "rows", "expected", "results")
    return sorted(tuple(r) for r in spark.read.parquet(str(path)).select(*columns).collect())


def dying_at(step: int, spark: SparkSession, address: str, job: str, path: Path) -> bool:
    """Run both jobs, in a driver that dies before a step and starts again. Return whether it has died."""
    feed = Feed(path / "raw")
    whole = put_everything(feed)
    driver = Driver(path)
    for dies_at in (step, None):
        with driver.living(dies_at), ExitStack() as jobs:
            if dies_at is not None:
                jobs.enter_context(suppress(KilledError, TrackingError, StreamingQueryException, UsageError))
            first = jobs.enter_context(hourly(spark, address, feed, path, job))
            second = jobs.enter_context(chained(spark, address, path, job))
            first.process_all_available()
            if dies_at is None:
                soon(partial(has_ended, second, whole))
            second.process_all_available()
        if not driver.dead:
            break
    assert sums(spark, path) == batch(spark, feed, whole), f"it died before step {step}"
    return driver.dead or dies_at is None


@pytest.mark.thorough
@pytest.mark.parametrize("step", [30])
def test_a_driver_that_dies_in_between_changes_nothing(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path, step: int
) -> None:
    assert dying_at(step, spark, tracker.address, job, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_driver_may_die_at_any_step(spark: SparkSession, tracker: Server, job: str, tmp_path: Path) -> None:
    step = 2
    while dying_at(step, spark, tracker.address, f"{job}-{step}", tmp_path / str(step)):
        step += 11


# ---------------------------------------------------------------- receipts, without Spark


def end_of(hour: int) -> datetime:
    return (START + timedelta(hours=hour + 1)).replace(tzinfo=UTC)


def receipt(scope: str, hour: int, results: int, **more: Any) -> dict[str, Any]:
    """Return a receipt of a tenant's hour."""
    start = (START + timedelta(hours=hour)).strftime("%Y-%m-%dT%H:%M:%SZ")
    own = {
        "job": "hourly", "segment": "in", "scope": scope, "name": f"{start}/{end_of(hour):%Y-%m-%dT%H:%M:%SZ}",
        "end_time": end_of(hour), "revision": 0, "reason": "COMPLETE", "elements": 7, "by_drain": False, "before": 0,
        "results": results, "seq": 1, "query": "one",
    }  # fmt: skip
    return {**own, **more}


class NoRows:
    """A stand-in for the source's rows."""

    sparkSession = None  # noqa: N815
    columns = ()


class Found:
    """The counts that a front finds in receipts that grow."""

    def __init__(self, rule: Substreams | None = None, spark: Any = None, **more: Any) -> None:
        self.receipts: list[dict[str, Any]] = []
        front: Any = ResultsOf(lambda: self.receipts, job="hourly", segment="in", **{"refresh": 1e-9, **more})
        nothing: Any = None
        own = rule or Fixed(HOUR, scope="tenant")
        front.bind(SourceRows("results", NoRows, own, nothing, nothing, nothing))  # type: ignore[arg-type]
        self.front = front.live(spark)

    def counts(self, *more: dict[str, Any]) -> dict[tuple[str, int], int]:
        """Return the promises that are due, when these receipts are there as well."""
        self.receipts += more
        self.front.look(Path(), None)
        due = self.front.due()
        self.front.promised(due)
        return {(each.scope, datetime.fromisoformat(each.name[:19]).hour): each.elements for each in due}


def test_what_was_drained_is_promised_with_its_rest_and_once() -> None:
    found = Found()
    drained = receipt("a", 0, 2, by_drain=True)
    assert found.counts(drained, receipt("b", 0, 0)) == {("b", 0): 0}
    rest = receipt("a", 0, 3, seq=9, before=7)
    assert found.counts(rest, receipt("c", 5, 1)) == {("a", 0): 5, ("c", 5): 1}
    assert found.counts(receipt("a", 0, 4, seq=20)) == {}, "what comes after the end changes no promise"
    again = Found()
    assert again.counts(*reversed(found.receipts)) == {("a", 0): 5, ("b", 0): 0, ("c", 5): 1}, "in whatever order"
    asked = Found(accept=["drained"])
    assert asked.counts(*found.receipts)["a", 0] == 2, "the rest is late then, whenever it is found"


def test_what_is_not_complete_stays_open_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "spark_client"):
        found = Found()
        expired = receipt("a", 0, 2, reason="EXPIRED")
        assert found.counts(expired) == {}
        assert found.counts(receipt("a", 0, 2, seq=5)) == {}, "an end is an end"
        assert found.counts(receipt("b", 0, 1, before=7)) == {}
    assert "released in part, and the receipt of that is gone" in caplog.text
    assert "1 substreams have ended there without being complete, such as '2024-01-01T00" in caplog.text
    assert Found(accept=["EXPIRED"]).counts(expired, receipt("b", 0, 1, reason="ABANDONED")) == {("a", 0): 2}


def test_other_jobs_segments_queries_and_revisions_are_not_meant() -> None:
    found = Found(query="one", scopes={"a": "A"})
    others = [
        receipt("b", 0, 1, job="daily"),
        receipt("b", 0, 1, segment="dead"),
        receipt("b", 0, 1, query="two"),
        receipt("a", 0, 9, revision=1, seq=8),
        receipt("a", 0, 0, name="2024-01-01T00:00:00Z/2024-01-01T01:00:00Z#r1", end_time=None, elements=0, seq=9),
    ]
    assert found.counts(*others, receipt("a", 0, 3)) == {("A", 0): 3}


@pytest.mark.parametrize(
    ("receipts", "rule", "more", "message"),
    [
        ([receipt("a", 0, 1), receipt("a", 0, 1, query="two")], None, {}, "receipts of two queries.*Give query="),
        ([receipt("a", 0, 1), receipt("x", 0, 1)], None, {"scopes": {"x": "a"}}, "when both have ended"),
        ([receipt("a", 0, 1)], Fixed(HOUR), {}, "this source has none"),
        ([receipt("a", 0, 1)], Fixed(24 * HOUR, scope="t"), {}, "with the same windows"),
        ([receipt("a", 0, 1)], Named("n", scope="t"), {}, "names, not windows"),
        ([receipt("a", 0, 1)], Fixed(HOUR, scope="t", time="timestamp_ntz"), {}, "same windows"),
        ([{"job": "hourly"}], None, {}, "column='segment' is not a column.*See RECEIPT_SCHEMA"),
    ],
)
def test_receipts_that_promise_nothing_certain_are_refused_again_and_again(
    receipts: list[dict[str, Any]], rule: Substreams | None, more: dict[str, Any], message: str
) -> None:
    found = Found(rule, **more)
    for _ in range(2):
        with pytest.raises(UsageError, match=message):
            found.counts(*receipts)
        receipts = []


@pytest.mark.thorough
def test_windows_of_another_calendar_are_refused_by_name(spark: SparkSession) -> None:
    """Both jobs have windows of a calendar: days there, months here, or days of another zone."""

    def found(unit: str, count: int, zone: str | None, by_row: bool = False, time: str = "timestamp") -> Found:
        rule = CalendarRule(unit, count, 0, 0, zone, by_row)
        longest = CalendarWindows(rule, scope="tenant", time=time)
        return Found(longest, spark=spark)

    day, clocks = (
        receipt(
            "a", 0, 3, name="2026-03-28T23:00:00Z/2026-03-29T22:00:00Z", end_time=datetime(2026, 3, 29, 22, tzinfo=UTC)
        ),
        receipt("a", 0, 3, name="2026-03-29T00:00:00/2026-03-30T00:00:00", end_time=datetime(2026, 3, 30, tzinfo=UTC)),
    )
    assert found("days", 1, "Europe/Berlin").counts(day) == {("a", 23): 3}, "a day of 23 hours"
    assert found("days", 1, None, by_row=True).counts(day) == {("a", 23): 3}
    assert found("days", 1, None, time="timestamp_ntz").counts(clocks) == {("a", 0): 3}
    for other, given in [
        (found("months", 1, "Europe/Berlin"), day),
        (found("days", 1, "UTC"), day),
        (found("months", 1, None, by_row=True), day),
        (found("days", 1, None, time="timestamp_ntz"), day),
        (found("days", 1, "UTC"), clocks),
    ]:
        for _ in range(2):
            with pytest.raises(
                UsageError, match=r"2026-03-2.*is none of this source's substreams.*windows of a calendar"
            ):
                other.counts(given)


def test_names_are_taken_as_they_are() -> None:
    found = Found(Named("load", scope="tenant"))
    found.receipts = [receipt("a", 0, 4, name="load 7", end_time=None)]
    found.front.look(Path(), None)
    assert found.front._known == {Substream("a", "load 7", None): (4, None)}


def test_what_cannot_be_meant_is_refused_where_it_is_declared(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="accept='drained': give a list"):
        ResultsOf("/r", "j", "s", accept="drained")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="two scopes one name"):
        ResultsOf("/r", "j", "s", scopes={"a": "x", "b": "x"})
    tracking = Tracking(spark, job, tracker.address)
    front = ResultsOf("/r", "j", "s", scopes={"a": "x"})
    with pytest.raises(UsageError, match="scopes= is for a source with a scope"):
        tracking.source(feed.stream(spark), "in", substream="kind", front=front)
    with pytest.raises(UsageError, match="on a file system"):
        tracking.source(feed.stream(spark), "far", substream="kind", front=ResultsOf("s3://r", "j", "s"))


@pytest.mark.thorough
def test_revisions_of_the_first_job_are_bad_rows(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path
) -> None:
    path = tmp_path / "hourly"
    window = f"named_struct('start', timestamp'{START}', 'end', timestamp'{START}') window"
    results = spark.sql(f"select 'a' tenant, {window}, 1 revision")
    results.write.parquet(str(path))
    raw = spark.readStream.schema(results.schema).parquet(str(path))
    with Tracking(spark, job, tracker.address) as tracking:
        front = ResultsOf("/nowhere", "j", "s")
        source = tracking.source(raw, "in", scope="tenant", window=("window.start", "1 hour"), front=front)
        writer = tracking.release(source, aggs={"n": F.count("*")}).writeStream
        writer.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        with pytest.raises(StreamingQueryException, match=r"revision is not 0(.|\n)*raw.where\('revision = 0'\)"):
            tracking.process_all_available()
