"""A channel's files leave out what columns tell; what is read back is what was sent, whatever steps have changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking, TrackingError
from spark_client.api.streams import TrackedStream
from spark_client.columns import TRACKER
from spark_client.counting.folding import Fold
from spark_client.counting.groups import by_substream, in_files, of_folded
from spark_client.destinations.file_channel import FileChannel
from spark_client.plan.layouts import ELSEWHERE, LABEL, derived_layout
from spark_client.spark_internals.plans import passed_on
from spark_client.spark_internals.stores import _Puts
from spark_client.storage.directories import read_json, write_json
from spark_client.storage.folder import Folder
from spark_client.windows.declaration import declare
from spark_client.windows.substreams import Substreams
from tests.client.processes import Server
from tests.spark.feed import Feed, row, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled")]

Step = Callable[[DataFrame], DataFrame]

WINDOWS: dict[str, Any] = {"scope": "tenant", "window": ("ts", "1 hour", "10 minutes"), "substream": None}


def _some_to_null(rows: DataFrame) -> DataFrame:
    return rows.withColumns({"tenant": F.expr("if(id > 9, tenant, null)"), "ts": F.expr("if(id > 5, ts, null)")})


UNCHANGED: list[tuple[str, Step]] = [
    ("nothing", lambda rows: rows),
    ("other columns", lambda rows: rows.where("id % 3 > 0").withColumn("amount", F.col("amount") + 1)),
]
CHANGED: list[tuple[str, Step]] = [
    ("the time of some", lambda rows: rows.withColumn("ts", F.expr("if(id % 2 = 0, ts + interval 5 hours, ts)"))),
    ("the scope of all", lambda rows: rows.withColumn("tenant", F.lit("z"))),
    ("some to null", _some_to_null),
]


def made(spark: SparkSession) -> DataFrame:
    """Return rows before and after 1970, of two tenants."""
    return (
        spark.range(0, 40, 1, 3)
        .select(
            "id",
            F.concat(F.lit("t"), F.col("id") % 2).alias("tenant"),
            F.timestamp_micros((F.col("id") - 20) * 1_234_567_891).alias("ts"),
            (F.col("id") % 5).cast("int").alias("group"),
            F.lit(1).alias("amount"),
            F.expr("if(id % 2 = 0, 'here', null)").alias("maybe"),
        )
        .withColumn("day", F.to_date("ts"))
    )


def tracked(rows: DataFrame, where: dict[str, Any]) -> tuple[DataFrame, Substreams]:
    declared = declare(rows, where["scope"], where["window"], where["substream"])
    fields = declared.rule.tracker(declared.scope, declared.key, F.xxhash64("id"))
    return rows.withColumn(TRACKER, fields), declared.rule


def sent(
    spark: SparkSession, path: Path, where: dict[str, Any], step: Step, old: bool = False
) -> tuple[FileChannel, Folder, DataFrame, DataFrame]:
    """Return a channel with one epoch: its files, what they hold, and what was sent."""
    rows, rule = tracked(made(spark), where)
    stepped = step(rows)
    channel = FileChannel("clean", Folder(path))
    key = where["window"][0] if where["window"] else where["substream"]
    channel.describe(stepped.schema, rule, derived_layout(rule, where["scope"], key))
    if old:
        known = read_json(path / "_channel.json")
        write_json(path / "_channel.json", {key: known[key] for key in known if key != "told"})
    target = channel.write(stepped, "q", 0, ()).folder
    return channel, target, channel.in_files(spark, [target]), stepped


def entering(tracking: Tracking, feed: Feed) -> TrackedStream:
    rows, front = feed.stream(tracking.spark), Marks("is_last")
    return tracking.source(rows, "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=front)


def columns(target: Folder) -> set[str]:
    return set(pq.read_schema(next(Path(str(target)).glob("*.parquet"))).names)


def belonging(rows: DataFrame) -> list[Any]:
    return sorted(rows.select("id", "_tracker.scope", "_tracker.name", "_tracker.end", "ts", "tenant").collect())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "where",
    [
        WINDOWS,
        {**WINDOWS, "scope": None},
        {"scope": "tenant", "window": None, "substream": "group"},
        {"scope": None, "window": None, "substream": "tenant"},
    ],
    ids=["windows", "windows without scope", "numbers as names", "names without scope"],
)
@pytest.mark.parametrize("step", [step for _, step in UNCHANGED + CHANGED], ids=[n for n, _ in UNCHANGED + CHANGED])
def test_what_files_hold_is_what_was_sent_and_is_counted_alike(
    spark: SparkSession, tmp_path: Path, where: dict[str, Any], step: Step
) -> None:
    channel, target, published, stepped = sent(spark, tmp_path, where, step)
    assert {LABEL, ELSEWHERE} <= columns(target)
    assert TRACKER not in columns(target)
    assert published.columns == stepped.columns
    key = [str(one) for one in belonging(stepped)]
    assert [str(one) for one in belonging(published)] == key
    counted = sorted(in_files(target, channel.layout, lambda: published), key=str)
    native = sorted(by_substream(published, channel.layout.rule, {}, labels=True), key=str)
    assert [(name, dict(values)) for name, values in counted] == [(name, dict(values)) for name, values in native]
    puts = _Puts(Folder(tmp_path / "by tasks"), Fold(channel.layout))
    written = spark.read.parquet(str(target)).mapInArrow(puts, "file string, seen string").collect()
    folded = of_folded(Fold.united(row["seen"] for row in written), channel.layout.rule)
    assert sorted(folded, key=str) == counted
    assert sum(values["_rows"] for _, values in counted) == stepped.count()


@pytest.mark.parametrize("step", [step for _, step in UNCHANGED], ids=[name for name, _ in UNCHANGED])
def test_unchanged_columns_give_a_rows_substream(spark: SparkSession, tmp_path: Path, step: Step) -> None:
    _, target, _, _ = sent(spark, tmp_path, WINDOWS, step)
    assert all(
        pq.read_table(file)[ELSEWHERE].null_count == pq.read_metadata(file).num_rows
        for file in Path(str(target)).iterdir()
    )


ONE_BY_ONE: list[tuple[str, Step, bool]] = [
    ("nothing", lambda rows: rows, True),
    ("other columns", UNCHANGED[1][1], True),
    ("a text of two lines", lambda rows: rows.where("tenant != 'a\nUnion'").drop("amount"), True),
    ("the time", CHANGED[0][1], False),
    ("the scope", CHANGED[1][1], False),
    ("the time, to itself", lambda rows: rows.withColumn("ts", F.expr("ts + interval 0 hours")), False),
    ("two of one", lambda rows: rows.union(rows.withColumn("ts", F.expr("ts + interval 5 hours"))), False),
    ("a join", lambda rows: rows.join(rows.sparkSession.range(40), "id"), False),
    ("names reassigned", lambda rows: rows.withColumnsRenamed({"ts": "at"}).withColumn("ts", F.expr("at")), False),
    ("another _tracker", lambda rows: rows.withColumn(TRACKER, F.col(TRACKER).withField("end", F.now())), False),
]


@pytest.mark.parametrize(("step", "known"), [case[1:] for case in ONE_BY_ONE], ids=[name for name, *_ in ONE_BY_ONE])
def test_only_what_plans_prove_is_taken_for_unchanged(spark: SparkSession, step: Step, known: bool) -> None:
    rows = tracked(made(spark), WINDOWS)[0]
    assert passed_on(rows, step(rows), {"tenant", "ts", TRACKER}) is known


@pytest.mark.thorough
def test_files_have_no_place_for_another_substream_without_need(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = entering(tracking, feed)
    clean = tracking.channel("clean", str(tmp_path / "clean"), keep=True)
    moving = [False]

    def step(rows: DataFrame) -> DataFrame:
        rows = rows.where("kind = 'x'")
        return rows.withColumn("ts", F.expr("ts + interval 3 hours")) if moving[0] else rows

    source.transform(step).writeStream.channel(clean).option("checkpointLocation", tmp_path / "cp1").start()
    released = tracking.release(tracking.receive(clean), aggs={"rows": F.count("*"), "at": F.max("ts")})
    feed.put(row(1, 1), row(2, 2, kind="y"))
    tracking.process_all_available()
    moving[0] = True
    feed.put(row(3, 3), row(4, 4, kind="y", last=True))
    tracking.process_all_available()
    released.writeStream.option("checkpointLocation", tmp_path / "cp2").start(tmp_path / "out")
    tracking.process_all_available()
    tracking.stop()
    (sender,) = [path for path in (tmp_path / "clean").iterdir() if path.is_dir()]
    assert [ELSEWHERE in columns(Folder(epoch)) for epoch in sorted(sender.glob("[0-9]*"))] == [False, True]
    rows = rows_of(tmp_path / "out", spark, "tenant", "window.start", "rows", "at")
    assert [(tenant, start.hour, n, at.hour) for tenant, start, n, at in rows] == [("a", 0, 2, 3)]


def test_a_channel_that_was_made_before_this_form_keeps_its_own(spark: SparkSession, tmp_path: Path) -> None:
    channel, target, published, stepped = sent(spark, tmp_path, WINDOWS, UNCHANGED[1][1], old=True)
    assert TRACKER in columns(target)
    assert belonging(published) == belonging(stepped)
    channel.describe(stepped.schema, channel.layout.rule, derived_layout(channel.layout.rule, "tenant", "ts"))
    assert TRACKER in channel.layout.columns
    assert sum(values["_rows"] for _, values in in_files(target, channel.layout, lambda: published)) == stepped.count()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("where", "step"),
    [
        ({**WINDOWS, "window": ("day", "1 day")}, lambda rows: rows),
        (WINDOWS, lambda rows: rows.drop("ts")),
        (WINDOWS, lambda rows: rows.withColumn("ts", F.col("ts").cast("timestamp_ntz"))),
        (WINDOWS, lambda rows: rows.withColumn("tenant", F.collate("tenant", "UTF8_LCASE"))),
    ],
    ids=["dates", "dropped", "local times", "another collation"],
)
def test_what_columns_do_not_tell_the_same_to_everyone_is_written_whole(
    spark: SparkSession, tmp_path: Path, where: dict[str, Any], step: Step
) -> None:
    channel, target, published, stepped = sent(spark, tmp_path, where, step)
    assert TRACKER in columns(target)
    assert (
        published.select("_tracker.scope", "_tracker.end")
        .exceptAll(stepped.select("_tracker.scope", "_tracker.end"))
        .isEmpty()
    )
    assert sum(values["_rows"] for _, values in in_files(target, channel.layout, lambda: published)) == stepped.count()


@pytest.mark.thorough
def test_a_row_whose_time_changed_stays_in_its_window(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = entering(tracking, feed)
    first, second = tracking.channel("first", str(tmp_path / "first")), tracking.channel("second", str(tmp_path / "2"))
    moved = source.withColumn("ts", F.expr("if(kind = 'y', ts + interval 3 hours, ts)")).writeStream.channel(first)
    louder = tracking.receive(first).withColumn("tenant", F.upper("tenant")).writeStream.channel(second)
    released = tracking.release(tracking.receive(second), ["kind"], aggs={"rows": F.count("*"), "at": F.max("ts")})
    moved.option("checkpointLocation", tmp_path / "cp1").start()
    louder.option("checkpointLocation", tmp_path / "cp2").start()
    released.writeStream.option("checkpointLocation", tmp_path / "cp3").start(tmp_path / "out")
    feed.put(row(1, 1), row(2, 2, kind="y"), row(3, 3, "b", last=True), row(4, 4, last=True))
    tracking.process_all_available()
    tracking.stop()
    rows = rows_of(tmp_path / "out", spark, "tenant", "window.start", "kind", "rows", "at")
    assert [(tenant, start.hour, kind, n, at.hour) for tenant, start, kind, n, at in rows] == [
        ("a", 0, "x", 2, 0),
        ("a", 0, "y", 1, 3),
        ("b", 0, "x", 1, 0),
    ]


def test_columns_that_are_made_of_others_tell_nothing(spark: SparkSession) -> None:
    rule = declare(made(spark), F.upper("tenant"), ("ts", "1 hour"), None).rule
    assert derived_layout(rule, F.upper("tenant"), "ts") is None
    assert derived_layout(rule, F.col("tenant"), F.col("ts")) == derived_layout(rule, "tenant", "ts") is not None


def test_a_null_that_belongs_nowhere_is_refused_when_it_is_sent(spark: SparkSession, tmp_path: Path) -> None:
    named = {"scope": "tenant", "window": None, "substream": "maybe"}
    channel, target, published, _ = sent(spark, tmp_path, named, lambda rows: rows)
    with pytest.raises(TrackingError, match="20 rows belong to no substream: maybe is null in them"):
        in_files(target, channel.layout, lambda: published)
