"""Names with anything in them, in real databases: of tables, columns and tenants."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from examples.services.postgres import Postgres
from spark_client import Marks, Table, Tables, Topic, Tracking, TrackingError, UsageError, channel_tables, epochs_table
from spark_client.columns import named
from tests.client.processes import Server
from tests.spark.feed import Feed, row
from tests.spark.odd_names import ODD, Names, live

pytestmark = pytest.mark.spark

#: Of columns. A database's names have no NUL.
COLUMNS = [name for name in (*ODD, "epoch", "query", "window", "_tracker", "_rows", "user") if "\0" not in name]
TABLES = ["results", '"100% of.a b"', '"%s"', '"d""q ? {}"']


class Database:
    """A real one, and how its driver writes parameters."""

    def __init__(self, connect: Callable[[], Any], placeholder: str) -> None:
        self.connect = connect
        self.placeholder = placeholder

    def make(self, *statements: str) -> None:
        connection = self.connect()
        for statement in statements:
            connection.cursor().execute(statement)
        connection.commit()
        connection.close()

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        connection = self.connect()
        found = connection.cursor()
        found.execute(sql)
        rows = sorted(found.fetchall(), key=str)
        connection.close()
        return rows


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        yield Database(partial(sqlite3.connect, tmp_path / "odd.db", timeout=60), "?")
        return
    server: Postgres = request.getfixturevalue("postgres")
    database = Database(partial(psycopg.connect, server.dsn), "%s")
    there = tables(database)
    yield database
    database.make(*[f"drop table {in_sql(name)}" for name in tables(database) - there])  # others make theirs


def tables(database: Database) -> set[str]:
    return {name for (name,) in database.ask("select tablename from pg_tables where schemaname = 'public'")}


def in_sql(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.thorough
def test_tables_and_columns_may_have_any_name(spark: SparkSession, database: Database) -> None:
    columns = ", ".join(f"{in_sql(name)} text" for name in COLUMNS)
    keys = ", ".join(map(in_sql, COLUMNS[:20]))
    values = [name for name in (*ODD, "") if "\0" not in name or database.placeholder == "?"]
    rows = spark.createDataFrame([(value,) for value in values], "v string").select(
        *[F.concat(F.lit(f"{place}"), F.col("v")).alias(name) for place, name in enumerate(COLUMNS)]
    )
    wanted = sorted((f"0{value}", f"{len(COLUMNS) - 1}{value}") for value in values)
    ends = f"select {in_sql(COLUMNS[0])}, {in_sql(COLUMNS[-1])} from "
    for table in TABLES:
        epochs = f'{table[:-1]}_of"' if table[-1] == '"' else f"{table}_of"
        by_key = f'{table[:-1]}_key"' if table[-1] == '"' else f"{table}_key"
        unique = f"create table {by_key} ({columns}, unique ({keys}))"
        database.make(epochs_table(epochs), f"create table {table} ({columns})", unique)
        by_epoch = Tables(database.connect, table, epochs=epochs, placeholder=database.placeholder)
        keyed = Table(by_key, key=COLUMNS[:20])
        replacing = Tables(database.connect, keyed, epochs=None, placeholder=database.placeholder)
        for sink in (by_epoch, replacing):
            sink.check(rows.limit(0))
            for _ in range(2):
                sink.write(rows, "q", 7)
        assert database.ask(ends + table) == sorted(wanted, key=str)
        assert database.ask(ends + by_key) == sorted(wanted, key=str)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(21, 31))
def test_drawn_names_live_through_a_channel_and_a_sink_of_tables(
    spark: SparkSession, tracker: Server, database: Database, feed: Feed, tmp_path: Path, job: str, seed: int
) -> None:
    names = Names(seed)
    without_nul(names, 50 if database.placeholder == "%s" else 10_000)
    table, results = TABLES[seed % len(TABLES)], TABLES[(seed + 3) % len(TABLES)]
    kinds = {names.tenant: "text", "window_start": "text", "window_end": "text", names.text: "text", names.none: "text"}
    kinds |= {f"upper({names.text})": "text", names.key: "int", names.sum: "bigint", names.most: "bigint"}
    columns = ", ".join(f"{in_sql(name)} {kind}" for name, kind in kinds.items())
    database.make(*channel_tables(table), epochs_table(), f"create table {results} ({columns}, revision int)")

    def as_texts(rows: DataFrame) -> DataFrame:
        start, end = (F.col(f"window.{part}").cast("string").alias(f"window_{part}") for part in ("start", "end"))
        return rows.select(*map(named, [c for c in rows.columns if c != "window"]), start, end)

    def written() -> DataFrame:
        found = database.ask(f"select {', '.join(map(in_sql, kinds))}, revision from {results}")
        schema = ", ".join(f"c{place} {kind.replace('text', 'string')}" for place, kind in enumerate(kinds.values()))
        return spark.createDataFrame(found, f"{schema}, r int").toDF(*kinds, "revision")

    live(
        names,
        spark,
        tracker.address,
        job,
        feed,
        tmp_path,
        lambda tracking: tracking.table_channel(
            names.channel, database.connect, table, str(tmp_path / "clean"), placeholder=database.placeholder
        ),
        Tables(database.connect, Table(results, rows=as_texts), placeholder=database.placeholder),
        written,
    )
    assert database.ask(f"select count(*) from {table}") <= [(2,)]  # what was received is removed


def without_nul(names: Names, length: int) -> None:
    """Replace NUL, and cut names to a length: databases take no NUL in names, and PostgreSQL none in texts."""
    for name, value in vars(names).items():
        if isinstance(value, str):
            setattr(names, name, value.replace("\0", "0")[:length])
    names.tenants = [tenant.replace("\0", "0") for tenant in names.tenants]


@pytest.mark.thorough
def test_tenants_and_texts_with_nul_pass_through_a_channel_of_tables(
    spark: SparkSession, tracker: Server, database: Database, feed: Feed, tmp_path: Path, job: str
) -> None:
    database.make(*channel_tables("clean"))
    feed.put(row(1, 1, "a\0b", "x\0"), row(2, 2, "\ufdd0a", "y"), row(3, 3, "a\0b", last=True))
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", substream="kind", identity=["row_id"], front=Marks("is_last")
    )
    channel = tracking.table_channel(
        "clean", database.connect, "clean", str(tmp_path / "clean"), placeholder=database.placeholder
    )
    source.writeStream.channel(channel).option("checkpointLocation", tmp_path / "cp1").start()
    released = tracking.release(tracking.receive(channel), aggs={"rows": F.count("*")})
    released.writeStream.option("checkpointLocation", tmp_path / "cp2").start(tmp_path / "out")
    tracking.process_all_available()
    tracking.finish(source)
    tracking.process_all_available()
    tracking.stop()
    table = spark.read.parquet(str(tmp_path / "out")).select("tenant", "kind", "rows")
    assert sorted(map(tuple, table.collect())) == [("a\0b", "x", 1), ("a\0b", "x\0", 1), ("\ufdd0a", "y", 1)]
    assert tracking.client.job(job).in_flight == 0


@pytest.mark.thorough
@pytest.mark.parametrize("routed", [False, True], ids=["channel", "route"])
def test_a_text_that_json_would_alter_fails_and_the_advice_repairs_it(
    spark: SparkSession, tracker: Server, database: Database, feed: Feed, tmp_path: Path, job: str, routed: bool
) -> None:
    database.make(*channel_tables("clean"))
    feed.put(row(1, 1), row(2, 2, last=True))

    def start(repaired: bool) -> Tracking:
        tracking = Tracking(spark, job, tracker.address)
        source = tracking.source(
            feed.stream(spark),
            "in",
            scope="tenant",
            window=("ts", "1 hour"),
            identity=["row_id"],
            front=Marks("is_last"),
        )
        broken = F.struct(F.array(F.expr("cast(X'61ff' as string)")).alias("texts"))
        source = source.withColumn("o.dd", broken)
        if repaired:
            source = source.withColumn("o.dd", F.struct(F.array(F.lit("a")).alias("texts")))
        channel = tracking.table_channel(
            "clean", database.connect, "clean", str(tmp_path / "clean"), placeholder=database.placeholder
        )
        writer = source.writeStream.route([(channel, None)]) if routed else source.writeStream.channel(channel)
        writer.option("checkpointLocation", tmp_path / "cp1").start()
        released = tracking.release(tracking.receive(channel), aggs={"rows": F.count("*")})
        released.writeStream.option("checkpointLocation", tmp_path / "cp2").start(tmp_path / "out")
        return tracking

    tracking = start(repaired=False)
    with pytest.raises(Exception, match=r"channel 'clean': the column 'o\.dd' has a text that is not UTF-8"):
        tracking.process_all_available()
    tracking.stop()
    assert database.ask("select * from clean") == []
    tracking = start(repaired=True)
    tracking.process_all_available()
    tracking.stop()
    assert [r.rows for r in spark.read.parquet(str(tmp_path / "out")).collect()] == [2]


@pytest.mark.thorough
def test_sinks_are_checked_when_their_query_starts(
    spark: SparkSession, tracker: Server, feed: Feed, tmp_path: Path, job: str
) -> None:
    def never() -> Any:
        raise AssertionError("nothing is written")

    refused: list[tuple[Any, str]] = [
        (Tables(never, Table("t", key=["tenant", "airport"])), "table t: key='airport' is not a column of the rows"),
        (Tables(never, "s", Table("t", key=["window"])), "table t: key='window' is not a column of the rows"),
        (Tables(never, "t", shard="airport"), "table t: shard='airport' is not a column of the rows"),
        (Tables(never, Table("t", rows=lambda r: r.withColumn("window_end", F.lit(1)))), "cannot tell the columns"),
        (Topic("t", "nowhere:1", ["airport"]), "key='airport' is not a column of the rows"),
    ]
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    released = tracking.release(source, ["kind"], aggs={"rows": F.count("*")})
    for sink, message in refused:
        writer = released.writeStream.sink(sink).option("checkpointLocation", tmp_path / "cp")
        with pytest.raises(UsageError, match=message):
            writer.start()
    writer = released.writeStream.sink(Tables(never, Table("t", key=["tenant", "window_end", "kind"])))
    with pytest.raises(UsageError, match="table r: key='airport' is not a column of the rows, which have: job, "):
        writer.receipts(Tables(never, Table("r", key=["airport"]))).option(
            "checkpointLocation", tmp_path / "cp"
        ).start()
    tracking.stop()


def test_times_beyond_python_are_refused_before_anything_is_written(spark: SparkSession, database: Database) -> None:
    kinds = {"instant": "timestamp", "wall": "timestamp_ntz", "day": "date"}
    database.make(epochs_table(), "create table results (instant text, wall text, day text, n int)")
    first, last = "0001-01-01", "9999-12-31"
    good = spark.createDataFrame([(first,), (last,), (None,)], "t string")
    columns = [F.col("t").cast(kind).alias(name) for name, kind in kinds.items()]

    def as_texts(rows: DataFrame) -> DataFrame:
        return rows.select(*[F.col(c).cast("string").alias(c) for c in kinds], "n")

    sink = Tables(database.connect, Table("results", rows=as_texts), placeholder=database.placeholder)
    sink.write(good.select(*columns, F.lit(1).alias("n")), "q", 0)
    plain = Tables(database.connect, "results", placeholder=database.placeholder)
    for name in kinds:
        for far in ("+10000-01-01", "-0044-03-15"):
            rows = spark.range(1500).select(
                *[F.when((F.col("id") < 1400) | (c != name), F.lit(first)).otherwise(F.lit(far)).cast(kind).alias(c)
                  for c, kind in kinds.items()],
                F.lit(2).alias("n"),
            )  # fmt: skip
            with pytest.raises(TrackingError, match=rf"table results: the column '{name}' has \{far[0]}.*rows=…"):
                plain.write(rows, "q", 1)
    assert database.ask("select n, count(*) from results group by n") == [(1, 3)]
    sink.write(rows, "q", 1)
    assert database.ask("select n, count(*) from results group by n") == [(1, 3), (2, 1500)]


@pytest.mark.parametrize(
    "column",
    [
        "array(timestamp_micros(253402300800000000))",
        "map('a', cast(X'ff' as string))",
        "array(named_struct('d', date'+10000-01-01'))",
    ],
)
def test_so_are_those_within_arrays_maps_and_structs(spark: SparkSession, column: str) -> None:
    class Connection:
        autocommit = False

        def cursor(self) -> Any:
            raise AssertionError("nothing is written")

    sink = Tables(Connection, "results")  # type: ignore[arg-type]
    with pytest.raises(TrackingError, match="the column 'c' has"):
        sink.write(spark.range(1).select(F.expr(column).alias("c")), "q", 0)
