"""Rows that belong to no substream: found before anything is published, and what the message advises works."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Schedule, Tracking, TrackingError
from spark_client.runtime.queryplan import CountingMode
from spark_client.windows.fixed import Fixed
from tests.client.processes import Server
from tests.spark.feed import Feed, rows_of

pytestmark = pytest.mark.spark

HOUR = 3_600_000_000
LAST = 253_402_214_400_000_000  #: 9999-12-31, which many take for "for ever"

#: Rows whose scope or time is no good, by what is wrong with them.
BAD: dict[str, dict[str, Any]] = {
    "tenant is null": {"tenant": None},
    "tenant is not UTF-8": {"raw": "61FF62"},
    "tenant is longer than 512 bytes": {"tenant": "é" * 257},
    "tenant is '*', which stands for every scope": {"tenant": "*"},
    "ts is null": {"micros": None},
    "ts is out of the tracker's range": {"micros": 2**62},
}
SCHEMA = "id long, tenant string, raw string, micros long, part int, last boolean"
#: Rows that look odd and are as good as any.
ODD = ["", "\0", "a/../b", "é", "e\u0301", "%s {}", "'; --", "x" * 512, "#r1"]


def made(id_: int, tenant: str | None = "a", micros: int | None = 1, last: bool = False, **more: Any) -> dict[str, Any]:
    return {"id": id_, "tenant": tenant, "micros": micros, "part": 0, "last": last, "raw": None, **more}


def raw(spark: SparkSession, feed: Feed) -> DataFrame:
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(feed.path))
    tenant = F.when(F.col("raw").isNotNull(), F.unhex("raw").cast("string")).otherwise(F.col("tenant"))
    return rows.select("id", tenant.alias("tenant"), F.timestamp_micros("micros").alias("ts"), "part", "last")


def advised(message: str) -> str:
    """Return the condition that a message gives in raw.where(…)."""
    found = re.search(r"""raw\.where\(("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\)""", message)
    assert found, message
    return str(ast.literal_eval(found[1]))


def published(path: Path) -> list[str]:
    """List the published directories of channels, outboxes, results, late rows and receipts under a path."""
    return sorted(
        str(found.relative_to(path))
        for found in path.rglob("*")
        if found.is_dir()
        and (found.name.isdigit() or found.name.startswith(("epoch=", "kind=")))
        and "cp" not in found.relative_to(path).parts[:1]
    )


class Life:
    """A source whose rows go one of several ways, and what is to be seen of them at the end."""

    def __init__(
        self, spark: SparkSession, address: str, job: str, feed: Feed, path: Path, way: str, probe: CountingMode
    ):
        self.spark, self.address, self.job, self.feed, self.path = spark, address, job, feed, path
        self.way, self.probe = way, probe
        self.got: dict[int, list[int]] = {}

    def start(self, where: str | None = None, **given: Any) -> Tracking:
        tracking = Tracking(self.spark, self.job, self.address, probe=self.probe)
        rows = raw(self.spark, self.feed)
        if where is not None:
            rows = rows.where(where)
        source = tracking.source(
            rows, "in", scope="tenant", window=("ts", "1 hour"), identity=["id"], front=Marks("last"), **given
        )
        stream = source
        if self.way == "channel":
            channel = tracking.channel("clean", str(self.path / "clean"))
            sending = source.writeStream.channel(channel)
            sending.option("checkpointLocation", self.path / "cp/send").start()
            stream = tracking.receive(channel)
        if self.way == "function":

            def function(batch: DataFrame, epoch: int) -> None:
                self.got[epoch] = [r[0] for r in batch.select("id").collect()]

            source.writeStream.foreachBatch(function).option("checkpointLocation", self.path / "cp/send").start()
        else:
            released = tracking.release(stream, aggs={"rows": F.count("*"), "sum": F.sum("id")})
            writing = released.writeStream.option("checkpointLocation", self.path / "cp/release")
            writing.option("late_path", self.path / "late").receipts(self.path / "receipts").start(self.path / "out")
        return tracking

    def results(self) -> list[tuple[Any, ...]]:
        if self.way == "function":
            return sorted((id_,) for ids in self.got.values() for id_ in ids)
        return rows_of(self.path / "out", self.spark, "tenant", "rows", "sum")


WAYS: list[tuple[str, CountingMode]] = [
    ("channel", "driver"),
    ("channel", "executors"),
    ("release", "driver"),
    ("release", "executors"),
    ("function", "driver"),
]


@pytest.fixture
def life(request: Any, spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path) -> Life:
    return Life(spark, tracker.address, job, feed, tmp_path, *request.param)


def ways(*quick: str) -> pytest.MarkDecorator:
    """Mark a test with all ways that rows can go; those that are not named here are slow."""
    named = {"-".join(way): way for way in WAYS}
    marks = {name: () if name in quick else (pytest.mark.slow,) for name in named}
    given = [pytest.param(way, id=name, marks=marks[name]) for name, way in named.items()]
    return pytest.mark.parametrize("life", given, indirect=True)


def failing(tracking: Tracking) -> str:
    with pytest.raises((TrackingError, StreamingQueryException)) as failed:
        tracking.process_all_available()
    tracking.stop()
    return str(failed.value)


@pytest.mark.thorough
@ways("release-executors")
def test_bad_rows_fail_the_batch_and_the_advice_repairs_it(life: Life) -> None:
    feed, path = life.feed, life.path
    odd = [made(100 + n, tenant) for n, tenant in enumerate(ODD)]
    feed.put(made(1), made(2, "b"), made(3, "c", last=True), *odd)
    tracking = life.start()
    tracking.process_all_available()
    before = published(path)
    tracking.stop()
    # "c" has ended meanwhile, so the batch that fails would release it.
    feed.put(made(4), *(made(10 + n, **{"tenant": "a", **bad}) for n, bad in enumerate(BAD.values())), made(5, "b"))
    if life.way != "function":
        message = failing(life.start())
        # Substreams that ended before may come out in a batch of their own; of the one that failed nothing does.
        new = {name for name in set(published(path)) - set(before) if "clean" in name or "late" in name}
        assert not new
        for fault in BAD:
            assert f"in 1 {fault}, such as {{" in message
        assert "6 rows of segment 'in' belong to no substream" in message
    else:
        message = failing(life.start())
    tracking = life.start(advised(message))
    feed.put(made(6, last=True), made(7, "b", LAST), made(8, "b", last=True), *[{**r, "last": True} for r in odd])
    feed.put(made(9, "b", LAST, last=True))
    tracking.process_all_available()
    tracking.stop()
    if life.way == "function":
        assert life.results() == sorted((r["id"],) for r in feed.rows if not 10 <= r["id"] < 20)
        return
    expected: list[tuple[Any, ...]] = [("a", 3, 11), ("b", 2, 16), ("b", 3, 15), ("c", 1, 3)]
    expected += [(tenant, 2, 2 * (100 + n)) for n, tenant in enumerate(ODD)]
    assert life.results() == sorted(expected)


@pytest.mark.thorough
@ways("release-driver", "channel-executors")
def test_bad_rows_are_set_aside_and_the_rest_ends(life: Life) -> None:
    feed = life.feed
    feed.put(made(1), made(2, "b"))
    bad = [made(10 + n, **{"tenant": "a", **bad}) for n, bad in enumerate(BAD.values())]
    feed.put(made(4), *bad, made(5, "b"))
    feed.put(made(6, last=True), made(8, "b", last=True), {**bad[0], "last": True, "id": 20})
    tracking = life.start(on_bad_rows="quarantine")
    tracking.process_all_available()
    checkpoint = str(life.path / ("cp/release" if life.way == "release" else "cp/send"))
    late = tracking.late(checkpoint, str(life.path / "late") if life.way == "release" else None)
    aside = late.where("kind = 'bad'").select("reason", F.get_json_object("data", "$.id").cast("int")).collect()
    assert sorted(map(tuple, aside)) == sorted(
        [*((fault, 10 + n) for n, fault in enumerate(BAD)), ("tenant is null", 20)]
    )
    tracking.stop()
    if life.way == "function":
        assert life.results() == [(1,), (2,), (4,), (5,), (6,), (8,)]
    else:
        assert life.results() == [("a", 3, 11), ("b", 3, 15)]
    if life.way == "release":
        receipts = life.spark.read.parquet(str(life.path / "receipts"))
        assert {r["bad"] for r in receipts.collect()} == {7}


@pytest.mark.thorough
def test_a_batch_that_failed_goes_through_with_its_bad_rows_set_aside(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    life = Life(spark, tracker.address, job, feed, tmp_path, "channel", "driver")
    feed.put(made(1), made(2, None), made(3, last=True))
    assert "source(…, on_bad_rows='quarantine')" in failing(life.start())
    tracking = life.start(on_bad_rows="quarantine")
    tracking.process_all_available()
    assert life.results() == [("a", 2, 4)]
    assert tracking.late(str(tmp_path / "cp/send")).where("kind = 'bad'").count() == 1
    tracking.stop()


NAMED = {
    "name is null": None,
    "name is empty or longer than 512 bytes": "",
    "name is not UTF-8": "FF",
}


@pytest.mark.thorough
def test_bad_names_fail_the_batch_and_the_advice_repairs_it(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    def start(where: str | None) -> Tracking:
        rows = raw(spark, feed).withColumnRenamed("tenant", "name")
        if where is not None:
            rows = rows.where(where)
        tracking = Tracking(spark, job, tracker.address)
        source = tracking.source(rows, "in", substream="name", front=Marks("last"))
        released = tracking.release(source, aggs={"rows": F.count("*")}, revisions=True)
        released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        return tracking

    feed.put(
        *(made(1, "*"), made(2, None), made(3, ""), made(4, raw="FF"), made(5, "x" * 513), made(6, "x#r1")),
        made(7, "*", last=True),
    )
    message = failing(start(None))
    for fault in [*NAMED, "name is like that of a revision"]:
        assert fault in message
    tracking = start(advised(message))
    tracking.process_all_available()
    tracking.stop()
    assert rows_of(tmp_path / "out", spark, "name", "rows") == [("*", 2)]


@pytest.mark.thorough
def test_a_step_may_drop_bad_rows_whatever_the_front(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    expected = spark.sql("select 'a' scope, timestamp_micros(1) ts, 2L n")
    source = tracking.source(
        raw(spark, feed), "in", scope="tenant", window=("ts", "1 hour"), front=Schedule(expected)
    ).where("tenant is not null")
    released = tracking.release(source, aggs={"rows": F.count("*")})
    released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
    feed.put(made(1), made(2, None), made(3))
    tracking.process_all_available()
    tracking.stop()
    assert rows_of(tmp_path / "out", spark, "tenant", "rows") == [("a", 2)]


@pytest.mark.thorough
def test_a_partition_unknown_to_a_front_is_found_before_publication(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    def start(where: str | None) -> Tracking:
        tracking = Tracking(spark, job, tracker.address)
        rows = raw(spark, feed) if where is None else raw(spark, feed).where(where)
        front = Frontier("0 seconds", partition="part", partitions=2)
        source = tracking.source(rows, "in", scope="tenant", window=("ts", "1 hour"), identity=["id"], front=front)
        channel = tracking.channel("clean", str(tmp_path / "clean"))
        source.writeStream.channel(channel).option("checkpointLocation", tmp_path / "cp").start()
        return tracking

    feed.put(made(1), made(2, part=7), made(3, part=None), made(4, micros=2**62))
    message = failing(start(None))
    assert "in 2 part is no partition from 0 to 1" in message
    assert published(tmp_path / "clean") == []
    tracking = start(advised(message))
    tracking.process_all_available()
    # The row with a time of its own making has moved no frontier.
    (front,) = [f for f in tracking.client.job(job).fronts if f.front == "in/0"]
    assert front.frontiers["*"] == 1
    tracking.stop()


@pytest.mark.thorough
def test_a_step_that_makes_bad_rows_is_found_before_publication(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    names = spark.createDataFrame([("a", 1), ("nobody", 2)], "tenant string, number int")

    def start(how: str) -> Tracking:
        tracking = Tracking(spark, job, tracker.address)
        source = tracking.source(
            raw(spark, feed), "in", scope="tenant", window=("ts", "1 hour"), identity=["id"], front=Marks("last")
        )
        channel = tracking.channel("clean", str(tmp_path / "clean"))
        joined = source.transform(lambda df: df.join(names, "tenant", how))
        joined.writeStream.channel(channel).option("checkpointLocation", tmp_path / "cp").start()
        return tracking

    feed.put(made(1, last=True))
    assert "after the steps of the stream: a right or full join" in failing(start("right"))
    assert published(tmp_path / "clean") == []
    tracking = start("left")
    tracking.process_all_available()
    assert published(tmp_path / "clean") != []
    tracking.stop()


def test_windows_are_named_whatever_their_year() -> None:
    rule = Fixed(24 * HOUR)
    assert rule.window_name(LAST + 24 * HOUR) == "9999-12-31T00:00:00Z/+10000-01-01T00:00:00Z"
    assert rule.window_name(-62_135_596_800_000_000) == "0000-12-31T00:00:00Z/0001-01-01T00:00:00Z"
    assert rule.window_name(-62_167_219_200_000_000).startswith("-0001-12-31T00:00:00Z/0000-01-01")
