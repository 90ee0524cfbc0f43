"""Names of columns, segments and tenants: whatever is in them, they live through everything, or are refused at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Schedule, Tables, Tracking, UsageError, child_label, source_label
from spark_client.destinations.table import Statements
from tests.client.processes import Server
from tests.spark.feed import Feed
from tests.spark.odd_names import ODD, Names, live

pytestmark = pytest.mark.spark


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 20))])
def test_drawn_names_live_through_everything(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, seed: int
) -> None:
    names = Names(seed)
    path = str(tmp_path / "channel")
    live(names, spark, tracker.address, job, feed, tmp_path, lambda tracking: tracking.channel(names.channel, path))


@pytest.fixture
def tracking(spark: SparkSession, tracker: Server, job: str) -> Iterator[Tracking]:
    tracking = Tracking(spark, job, tracker.address)
    yield tracking
    tracking.stop()


def rows(spark: SparkSession, feed: Feed) -> DataFrame:
    return feed.stream(spark)


WINDOW: dict[str, Any] = {"scope": "tenant", "window": ("ts", "1 hour")}

REFUSED_SOURCES: list[tuple[str, Callable[[DataFrame], DataFrame], str]] = [
    (
        "alike",
        lambda df: df.withColumnRenamed("part", "x").withColumnRenamed("value", "X"),
        r"columns \['X', 'x'\] apart",
    ),
    ("empty", lambda df: df.withColumnRenamed("part", ""), r"names are empty"),
    ("ours", lambda df: df.withColumnRenamed("part", "_Tracker_bell"), "begin with '_tracker', which is reserved"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("step", "message"), [r[1:] for r in REFUSED_SOURCES], ids=[r[0] for r in REFUSED_SOURCES])
def test_columns_that_cannot_be_told_apart_are_refused(
    tracking: Tracking, spark: SparkSession, feed: Feed, step: Callable[[DataFrame], DataFrame], message: str
) -> None:
    sensitive = spark.conf.get("spark.sql.caseSensitive")
    try:
        if message.startswith("columns"):
            spark.conf.set("spark.sql.caseSensitive", "true")  # else Spark renames both
        df = step(rows(spark, feed))
        spark.conf.set("spark.sql.caseSensitive", "false")
        with pytest.raises(UsageError, match=message):
            tracking.source(df, "in", **WINDOW)
    finally:
        spark.conf.set("spark.sql.caseSensitive", str(sensitive))


@pytest.mark.thorough
def test_names_of_a_release_that_cannot_be_told_apart_are_refused(
    tracking: Tracking, spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    source = tracking.source(rows(spark, feed), "in", **WINDOW)
    count = F.count("*")
    for keys, aggs in (
        ([F.col("kind"), F.col("part").alias("Kind")], {"n": count}),
        (["kind"], {"KIND": count}),
        (["kind"], {"": count}),
        (["kind"], {"Window": count}),
        ([F.col("kind").alias("_rows")], {"n": count}),
    ):
        with pytest.raises(UsageError, match="are taken or empty, or begin with an underscore: choose others"):
            tracking.release(source, keys, aggs=aggs)
    with pytest.raises(UsageError, match="does not let us see into this expression"):
        tracking.release(source, aggs={"n": F.max(F.lit("part"))})  # which is written as the column's is
    with pytest.raises(UsageError, match=r"has another name at each start: give it one, with \.alias"):
        tracking.release(source, [F.transform(F.array("part"), lambda x: x + 1)], aggs={"n": count})
    for key in ("upper(`a lambda`)", "upper(`lambdafunction(x)`)"):  # names of columns, and no functions
        renamed = source.withColumn("a lambda", F.col("kind")).withColumn("lambdafunction(x)", F.col("kind"))
        tracking.release(renamed, [F.expr(key)], aggs={"n": count})
    tracking.release(source, [F.transform(F.array("part"), lambda x: x + 1).alias("next")], aggs={"n": count})
    for name in ("epoch", "EPOCH"):
        released = tracking.release(source, [F.col("part").alias(name)], aggs={"n": count})
        with pytest.raises(UsageError, match="a directory epoch=N, which readers take for a column"):
            released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")


@pytest.mark.thorough
def test_names_that_differ_in_case_live_where_spark_tells_them_apart(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        tracking = Tracking(spark, job, tracker.address)
        raw = feed.stream(spark).withColumnRenamed("part", "Kind")
        source = tracking.source(raw, "in", **WINDOW, identity=["row_id"], front=Marks("is_last"))
        channel = tracking.channel("clean", str(tmp_path / "clean"))
        source.writeStream.channel(channel).option("checkpointLocation", tmp_path / "send").start()
        released = tracking.release(
            tracking.receive(channel), ["kind", "Kind"], aggs={"n": F.count("*"), "N": F.max("Kind")}
        )
        released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        feed.put({**ROW, "kind": "x", "part": 7, "Kind": 7}, {**ROW, "row_id": 2, "is_last": True, "part": 8})
        tracking.process_all_available()
        tracking.stop()
        table = spark.read.parquet(str(tmp_path / "out"))
        assert sorted(map(tuple, table.select("kind", "Kind", "n", "N").collect())) == [("x", 7, 1, 7), ("x", 8, 1, 8)]
    finally:
        spark.conf.set("spark.sql.caseSensitive", "false")


ROW = {
    "row_id": 1,
    "ts": "2024-01-01 00:00:01",
    "tenant": "a",
    "kind": "x",
    "amount": 1,
    "value": 1.0,
    "is_last": False,
}


@pytest.mark.parametrize("name", ["", "x" * 513, "é" * 257, "\ud800", "a\0b", None, 7])
def test_segments_that_cannot_be_named_so_are_refused_where_they_are_declared(
    tracking: Tracking, spark: SparkSession, feed: Feed, tmp_path: Path, name: Any
) -> None:
    with pytest.raises(UsageError, match="a segment's name is text of 1 to 512 bytes"):
        tracking.source(rows(spark, feed), name, **WINDOW)
    with pytest.raises(UsageError, match="a segment's name is text of 1 to 512 bytes"):
        tracking.channel(name, str(tmp_path / "c"))


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 129, "é", None])
def test_jobs_that_cannot_be_named_so_are_refused_where_they_are_declared(spark: SparkSession, name: Any) -> None:
    with pytest.raises(UsageError, match="a job's name has 1 to 128 letters"):
        Tracking(spark, name, "127.0.0.1:1")
    with pytest.raises(UsageError, match="a deployment's name has 1 to 128 characters"):
        Tracking(spark, "job", "127.0.0.1:1", "")


@pytest.mark.thorough
def test_a_constant_is_not_taken_for_the_column_of_its_name(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(
        feed.stream(spark),
        "in",
        scope=F.lit("kind"),
        window=("ts", "1 hour"),
        identity=["row_id"],
        front=Marks("is_last"),
    )
    channel = tracking.channel("clean", str(tmp_path / "clean"))
    source.drop("kind").withColumn("kind", F.lit("other")).writeStream.channel(channel).option(
        "checkpointLocation", tmp_path / "send"
    ).start()
    released = tracking.release(tracking.receive(channel), aggs={"n": F.count("*")})
    released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
    feed.put({**ROW, "is_last": True})
    tracking.process_all_available()
    assert [(s.scope, s.name[:10]) for s in tracking.client.substreams(job, include_ended=True)] == [
        ("kind", "2024-01-01")
    ]
    tracking.stop()
    assert spark.read.parquet(str(tmp_path / "out")).count() == 1


def test_labels_tell_nulls_apart_and_are_otherwise_what_they_were(spark: SparkSession) -> None:
    values = [None, "a", "b", "10", "01", ""]
    table = spark.createDataFrame([(x, y) for x in values for y in values], "x string, y string")
    parent = F.lit(7).cast("long")
    pair = [F.col("x"), F.col("y")]
    labels = table.select(
        source_label("job", pair).alias("source"),
        child_label(parent, "clean", pair).alias("child"),
        F.xxhash64(parent, F.lit("clean"), *pair).alias("before"),
        (F.col("x").isNull() | F.col("y").isNull()).alias("null"),
    ).collect()
    assert len({r.source for r in labels}) == len({r.child for r in labels}) == len(values) ** 2
    assert all(r.child == r.before for r in labels if not r.null)


@pytest.mark.thorough
def test_a_timetable_may_have_columns_of_any_name(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    due = spark.sql("select 'a' `ten.ant`, timestamp'2024-01-01 00:30:00' `when`, 1L `n.o`")
    source = tracking.source(feed.stream(spark), "in,a b", **WINDOW, front=Schedule(due))
    released = tracking.release(source, aggs={"n": F.count("*")})
    released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
    feed.put(ROW)
    tracking.process_all_available()
    tracking.stop()
    assert spark.read.parquet(str(tmp_path / "out")).count() == 1


@pytest.mark.parametrize("placeholder", ["%s", "?"])
def test_statements_take_columns_of_any_name(placeholder: str) -> None:
    """As a database's driver reads them: with a per cent sign in its parameters it makes one of two."""
    names = [name for name in ODD if "\0" not in name]
    asked: list[str] = []
    cursor = SimpleNamespace(executemany=lambda statement, rows: asked.append(statement))
    Statements("results", names, [names[0]], placeholder).run(cursor, [["v"] * len(names)])
    (statement,) = asked
    columns = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
    if placeholder == "%s":
        assert (statement % tuple(["v"] * len(names))).startswith(f"insert into results ({columns}) values (v, v, ")
    else:
        assert statement.startswith(f"insert into results ({columns}) values (?, ?, ")
    with pytest.raises(UsageError, match="give '%s' or '\\?'"):
        Tables(lambda: None, "results", placeholder=":1")  # type: ignore[arg-type, return-value]
