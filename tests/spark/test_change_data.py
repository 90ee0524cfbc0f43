"""Change data in Debezium's envelope, as its documentation describes it; no Debezium runs here."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Schedule, Tracking, UsageError, debezium
from tests.client.processes import Server
from tests.spark.feed import appear, rows_of
from tests.spark.waiting import soon

pytestmark = pytest.mark.spark

ENVELOPE = (
    "before struct<id: long>, after struct<id: long>, op string, ts_ms long, "
    "source struct<snapshot: string, db: string, table: string, lsn: long>, "
    "transaction struct<id: string, total_order: long, data_collection_order: long>, partition int"
)
METADATA = (
    "status string, id string, event_count long, ts_ms long, "
    "data_collections array<struct<data_collection: string, event_count: long>>"
)


def change(table: str, number: int, snapshot: Any = "false", transaction: str | None = None) -> dict[str, Any]:
    """Return a change of a row, or a row of a snapshot."""
    return {
        "before": None, "after": {"id": number}, "op": "c" if snapshot in ("false", None) else "r", "ts_ms": 1,
        "source": {"snapshot": snapshot, "db": "inventory", "table": table, "lsn": number},
        "transaction": transaction and {"id": transaction, "total_order": number, "data_collection_order": number},
        "partition": 0,
    }  # fmt: skip


def end(transaction: str, **counts: int) -> dict[str, Any]:
    """Return the end of a transaction."""
    collections = [{"data_collection": f"inventory.{name}", "event_count": count} for name, count in counts.items()]
    return {
        "status": "END", "id": transaction, "event_count": sum(counts.values()), "ts_ms": 1,
        "data_collections": collections,
    }  # fmt: skip


def put(directory: Path, *values: dict[str, Any]) -> None:
    directory.mkdir(exist_ok=True)
    number = len(list(directory.glob("*.json")))
    appear(directory / f"{number:03d}.json", values, time.time() - 3600 + number)


def counted_by_table(tracking: Tracking, raw: DataFrame, path: Path) -> Any:
    """Return the source of a snapshot whose rows are counted by table, and have been read."""
    rows = raw.where(debezium.in_snapshot()).withColumn("table", F.col("source.table"))
    source = tracking.source(rows, "snapshot", substream="table", front=debezium.snapshot_end())
    released = tracking.release(source, aggs={"rows": F.count("*")}).writeStream
    released.option("checkpointLocation", path / "cp").start(path / "out")
    tracking.process_all_available()
    return source


@pytest.mark.thorough
def test_a_tables_snapshot_ends_with_its_last_row(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path
) -> None:
    path = tmp_path / "in"
    put(path, change("orders", 1, "first"), change("orders", 2, "true"), change("customers", 1, "true"))
    put(path, change("orders", 3, "last_in_data_collection"), change("items", 1, "first_in_data_collection"))
    put(
        path, change("orders", 3), change("items", 2, "incremental"), change("items", 3, None), change("one", 4, "last")
    )
    raw = spark.readStream.schema(ENVELOPE).option("maxFilesPerTrigger", 1).json(str(path))
    with Tracking(spark, job, tracker.address) as tracking:
        counted_by_table(tracking, raw, tmp_path)
        assert rows_of(tmp_path / "out", spark, "table", "rows") == [("one", 1), ("orders", 3)]
        open_ones = {each.name for each in tracking.client.substreams(job)}
        assert open_ones == {"customers", "items"}, "tables whose last row has not come"
        put(path, {**change("customers", 2, "last_in_data_collection"), "partition": 1})
        with pytest.raises(StreamingQueryException, match="is no partition from 0 to 0"):
            tracking.process_all_available()


@pytest.mark.thorough
def test_a_first_table_of_one_row_is_finished_by_a_call(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path
) -> None:
    """Debezium marks the first row of the first table as that, also if it is the last: other tables begin so, too."""
    path = tmp_path / "in"
    put(path, change("a", 1, "first"), change("b", 1, "first_in_data_collection"), change("b", 2, "last"))
    raw = spark.readStream.schema(ENVELOPE).json(str(path))
    with Tracking(spark, job, tracker.address) as tracking:
        source = counted_by_table(tracking, raw, tmp_path)
        assert rows_of(tmp_path / "out", spark, "table", "rows") == [("b", 2)]
        assert {each.name for each in tracking.client.substreams(job)} == {"a"}
        tracking.finish(source)
        soon(lambda: len(rows_of(tmp_path / "out", spark, "table", "rows")) == 2 or tracking.check())
        assert rows_of(tmp_path / "out", spark, "table", "rows") == [("a", 1), ("b", 2)]


@pytest.mark.thorough
def test_a_transaction_ends_with_as_many_changes_as_its_end_counts(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path
) -> None:
    path = tmp_path / "in"
    put(path, change("orders", 1, transaction="tx1"), change("orders", 9, transaction="tx2"))
    raw = spark.readStream.schema(ENVELOPE).json(str(path)).withColumn("tx", F.col("transaction.id"))
    with Tracking(spark, job, tracker.address) as tracking:
        source = tracking.source(raw, "changes", substream="tx", front=Schedule())
        released = tracking.release(source, aggs={"rows": F.count("*")}).writeStream
        released.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")

        def ended(*ends: dict[str, Any]) -> None:
            """Put a batch of the topic of transactions."""
            batch = spark.createDataFrame([json.dumps(each) for each in ends], "string")
            values: DataFrame = batch.select(F.from_json("value", METADATA).alias("v")).select("v.*")
            tracking.expect(source, debezium.transaction_counts(values, "inventory.orders"))

        begin = {"status": "BEGIN", "id": "tx3", "event_count": None, "data_collections": None}
        ended(begin, end("tx1", orders=2, items=7), end("tx1", orders=2, items=7), end("empty", items=1))
        tracking.process_all_available()
        assert rows_of(tmp_path / "out", spark, "tx", "rows") == []
        put(path, change("orders", 2, transaction="tx1"), change("orders", 3, transaction="tx3"))
        tracking.process_all_available()
        assert rows_of(tmp_path / "out", spark, "tx", "rows") == [("tx1", 2)]
        ended(end("tx1", orders=2, items=7), end("tx2", orders=1))  # at least once
        soon(lambda: len(rows_of(tmp_path / "out", spark, "tx")) == 2 or tracking.check())
        assert {each.name for each in tracking.client.substreams(job)} == {"tx3"}


def test_counts_of_transactions_need_their_fields(spark: SparkSession) -> None:
    whole = spark.createDataFrame([("END", "t", 3)], "status string, id string, event_count long")
    assert [tuple(row) for row in debezium.transaction_counts(whole).collect()] == [("t", 3)]
    with pytest.raises(UsageError, match=r"column='data_collections' is not a column.*from_json"):
        debezium.transaction_counts(whole, "inventory.orders")
    with pytest.raises(UsageError, match="is no array"):
        debezium.transaction_counts(whole.withColumn("data_collections", F.lit("[]")), "inventory.orders")
