"""Rows that are kept until their substream has ended, and functions over all of them, equal to a batch's, once."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import FinishedGroup, Frontier, Marks, Schedule, Tracking, UsageError
from spark_client.api.released import Released
from spark_client.release.state import PartialState
from spark_client.runtime.queryplan import CountingMode
from tests.client.processes import Server
from tests.spark.dying import Driver
from tests.spark.feed import START, Feed, row, rows_of

pytestmark = pytest.mark.spark

COLUMNS = ["row_id", "ts", "amount", "value"]
OWN = ("tenant", "window.end")


def ordered(rows: DataFrame) -> DataFrame:
    """Return the three greatest amounts of a tenant's hour, in order, as Spark would write them over a batch."""
    pairs = F.sort_array(F.collect_list(F.struct("amount", "row_id")), asc=False)
    return rows.groupBy("tenant", "window").agg(F.count("*").alias("rows"), F.slice(pairs, 1, 3).alias("top"))


def percentiles(group: FinishedGroup, rows: pd.DataFrame) -> pd.DataFrame:
    assert set(rows.columns) == {"kind", *COLUMNS}
    assert (group.keys, rows["kind"].nunique()) == ((rows["kind"].iloc[0],), 1)
    assert group.end is not None
    assert rows["ts"].max() < group.end  # times have a zone
    return pd.DataFrame({"name": [group.name], "p90": [rows["amount"].quantile(0.9)], "last": [rows["ts"].max()]})


def twice(rows: pa.Table) -> pa.Table | None:
    """Return two rows for each, none for tenant b, whose amounts are negative."""
    if rows["amount"][0].as_py() < 0:
        return None
    return pa.concat_tables([rows.select(["row_id", "value"])] * 2)


def batch(feed: Feed, spark: SparkSession) -> DataFrame:
    return feed.batch(spark).withColumn("window", F.window("ts", "1 hour"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "names", [("lists", "percentiles"), pytest.param(("doubled", "plain"), marks=pytest.mark.slow)]
)
def test_functions_over_kept_rows_equal_a_batch_and_each_result_comes_once(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, names: tuple[str, ...]
) -> None:
    tracking = Tracking(spark, job, tracker.address)

    def kept(name: str, keys: list[str]) -> Released:
        source = tracking.source(
            feed.stream(spark),
            name,
            scope="tenant",
            window=("ts", "1 hour"),
            identity=["row_id"],
            front=Marks("is_last"),
        )
        return tracking.release(source, keys, columns=COLUMNS)

    declared: dict[str, Callable[[str], Released]] = {
        "lists": lambda name: kept(name, []).apply(ordered),
        "percentiles": lambda name: kept(name, ["kind"]).applyInPandas(
            percentiles, "name string, p90 double, last timestamp"
        ),
        "doubled": lambda name: kept(name, []).applyInArrow(twice, "row_id long, value double"),
        "plain": lambda name: kept(name, ["kind"]),
    }
    for name, released in [(name, declared[name](name)) for name in names]:
        writer = released.writeStream.receipts(tmp_path / "receipts").option("compact_from", 2)
        writer.option("checkpointLocation", tmp_path / name).start(tmp_path / f"out {name}")
    number = 0
    for minutes in (0, 20, 40, 70):
        rows = []
        for tenant, sign in (("a", 1), ("b", -1), ("c", 1)):
            for place in range(7):
                number += 1
                last = minutes == 40 and place == 6 and tenant != "c"
                rows.append(
                    row(number, minutes + place, tenant, "xy"[place % 2], sign * (number * 37 % 101), last=last)
                )
        feed.put(*rows)
        tracking.process_all_available()
    ended = batch(feed, spark).where("ts < '2024-01-01 01:00:00' and tenant <> 'c'")

    def out(name: str, *columns: str) -> list[tuple[Any, ...]]:
        return rows_of(tmp_path / f"out {name}", spark, *columns)

    def expected(rows: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(r) for r in rows.select(*columns).collect())

    interval = F.lit("2024-01-01T00:00:00Z/2024-01-01T01:00:00Z").alias("name")
    values = [interval, F.percentile("amount", 0.9).alias("p90"), F.max("ts").alias("last")]
    doubled = ended.where("amount >= 0").select("tenant", "window", "row_id", "value")
    for name, rows_of_batch, columns in [
        ("lists", ordered(ended), (*OWN, "rows", "top")),
        ("percentiles", ended.groupBy("tenant", "window", "kind").agg(*values), (*OWN, "kind", "name", "last", "p90")),
        ("doubled", doubled.union(doubled), (*OWN, "row_id", "value")),
        ("plain", ended, (*OWN, "kind", *COLUMNS)),
    ]:
        if name in names:
            got, wanted = out(name, *columns), expected(rows_of_batch, *columns)
            assert [r[:-1] for r in got] == [r[:-1] for r in wanted]
            assert got[-1][-1] == pytest.approx(wanted[-1][-1]) if name == "percentiles" else got == wanted
    receipts = spark.read.parquet(str(tmp_path / "receipts")).select("segment", "scope", "rows", "elements", "results")
    results = {"lists": 1, "percentiles": 2, "doubled": 42, "plain": 21}
    assert {tuple(r) for r in receipts.collect()} == {
        (segment, tenant, 21, 21, 0 if (segment, tenant) == ("doubled", "b") else number)
        for segment, number in results.items()
        for tenant in "ab"
        if segment in names
    }
    raw = batch(feed, spark).where("not (ts < '2024-01-01 01:00:00' and tenant <> 'c')")
    open_rows = sum(tracked.processor.state_size().rows for tracked in tracking._running.queries)  # type: ignore[attr-defined]
    assert open_rows == len(names) * raw.count()
    tracking.stop()


@pytest.mark.thorough
def test_a_function_gets_and_makes_the_same_times_whatever_the_sessions_zone(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """In the window, in a key, in the rows, and inside an array and a struct; the file's times have no zone."""

    def latest(group: FinishedGroup, rows: pd.DataFrame) -> pd.DataFrame:
        assert [group.start.isoformat(), group.end.isoformat()] == [  # type: ignore[union-attr]
            "2023-12-31T23:00:00+00:00",
            "2024-01-01T00:00:00+00:00",
        ]
        assert rows["ts"].dt.tz is not None
        return pd.DataFrame({"last": [rows["ts"].max()], "rows": [len(rows)]})

    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        tracking = Tracking(spark, job, tracker.address)
        rows = feed.stream(spark).withColumn("half", F.timestamp_seconds(F.floor(F.unix_seconds("ts") / 1800) * 1800))
        rows = rows.withColumn("list", F.array("ts")).withColumn("inner", F.struct("ts"))
        source = tracking.source(
            rows, "raw", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=Marks("is_last")
        )
        kept = tracking.release(source, ["half"], columns=["ts", "list", "inner"])
        made = kept.applyInPandas(latest, "last timestamp, rows long")
        made.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        feed.put(row(1, 1), row(2, 29), row(3, 31, last=True))
        tracking.process_all_available()
        seconds = [F.unix_seconds(name).alias(name) for name in ("half", "last")]
        found = spark.read.parquet(str(tmp_path / "out")).select(*seconds, "rows").collect()
        start = int(START.timestamp()) - 3600
        assert sorted(map(tuple, found)) == [(start, start + 29 * 60, 2), (start + 1800, start + 31 * 60, 1)]
        tracking.stop()
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


def bad(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[["nothing"]]


def fails(rows: DataFrame) -> DataFrame:
    return rows.select("tenant", F.raise_error(F.concat(F.lit("no "), "tenant")).cast("long").alias("amount"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda kept: kept.applyInPandas(bad, "amount long"),
            'bad failed for the substream "tén\'ant".*KeyError.*noth',
        ),
        *(
            pytest.param(make, message, marks=pytest.mark.slow)
            for make, message in [
                (lambda kept: kept.applyInPandas(lambda rows: 5, "n long"), "returned int, not a DataFrame of pandas"),
                (lambda kept: kept.applyInArrow(lambda rows: rows.select([]), "amount long"), "lacks the columns"),
                (lambda kept: kept.apply(fails), "fails failed for \"tén'ant\".*no tén'ant.*repair the function"),
                (
                    lambda kept: kept.apply(lambda rows: rows.withColumn("tenant", F.lit("c"))),
                    'of no substream that ends in this batch: {"tenant":"c"}.*keep tenant as they are',
                ),
            ]
        ),
    ],
)
def test_a_failing_function_names_the_substream_and_is_repaired(
    spark: SparkSession,
    tracker: Server,
    job: str,
    feed: Feed,
    tmp_path: Path,
    make: Callable[[Released], Released],
    message: str,
) -> None:
    def start(make: Callable[[Released], Released]) -> Tracking:
        tracking = Tracking(spark, job, tracker.address)
        source = tracking.source(feed.stream(spark), "in", substream="tenant", front=Marks("is_last"))
        released = make(tracking.release(source, columns=["amount"]))
        released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        return tracking

    feed.put(row(1, 1, "tén'ant"), row(2, 1, "tén'ant"), row(3, 1, "tén'ant", last=True), row(4, 1, "b"))
    tracking = start(make)
    with pytest.raises(Exception, match=message):
        tracking.process_all_available()
    tracking.stop()
    assert not list((tmp_path / "out").glob("epoch=*"))
    tracking = start(lambda kept: kept.apply(lambda rows: rows.groupBy("tenant").agg(F.count("*").alias("rows"))))
    feed.put(row(5, 1, "b", last=True))
    tracking.process_all_available()
    tracking.stop()
    assert rows_of(tmp_path / "out", spark, "tenant", "rows") == [("b", 2), ("tén'ant", 3)]


@pytest.mark.parametrize(
    "before", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["this version", "the version before"]
)
def test_what_a_function_has_made_first_stands_when_the_batch_is_repeated(
    spark: SparkSession,
    tracker: Server,
    job: str,
    feed: Feed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: bool,
) -> None:
    given: list[list[tuple[Any, ...]]] = []

    def start() -> Tracking:
        tracking = Tracking(spark, job, tracker.address)
        source = tracking.source(feed.stream(spark), "in", substream="tenant", front=Marks("is_last"))
        drawn = tracking.release(source, aggs={"rows": F.count("*")}).apply(
            lambda rows: rows.withColumn("drawn", F.lit(uuid.uuid4().hex))
        )
        writer = drawn.writeStream.foreachBatch(lambda rows, _: given.append([tuple(r) for r in rows.collect()]))
        writer.option("checkpointLocation", tmp_path / "cp").start()
        return tracking

    publish = PartialState.publish

    def dies(state: PartialState, epoch: int) -> None:
        publish(state, epoch if not given else 1 // 0)

    tracking = start()
    feed.put(row(1, 1), row(2, 1, last=True))
    with monkeypatch.context() as dying:
        dying.setattr(PartialState, "publish", dies)  # the results are out, and nobody knows
        with pytest.raises(Exception, match="division"):
            tracking.process_all_available()
        tracking.stop()
    if before:
        (note,) = tmp_path.glob("cp/tracker/made/*.json")
        note.with_name(json.loads(note.read_text())).rename(note.with_name(f"epoch={note.stem}"))
        note.unlink()
    tracking = start()
    tracking.process_all_available()
    tracking.stop()
    (first,), (again,) = given
    assert first == again
    assert first[:2] == ("a", 2)


@pytest.mark.slow
def test_late_kept_rows_are_reopened_by_the_same_function(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    def start() -> Tracking:
        tracking = Tracking(spark, job, tracker.address)
        source = tracking.source(
            feed.stream(spark),
            "in",
            scope="tenant",
            window=("ts", "1 hour"),
            identity=["row_id"],
            front=Marks("is_last"),
        )
        clean = tracking.channel("clean", str(tmp_path / "clean"))
        sending = source.writeStream.channel(clean).option("checkpointLocation", tmp_path / "cp1")
        kept = tracking.release(
            tracking.receive(clean).where("kind <> 'z'"), columns=["amount"], revisions=True, completeness=True
        )
        listed = kept.applyInPandas(
            lambda rows: pd.DataFrame({"amounts": [",".join(map(str, sorted(rows["amount"])))]}), "amounts string"
        )
        sending.start()
        writer = listed.writeStream.receipts(tmp_path / "receipts").option("checkpointLocation", tmp_path / "cp2")
        writer.start(tmp_path / "out")
        return tracking

    tracking = start()
    feed.put(row(1, 1, amount=3), row(2, 2, amount=1), row(3, 2, kind="z"), row(4, 3, amount=2, last=True))
    tracking.process_all_available()
    feed.put(row(5, 4, amount=7))  # late, as a row
    tracking.process_all_available()
    tracking.stop()
    tracking = start()  # it has forgotten what is over
    feed.put(row(6, 4, amount=5), row(7, 4, amount=4), row(8, 5, "b"))
    tracking.process_all_available()
    checkpoint = str(tmp_path / "cp2")
    late = tracking.late(checkpoint).select("kind", F.get_json_object("data", "$.amount").cast("long"), "scope")
    assert sorted(map(tuple, late.collect())) == [("kept", 4, "a"), ("kept", 5, "a"), ("row", 7, "a")]
    (made,) = tracking.reopen(checkpoint, scope="a", end_time=datetime(2024, 1, 1, 1, tzinfo=timezone.utc))
    assert made.rows == 3
    tracking.process_all_available()
    tracking.drain(120)
    results = rows_of(tmp_path / "out", spark, "tenant", "amounts", "revision", "completeness")
    assert results == [("a", "1,2,3", 0, "whole"), ("a", "4,5,7", 1, "late"), ("b", "1", 0, "drained")]
    receipts = spark.read.parquet(str(tmp_path / "receipts")).where("rows > 0")
    got = sorted(tuple(r) for r in receipts.select("scope", "revision", "rows", "elements", "results").collect())
    assert got == [("a", 0, 4, 4, 1), ("a", 1, 3, 3, 1), ("b", 0, 1, 1, 1)]


def test_what_cannot_be_kept_or_applied_is_refused_where_it_is_declared(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    kept = tracking.release(source, ["kind"], columns=["amount"])
    for declare, message in [
        (lambda: tracking.release(source), "to aggregate rows, or columns="),
        (lambda: tracking.release(source, aggs={"n": F.count("*")}, columns=["amount"]), "not both"),
        (lambda: tracking.release(source, columns=["nothing"]), "not a column of the rows"),
        (lambda: tracking.release(source, ["kind"], columns=["kind"]), r"names \['kind'\] are taken"),
        (
            lambda: tracking.release(source, columns=[F.lit(None).alias("n")]),
            "'n' is void, which files of the state cannot hold",
        ),
        (lambda: kept.apply(lambda rows: rows.drop("window")), "column='window' is not a column of the rows"),
        (lambda: kept.apply(lambda rows: rows.where("no_column > 3")), "called with no rows.*no_column"),
        (lambda: kept.apply(lambda rows: 5), "the function's result is 5"),  # type: ignore[arg-type,return-value]
        (lambda: kept.apply("upper"), "is 'upper': give a function"),  # type: ignore[arg-type]
        (lambda: kept.applyInPandas(percentiles, "kind string"), r"names \['kind'\]"),
        (lambda: kept.applyInPandas(percentiles, "n nonsense"), "is no schema"),
        (lambda: kept.applyInPandas(percentiles, "p90 double").apply(ordered), "made by percentiles already"),
        (lambda: kept.writeStream.channel(tracking.channel("next", str(tmp_path / "next"))), "go to files, a sink"),
    ]:
        with pytest.raises(UsageError, match=message):
            declare()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("front", "probe"),
    [
        ("schedule", "executors"),
        ("by scope", "driver"),
        *(
            pytest.param(front, probe, marks=pytest.mark.slow)
            for front, probe in [
                ("schedule", "driver"), ("frontier", "driver"), ("frontier", "executors"), ("by scope", "executors"),
            ]
        ),
    ],
)  # fmt: skip
def test_rows_are_kept_and_counted_whoever_counts_and_whatever_the_source_promises(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, probe: CountingMode, front: str
) -> None:
    fronts: dict[str, Any] = {
        "schedule": Schedule([("a", START, 3), ("b", START, 1)]),
        "frontier": Frontier("0 seconds"),
        "by scope": Frontier("0 seconds", per_scope=True),
    }
    tracking = Tracking(spark, job, tracker.address, probe=probe)
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=fronts[front]
    )
    kept = tracking.release(source, columns=["row_id"])
    writer = kept.writeStream.receipts(tmp_path / "receipts").option("checkpointLocation", tmp_path / "cp")
    writer.start(tmp_path / "out")
    feed.put(row(1, 1), row(2, 2, "b"), row(3, 2))
    feed.put(row(4, 59))
    tracking.process_all_available()
    if front != "schedule":
        feed.put(row(5, 61), row(6, 62, "b"))
    tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, "tenant", "row_id") == [("a", 1), ("a", 3), ("a", 4), ("b", 2)]
    receipts = spark.read.parquet(str(tmp_path / "receipts")).select("scope", "rows", "elements", "results", "xor")
    label = F.expr(f"coalesce(nullif(xxhash64('{job}', row_id), 0L), 1L)")
    raw = feed.batch(spark).where("row_id < 5").groupBy("tenant").agg(*[F.count("*")] * 3, F.bit_xor(label))
    assert sorted(map(tuple, receipts.collect())) == sorted(map(tuple, raw.collect()))
    tracking.stop()


@pytest.mark.slow
def test_two_streams_are_joined_by_tenant_as_a_batch_does(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path
) -> None:
    def joined(rows: DataFrame) -> DataFrame:
        by = ["tenant", "window", "row_id"]
        ordered = rows.where("side = 'order'").select(*by, F.col("amount").alias("price"))
        ordered = ordered.dropDuplicates([*by, "price"])
        paid = rows.where("side = 'payment'").groupBy(*by).agg(F.sum("amount").alias("paid"))
        return ordered.join(paid, by, "full")

    tracking = Tracking(spark, job, tracker.address)
    feeds = {side: Feed(tmp_path / side) for side in ("order", "payment")}
    both = tracking.channel("both", str(tmp_path / "both"))
    senders = []
    for side, feed in feeds.items():
        source = tracking.source(
            feed.stream(spark), side, scope="tenant", window=("ts", "1 hour"), identity=["part"], front=Marks("is_last")
        )
        rows = source.select("_tracker", "tenant", "ts", "row_id", F.lit(side).alias("side"), "amount")
        senders.append(rows.writeStream.channel(both).option("checkpointLocation", tmp_path / f"cp {side}"))
    kept = tracking.release(tracking.receive(both), columns=["row_id", "side", "amount"])
    writer = kept.apply(joined).writeStream.option("checkpointLocation", tmp_path / "cp")
    for sender in senders:
        sender.start()
    writer.start(tmp_path / "out")
    columns = ("tenant", "window.end", "row_id", "price", "paid")
    orders, payments = feeds.values()
    orders.put(row(1, 1, amount=10, part=1), row(2, 2, amount=20, part=2), row(2, 2, amount=20, part=3))
    orders.put(row(1, 3, "b", amount=5, part=4, last=True), row(3, 4, amount=30, part=5, last=True))
    payments.put(row(1, 50, "b", amount=4, part=1), row(2, 9, amount=15, part=2), row(9, 9, amount=1, part=3))
    tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, *columns) == []
    payments.put(row(1, 59, "b", amount=1, part=4, last=True), row(2, 59, amount=5, part=5))
    tracking.process_all_available()
    assert [r[0] for r in rows_of(tmp_path / "out", spark, *columns)] == ["b"]
    payments.put(row(3, 59, amount=7, part=6, last=True))
    tracking.process_all_available()
    whole = [batch(feed, spark).withColumn("side", F.lit(side)) for side, feed in feeds.items()]
    found = spark.read.parquet(str(tmp_path / "out")).select(*columns)
    expected = joined(whole[0].union(whole[1])).select(*columns)
    assert sorted(map(str, found.collect())) == sorted(map(str, expected.collect()))
    assert found.count() == 5
    status = tracking.client.job(job)
    assert (status.open_substreams, status.in_flight) == (0, 0)
    tracking.stop()


@pytest.mark.slow
def test_a_driver_that_dies_at_any_step_leaves_each_result_once(
    spark: SparkSession, tracker: Server, tmp_path: Path
) -> None:
    driver = Driver(tmp_path)

    def run(number: int, dies_at: int | None) -> int:
        path = tmp_path / str(number)
        feed = Feed(path / "raw")
        feed.put(row(1, 1), row(2, 1, "b"))
        feed.put(row(3, 1, last=True), row(4, 1, "b", amount=5))
        feed.put(row(5, 1, "b", amount=6, last=True))

        def life() -> None:
            tracking = Tracking(spark, f"dying-{number}", tracker.address)
            try:
                source = tracking.source(feed.stream(spark), "in", substream="tenant", front=Marks("is_last"))
                kept = tracking.release(source, columns=["amount"]).applyInPandas(
                    lambda rows: pd.DataFrame({"total": [rows["amount"].sum()], "drawn": [uuid.uuid4().hex]}),
                    "total long, drawn string",
                )
                writer = kept.writeStream.receipts(path / "receipts").option("checkpointLocation", path / "cp")
                writer.option("compact_from", 2).start(path / "out")
                tracking.process_all_available()
            finally:
                tracking.stop()

        with driver.living(dies_at), suppress(Exception) if dies_at is not None else nullcontext():
            life()
        life()
        assert rows_of(path / "out", spark, "tenant", "total") == [("a", 2), ("b", 12)]
        receipts = spark.read.parquet(str(path / "receipts")).select("name", "rows", "results")
        assert sorted(map(tuple, receipts.collect())) == [("a", 2, 1), ("b", 3, 1)]
        return len(driver.steps)

    steps = run(0, None)
    for number, dies_at in enumerate(range(3, steps, max(1, steps // 16)), 1):
        run(number, dies_at)
