"""Tables of Delta and Iceberg that others delete from, tidy, drop or set back while a query writes to them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_client import DeltaTable, Tracking, TrackingError
from spark_client.storage.folder import Folder
from tests.client.processes import Server
from tests.lake.test_tables import COLUMNS, OF_FORMAT, compact, expected, numbers, released, there, values
from tests.spark.feed import Feed, row

pytestmark = pytest.mark.spark

Change = Callable[[SparkSession, tuple[str, str]], None]


def in_sql(table: tuple[str, str]) -> str:
    return f"delta.`{table[1]}`" if table[0] == "delta" else table[1]


def delete_rows(spark: SparkSession, table: tuple[str, str]) -> None:
    spark.sql(f"delete from {in_sql(table)} where id >= 20").collect()


def truncate(spark: SparkSession, table: tuple[str, str]) -> None:
    spark.sql(f"delete from {in_sql(table)}").collect()


def tidy(spark: SparkSession, table: tuple[str, str]) -> None:
    delete_rows(spark, table)
    compact(spark, table)
    if table[0] == "iceberg":
        past = "older_than => timestamp '2100-01-01', retain_last => 1"
        spark.sql(f"call lake.system.expire_snapshots(table => '{table[1][5:]}', {past})").collect()


def set_back(spark: SparkSession, table: tuple[str, str]) -> None:
    """Set a table back to its first epoch."""
    if table[0] == "delta":
        spark.sql(f"restore table {in_sql(table)} to version as of 1").collect()
        return
    snapshots = spark.sql(f"select snapshot_id from {table[1]}.snapshots order by committed_at").collect()  # 0: made
    spark.sql(f"call lake.system.rollback_to_snapshot('{table[1][5:]}', {snapshots[1][0]})").collect()


def set_back_and_forget(spark: SparkSession, table: tuple[str, str]) -> None:
    set_back(spark, table)
    if table[0] == "iceberg":
        past = "older_than => timestamp '2100-01-01', retain_last => 1"
        spark.sql(f"call lake.system.expire_snapshots(table => '{table[1][5:]}', {past})").collect()


def drop(spark: SparkSession, table: tuple[str, str]) -> None:
    if table[0] == "delta":
        shutil.rmtree(table[1])
    else:
        spark.sql(f"drop table {table[1]}")


def make_again(spark: SparkSession, table: tuple[str, str]) -> None:
    drop(spark, table)
    OF_FORMAT[table[0]](table[1]).check(numbers(spark, 0))


def replace(spark: SparkSession, table: tuple[str, str]) -> None:
    spark.sql(f"create or replace table {in_sql(table)} using {table[0]} as select * from {in_sql(table)} limit 0")


def rename(spark: SparkSession, table: tuple[str, str]) -> None:
    if table[0] == "delta":
        shutil.move(table[1], f"{table[1]}.renamed")
    else:
        spark.sql(f"alter table {table[1]} rename to {table[1].removeprefix('lake.')}_renamed")


def two_epochs(spark: SparkSession, table: tuple[str, str], kept: Path, **options: Any) -> Any:
    """Return a sink that has written two epochs, as one query writes to it."""
    sink = OF_FORMAT[table[0]](table[1], **options).opened(Folder(kept))
    sink.check(numbers(spark, 0).limit(0))
    sink.write(numbers(spark, 10), "query", 0)
    sink.write(numbers(spark, 20), "query", 1)
    return sink


THOROUGH = pytest.mark.thorough


@THOROUGH
@pytest.mark.parametrize("change", [delete_rows, truncate, tidy])
def test_rows_that_others_delete_stay_deleted_and_fail_nothing(
    spark: SparkSession, table: tuple[str, str], tmp_path: Path, change: Change
) -> None:
    two_epochs(spark, table, tmp_path / "kept")
    change(spark, table)
    left = values(there(spark, table).select("id"))
    sink = OF_FORMAT[table[0]](table[1]).opened(Folder(tmp_path / "kept"))  # of the next driver
    sink.check(numbers(spark, 0).limit(0))
    sink.write(numbers(spark, 20), "query", 1)
    assert values(there(spark, table).select("id")) == left, "a replay brings nothing back"
    sink.write(numbers(spark, 30), "query", 2)
    assert values(there(spark, table).select("id")) == [*left, (30,), (31,), (32,)]


@THOROUGH
@pytest.mark.parametrize(
    "change",
    [set_back, drop, set_back_and_forget, make_again, rename, replace],
)
def test_a_table_without_its_results_is_told_before_anything_is_written(
    spark: SparkSession, table: tuple[str, str], tmp_path: Path, change: Change
) -> None:
    running = two_epochs(spark, table, tmp_path / "kept")
    change(spark, table)
    is_there = change in (set_back, set_back_and_forget, make_again, replace)
    left = there(spark, table).count() if is_there else None
    stopped = OF_FORMAT[table[0]](table[1]).opened(Folder(tmp_path / "kept"))
    lost = rf"{table[1]} has lost results that this query has written, up to epoch 1: .* remove {tmp_path}/kept/tables/"
    for epoch in (1, 2):
        with pytest.raises(TrackingError, match=lost):
            running.write(numbers(spark, 10 * epoch + 10), "query", epoch)
    with pytest.raises(TrackingError, match=lost):
        stopped.check(numbers(spark, 0).limit(0))
    if is_there:
        assert there(spark, table).count() == left
    else:
        assert not Path(table[1]).exists()
        assert table[0] == "delta" or not spark.catalog.tableExists(table[1])

    (tmp_path / "kept" / "tables" / "query.json").unlink()
    accepted = OF_FORMAT[table[0]](table[1]).opened(Folder(tmp_path / "kept"))
    accepted.check(numbers(spark, 0).limit(0))
    for _ in range(2):
        accepted.write(numbers(spark, 30), "query", 2)
    assert there(spark, table).count() == (left or 0) + 3


@THOROUGH
def test_a_table_that_is_brought_back_goes_on(spark: SparkSession, table: tuple[str, str], tmp_path: Path) -> None:
    sink = two_epochs(spark, table, tmp_path / "kept")
    set_back(spark, table)
    with pytest.raises(TrackingError, match="Bring them back") as told:
        sink.write(numbers(spark, 30), "query", 2)
    undo = str(told.value).partition("(")[2].partition("), or give")[0]
    spark.sql(undo.replace("….", "lake.").replace("'lake.shop", "'shop")).collect()
    sink.write(numbers(spark, 30), "query", 2)
    assert there(spark, table).count() == 9


@THOROUGH
@pytest.mark.parametrize("noted", [True, False], ids=["checkpoint set back, too", "driver killed"])
def test_a_table_that_was_set_back_takes_its_epochs_again(
    spark: SparkSession, table: tuple[str, str], tmp_path: Path, noted: bool
) -> None:
    kept = tmp_path / "kept"
    sink = OF_FORMAT[table[0]](table[1]).opened(Folder(kept))
    sink.check(numbers(spark, 0).limit(0))
    sink.write(numbers(spark, 10), "query", 0)
    before = (kept / "tables" / "query.json").read_bytes()
    for epoch in (1, 2) if noted else (1,):
        sink.write(numbers(spark, 10 * epoch + 10), "query", epoch)
    (kept / "tables" / "query.json").write_bytes(before)
    set_back(spark, table)
    sink = OF_FORMAT[table[0]](table[1]).opened(Folder(kept))
    for epoch in (0, 1, 1, 2, 1, 2):
        sink.write(numbers(spark, 10 * epoch + 10), "query", epoch)
    ids = [first + number for first in (10, 20, 30) for number in range(3)]
    assert values(there(spark, table).select("id")) == [(number,) for number in ids]


@THOROUGH
def test_a_renamed_table_goes_on_under_its_new_name(
    spark: SparkSession, table: tuple[str, str], tmp_path: Path
) -> None:
    two_epochs(spark, table, tmp_path / "kept")
    rename(spark, table)
    table = table[0], f"{table[1]}{'.renamed' if table[0] == 'delta' else '_renamed'}"
    sink = OF_FORMAT[table[0]](table[1]).opened(Folder(tmp_path / "kept"))
    sink.check(numbers(spark, 0).limit(0))
    for epoch in (1, 2):
        sink.write(numbers(spark, 10 * epoch + 10), "query", epoch)
    assert there(spark, table).count() == 9


@THOROUGH
def test_a_keyed_table_that_was_set_back_is_told(spark: SparkSession, table: tuple[str, str], tmp_path: Path) -> None:
    sink = two_epochs(spark, table, tmp_path / "kept", key=["id"])
    delete_rows(spark, table)
    sink.write(numbers(spark, 30), "query", 2)
    set_back(spark, table)
    with pytest.raises(TrackingError, match="up to epoch 2"):
        sink.write(numbers(spark, 40), "query", 3)


@THOROUGH
def test_a_query_does_not_start_while_one_of_its_tables_is_gone(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    places = [str(tmp_path / name) for name in ("results", "receipts")]

    def start() -> Tracking:
        tracking, hourly = released(spark, tracker, job, feed)
        writer = hourly.writeStream.format("delta").receipts(DeltaTable(places[1]))
        writer.option("checkpointLocation", tmp_path / "cp").start(places[0])
        return tracking

    def run(*rows: dict[str, Any]) -> None:
        feed.put(*rows)
        tracking = start()
        tracking.process_all_available()
        tracking.stop()

    run(row(1, 5), row(2, 6, last=True))
    for place in places:
        shutil.move(place, f"{place}.renamed")
        with pytest.raises(TrackingError, match=rf"Delta table {place} has lost .* remove {tmp_path}/cp/tracker/"):
            start()
        assert not Path(place).exists()
        shutil.move(f"{place}.renamed", place)
    run(row(3, 65), row(4, 66, last=True))
    assert values(there(spark, ("delta", places[0])).select(*COLUMNS)) == expected(spark, feed)
