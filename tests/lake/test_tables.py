"""Results in tables of Delta and Iceberg: each epoch is there once, whatever is replayed, killed or superseded."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import DeltaTable, IcebergTable, Marks, Sink, Tracking, UsageError
from tests.client.processes import Server
from tests.spark.feed import Feed, put_hours, row
from tests.spark.waiting import soon

pytestmark = pytest.mark.spark

OF_FORMAT: dict[str, Callable[..., Any]] = {"delta": DeltaTable, "iceberg": IcebergTable}
COLUMNS = ["tenant", "window.start", "kind", "n"]


def there(spark: SparkSession, table: tuple[str, str]) -> DataFrame:
    file_format, place = table
    if file_format == "iceberg":
        spark.catalog.refreshTable(place)  # a session keeps a table of Iceberg's for half a minute
    return spark.read.format(file_format).load(place)


def values(rows: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(each) for each in rows.collect())


def expected(spark: SparkSession, feed: Feed) -> list[tuple[Any, ...]]:
    grouped = feed.batch(spark).groupBy("tenant", F.window("ts", "1 hour").alias("window"), "kind")
    return values(grouped.agg(F.count("*").alias("n")).select(*COLUMNS))


def released(spark: SparkSession, tracker: Server, job: str, feed: Feed) -> tuple[Tracking, Any]:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    return tracking, tracking.release(source, ["kind"], aggs={"n": F.count("*")})


@pytest.mark.thorough
@pytest.mark.parametrize("file_format", ["delta", "iceberg"])
def test_a_release_writes_a_table_of_a_catalog(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, file_format: str
) -> None:
    name = f"{'default' if file_format == 'delta' else 'lake.shop'}.{job.replace('-', '_')}"
    put_hours(feed, 2)
    tracking, hourly = released(spark, tracker, job, feed)
    writer = hourly.writeStream.format(file_format).partitionBy("tenant").option("checkpointLocation", tmp_path / "cp")
    writer.toTable(name)
    tracking.process_all_available()
    tracking.stop()
    spark.catalog.refreshTable(name)  # a session keeps a table of Iceberg's for half a minute
    assert values(spark.table(name).select(*COLUMNS)) == expected(spark, feed)
    spark.sql(f"drop table {name}")


class Dying:
    """A sink whose driver dies at each step: before an epoch is written, and before Spark commits it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.steps: set[tuple[int, str]] = set()

    def check(self, rows: DataFrame) -> None:
        self._sink.check(rows)  # type: ignore[attr-defined]

    def write(self, rows: DataFrame, query: str, epoch: int) -> None:
        self._die((epoch, "before"))
        self._sink.write(rows, query, epoch)
        self._die((epoch, "after"))

    def _die(self, step: tuple[int, str]) -> None:
        if step not in self.steps:
            self.steps.add(step)
            raise RuntimeError("the driver dies here")


def test_each_epoch_is_there_once_when_drivers_die_at_each_step(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, table: tuple[str, str]
) -> None:
    file_format, place = table
    put_hours(feed, 2)
    sink = Dying(OF_FORMAT[file_format](place))
    OF_FORMAT[file_format](place).check(schema_of(spark))
    for _ in range(10):
        tracking, hourly = released(spark, tracker, job, feed)
        hourly.writeStream.sink(sink).option("checkpointLocation", tmp_path / "cp").start()
        with suppress(StreamingQueryException):
            tracking.process_all_available()
        tracking.stop()
    assert len(sink.steps) >= 4
    assert values(there(spark, table).select(*COLUMNS)) == expected(spark, feed)


@pytest.mark.thorough
def test_two_tables_of_one_release_have_each_epoch_once(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    put_hours(feed, 2)
    places = {"delta": str(tmp_path / "table"), "iceberg": f"lake.shop.{job.replace('-', '_')}"}
    sinks = {file_format: Dying(OF_FORMAT[file_format](place)) for file_format, place in places.items()}
    for file_format, place in places.items():
        OF_FORMAT[file_format](place).check(schema_of(spark))
    for _ in range(12):
        tracking, hourly = released(spark, tracker, job, feed)
        together = tracking.write_together(
            {"hourly": {file_format: hourly.writeStream.sink(sink) for file_format, sink in sinks.items()}}
        )
        together.option("checkpointLocation", tmp_path / "cp").start()
        with suppress(StreamingQueryException):
            tracking.process_all_available()
        tracking.stop()
    for file_format, place in places.items():
        assert len(sinks[file_format].steps) >= 4
        assert values(there(spark, (file_format, place)).select(*COLUMNS)) == expected(spark, feed)


@pytest.mark.thorough
def test_late_rows_are_in_a_table_once_when_drivers_die(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, table: tuple[str, str]
) -> None:
    file_format, place = table
    put_hours(feed, 2)
    feed.put(row(300, 5), row(301, 7, "b"), row(302, 8, kind="y"))  # of an hour that has ended
    sink = Dying(OF_FORMAT[file_format](place))
    for _ in range(8):
        tracking, hourly = released(spark, tracker, job, feed)
        writer = hourly.writeStream.foreachBatch(lambda rows, epoch: None).late(sink)
        writer.option("checkpointLocation", tmp_path / "cp").start()
        with suppress(StreamingQueryException):
            tracking.process_all_available()
        tracking.stop()
    late = there(spark, table).selectExpr("kind", "scope", "get_json_object(data, '$.kind')")
    assert values(late) == [("row", "a", "x"), ("row", "a", "y"), ("row", "b", "x")]
    assert {step for _, step in sink.steps} == {"before", "after"}
    assert tracking.late(str(tmp_path / "cp")).count() == 0


def schema_of(spark: SparkSession) -> DataFrame:
    """Return an empty frame with the columns of the release."""
    columns = "tenant string, window struct<start: timestamp, end: timestamp>, kind string, n bigint"
    return spark.createDataFrame([], columns)


def numbers(spark: SparkSession, first: int) -> DataFrame:
    return spark.range(first, first + 3)


@pytest.mark.thorough
def test_an_epoch_that_is_written_again_changes_nothing(spark: SparkSession, table: tuple[str, str]) -> None:
    sink = OF_FORMAT[table[0]](table[1])
    sink.check(numbers(spark, 0))
    for epoch in (0, 0, 1, 0, -2, -2, 1):  # a drain after epoch 1 has the number -2
        sink.write(numbers(spark, 10 * abs(epoch)), "query", epoch)
    sink.write(numbers(spark, 50), "query of the next checkpoint", 0)
    assert values(there(spark, table).select("id")) == [
        (number,) for first in (0, 10, 20, 50) for number in range(first, first + 3)
    ]


@pytest.mark.thorough
def test_of_drivers_that_write_an_epoch_at_once_one_succeeds(spark: SparkSession, table: tuple[str, str]) -> None:
    sinks = [OF_FORMAT[table[0]](table[1]) for _ in range(4)]
    sinks[0].check(numbers(spark, 0))
    with ThreadPoolExecutor(4) as pool:
        for epoch in range(2):
            drivers = [pool.submit(sink.write, numbers(spark, 10 * epoch), "query", epoch) for sink in sinks]
            assert [driver.result() for driver in drivers] == [None] * 4
    assert values(there(spark, table).select("id")) == [(number,) for number in (0, 1, 2, 10, 11, 12)]


@pytest.mark.thorough
def test_a_compacted_table_takes_the_epochs_of_other_queries(spark: SparkSession, table: tuple[str, str]) -> None:
    sinks = [OF_FORMAT[table[0]](table[1]) for _ in range(3)]
    sinks[0].check(numbers(spark, 0))
    for epoch in range(2):
        for query in ("a", "c"):
            sinks[0].write(numbers(spark, 100 * epoch), query, epoch)
    compact(spark, table)
    for epoch in (0, 0, 1):
        rows = numbers(spark, 100 * epoch).withColumn("id", F.col("id") + (F.rand() * 0).cast("bigint"))
        with ThreadPoolExecutor(3) as pool:
            drivers = [pool.submit(sink.write, rows, "b's own", epoch) for sink in sinks]
            assert [driver.result() for driver in drivers] == [None] * 3
    assert values(there(spark, table).select("id")) == sorted(values(numbers(spark, 0).union(numbers(spark, 100))) * 3)


@pytest.mark.thorough
def test_a_table_may_be_altered_while_an_epoch_is_written(
    spark: SparkSession, table: tuple[str, str], tmp_path: Path
) -> None:
    begun, altered = str(tmp_path / "begun"), str(tmp_path / "altered")

    def waiting(rows: Any) -> Any:
        Path(begun).touch()
        while not Path(altered).exists():
            time.sleep(0.05)
        return rows

    sink = OF_FORMAT[table[0]](table[1])
    sink.check(numbers(spark, 0))
    slow = numbers(spark, 0).mapInArrow(waiting, "id bigint")
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(sink.write, slow, "query", 0)
        soon(Path(begun).exists)
        spark.sql(f"alter table {sink._in_sql()} add columns (note string)").collect()
        Path(altered).touch()
        assert writing.result() is None
    assert values(there(spark, table).select("id", "note")) == [(number, None) for number in range(3)]


def compact(spark: SparkSession, table: tuple[str, str]) -> None:
    """Write the files of a table anew, as one."""
    file_format, place = table
    if file_format == "delta":
        spark.sql(f"optimize delta.`{place}`").collect()
    else:
        name, options = place.removeprefix("lake."), "map('rewrite-all', 'true')"
        spark.sql(f"call lake.system.rewrite_data_files(table => '{name}', options => {options})").collect()


@pytest.mark.thorough
def test_snapshots_that_expire_while_an_epoch_is_written_fail_nothing(spark: SparkSession, job: str) -> None:
    place = f"lake.shop.{job.replace('-', '_')}"
    other, expired = IcebergTable(place), list[int]()

    class Beside(IcebergTable):
        def _look_for(self, *looked: Any) -> tuple[bool, str | None]:
            found = super()._look_for(*looked)
            if not expired:
                expired.append(1)
                other.write(numbers(spark, 50), "other", 0)
                past = "older_than => timestamp '2100-01-01', retain_last => 1"
                spark.sql(f"call lake.system.expire_snapshots(table => '{place[5:]}', {past})").collect()
            return found

    sink = Beside(place)
    sink.check(numbers(spark, 0))
    other.write(numbers(spark, 40), "first", 0)
    sink.write(numbers(spark, 0), "query", 0)
    assert expired
    assert there(spark, ("iceberg", place)).count() == 9


def test_a_table_that_cannot_hold_the_results_is_refused_at_the_start(
    spark: SparkSession, table: tuple[str, str]
) -> None:
    sink = OF_FORMAT[table[0]](table[1])
    sink.check(numbers(spark, 0).selectExpr("cast(id as string) id", "1 as n"))
    with pytest.raises(UsageError, match="id"):
        sink.check(numbers(spark, 0).selectExpr("id", "1 as n"))
    with pytest.raises(UsageError, match="other"):
        sink.check(numbers(spark, 0).selectExpr("cast(id as string) id", "1 as other"))


TYPED = (
    "cast(id as tinyint) a",
    "cast(id as smallint) `b.c`",
    "named_struct('smallint', cast(id as smallint)) `the group`",
    "array(cast(id as tinyint)) `order`",
    "map('é', cast(id as decimal(38, 9))) m",
    "cast(cast(id as string) as binary) x",
    "timestamp_ntz'2024-01-01' t",
    "cast(id as float) f",
)


def test_a_table_that_cannot_hold_the_rows_is_refused_with_the_column(
    spark: SparkSession, table: tuple[str, str]
) -> None:
    OF_FORMAT[table[0]](table[1]).check(spark.createDataFrame([], "tenant string, n double"))
    with pytest.raises(UsageError, match=r"has other types than the rows: `n` is double"):
        OF_FORMAT[table[0]](table[1]).check(spark.createDataFrame([], "tenant string, n long"))
    with pytest.raises(UsageError, match=r"lacks columns of the rows: `kind` string"):
        OF_FORMAT[table[0]](table[1]).check(spark.createDataFrame([], "tenant string, n double, kind string"))


@pytest.mark.thorough
def test_columns_of_any_type_and_name_are_written(spark: SparkSession, table: tuple[str, str]) -> None:
    options = {"delta.columnMapping.mode": "name"} if table[0] == "delta" else {}  # Delta's names have no spaces else
    sink = OF_FORMAT[table[0]](table[1], options)
    rows = spark.range(2).selectExpr(*TYPED)
    sink.check(rows.limit(0))
    OF_FORMAT[table[0]](table[1], options).check(rows.limit(0))
    sink.write(rows, "query", 0)
    assert there(spark, table).count() == 2


@pytest.mark.thorough
def test_an_early_row_replaces_an_older_one_and_no_final_one(spark: SparkSession, table: tuple[str, str]) -> None:
    sink = OF_FORMAT[table[0]](table[1], key=["tenant"])

    def rows(n: int, final: bool, as_of: int) -> DataFrame:
        columns = "tenant string, n long, final boolean, as_of long"
        return spark.createDataFrame([("a", n, final, as_of), (None, n, final, as_of)], columns)

    def shown() -> set[tuple[Any, ...]]:
        return {tuple(each)[1:] for each in there(spark, table).collect()}

    sink.check_early(rows(0, False, 0).limit(0))
    sink.write_early(rows(1, False, 5), "q", 5)
    sink.write_early(rows(2, False, 4), "q", 4)
    assert shown() == {(1, False, 5)}
    sink.write_early(rows(3, False, 6), "q", 6)
    assert shown() == {(3, False, 6)}
    for _ in range(2):
        sink.write(rows(4, True, 7), "q", 7)
        sink.write_early(rows(5, False, 8), "q", 8)
    assert shown() == {(4, True, 7)}
    assert there(spark, table).count() == 2  # a null is a key, too


def test_early_results_need_a_key(spark: SparkSession, table: tuple[str, str]) -> None:
    rows = spark.createDataFrame([], "tenant string, n long, final boolean, as_of long")
    with pytest.raises(UsageError, match="early results need a key"):
        OF_FORMAT[table[0]](table[1]).check_early(rows)
    with pytest.raises(UsageError, match=r"key=\['tenant'\] lacks 'revision'"):
        OF_FORMAT[table[0]](table[1], key=["tenant"]).check_revised(rows.selectExpr("*", "0 as revision"))


def test_a_format_that_the_session_lacks_is_named(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match=r"Iceberg table absent\.shop\.daily"):
        IcebergTable("absent.shop.daily").check(numbers(spark, 0))
