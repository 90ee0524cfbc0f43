"""A job with a loop: rows that fail go round until they succeed or are given up, and their window waits for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from spark_client import Marks, Tracking, UsageError
from tests.client.processes import Server
from tests.spark.feed import Feed, row, rows_of
from tracker.client import Ended, TrackerClient

pytestmark = pytest.mark.spark


def tried(rows: DataFrame) -> DataFrame:
    """Attempt work: a row succeeds when it has been tried `amount` times."""
    return rows.withColumn("attempts", F.col("attempts") + 1)


class Job:
    """Three queries: the first attempt, the loop, and the release; and one that keeps what was given up."""

    def __init__(self, spark: SparkSession, address: str, job: str, feed: Feed, path: Path) -> None:
        self.tracking = tracking = Tracking(spark, job, address)
        self._path = path
        source = tracking.source(
            feed.stream(spark),
            "in",
            scope="tenant",
            window=("ts", "1 hour"),
            identity=["row_id"],
            front=Marks("is_last"),
        )
        clean, retry, given_up = (tracking.channel(name, str(path / name)) for name in ("clean", "retry", "given_up"))
        first = source.withColumn("attempts", F.lit(0)).transform(tried)
        self._first = first.writeStream.route([(clean, "attempts >= amount"), (retry, None)])
        again = tracking.receive(retry).transform(tried)
        self._again = again.writeStream.route(
            [(clean, "attempts >= amount"), (given_up, "attempts >= 4"), (retry, None)]
        )
        self._release = tracking.release(
            tracking.receive(clean), ["kind"], aggs={"rows": F.count("*"), "attempts": F.sum("attempts")}
        ).writeStream
        self._dead = tracking.release(tracking.receive(given_up), aggs={"rows": F.count("*")}).writeStream

    def start(self) -> None:
        self._begin(self._first, "cp1")
        self._begin(self._release, "cp3", self._path / "out")
        self._begin(self._dead, "cp4", self._path / "dead")

    def start_the_loop(self) -> StreamingQuery:
        return self._begin(self._again, "cp2")

    def _begin(self, writer: Any, checkpoint: str, *path: Path) -> StreamingQuery:
        started: StreamingQuery = writer.option("checkpointLocation", self._path / checkpoint).start(*path)
        return started

    def released(self, what: str, spark: SparkSession, *columns: str) -> list[Any]:
        return sorted(rows_of(self._path / what, spark, *columns))


@pytest.mark.slow
def test_a_window_waits_for_its_rows_in_the_loop(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    queries = Job(spark, tracker.address, job, feed, tmp_path)
    queries.start()
    feed.put(row(1, 1), row(2, 2, amount=3), row(3, 3, amount=99), row(4, 4, kind="y", last=True))
    queries.tracking.process_all_available()
    assert not list((tmp_path / "out").glob("epoch=*")), "two of its rows are still in the loop"
    (open_one,) = queries.tracking.client.substreams(job)
    in_flight = {s.segment: (s.sent, s.received) for s in open_one.segments if not s.ended and s.sent}
    assert in_flight == {"retry": (2, 0), "clean": (2, 2)}
    queries.start_the_loop()
    queries.tracking.process_all_available()
    assert queries.released("out", spark, "kind", "rows", "attempts") == [("x", 2, 4), ("y", 1, 1)]
    assert queries.released("dead", spark, "rows") == [(1,)]
    assert queries.tracking.client.job(job).open_substreams == 0
    queries.tracking.stop()


@pytest.mark.thorough
def test_ends_come_downwards_and_the_loop_ends_before_what_it_feeds(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    queries = Job(spark, tracker.address, job, feed, tmp_path)
    queries.start()
    queries.start_the_loop()
    feed.put(row(1, 1, amount=2), row(2, 2, last=True))
    queries.tracking.process_all_available()
    ends = [e.kind.segment for e in TrackerClient(tracker.address).list_events(job).events if isinstance(e.kind, Ended)]
    assert ends.index("in") < ends.index("retry") < min(ends.index("clean"), ends.index("given_up"))
    queries.tracking.stop()


@pytest.mark.thorough
def test_a_drain_waits_for_the_loop(spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path) -> None:
    queries = Job(spark, tracker.address, job, feed, tmp_path)
    queries.start()
    queries.start_the_loop()
    feed.put(row(1, 1, amount=3), row(2, 2))
    queries.tracking.process_all_available()
    queries.tracking.drain(timeout=120)
    assert queries.released("out", spark, "rows", "attempts") == [(2, 4)]


def test_a_condition_that_is_none_is_refused_before_anything_runs(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"))
    channel = tracking.channel("clean", str(tmp_path / "clean"))
    with pytest.raises(UsageError, match="'colour = 1' is not a condition on the rows, which have: row_id"):
        source.writeStream.route([(channel, "colour = 1")])
    with pytest.raises(UsageError, match=r"at least one \(channel, condition\)"):
        source.writeStream.route([])
    tracking.stop()
