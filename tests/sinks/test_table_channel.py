"""A table of a database between two queries: each row is received once, whatever fails on the way into it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from examples.services.postgres import Postgres
from spark_client import Frontier, Marks, Tracking, channel_tables
from tests.client.processes import Server
from tests.spark.feed import Feed, row, rows_of

pytestmark = pytest.mark.spark

COLUMNS = ("tenant", "window.start", "kind", "rows", "amount")
Connect = Callable[[], Any]


class Pipeline:
    """Two queries joined by a table; the second releases by tenant, hour and kind."""

    def __init__(self, spark: SparkSession, address: str, connect: Connect, feed: Feed, path: Path, job: str) -> None:
        self.tracking = Tracking(spark, job, address)
        source = self.tracking.source(
            feed.stream(spark),
            "in",
            scope="tenant",
            window=("ts", "1 hour"),
            identity=["row_id"],
            front=Marks("is_last"),
        )
        channel = self.tracking.table_channel("clean", connect, "clean", str(path / "clean"))
        self.sending = (
            source.where("amount > 2").writeStream.channel(channel).option("checkpointLocation", path / "cp1")
        )
        released = self.tracking.release(
            self.tracking.receive(channel), ["kind"], aggs={"rows": F.count("*"), "amount": F.sum("amount")}
        )
        self.receiving = released.writeStream.option("checkpointLocation", path / "cp2")
        self.out = path / "out"

    def run(self) -> None:
        """Run until all there is has been processed."""
        self.sending.start()
        self.receiving.start(self.out)
        self.tracking.process_all_available()


def put(feed: Feed) -> None:
    """Put five files; the last ends all windows."""
    for hour in range(4):
        feed.put(*[row(100 * hour + i, 60 * hour + i, "ab"[i % 2], "xy"[i // 2 % 2], i) for i in range(20)])
    feed.put(*[row(1000 + i, 60 * (i // 2) + 59, "ab"[i % 2], amount=9, last=True) for i in range(8)])


def expected(spark: SparkSession, feed: Feed) -> list[tuple[Any, ...]]:
    grouped = feed.batch(spark).where("amount > 2").groupBy("tenant", F.window("ts", "1 hour"), "kind")
    table = grouped.agg(F.count("*").alias("rows"), F.sum("amount").alias("amount"))
    return sorted(tuple(r) for r in table.select(*COLUMNS).collect())


def make(connect: Connect, name: str = "clean") -> None:
    connection = connect()
    for table in (f"{name}_epochs", name):
        connection.cursor().execute(f"drop table if exists {table}")
    for statement in channel_tables(name):
        connection.cursor().execute(statement)
    connection.commit()
    connection.close()


def ask(connect: Connect, sql: str) -> list[tuple[Any, ...]]:
    connection = connect()
    try:
        cursor = connection.cursor()
        cursor.execute(sql)
        return list(cursor.fetchall())
    finally:
        connection.close()


class Fatal(psycopg.Connection[Any]):
    """A connection whose process is killed when the second epoch's rows are written: before its entry, or after."""

    when = ""
    commits = 0

    def commit(self) -> None:
        Fatal.commits += 1
        if Fatal.commits < 2 or self.when == "after":
            super().commit()
        if Fatal.commits == 2:
            os.killpg(0, signal.SIGKILL)


def drive() -> None:
    """Run the program that is killed. Only its driver's connections are fatal: executors get `psycopg.connect`."""
    from spark_client.destinations import table_channel as database
    from tests.spark.conftest import session

    address, dsn, folder, job, Fatal.when = sys.argv[1:6]
    path = Path(folder)
    enter = database.TableChannel._enter

    def enter_and_die(self: Any, *given: Any) -> None:
        self._store = database.Store(lambda: Fatal.connect(dsn), "clean", "%s")
        enter(self, *given)
        self._store = database.Store(lambda: psycopg.connect(dsn), "clean", "%s")

    database.TableChannel._enter = enter_and_die  # type: ignore[assignment, method-assign]
    spark = session("driver")
    Pipeline(spark, address, lambda: psycopg.connect(dsn), Feed(path / "raw"), path, job).run()


@pytest.mark.slow
@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "after"])
def test_a_driver_killed_around_the_databases_commit_sends_each_row_once(
    spark: SparkSession, tracker: Server, postgres: Postgres, feed: Feed, tmp_path: Path, job: str, when: str
) -> None:
    dsn = postgres.dsn

    def connect() -> Any:
        return psycopg.connect(dsn)

    make(connect)
    put(feed)
    program = [sys.executable, "-m", "tests.sinks.test_table_channel", tracker.address, dsn, str(tmp_path), job, when]
    with (tmp_path / "driver.log").open("w") as log:
        ended = subprocess.run(program, stdout=log, stderr=log, start_new_session=True, timeout=300)
    assert ended.returncode == -signal.SIGKILL, (tmp_path / "driver.log").read_text()[-4000:]
    written = ask(connect, "select count(distinct epoch) from clean where epoch > 0")
    assert written == [(1,)]  # it is there; whether it counts is in the other table
    assert ask(connect, "select count(*) from clean_epochs where epoch > 0") == [(1 if when == "after" else 0,)]

    pipeline = Pipeline(spark, tracker.address, connect, feed, tmp_path, job)
    pipeline.run()
    assert rows_of(pipeline.out, spark, *COLUMNS) == expected(spark, feed)
    status = pipeline.tracking.client.job(job)
    assert (status.open_substreams, status.in_flight, status.late_reports) == (0, 0, 0)
    pipeline.tracking.stop()
    orphans = "select count(*) from clean where not exists (select 1 from clean_epochs e where e.piece = clean.piece)"
    assert ask(connect, orphans) == [(0,)]


@pytest.mark.thorough
def test_rows_of_attempts_that_did_not_become_the_epoch_are_never_read(
    spark: SparkSession, tracker: Server, feed: Feed, tmp_path: Path, job: str
) -> None:
    database = str(tmp_path / "channel.db")

    def connect() -> Any:
        return sqlite3.connect(database, timeout=60)

    make(connect)
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(
        feed.stream(spark), "in", window=("ts", "1 hour"), identity=["row_id"], front=Marks("is_last")
    )
    channel = tracking.table_channel("clean", connect, "clean", str(tmp_path / "clean"), placeholder="?", keep=True)
    sending = source.writeStream.channel(channel).option("checkpointLocation", tmp_path / "cp1")
    released = tracking.release(tracking.receive(channel), aggs={"rows": F.count("*")})
    query = sending.start()
    feed.put(row(1, 1))
    tracking.process_all_available()
    connection = connect()  # a task of the next epoch that Spark has given up, and that goes on beside its successor
    connection.execute(
        "insert into clean select sender, 1, 'zombie', label, scope, name, ends, content from clean where epoch = 0"
    )
    connection.commit()
    connection.close()
    released.writeStream.option("checkpointLocation", tmp_path / "cp2").start(tmp_path / "out")
    feed.put(row(2, 2), row(3, 3, last=True))
    tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, "rows") == [(3,)]
    assert ask(connect, "select count(*) from clean where piece = 'zombie'") == [(0,)]
    assert len(ask(connect, "select piece from clean")) == 3  # what was received is kept, if that is asked for
    assert query.isActive
    tracking.stop()


@pytest.mark.thorough
def test_received_rows_go_but_for_the_epoch_that_may_be_repeated(
    spark: SparkSession, tracker: Server, feed: Feed, tmp_path: Path, job: str
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(
        feed.stream(spark), "in", window=("ts", "1 hour"), identity=["row_id"], front=Marks("is_last")
    )
    channel = tracking.channel("clean", str(tmp_path / "clean"))
    sender = source.writeStream.channel(channel).option("checkpointLocation", tmp_path / "cp1").start()
    released = tracking.release(tracking.receive(channel), aggs={"rows": F.count("*")})
    released.writeStream.option("checkpointLocation", tmp_path / "cp2").start(tmp_path / "out")
    for number in range(5):
        feed.put(row(number, number, last=number == 4))
        tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, "rows") == [(5,)]
    left = sorted(int(path.name) for path in (tmp_path / "clean" / str(sender.id)).glob("[0-9]*"))
    assert left[-1] == 4
    assert len(left) <= 2  # the newest, and at most what Spark has not said to be done
    tracking.stop()


@pytest.mark.thorough
def test_values_arrive_as_they_were_sent_also_in_a_plain_stream(
    spark: SparkSession, tracker: Server, postgres: Postgres, feed: Feed, tmp_path: Path, job: str
) -> None:
    dsn = postgres.dsn

    def rich(rows: DataFrame) -> DataFrame:
        return rows.withColumns(
            {
                "exact": F.lit("12345678901234567890.123456789").cast("decimal(38,9)") + F.col("row_id"),
                "text": F.lit('ä"\n\0\u2028'),
                "micros": F.lit(datetime(2024, 2, 29, 23, 59, 59, 123456, UTC)),
                "bytes": F.unhex(F.lit("00ff10")),
                "list": F.array(F.lit(1), F.lit(None), F.lit(3)),
            }
        )

    make(lambda: psycopg.connect(dsn), "rich")
    feed.put(row(1, 1), row(2, 2, last=True))
    tracking = Tracking(spark, job, tracker.address, progress=True)
    source = tracking.source(
        feed.stream(spark), "in", window=("ts", "1 hour"), identity=["row_id"], front=Frontier("0 seconds")
    )
    channel = tracking.table_channel("rich", lambda: psycopg.connect(dsn), "rich", str(tmp_path / "rich"))
    source.transform(rich).writeStream.channel(channel).option("checkpointLocation", tmp_path / "cp1").start()
    got: list[str] = []

    def take(rows: DataFrame, epoch: int) -> None:
        got.extend(repr(r) for r in rows.select(*wanted.columns).collect())

    wanted = rich(feed.batch(spark))
    received = tracking.receive(channel)
    plain = tracking.with_watermark(received, "ts", "instants")
    query = tracking.write_stream(plain.dropDuplicates(["row_id", "ts"]), received).foreachBatch(take)
    query.option("checkpointLocation", tmp_path / "cp2").start()
    tracking.process_all_available()
    assert sorted(got) == sorted(repr(r) for r in wanted.collect())
    tracking.stop()


def test_a_connection_that_commits_by_itself_is_refused(
    spark: SparkSession, tracker: Server, postgres: Postgres, feed: Feed, tmp_path: Path, job: str
) -> None:
    dsn = postgres.dsn
    make(lambda: psycopg.connect(dsn), "careless")
    feed.put(row(1, 1, last=True))
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", window=("ts", "1 hour"), front=Marks("is_last"))
    channel = tracking.table_channel(
        "careless", lambda: psycopg.connect(dsn, autocommit=True), "careless", str(tmp_path / "clean")
    )
    sending = source.writeStream.channel(channel)
    sending.option("checkpointLocation", tmp_path / "cp1").start()
    with pytest.raises(StreamingQueryException, match="autocommit=False"):
        tracking.process_all_available()


if __name__ == "__main__":
    drive()
