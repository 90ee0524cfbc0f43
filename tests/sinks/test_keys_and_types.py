"""Tables by key: nulls in a key, revisions, and values that a driver cannot send."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from examples.services.postgres import Postgres
from spark_client import Marks, Table, Tables, Tracking, TrackingError, UsageError, epochs_table
from tests.client.processes import Server
from tests.spark.feed import Feed, row

pytestmark = pytest.mark.spark

Connect = Callable[[], Any]


@pytest.fixture(params=[pytest.param("sqlite3", marks=pytest.mark.thorough), "psycopg"])
def database(request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path) -> tuple[Connect, str]:
    """Return a function that connects to a database, and how its driver writes a parameter."""
    if request.param == "sqlite3":
        return lambda: sqlite3.connect(tmp_path / "results.db"), "?"
    return lambda: psycopg.connect(postgres.dsn), "%s"


def ask(connect: Connect, sql: str, answers: bool = True) -> Any:
    connection = connect()
    cursor = connection.cursor()
    cursor.execute(sql)
    found = sorted(cursor.fetchall(), key=repr) if answers else None
    connection.commit()
    connection.close()
    return found


def made(connect: Connect, name: str, columns: str) -> str:
    ask(connect, f"drop table if exists {name}", answers=False)
    ask(connect, f"create table {name} ({columns})", answers=False)
    return name


KEYED = "shop text, kind text, n bigint, final boolean, as_of bigint, unique (shop, kind)"
ROWS = "shop string, kind string, n long, final boolean, as_of long"


def test_a_replay_by_key_changes_nothing_whatever_is_null(spark: SparkSession, database: tuple[Connect, str]) -> None:
    connect, placeholder = database
    table = Table(made(connect, "by_key", KEYED), key=["shop", "kind"])
    sink = Tables(connect, table, epochs=None, placeholder=placeholder)
    keys = [("a", "x"), ("a", None), (None, "x"), (None, None)]
    for n in (1, 1, 2):
        sink.write(spark.createDataFrame([(*key, n, True, 1) for key in keys], ROWS), "q", n)
        found = ask(connect, "select shop, kind, n from by_key")
        assert found == sorted([(*key, n) for key in keys], key=repr)


@pytest.mark.thorough
@pytest.mark.parametrize("key", [("a", "x"), ("a", None), (None, None)])
def test_an_early_row_replaces_an_older_and_no_final_one_despite_nulls(
    spark: SparkSession, database: tuple[Connect, str], key: tuple[str | None, str | None]
) -> None:
    connect, placeholder = database
    ask(connect, epochs_table("null_epochs").replace("table", "table if not exists", 1), answers=False)
    table = Table(made(connect, "early_by_key", KEYED), key=["shop", "kind"])
    sink = Tables(connect, table, epochs="null_epochs", placeholder=placeholder)

    def wrote(n: int, final: bool, as_of: int) -> Any:
        rows = spark.createDataFrame([(*key, n, final, as_of)], ROWS)
        (sink.write if final else sink.write_early)(rows, f"q{key}", as_of)
        return [(found[0], bool(found[1])) for found in ask(connect, "select n, final from early_by_key")]

    assert wrote(1, False, 5) == [(1, False)]
    assert wrote(2, False, 4) == [(1, False)]
    assert wrote(3, False, 6) == [(3, False)]
    assert wrote(4, True, 7) == [(4, True)]
    assert wrote(5, False, 8) == [(4, True)]


#: A value of each type that results can have, with the type of its column in PostgreSQL.
VALUES = {
    "decimal(20,2)": ("cast(1.5 as decimal(20,2))", "numeric"),
    "bigint": ("1", "bigint"),
    "tinyint": ("cast(1 as tinyint)", "smallint"),
    "double": ("cast(1.5 as double)", "double precision"),
    "boolean": ("true", "boolean"),
    "string": ("'x'", "text"),
    "varchar": ("cast('x' as varchar(3))", "text"),
    "binary": ("cast('x' as binary)", "bytea"),
    "date": ("date'2024-01-01'", "date"),
    "timestamp": ("timestamp'2024-01-01 00:00:00'", "timestamptz"),
    "timestamp_ntz": ("timestamp_ntz'2024-01-01 00:00:00'", "timestamp"),
    "interval": ("interval '1' day", "interval"),
    "array": ("array('x')", "text[]"),
    "array of decimals": ("array(cast(1.5 as decimal(20,2)))", "numeric[]"),
    "map": ("map('x', 1)", "jsonb"),
    "variant": ("parse_json('1')", "jsonb"),
    "text into a number": ("'x'", "bigint"),
    "number into a text": ("1", "text"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", VALUES)
def test_what_cannot_be_written_does_not_start(spark: SparkSession, database: tuple[Connect, str], kind: str) -> None:
    connect, placeholder = database
    value, column = VALUES[kind]
    made(connect, "typed", f"id bigint unique, value {column}")
    rows = spark.range(1).select("id", F.expr(value).alias("value"))
    sink = Tables(connect, Table("typed", key=["id"]), epochs=None, placeholder=placeholder)
    try:
        sink.check(rows.limit(0))
    except UsageError:
        with pytest.raises(TrackingError, match=r"table typed: .*Nothing of the batch was written"):
            sink.write(rows, "q", 0)
    else:
        if kind == "text into a number":  # a text can be a number, so only its value shows it
            return
        sink.write(rows, "q", 0)
        assert len(ask(connect, "select id from typed")) == 1
    assert ask(connect, "select id from typed") in ([], [(0,)])


@pytest.mark.parametrize(("columns", "key"), [("id bigint, value text", ["id"]), ("id bigint unique", []), (None, [])])
def test_a_table_that_is_not_as_declared_is_refused_at_the_start(
    spark: SparkSession, database: tuple[Connect, str], columns: str | None, key: list[str]
) -> None:
    connect, placeholder = database
    ask(connect, "drop table if exists declared", answers=False)
    if columns is not None:
        made(connect, "declared", columns)
    rows = spark.range(0).select("id", F.lit("x").alias("value"))
    with pytest.raises(UsageError, match="table declared: the database or its driver does not take rows"):
        Tables(connect, Table("declared", key=key), placeholder=placeholder).check(rows)


@pytest.mark.thorough
def test_a_key_without_the_revision_is_refused_where_there_are_revisions(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path
) -> None:
    connect = lambda: sqlite3.connect(tmp_path / "revised.db")  # noqa: E731
    columns = "tenant text, window_start text, window_end text, revision integer, n integer"
    made(connect, "totals", f"{columns}, unique (tenant, window_end), unique (tenant, window_end, revision)")
    feed = Feed(tmp_path / "raw")
    feed.put(row(1, 1), row(2, 2, last=True))
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    released = tracking.release(source, aggs={"n": F.count("*")}, revisions=True)

    def start(*key: str) -> None:
        sink = Tables(connect, Table("totals", key=key), epochs=None, placeholder="?")
        released.writeStream.sink(sink).option("checkpointLocation", tmp_path / "cp").start()

    with pytest.raises(UsageError, match="lacks 'revision'"):
        start("tenant", "window_end")
    start("tenant", "window_end", "revision")
    tracking.process_all_available()
    tracking.stop()
    assert ask(connect, "select revision, n from totals") == [(0, 2)]
