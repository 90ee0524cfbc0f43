"""Settings of the session that would change what is counted, kept or carried: pinned, equal to Spark's, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client import Marks, Topic, TrackedStream, Tracking, UsageError
from tests.client.processes import Server
from tests.spark.feed import Feed, row, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled")]

OLD: list[dict[str, Any]] = [
    {**row(n, 1), "ts": ts, "value": value}
    for n, (ts, value) in enumerate(
        [("1500-01-01 10:00:00", 1.5), ("1582-10-10 10:00:00", 2.5), ("1582-10-10 10:30:00", 4.5),
         ("1899-12-31 23:59:59", 3.5), ("2024-01-01 00:00:01", None)]
    )
]  # fmt: skip


def instants(df: DataFrame) -> DataFrame:
    """Return the rows with a `ts` that is a timestamp, whatever the word means in the text of the feed's schema."""
    return df.withColumn("ts", F.col("ts").cast(T.TimestampType()))


def start(spark: SparkSession, address: str, job: str, feed: Feed, path: Path) -> tuple[Tracking, TrackedStream]:
    """Start a tracking: rows with a date of their own go through a channel into a release."""
    tracking = Tracking(spark, job, address)
    raw = instants(feed.stream(spark)).withColumn("day", F.col("ts").cast("date"))
    source = tracking.source(raw, "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"])
    channel = tracking.channel("clean", str(path / "clean"))
    source.writeStream.channel(channel).option("checkpointLocation", path / "cp1").start()
    released = tracking.release(
        tracking.receive(channel),
        ["day"],
        aggs={"n": F.count("*"), "most": F.max("ts"), "deviation": F.stddev("value"), "variance": F.variance("value")},
        revisions=True,
    )
    writer = released.writeStream.option("checkpointLocation", path / "cp2").option("compact_from", 2)
    writer.receipts(path / "receipts").start(path / "out")
    return tracking, source


COLUMNS = ("window.start", "window.end", "day", "n", "most", "deviation", "variance")


def grouped(df: DataFrame) -> DataFrame:
    day = F.col("ts").cast("date").alias("day")
    return (
        instants(df)
        .groupBy(F.window("ts", "1 hour"), day)
        .agg(
            F.count("*").alias("n"),
            F.max("ts").alias("most"),
            F.stddev("value").alias("deviation"),
            F.variance("value").alias("variance"),
        )
    )


def shown(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(r) for r in df.select(*[F.col(c).cast("string") for c in COLUMNS]).collect())


SETTINGS = {
    "rebasing": {
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
        "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
        "spark.sql.parquet.outputTimestampType": "INT96",
    },
    "no rebasing": {
        "spark.sql.parquet.datetimeRebaseModeInWrite": "EXCEPTION",
        "spark.sql.parquet.datetimeRebaseModeInRead": "EXCEPTION",
        "spark.sql.parquet.int96RebaseModeInWrite": "EXCEPTION",
        "spark.sql.parquet.int96RebaseModeInRead": "EXCEPTION",
    },
    "statistics": {"spark.sql.legacy.statisticalAggregate": "true"},
    "times": {"spark.sql.timestampType": "TIMESTAMP_NTZ"},
    "files": {
        "spark.sql.files.ignoreCorruptFiles": "true",
        "spark.sql.files.ignoreMissingFiles": "true",
        "spark.sql.parquet.writeLegacyFormat": "true",
        "spark.sql.parquet.binaryAsString": "true",
        "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
        "spark.sql.parquet.filterPushdown": "false",
    },
    "arrow": {
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2",
        "spark.sql.execution.pandas.structHandlingMode": "dict",
    },
    "intervals": {"spark.sql.legacy.interval.enabled": "true"},
    "hashes": {"spark.sql.legacy.collationAwareHashFunctions": "true"},
}
QUICK = ("files",)  # the others take as long, and are the slow ones


@pytest.mark.thorough
@pytest.mark.parametrize(
    "settings", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS]
)
def test_results_are_sparks_own_under_settings_that_change_between_starts(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, conf: Any, settings: str
) -> None:
    tracking, _ = start(spark, tracker.address, job, feed, tmp_path)
    feed.put(*OLD[:2])
    tracking.process_all_available()
    tracking.stop()
    for key, value in SETTINGS[settings].items():
        conf(key, value)
    tracking, source = start(spark, tracker.address, job, feed, tmp_path)
    feed.put(OLD[2])
    feed.put(*OLD[3:])
    tracking.process_all_available()
    tracking.finish(source)
    tracking.process_all_available()
    tracking.stop()
    assert tracking.client.job(job).in_flight == 0
    assert shown(spark.read.parquet(str(tmp_path / "out"))) == shown(grouped(feed.batch(spark)))
    assert spark.read.parquet(str(tmp_path / "receipts")).where("rows > 0").count() == 4


@pytest.mark.thorough
def test_a_missing_part_of_the_state_fails_its_batch(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, conf: Any
) -> None:
    conf("spark.sql.files.ignoreMissingFiles", "true")
    conf("spark.sql.files.ignoreCorruptFiles", "true")
    tracking, source = start(spark, tracker.address, job, feed, tmp_path)
    feed.put(*OLD)
    tracking.process_all_available()
    for part in (tmp_path / "cp2" / "tracker" / "state").rglob("*.parquet"):
        part.write_bytes(b"not Parquet, and not empty")
    tracking.finish(source)
    with pytest.raises(Exception, match=r"is not a Parquet file|FAILED_READ_FILE"):
        tracking.process_all_available()
    tracking.stop()
    assert rows_of(tmp_path / "out", spark, "n") == []


@pytest.mark.thorough
def test_named_substreams_do_not_depend_on_what_timestamp_means(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, conf: Any
) -> None:
    conf("spark.sql.timestampType", "TIMESTAMP_NTZ")
    tracking = Tracking(spark, job, tracker.address)
    raw = feed.stream(spark).withColumn("wall", F.lit("2024-01-01 00:00:01").cast("timestamp"))
    source = tracking.source(raw, "in", substream="kind", identity=["row_id"], front=Marks("is_last"))
    first, second = (tracking.channel(name, str(tmp_path / name)) for name in ("first", "second"))
    sending = source.writeStream.channel(first).option("checkpointLocation", tmp_path / "cp1")
    sums = tracking.release(tracking.receive(first), ["wall"], aggs={"n": F.count("*")})
    summing = sums.writeStream.channel(second).option("checkpointLocation", tmp_path / "cp2")
    total = tracking.release(tracking.receive(second), aggs={"n": F.sum("n"), "wall": F.max("wall")})
    sending.start()
    summing.start()
    total.writeStream.option("checkpointLocation", tmp_path / "cp3").start(tmp_path / "out")
    feed.put(row(1, 1), row(2, 2, last=True))
    tracking.process_all_available()
    feed.put(row(3, 3))
    tracking.process_all_available()
    tracking.stop()
    table = spark.read.parquet(str(tmp_path / "out"))
    assert [(r.kind, r.n, str(r.wall)) for r in table.collect()] == [("x", 2, "2024-01-01 00:00:01")]
    assert tracking.late(str(tmp_path / "cp2")).count() == 1


def test_settings_under_which_json_changes_times_are_refused(
    spark: SparkSession, job: str, feed: Feed, tmp_path: Path, conf: Any
) -> None:
    tracking = Tracking(spark, job, "127.0.0.1:1")
    source = tracking.source(feed.stream(spark), "in", window=("ts", "1 hour"), identity=["row_id"])
    channels = [
        tracking.table_channel("table", lambda: None, "t", str(tmp_path / "table")),  # type: ignore[arg-type, return-value]
        tracking.kafka_channel("kafka", "topic", "nowhere:1", str(tmp_path / "kafka")),
    ]
    for channel in channels:
        sending = source.writeStream.channel(channel).option("checkpointLocation", tmp_path / "cp")
        conf("spark.sql.legacy.timeParserPolicy", "LEGACY")
        with pytest.raises(UsageError, match=r"spark.sql.legacy.timeParserPolicy=LEGACY: old times change"):
            sending.start()
        with pytest.raises(UsageError, match=r"spark.sql.legacy.timeParserPolicy=LEGACY: old times change"):
            tracking.receive(channel)
        conf("spark.sql.legacy.timeParserPolicy", "CORRECTED")
    conf("spark.sql.legacy.timeParserPolicy", "LEGACY")
    with pytest.raises(UsageError, match="make texts of the times in a step before"):
        Topic("t", "nowhere:1", ["ts"]).check(feed.batch(spark).limit(0))
    Topic("t", "nowhere:1", ["tenant"]).check(spark.sql("select 'a' tenant, 1 n"))
    tracking.stop()


def test_wall_clock_windows_are_refused_with_intervals_of_spark_3_1(
    spark: SparkSession, job: str, feed: Feed, tmp_path: Path, conf: Any
) -> None:
    raw = feed.stream(spark).withColumn("wall", F.col("ts").cast("timestamp_ntz"))
    tracking = Tracking(spark, job, "127.0.0.1:1")
    source = tracking.source(raw, "in", window=("wall", "1 hour"))
    conf("spark.sql.legacy.interval.enabled", "true")
    with pytest.raises(UsageError, match=r"the window of 'in': spark.sql.legacy.interval.enabled=true"):
        tracking.release(source, aggs={"n": F.count("*")}).writeStream.option(
            "checkpointLocation", tmp_path / "cp"
        ).start(tmp_path / "out")
    with pytest.raises(
        UsageError, match=r"window='wall': spark.sql.legacy.interval.enabled=true: a time of timestamp_ntz"
    ):
        tracking.source(raw, "other", window=("wall", "1 hour"))
    tracking.stop()


# ---------------------------------------------------------------- collations


def collated(column: str, collation: str = "UTF8_LCASE") -> Any:
    return F.collate(column, collation).alias(column)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "collation",
    ["UTF8_LCASE", *(pytest.param(name, marks=pytest.mark.slow) for name in ("UNICODE_CI", "UTF8_BINARY_RTRIM"))],
)
def test_keys_with_a_collation_group_as_sparks_do(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, collation: str
) -> None:
    kinds = ["a", "A", "a ", "b", "B", "é", "É", "e\u0301", ""]

    def raw(df: DataFrame) -> DataFrame:
        return df.withColumn("kind", F.collate("kind", collation)).withColumn("key", F.array("kind"))

    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(
        raw(feed.stream(spark)),
        "in",
        scope="tenant",
        window=("ts", "1 hour"),
        identity=["kind"],
        front=Marks("is_last"),
    )
    channel = tracking.channel("clean", str(tmp_path / "clean"))
    source.writeStream.channel(channel).option("checkpointLocation", tmp_path / "cp1").start()
    released = tracking.release(
        tracking.receive(channel), ["kind", "key"], aggs={"n": F.count("*"), "least": F.min("row_id")}
    )
    released.writeStream.option("checkpointLocation", tmp_path / "cp2").start(tmp_path / "out")
    for n, kind in enumerate(kinds):
        feed.put(row(n, 1, kind=kind, last=n == len(kinds) - 1))
    tracking.process_all_available()
    tracking.stop()
    assert tracking.client.job(job).in_flight == 0  # identities that differ in bytes are different rows
    table = spark.read.parquet(str(tmp_path / "out"))
    mine = [(r.n, r.least) for r in table.collect()]
    theirs = (
        raw(feed.batch(spark))
        .groupBy("tenant", F.window("ts", "1 hour"), "kind", "key")
        .agg(F.count("*").alias("n"), F.min("row_id").alias("least"))
    )
    assert sorted(mine) == sorted((r.n, r.least) for r in theirs.collect())
    assert f"string collate {collation}" in table.schema.simpleString()


def test_scopes_and_names_with_a_collation_are_refused_where_they_are_declared(
    spark: SparkSession, job: str, feed: Feed
) -> None:
    tracking = Tracking(spark, job, "127.0.0.1:1")
    raw = feed.stream(spark).withColumn("tenant", F.collate("tenant", "UTF8_LCASE"))
    with pytest.raises(
        UsageError, match="scope='tenant' is string collate UTF8_LCASE, and the tracker compares names by their bytes"
    ):
        tracking.source(raw, "in", scope="tenant", window=("ts", "1 hour"))
    with pytest.raises(UsageError, match="substream='tenant' is string collate UTF8_LCASE"):
        tracking.source(raw, "in", substream="tenant")
    tracking.source(raw, "in", scope=F.collate("tenant", "UTF8_BINARY"), window=("ts", "1 hour"))
    tracking.stop()
