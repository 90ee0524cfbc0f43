"""Declarations that cannot work are refused where they are made, and the message names the remedy."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Schedule, Tracking, TrackingError, UsageError, aggregates
from tests.client.processes import Server
from tests.spark.feed import START, Feed, row

pytestmark = pytest.mark.spark

WINDOW: dict[str, Any] = {"scope": "tenant", "window": ("ts", "1 hour")}


@pytest.fixture
def tracking(spark: SparkSession, tracker: Server, job: str) -> Any:
    tracking = Tracking(spark, job, tracker.address)
    yield tracking
    tracking.stop()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "either window=.* or substream="),
        ({"window": ("ts", "1 hour"), "substream": "kind"}, "not both"),
        ({"window": ("when", "1 hour")}, "window='when' is not a column of the rows, which have: row_id, ts"),
        ({"window": ("kind", "1 hour")}, "is string: a time is a timestamp or a timestamp_ntz or a date"),
        ({"window": ("ts", "1 month")}, "months and years have no fixed length"),
        ({"window": ("ts", "soon")}, "Spark does not parse it as an interval"),
        ({"window": ("ts", "1 hour", "1 hour")}, "offset '1 hour' is not shorter than the window"),
        ({"window": ("ts", "1 hour"), "scope": "ts"}, "whose text depends on the session's time zone"),
        ({"substream": "ts"}, "whose text depends on the session's time zone"),
        ({"window": "ts"}, "window is \\('time_column', '1 day'\\)"),
        ({**WINDOW, "scope": "airport"}, "scope='airport' is not a column"),
        ({**WINDOW, "identity": ["row_id", "file"]}, "identity='file' is not a column"),
        ({**WINDOW, "front": "marks"}, "a front is one of Schedule, Marks, Frontier"),
    ],
)
def test_a_source_that_does_not_fit_its_rows(
    tracking: Tracking, spark: SparkSession, feed: Feed, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        tracking.source(feed.stream(spark), "in", **given)


def test_two_sources_with_one_front(tracking: Tracking, spark: SparkSession, feed: Feed) -> None:
    """The second would take the first one's place, which would be waited for by one of its parts only."""
    parts = Frontier("0 seconds", "part", 2)
    tracking.source(feed.stream(spark), "a", **WINDOW, front=parts)
    with pytest.raises(UsageError, match=r"front 'a/0' is that of source 'a' and of source 'a/0': .* another name"):
        tracking.source(feed.stream(spark), "a/0", **WINDOW, front=Marks("is_last"))
    given = Tracking(
        spark, tracking.job, "localhost:7654", segments={"a": [], "a/0": []}, fronts={"a/0": ["a"], "a/1": ["a"]}
    )
    given.source(feed.stream(spark), "a/0", **WINDOW, front=Marks("is_last"))
    with pytest.raises(UsageError, match="another name"):
        given.source(feed.stream(spark), "a", **WINDOW, front=parts)
    with pytest.raises(UsageError, match="fronts: 'a/0' is a segment, and could be a part of segment 'a'"):
        Tracking(spark, tracking.job, "localhost:7654", segments={"a": [], "a/0": []}, fronts=["a/0", "a/1"])


@pytest.mark.parametrize(
    ("front", "message"),
    [
        (lambda: Marks("finished"), "Marks='finished' is not a column"),
        (lambda: Marks("kind"), "has to be boolean"),
        (lambda: Schedule([("a", 1)]), "rows of \\(scope, when, count\\)"),
        (lambda: Schedule([("a", START, 1), ("a", START, 2)]), "twice"),
        (lambda: Schedule([("a", date(2024, 1, 1), 1)]), "not whole days from midnight"),
        (lambda: Schedule([("a", START, 1.5)]), "a count of rows is an integer, 0 or more, not 1.5"),
        (lambda: Schedule([("a", START, -1)]), "a count of rows is an integer, 0 or more, not -1"),
        (lambda: Schedule([(None, START, 1)]), "has a null"),
        (lambda: Frontier("0 seconds", partition="part"), "together, or neither"),
        (lambda: Frontier("0 seconds", partition="shard", partitions=2), "'shard' is not a column"),
    ],
)
def test_a_front_that_does_not_fit_its_source(
    tracking: Tracking, spark: SparkSession, feed: Feed, front: Callable[[], Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        tracking.source(feed.stream(spark), "in", **WINDOW, front=front())


@pytest.mark.parametrize(
    ("aggs", "message"),
    [
        (dict, "needs aggs="),
        (lambda: {"n": "count"}, "give an aggregate"),
        (lambda: {"n": F.col("amount")}, "is not an aggregate over these rows"),
        (lambda: {"n": F.mode("amount")}, r"cannot be merged from parts.*\.apply\("),
        (lambda: {"n": F.percentile("amount", 0.5)}, r"aggregates\.percentile\("),
        (lambda: {"n": F.count_distinct(F.lower("kind"))}, "aggregates.count_distinct"),
        (lambda: {"n": F.count_distinct(F.lit("kind"))}, "aggregates.count_distinct"),
        (lambda: {"n": F.sum_distinct("amount")}, "does not let us see into this expression"),
        (lambda: {"n": F.sum(F.col("amount") + 1)}, r"aggregates.sum\("),
        (lambda: {"n": F.sum("pounds")}, "is not an aggregate over these rows.*pounds"),
        (lambda: {"n": aggregates.sum("pounds")}, "is not an aggregate over these rows.*pounds"),
        (lambda: {"kind": F.count("*")}, "the names .*kind.* are taken"),
    ],
)
def test_a_release_that_cannot_be_made_from_parts(
    tracking: Tracking, spark: SparkSession, feed: Feed, aggs: Callable[[], Any], message: str
) -> None:
    source = tracking.source(feed.stream(spark), "in", **WINDOW)
    with pytest.raises(UsageError, match=message):
        tracking.release(source, ["kind"], aggs=aggs())


def test_what_is_not_a_row_by_row_step(tracking: Tracking, spark: SparkSession, feed: Feed) -> None:
    source = tracking.source(feed.stream(spark), "in", **WINDOW)
    with pytest.raises(UsageError, match="'_tracker' was lost"):
        source.select("row_id")
    with pytest.raises(AttributeError, match=r"tracking.release\(…\)"):
        source.groupBy("kind")
    with pytest.raises(UsageError, match=r"F.col\('kind'\)"):
        source["kind"]
    with pytest.raises(UsageError, match="two streams are joined"):
        source.join(source, "row_id")


def test_an_output_that_is_not_one(tracking: Tracking, spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    source = tracking.source(feed.stream(spark), "in", **WINDOW)
    released = tracking.release(source, aggs={"n": F.count("*")})
    with pytest.raises(UsageError, match="the rows need a place"):
        released.writeStream.option("checkpointLocation", tmp_path).start()
    with pytest.raises(UsageError, match="checkpointLocation"):
        released.writeStream.start(tmp_path / "out")
    with pytest.raises(UsageError, match="path"):
        released.writeStream.option("checkpointLocation", "dbfs:/cp").start(tmp_path / "out")
    with pytest.raises(UsageError, match="format='kafka': give 'parquet'"):
        released.writeStream.format("kafka")
    with pytest.raises(UsageError, match="go to a channel"):
        source.writeStream.format("parquet")
    with pytest.raises(UsageError, match="append"):
        released.writeStream.outputMode("complete")
    with pytest.raises(UsageError, match="has to read from a channel"):
        released.writeStream.channel(tracking.channel("out", str(tmp_path / "out")))


def test_channels_that_do_not_fit(tracking: Tracking, spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    source = tracking.source(feed.stream(spark), "in", **WINDOW, identity=["row_id"])
    channel = tracking.channel("clean", str(tmp_path / "clean"))
    with pytest.raises(UsageError, match="no sender yet"):
        tracking.receive(channel)
    source.writeStream.channel(channel)
    with pytest.raises(UsageError, match="keep the columns, or give the channel a new path"):
        source.withColumn("more", F.lit(1)).writeStream.channel(channel)
    source.select(
        "amount", "_tracker", *[c for c in source.columns if c not in ("amount", "_tracker")]
    ).writeStream.channel(channel)  # the same in another order
    with pytest.raises(UsageError, match="declared twice"):
        tracking.channel("clean", str(tmp_path / "other"))
    tracking.receive(channel)
    with pytest.raises(UsageError, match="has a consumer already"):
        tracking.receive(channel)


def test_watermarks_that_cannot_move(tracking: Tracking, spark: SparkSession, feed: Feed) -> None:
    source = tracking.source(feed.stream(spark), "in", **WINDOW, front=Marks("is_last"))
    with pytest.raises(UsageError, match="use Frontier"):
        tracking.with_watermark(source, "ts", "windows")
    with pytest.raises(UsageError, match="'windows' for window"):
        tracking.with_watermark(source, "ts", "10 minutes")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a time is a timestamp"):
        tracking.with_watermark(source, "kind", "windows")


@pytest.mark.thorough
def test_a_tracker_that_is_not_there_is_named_when_a_query_starts(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, "job", "127.0.0.1:1", retry_for=0.2)
    source = tracking.source(feed.stream(spark), "in", **WINDOW)
    released = tracking.release(source, aggs={"n": F.count("*")})
    with pytest.raises(TrackingError, match=r"cannot be reached.*tracker serve"):
        released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
    tracking.stop()


@pytest.mark.thorough
def test_another_graph_needs_another_deployment(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    def start(segment: str, deployment: str) -> None:
        tracking = Tracking(spark, job, tracker.address, deployment=deployment)
        try:
            source = tracking.source(feed.stream(spark), segment, **WINDOW)
            released = tracking.release(source, aggs={"n": F.count("*")})
            released.writeStream.option("checkpointLocation", tmp_path / segment).start(tmp_path / "out")
        finally:
            tracking.stop()

    start("in", "1")
    with pytest.raises(TrackingError, match=r"SPEC_CONFLICT.*new deployment="):
        start("other", "1")


@pytest.mark.thorough
def test_force_takes_over_a_changed_graph_and_says_what_it_abandons(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    feed.put(row(1, 1), row(2, 2))

    def start(segment: str, deployment: str, force: bool) -> None:
        tracking = Tracking(spark, job, tracker.address, deployment=deployment, force=force)
        source = tracking.source(feed.stream(spark), segment, **WINDOW, identity=["row_id"], front=Marks("is_last"))
        released = tracking.release(source, aggs={"n": F.count("*")})
        released.writeStream.option("checkpointLocation", tmp_path / segment).start(tmp_path / f"out-{segment}")
        tracking.process_all_available()
        tracking.stop()

    start("in", "1", force=False)
    start("other", "2", force=True)
    assert "abandoned: 1 substreams, with 0 elements in flight: 2024-01-01T00:00:00Z/2024-01-01T01:00:00Z of 'a'" in (
        caplog.text
    )


@pytest.mark.thorough
def test_a_query_that_has_become_another_one_is_refused_with_every_difference(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    feed.put(row(1, 1), row(2, 2))

    def start(keys: list[str], amount: Column, deployment: str = "1", segment: str = "in") -> Tracking:
        tracking = Tracking(spark, job, tracker.address, deployment=deployment)
        source = tracking.source(feed.stream(spark), segment, **WINDOW, identity=["row_id"], front=Marks("is_last"))
        released = tracking.release(source, keys, aggs={"amount": amount})
        try:
            released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
            tracking.process_all_available()
        finally:
            tracking.stop()
        return tracking

    start(["kind"], F.sum("amount"))
    with pytest.raises(
        UsageError,
        match=r"keys was \{'kind': 'string'\}, is \{'part': 'int'\}; the aggregate 'amount' \(.*\) is new, .*1 substr",
    ):
        start(["part"], F.max("amount"))
    with pytest.raises(TrackingError, match="segment 'in' is removed; segment 'other' is new"):
        start(["kind"], F.sum("amount"), "2", "other")
    feed.put(row(3, 3, last=True))
    start(["kind"], F.sum("amount"))  # unchanged, it goes on; and then its state is empty
    start(["part"], F.max("amount"), "2")
    with pytest.raises(UsageError, match="segment was in, is other"):
        start(["part"], F.max("amount"), "3", "other")


def test_a_notebook_shows_tables_in_which_no_name_is_markup(spark: SparkSession) -> None:
    tracking = Tracking(spark, job="shop", server="127.0.0.1:1")
    rows = spark.readStream.format("rate").load().withColumn("<b>", F.lit(1))
    orders = tracking.source(rows, "orders", scope="value", window=("timestamp", "1 day"))
    released = tracking.release(orders, columns=["<b>"])._repr_html_()
    assert "<tr><th>job</th><td>shop</td></tr>" in tracking._repr_html_()
    assert "<tr><th>segment</th><td>orders</td></tr>" in released
    assert "&lt;b&gt;" in released
    assert "<b>" not in released
