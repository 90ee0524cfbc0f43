"""Results in a database: each is there once, whatever dies between the database's commit and Spark's."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from examples.services.postgres import Postgres
from spark_client import Marks, Table, Tables, Tracking, TrackingError, UsageError, epochs_table
from tests.client.processes import Server
from tests.spark.feed import Feed, put_hours

pytestmark = pytest.mark.spark

HOURLY = "(tenant text, window_start timestamptz, window_end timestamptz, kind text, rows bigint, amount bigint"


def by_tenant(results: DataFrame) -> DataFrame:
    return results.groupBy("tenant", "window").agg(F.sum("rows").alias("rows"))


def run(spark: SparkSession, address: str, feed: Feed, path: Path, job: str, sink: Any) -> None:
    """Release all there is, by tenant, hour and kind, into a sink."""
    tracking = Tracking(spark, job, address)
    source = tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    released = tracking.release(source, ["kind"], aggs={"rows": F.count("*"), "amount": F.sum("amount")})
    released.writeStream.sink(sink).option("checkpointLocation", path / "cp").start()
    tracking.process_all_available()
    tracking.stop()


def expected(spark: SparkSession, feed: Feed) -> list[tuple[Any, ...]]:
    grouped = feed.batch(spark).groupBy("tenant", F.window("ts", "1 hour").alias("window"), "kind")
    table = grouped.agg(F.count("*").alias("rows"), F.sum("amount").alias("amount"))
    return sorted(tuple(r) for r in table.select("tenant", "window.start", "kind", "rows", "amount").collect())


def hourly(dsn: str, table: str) -> list[tuple[Any, ...]]:
    rows = ask(dsn, f"select tenant, window_start at time zone 'utc', kind, rows, amount from {table}")
    return sorted(rows)


def ask(dsn: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(sql).fetchall()


def make(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.slow
def test_a_driver_killed_after_the_databases_commit_writes_each_row_once(
    spark: SparkSession, tracker: Server, postgres: Postgres, feed: Feed, tmp_path: Path, job: str
) -> None:
    make(
        postgres.dsn,
        epochs_table(),
        f"create table by_epoch {HOURLY})",
        "create table totals (tenant text, window_start timestamptz, window_end timestamptz, rows bigint)",
        f"create table by_key {HOURLY}, primary key (tenant, window_end, kind))",
        f"create table unprotected {HOURLY})",
    )
    put_hours(feed, 4)
    program = [sys.executable, "-m", "tests.sinks.test_tables", tracker.address, postgres.dsn, str(tmp_path), job]
    with (tmp_path / "driver.log").open("w") as log:
        ended = subprocess.run(program, stdout=log, stderr=log, start_new_session=True)
    assert ended.returncode == -signal.SIGKILL, (tmp_path / "driver.log").read_text()[-4000:]
    assert hourly(postgres.dsn, "by_epoch")
    run(spark, tracker.address, feed, tmp_path, job, sinks(lambda: psycopg.connect(postgres.dsn)))

    wanted = expected(spark, feed)
    assert hourly(postgres.dsn, "by_epoch") == wanted
    assert hourly(postgres.dsn, "by_key") == wanted
    sums = ask(postgres.dsn, "select tenant, sum(rows) from totals group by tenant order by tenant")
    assert [(tenant, int(rows)) for tenant, rows in sums] == [("a", 20), ("b", 20)]
    assert len(hourly(postgres.dsn, "unprotected")) > len(wanted)  # the kill did hit where it hurts


@pytest.mark.thorough
def test_an_early_row_replaces_an_older_one_and_no_final_one(spark: SparkSession, postgres: Postgres) -> None:
    """Two drivers of one query, one of which was superseded: its row comes while the other's transaction is open."""
    make(
        postgres.dsn,
        epochs_table("early_epochs"),
        'create table "early%s" (tenant text primary key, n bigint, final boolean, as_of bigint)',
    )
    connect = lambda: psycopg.connect(postgres.dsn)  # noqa: E731
    sink = Tables(connect, Table('"early%s"', key=["tenant"]), epochs="early_epochs")

    def rows(n: int, final: bool, as_of: int) -> DataFrame:
        return spark.createDataFrame([("a", n, final, as_of)], "tenant string, n long, final boolean, as_of long")

    def there() -> list[tuple[Any, ...]]:
        return ask(postgres.dsn, 'select n, final, as_of from "early%s"')

    sink.write_early(rows(1, False, 5), "q", 5)
    sink.write_early(rows(2, False, 4), "q", 4)
    assert there() == [(1, False, 5)]
    begun, committed = threading.Event(), threading.Event()

    class Slow(psycopg.Connection[Any]):
        def commit(self) -> None:
            begun.set()
            committed.wait(60)
            super().commit()

    slow = Tables(lambda: Slow.connect(postgres.dsn), Table('"early%s"', key=["tenant"]), epochs="early_epochs")
    final = threading.Thread(target=lambda: slow.write(rows(3, True, 7), "q", 7))
    final.start()
    begun.wait(60)
    late = threading.Thread(target=lambda: sink.write_early(rows(4, False, 8), "q", 8))
    late.start()  # it waits for the row that is being written
    committed.set()
    final.join()
    late.join()
    assert there() == [(3, True, 7)]
    sink.write(rows(3, True, 7), "q", 7)
    assert there() == [(3, True, 7)]


def sinks(connect: Callable[[], Any], last: Callable[[], Any] | None = None) -> Each:
    """Return a sink of each way, and one that adds what it is given."""
    return Each(
        Tables(connect, "by_epoch", Table("totals", rows=by_tenant)),
        Tables(connect, Table("by_key", key=["tenant", "window_end", "kind"]), epochs=None),
        Unprotected(last or connect),
    )


class Fatal(psycopg.Connection[Any]):
    """A connection whose process is killed as soon as the database has committed."""

    def commit(self) -> None:
        super().commit()
        os.killpg(0, signal.SIGKILL)


class Each:
    """A writer to several sinks, one after the other."""

    def __init__(self, *sinks: Any) -> None:
        self._sinks = sinks

    def write(self, rows: DataFrame, query: str, epoch: int) -> None:
        for sink in self._sinks:
            sink.write(rows, query, epoch)


class Unprotected:
    """A sink that adds the rows it gets."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect

    def write(self, rows: DataFrame, query: str, epoch: int) -> None:
        with self._connect() as connection:
            flat = rows.select("tenant", "window.start", "window.end", "kind", "rows", "amount").collect()
            with connection.cursor() as cursor:
                cursor.executemany("insert into unprotected values (%s, %s, %s, %s, %s, %s)", [tuple(r) for r in flat])


def drive() -> None:
    """Run the program that is killed."""
    from tests.spark.conftest import session

    address, dsn, path, job = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]

    sink = sinks(lambda: psycopg.connect(dsn), lambda: Fatal.connect(dsn))
    run(session("driver"), address, Feed(path / "raw"), path, job, sink)


def test_several_tables_are_written_as_one(spark: SparkSession, postgres: Postgres) -> None:
    make(
        postgres.dsn,
        epochs_table("together"),
        "create table first (n bigint)",
        "create table second (n bigint check (n < 10))",
    )
    sink = Tables(lambda: psycopg.connect(postgres.dsn), "first", "second", epochs="together")
    sink.write(spark.range(3).toDF("n"), "q", 0)
    with pytest.raises(TrackingError, match="table second: the database did not take rows with the columns n: new row"):
        sink.write(spark.range(8, 12).toDF("n"), "q", 1)
    assert ask(postgres.dsn, "select count(*) from first") == ask(postgres.dsn, "select count(*) from second") == [(3,)]
    assert ask(postgres.dsn, "select epoch from together") == [(0,)]


def test_a_database_that_was_killed_is_written_to_when_it_is_back(spark: SparkSession, postgres: Postgres) -> None:
    make(postgres.dsn, epochs_table("again"), "create table killed (n bigint)")
    sink = Tables(lambda: psycopg.connect(postgres.dsn), "killed", epochs="again")
    sink.write(spark.range(3).toDF("n"), "q", 0)
    postgres.kill()
    with pytest.raises(psycopg.OperationalError):
        sink.write(spark.range(3, 5).toDF("n"), "q", 1)
    postgres.start()
    for epoch in (0, 1):
        sink.write(spark.range(3 * epoch, 3 + 2 * epoch).toDF("n"), "q", epoch)
    assert sorted(ask(postgres.dsn, "select n from killed")) == [(n,) for n in range(5)]


def test_rows_go_to_their_owners_in_one_transaction_each(spark: SparkSession, tmp_path: Path) -> None:
    calls: list[str] = []

    def connect(tenant: str) -> sqlite3.Connection:
        calls.append(tenant)
        return sqlite3.connect(tmp_path / f"{tenant}.db")

    for tenant in "abc":
        with sqlite3.connect(tmp_path / f"{tenant}.db") as made:
            made.execute(epochs_table())
            made.execute("create table results (tenant text, n integer)")
    sink = Tables(connect, "results", shard="tenant", placeholder="?")
    rows = spark.range(9).selectExpr("substring('abc', cast(id % 3 as int) + 1, 1) as tenant", "id as n")
    sink.write(rows, "q", 5)
    assert sorted(calls) == ["a", "b", "c"]
    with sqlite3.connect(tmp_path / "c.db") as missed:  # as if the driver had died before c's commit
        missed.execute("delete from results")
        missed.execute("delete from tracker_epochs")
    sink.write(rows, "q", 5)
    for tenant in "abc":
        with sqlite3.connect(tmp_path / f"{tenant}.db") as made:
            assert made.execute("select count(*) from results").fetchone() == (3,)


@pytest.mark.thorough
def test_the_table_of_epochs_has_the_last_thousand_batches(spark: SparkSession, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "db") as made:
        made.execute(epochs_table())
        made.execute("create table results (n integer)")
    sink = Tables(lambda: sqlite3.connect(tmp_path / "db"), "results", placeholder="?")
    rows = spark.range(1).toDF("n")
    written = [0, 3, -4, 4, 700, 1003, 1004, -1005, 1005, 1700, -2500]
    for epoch in written:
        sink.write(rows, "q", epoch)
        sink.write(rows, "another", epoch % 7)
    sink.write(rows, "q", -2500)  # again
    for epoch in (0, 3, -4, -1400, 600):
        with pytest.raises(TrackingError, match="long past"):
            sink.write(rows, "q", epoch)
    sink.write(rows, "q", 1600)
    with sqlite3.connect(tmp_path / "db") as made:
        kept = {epoch for (epoch,) in made.execute("select epoch from tracker_epochs where query = 'q'")}
        others = len({epoch % 7 for epoch in written})
        assert kept == {700, 1003, 1004, 1005, 1600, 1700, -2500}
        assert made.execute("select count(*) from results").fetchone() == (len(written) + 1 + others,)


def test_what_cannot_be_written_once_is_refused(spark: SparkSession, postgres: Postgres) -> None:
    with pytest.raises(UsageError, match="give it a key"):
        Tables(lambda: psycopg.connect(postgres.dsn), "somewhere", epochs=None)
    one = spark.range(1)
    with pytest.raises(UsageError, match="autocommit=False"):
        Tables(lambda: psycopg.connect(postgres.dsn, autocommit=True), "somewhere").write(one, "q", 0)
    with pytest.raises(UsageError, match="key='n' is not a column of the rows, which have: id"):
        Tables(lambda: psycopg.connect(postgres.dsn), Table("t", key=["n"])).write(one, "q", 0)


if __name__ == "__main__":
    drive()
