"""Receipts: each substream that has ended leaves one row, which an auditor can hold against source and sink."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import RECEIPT_SCHEMA, Marks, Schedule, Table, Tables, Tracking, UsageError, epochs_table
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import START, Feed, row, rows_of
from tracker.client import TrackerClient

pytestmark = pytest.mark.spark

#: By docs/howto/receipts.md: the labels of a source's rows, and those of their children on a channel.
LABEL = "coalesce(nullif(xxhash64('{job}', row_id), 0L), 1L)"
CHILD = "coalesce(nullif(xxhash64({label}, 'clean'), 0L), 1L)"


def receipts_of(path: Path, spark: SparkSession) -> list[Any]:
    return spark.read.schema(RECEIPT_SCHEMA).parquet(str(path)).orderBy("scope", "end_time").collect()


def by_hour(rows: DataFrame, label: str) -> dict[tuple[str, Any], tuple[int, int]]:
    """Return what an auditor computes from the raw input: rows, and the XOR of their labels."""
    grouped = rows.groupBy("tenant", F.window("ts", "1 hour")).agg(F.count("*"), F.expr(f"bit_xor({label})"))
    return {(tenant, window.end): (count, xor) for tenant, window, count, xor in grouped.collect()}


@pytest.mark.thorough
def test_a_receipt_agrees_with_the_raw_input_the_results_and_the_offsets(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address, deployment="d7")
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=Marks("is_last")
    )
    released = tracking.release(source, ["kind"], aggs={"rows": F.count("*")})
    writer = released.writeStream.option("checkpointLocation", tmp_path / "cp").option("compact_from", 2)
    query = writer.receipts(tmp_path / "receipts").start(tmp_path / "out")
    feed.put(row(1, 5), row(2, 6, "b"))
    tracking.process_all_available()
    feed.put(row(3, 7, kind="y"), row(4, 70))
    tracking.process_all_available()
    feed.put(row(5, 9, kind="y"), row(6, 59, last=True))
    tracking.process_all_available()
    window = "2024-01-01T01:00:00Z/2024-01-01T02:00:00Z"
    TrackerClient(tracker.address).abandon(job, "a", window)  # row 4 is there: released as it is
    feed.put(row(7, 59, "b", last=True), row(8, 8))  # and a row that comes too late
    tracking.process_all_available()
    last = tracking.client.open_producer(job, "other", "1")
    report = last.epoch(0)
    report.close(
        "c", "2024-01-01T00:00:00Z/2024-01-01T01:00:00Z", 1704070800000000, front=None
    )  # of a tenant that sent nothing
    report.add("in", "c", "2024-01-01T00:00:00Z/2024-01-01T01:00:00Z", 0, end_time=1704070800000000)
    report.report(commit=True)
    feed.put(row(9, 130))
    tracking.process_all_available()
    tracking.drain(timeout=120)  # its last results are of no batch

    known = {(r.scope, r.end_time): r for r in receipts_of(tmp_path / "receipts", spark)}
    on_time = feed.batch(spark).where("row_id <> 8")
    assert {key: (r.rows, r.xor) for key, r in known.items() if r.rows} == by_hour(on_time, LABEL.format(job=job))
    results = spark.read.parquet(str(tmp_path / "out")).groupBy("tenant", F.col("window.end").alias("end")).count()
    assert {(r.scope, r.end_time): r.results for r in known.values() if r.results} == {
        (tenant, end): count for tenant, end, count in results.collect()
    }
    said = sorted((r.scope, r.end_time.hour, r.reason, r.elements, r.rows, r.results) for r in known.values())
    assert said == [
        ("a", 1, "COMPLETE", 4, 4, 2),
        ("a", 2, "ABANDONED", 1, 1, 1),
        ("a", 3, "COMPLETE", 1, 1, 1),
        ("b", 1, "COMPLETE", 2, 2, 1),
        ("c", 1, "COMPLETE", 0, 0, 0),
    ]
    for receipt in known.values():
        assert (receipt.job, receipt.deployment, receipt.segment, receipt.revision) == (job, "d7", "in", 0)
        assert receipt.query == query.id
        assert json.loads(receipt.trusts) == {"in": Marks.trusts}
        written = rows_of(tmp_path / "out", spark, "epoch", "tenant", "window.end")
        assert (receipt.epoch, receipt.scope, receipt.end_time) in written or not receipt.results
        if receipt.rows:
            assert receipt.first_epoch <= receipt.last_epoch < abs(receipt.epoch)
            assert receipt.first_seen <= receipt.last_seen <= receipt.released
    first = next(r for r in known.values() if (r.scope, r.end_time.hour) == ("a", 1))
    taken = [json.loads(offsets)["logOffset"] for offsets in first.offsets_to.splitlines()]
    assert taken == [2], "up to the third file"
    assert first.offsets_from is None, "from the first one"
    tracking.stop()


@pytest.mark.thorough
def test_a_receipt_behind_a_channel_has_the_counts_on_the_way(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """Receipts and results in one database, whose driver dies between the two."""
    base = tmp_path / "results.db"
    with sqlite3.connect(base) as connection:
        connection.execute(epochs_table())
        connection.execute("create table hourly (tenant text, window_start text, window_end text, rows int)")
        connection.execute(f"create table receipts ({', '.join(RECEIPT_SCHEMA.fieldNames())})")

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(base)

    class Dying(Tables):
        dies = True

        def write(self, rows: DataFrame, query: str, epoch: int) -> None:
            if self.dies:
                raise RuntimeError("dies before the receipts")
            super().write(rows, query, epoch)

    receipts = Dying(connect, Table("receipts", rows=_as_text), placeholder="?")

    def start() -> Tracking:
        tracking = BatchTracking(feed, spark, job, tracker.address)
        source = tracking.source(
            feed.stream(spark),
            "in",
            scope="tenant",
            window=("ts", "1 hour"),
            identity=["row_id"],
            front=Schedule([("a", START, 4), ("b", START, 1)]),  # which counts what it reads
        )
        clean = tracking.channel("clean", str(tmp_path / "clean"))
        sending = source.where("amount > 0").writeStream.channel(clean).option("checkpointLocation", tmp_path / "cp1")
        kept = tracking.receive(clean).where("kind <> 'z'")  # what it drops, it has received
        released = tracking.release(kept, aggs={"rows": F.count("*")})
        sending.start()
        writer = released.writeStream.option("checkpointLocation", tmp_path / "cp2").receipts(receipts)
        writer.sink(Tables(connect, Table("hourly", rows=_as_text), placeholder="?")).start()
        return tracking

    tracking = start()
    feed.put(row(1, 5), row(2, 6, amount=-1), row(3, 7, kind="z"), row(4, 8), row(5, 9, "b", kind="z"))
    with pytest.raises(Exception, match="dies before the receipts"):
        tracking.process_all_available()
    tracking.stop()
    Dying.dies = False
    tracking = start()
    tracking.process_all_available()
    tracking.stop()

    with connect() as connection:
        assert connection.execute("select tenant, rows from hourly").fetchall() == [("a", 2)]
        columns = "scope, reason, elements, rows, xor, results, upstream"
        left = connection.execute(f"select {columns} from receipts order by scope").fetchall()
    sent = by_hour(feed.batch(spark).where("amount > 0"), CHILD.format(label=LABEL.format(job=job)))
    xors = [xor for _, (_, xor) in sorted(sent.items())]
    assert left == [
        ("a", "COMPLETE", 3, 3, xors[0], 1, '{"in": 4}'),
        ("b", "COMPLETE", 1, 1, xors[1], 0, '{"in": 1}'),
    ]


def test_receipts_are_for_releases(spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", substream="kind")
    with pytest.raises(UsageError, match="give them to the query that releases"):
        source.writeStream.receipts(tmp_path / "receipts")
    tracking.stop()


def _as_text(rows: DataFrame) -> DataFrame:
    """Show times as texts: SQLite has no times."""
    return rows.select(
        [
            F.col(field.name).cast("string" if field.dataType.typeName() == "timestamp" else field.dataType)
            for field in rows.schema.fields
        ]
    )
