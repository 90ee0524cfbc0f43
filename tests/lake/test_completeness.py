"""Completeness of a table, read from the table alone: by Spark, by delta-rs, by pyiceberg."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Substream, Tracking, complete, completeness
from tests.client.processes import Server
from tests.lake.test_tables import OF_FORMAT
from tests.spark.feed import Feed, row

pytestmark = pytest.mark.spark


def hours(first: int, last: int) -> str:
    return f"2024-01-01T{first:02d}:00:00Z/2024-01-01T{last:02d}:00:00Z"


@pytest.mark.thorough
def test_a_table_tells_which_windows_have_all_of_their_results(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, table: tuple[str, str]
) -> None:
    file_format, place = table

    def run(deployment: str, drain: bool) -> None:
        tracking = Tracking(spark, job, tracker.address, deployment=deployment)
        rows = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last")
        )
        release = tracking.release(rows, ["kind"], aggs={"n": F.count("*")})
        release.writeStream.sink(OF_FORMAT[file_format](place)).option(
            "checkpointLocation", tmp_path / deployment
        ).start()
        tracking.process_all_available()
        if drain:
            tracking.drain()
        tracking.stop()

    here = OF_FORMAT[file_format](place)
    feed.put(row(1, 0), row(2, 9, last=True), row(3, 65), row(4, 5, "b"))
    run("first", drain=False)
    assert complete(here, "a", hours(0, 1))
    assert not complete(here, "a", hours(1, 2)), "its mark has not come"
    assert not complete(here, "b", hours(0, 1))
    feed.put(row(5, 69, last=True), row(6, 130))
    run("first", drain=True)
    assert complete(here, "a", hours(0, 2)), "a stretch of two windows"
    assert not complete(here, "a", hours(2, 3)), "a drain has ended it, and more may come"
    feed.put(row(7, 139, last=True))
    run("next", drain=False)  # a new checkpoint is a new writer, and repeats what the one before has left
    assert [(part.scope, part.name) for part in completeness(here)] == [("a", hours(0, 3))]


class TestSink:
    """The properties that commits carry, without a query."""

    @pytest.fixture
    def write(self, spark: SparkSession, table: tuple[str, str]) -> Callable[..., None]:
        sinks = [OF_FORMAT[table[0]](table[1])]
        sinks[0].check(spark.range(0))

        def write(epoch: int, *completed: Substream, rows: int = 0, restarted: bool = False) -> None:
            if restarted:
                sinks[:] = [OF_FORMAT[table[0]](table[1])]
            sinks[0].write(spark.range(rows), "query", epoch, completed)

        return write

    @pytest.mark.thorough
    def test_an_epoch_without_rows_completes_a_substream(
        self, write: Callable[..., None], table: tuple[str, str]
    ) -> None:
        write(0, Substream("a", "file-1", None))
        write(1, Substream("b", "file-1", None), restarted=True)
        write(1, Substream("b", "file-1", None), restarted=True)
        write(2, rows=2)
        here = OF_FORMAT[table[0]](table[1])
        assert [complete(here, scope, "file-1") for scope in "abc"] == [True, True, False]

    def test_readers_without_spark_agree(
        self, spark: SparkSession, write: Callable[..., None], table: tuple[str, str]
    ) -> None:
        write(0, Substream("a", hours(0, 1), 1), Substream("", "x", None), rows=1)
        write(1, Substream("a", hours(1, 2), 1), rows=1)
        read = foreign(spark, *table)
        assert completeness(read) == completeness(OF_FORMAT[table[0]](table[1]))
        assert complete(read, "a", hours(0, 2))
        window = spark.sql("select window(timestamp'2024-01-01T01:00:00Z', '30 minutes') as window").collect()[0].window
        assert complete(read, "a", window)
        assert not complete(read, "a", hours(1, 3))

    @pytest.mark.thorough
    def test_a_rejected_epoch_announces_nothing(
        self, spark: SparkSession, write: Callable[..., None], table: tuple[str, str]
    ) -> None:
        sink = OF_FORMAT[table[0]](table[1])
        with pytest.raises(Exception, match="no_rows"):
            sink.write(
                spark.range(1).selectExpr("id + cast(raise_error('no_rows') as bigint) as id"),
                "query",
                0,
                [Substream("", "x", None)],
            )
        sink.write(spark.range(1), "another query", 0)
        assert not complete(sink, "", "x")

    @pytest.mark.thorough
    def test_a_table_that_was_set_back_has_lost_what_it_had(
        self, spark: SparkSession, write: Callable[..., None], table: tuple[str, str]
    ) -> None:
        file_format, place = table
        write(0, rows=1)
        if file_format == "iceberg":
            ((first,),) = spark.sql(f"select snapshot_id from {place}.refs").collect()
        write(1, Substream("a", "x", None), rows=1)
        assert complete(foreign(spark, *table), "a", "x")
        if file_format == "delta":
            spark.sql(f"restore table delta.`{place}` to version as of 1").collect()
        else:
            spark.sql(f"call lake.system.rollback_to_snapshot('{place.removeprefix('lake.')}', {first})").collect()
        for reader in (OF_FORMAT[file_format](place), foreign(spark, *table)):
            assert not complete(reader, "a", "x")
        write(1, rows=1, restarted=True)
        assert not complete(OF_FORMAT[file_format](place), "a", "x")

    @pytest.mark.thorough
    def test_a_note_keeps_within_its_bound(self, write: Callable[..., None], table: tuple[str, str]) -> None:
        write(0, *(Substream(f"tenant-{number}", "old", None) for number in range(2000)))
        write(1, Substream("tenant-0", "new", None))
        here = OF_FORMAT[table[0]](table[1])
        assert complete(here, "tenant-0", "new")
        assert not complete(here, "tenant-0", "old")
        assert complete(here, "tenant-1999", "old")


def foreign(spark: SparkSession, file_format: str, place: str) -> Any:
    if file_format == "delta":
        return deltalake.DeltaTable(place)
    catalogs = pytest.importorskip("pyiceberg.catalog.sql", reason="pyiceberg reads Iceberg without Spark")
    uri = str(spark.conf.get("spark.sql.catalog.lake.uri")).removeprefix("jdbc:sqlite:")
    home = spark.conf.get("spark.sql.catalog.lake.warehouse")
    return catalogs.SqlCatalog("lake", uri=f"sqlite:///{uri}", warehouse=f"file://{home}").load_table(
        place.removeprefix("lake.")
    )


@pytest.mark.thorough
def test_a_keyed_table_carries_it_too(spark: SparkSession, table: tuple[str, str]) -> None:
    def rows(number: int, final: bool) -> DataFrame:
        return spark.createDataFrame([("a", number, final, number)], "tenant string, n long, final boolean, as_of long")

    sink = OF_FORMAT[table[0]](table[1], key=["tenant"])
    sink.check_early(rows(0, False).limit(0))
    sink.write(rows(1, True), "query", 0, [Substream("a", "x", None)])
    sink.write_early(rows(2, False), "query", 1)
    assert complete(sink, "a", "x")
