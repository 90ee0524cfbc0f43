"""The state of a release, read from outside while its query runs: one committed version, whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Released, Tracking, UsageError, nested, session
from spark_client.release import committed
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row

pytestmark = pytest.mark.spark


def figures() -> dict[str, Column]:
    return {"rows": F.count("*"), "amount": F.sum("amount"), "mean": F.avg("amount")}


class Job:
    """A release over a feed; it may be declared again, as another application does to read its state."""

    def __init__(self, spark: SparkSession, tracker: Server, job: str, feed: Feed, path: Path) -> None:
        self.spark, self.feed, self.checkpoint, self.out = spark, feed, path / "cp", path / "out"
        self.address, self.job = tracker.address, job

    def declared(self, keys: Any = ("kind",), **aggs: Any) -> tuple[Tracking, Released]:
        tracking = BatchTracking(self.feed, self.spark, self.job, self.address)
        rows = tracking.source(
            self.feed.stream(self.spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last")
        )
        return tracking, tracking.release(rows, list(keys), aggs=aggs or figures())

    def start(self) -> tuple[Tracking, Released]:
        tracking, released = self.declared()
        released.writeStream.option("checkpointLocation", self.checkpoint).option("compact_from", 2).start(self.out)
        return tracking, released

    def batch(self) -> DataFrame:
        """Return what is open, by a batch over all rows."""
        rows = self.feed.batch(self.spark).withColumn("window", F.window("ts", "1 hour"))
        ended = rows.where("is_last").select("tenant", "window")
        return (
            rows.join(ended, ["tenant", "window"], "left_anti")
            .groupBy("tenant", "window", "kind")
            .agg(*[value.alias(name) for name, value in figures().items()])
        )


@pytest.fixture
def it(spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path) -> Job:
    return Job(spark, tracker, job, feed, tmp_path)


def collected(rows: DataFrame) -> list[Any]:
    return sorted(map(tuple, rows.select("tenant", "window.start", "kind", "rows", "amount", "mean").collect()))


@pytest.mark.thorough
def test_it_is_a_batch_of_what_is_open_and_stays_so(
    it: Job,
) -> None:
    tracking, released = it.start()
    it.feed.put(row(1, 1), row(2, 2, kind="y"), row(3, 70, "b"))
    tracking.process_all_available()
    assert collected(released.state(it.checkpoint)) == collected(it.batch())
    it.feed.put(row(4, 3, amount=5), row(5, 71, "b", last=True))
    it.feed.put(row(6, 4), row(7, 200, "c"))
    tracking.process_all_available()
    _, elsewhere = it.declared()
    before = elsewhere.state(it.checkpoint)
    wanted = collected(it.batch())
    assert len(wanted) == 3
    for number in range(10, 15):  # each batch compacts, and removes what the version before it was made of
        it.feed.put(row(number, 5))
        tracking.process_all_available()
    assert collected(before) == wanted
    tracking.stop()
    assert collected(elsewhere.state(it.checkpoint)) == collected(it.batch())
    assert list((it.checkpoint / "tracker" / "readers").iterdir()) == []


@pytest.mark.thorough
def test_a_version_that_goes_while_it_is_linked_is_not_half_read(it: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking, released = it.start()
    for number in range(3):
        it.feed.put(row(number, 1, "a"), row(10 + number, 1, "b"))
        tracking.process_all_available()
    link, went = committed._link, list[Path]()

    def go_on(part: Path, links: Path) -> None:
        if not went:
            went.append(part)
            for number in range(20, 24):
                it.feed.put(row(number, 1, "a"))
                tracking.process_all_available()
            assert not part.exists()
        link(part, links)

    monkeypatch.setattr(committed, "_link", go_on)
    assert collected(released.state(it.checkpoint)) == collected(it.batch())
    tracking.stop()


def test_a_checkpoint_of_no_or_another_release_is_refused_by_name(it: Job, tmp_path: Path) -> None:
    tracking, released = it.start()
    it.feed.put(row(1, 1))
    tracking.process_all_available()
    tracking.stop()
    with pytest.raises(UsageError, match="is not the checkpoint of a release that has run"):
        released.state(tmp_path)
    _, other = it.declared(("kind", "part"), least=F.min("amount"), rows=F.count("*"))
    with pytest.raises(UsageError, match=r"keys was \{'kind': 'string'\}, is .*new aggregates are 'least'"):
        other.state(it.checkpoint)


def test_it_is_empty_and_has_its_columns_before_anything_came(it: Job) -> None:
    tracking, released = it.start()
    tracking.process_all_available()
    tracking.stop()
    assert released.state(it.checkpoint).columns == ["tenant", "window", "kind", "rows", "amount", "mean"]
    assert released.state(it.checkpoint).count() == 0


@pytest.mark.thorough
def test_a_second_stream_joins_it_batch_by_batch(it: Job, tmp_path: Path) -> None:
    tracking, released = it.start()
    other = Feed(tmp_path / "visits")
    joined: dict[int, list[tuple[Any, ...]]] = {}

    def with_so_far(visits: DataFrame, epoch: int) -> None:
        so_far = released.state(it.checkpoint).select("tenant", "kind", F.col("rows").alias("so_far"))
        rows = visits.join(so_far, ["tenant", "kind"], "left").select("tenant", "kind", "so_far")
        joined[epoch] = sorted(map(tuple, rows.collect()))

    query = other.stream(it.spark).writeStream.foreachBatch(with_so_far).start()
    it.feed.put(row(1, 1), row(2, 2))
    tracking.process_all_available()
    other.put(row(1, 1), row(2, 1, "b"))
    query.processAllAvailable()
    it.feed.put(row(3, 3), row(4, 3, "b"))
    tracking.process_all_available()
    other.put(row(3, 1), row(4, 1, "b"))
    query.processAllAvailable()
    query.stop()
    tracking.stop()
    assert joined == {0: [("a", "x", 2), ("b", "x", None)], 1: [("a", "x", 3), ("b", "x", 1)]}


def sessions(rows: DataFrame) -> DataFrame:
    return rows.groupBy("tenant", F.session_window("ts", "1 hour").alias("window"), "kind").agg(
        *[value.alias(name) for name, value in figures().items()]
    )


def levels(rows: DataFrame) -> DataFrame:
    hours, days = (
        rows.groupBy("tenant", F.window("ts", length).alias("window"), "kind")
        .agg(*[value.alias(name) for name, value in figures().items()])
        .withColumn("level", F.lit(length))
        for length in ("1 hour", "1 day")
    )
    return hours.unionByName(days)


@pytest.mark.thorough
@pytest.mark.parametrize(("window", "batch"), [(session("1 hour"), sessions), (nested("1 hour", "1 day"), levels)])
def test_windows_that_share_rows_show_a_batch_of_what_is_open(it: Job, tmp_path: Path, window: Any, batch: Any) -> None:
    tracking = Tracking(it.spark, it.job, it.address)
    front = Frontier("0 seconds")
    rows = tracking.source(it.feed.stream(it.spark), "in", scope="tenant", window=("ts", window), front=front)
    released = tracking.release(rows, ["kind"], aggs=figures())
    released.writeStream.option("checkpointLocation", it.checkpoint).start(it.out)
    it.feed.put(row(1, 1), row(2, 50, amount=4), row(3, 20, kind="y"), row(4, 55, "b"))
    tracking.process_all_available()
    columns = [
        name
        for name in ("level", "tenant", "window", "kind", *figures())
        if name in released.state(it.checkpoint).columns
    ]

    def listed(found: DataFrame) -> list[Any]:
        return sorted(map(repr, found.select(*columns).collect()))

    assert listed(released.state(it.checkpoint)) == listed(batch(it.feed.batch(it.spark)))
    it.feed.put(row(5, 300), row(6, 290, "b", "y"))
    tracking.process_all_available()
    out = it.spark.read.parquet(str(it.out)).select(*columns)
    assert out.count()
    assert listed(released.state(it.checkpoint)) == listed(
        batch(it.feed.batch(it.spark)).select(*columns).exceptAll(out)
    )
    tracking.stop()
