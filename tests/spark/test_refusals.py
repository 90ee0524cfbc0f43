"""Declarations that cannot be right are refused where they are declared or started, in words that say what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, TrackedStream, Tracking, UsageError
from tests.client.processes import Server
from tests.spark.feed import Feed, row, rows_of

pytestmark = pytest.mark.spark

WINDOW: dict[str, Any] = {"scope": "tenant", "window": ("ts", "1 hour"), "identity": ["row_id"]}


@pytest.fixture
def tracking(spark: SparkSession, tracker: Server, job: str) -> Iterator[Tracking]:
    tracking = Tracking(spark, job, tracker.address)
    yield tracking
    tracking.stop()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("release", "release"),
        ("function", "release"),
        pytest.param("release", "function", marks=pytest.mark.slow),
        pytest.param("release", "route", marks=pytest.mark.slow),
        pytest.param("function", "function", marks=pytest.mark.slow),
        pytest.param("function", "route", marks=pytest.mark.slow),
    ],
)
def test_a_second_consumer_is_refused_and_the_first_goes_on(
    tracking: Tracking, spark: SparkSession, feed: Feed, tmp_path: Path, first: str, second: str
) -> None:
    source = tracking.source(feed.stream(spark), "in", **WINDOW, front=Marks("is_last"))
    channel, other = (tracking.channel(name, str(tmp_path / name)) for name in ("clean", "other"))
    sending = source.writeStream.channel(channel).option("checkpointLocation", tmp_path / "send")
    got = tracking.receive(channel)
    function: list[int] = []

    def writing(what: str, name: str) -> Callable[[], Any]:
        def start() -> Any:
            if what == "release":
                released = tracking.release(got.where("amount > 0"), aggs={"n": F.count("*")})
                return released.writeStream.option("checkpointLocation", tmp_path / name).start(
                    tmp_path / f"{name}-out"
                )
            if what == "route":
                return routes.option("checkpointLocation", tmp_path / name).start()
            writer = got.writeStream.foreachBatch(lambda rows, _: function.append(rows.count()))
            return writer.option("checkpointLocation", tmp_path / name).start()

        return start

    routes = got.writeStream.route([(other, None)])
    writing(first, "one")()
    with pytest.raises(UsageError, match=r"'clean' has a consumer already.*one: .*into a channel for each"):
        writing(second, "two")()
    sending.start()
    with pytest.raises(UsageError, match="'in' has a consumer already"):
        source.writeStream.foreachBatch(lambda *_: None).option("checkpointLocation", tmp_path / "three").start()
    feed.put(row(1, 1), row(2, 2, last=True))
    tracking.process_all_available()
    assert sum(function) == 2 if first == "function" else rows_of(tmp_path / "one-out", spark, "n") == [(2,)]


@pytest.mark.thorough
def test_a_checkpoint_or_a_name_is_one_querys_while_it_runs(
    tracking: Tracking, spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    def writing(name: str, checkpoint: str, called: str) -> Callable[[], Any]:
        source = tracking.source(feed.stream(spark), name, **WINDOW)
        writer = source.writeStream.foreachBatch(lambda *_: None).queryName(called)
        return writer.option("checkpointLocation", tmp_path / checkpoint).start

    one, same_name, same_place = writing("a", "1", "x"), writing("b", "2", "x"), writing("c", "1", "y")
    one()
    with pytest.raises(UsageError, match=r"queryName\('x'\): a query of this name runs already: stop it first"):
        same_name()
    with pytest.raises(UsageError, match="runs already: stop it first, or give this one a checkpoint"):
        same_place()
    with pytest.raises(UsageError, match="runs already: stop it first, or give this one a checkpoint"):
        one()


@pytest.mark.parametrize(
    ("trigger", "option", "mode"),
    [
        ({"continuous": "1 second"}, None, None),
        ({"realTime": "5 minutes"}, None, None),
        ({"processingTime": "1 second", "once": True}, None, None),
        (None, ("asyncProgressTrackingEnabled", True), None),
        (None, ("ASYNCPROGRESSTRACKINGENABLED", "TRUE"), None),
        (None, None, "complete"),
    ],
)
def test_ways_to_run_that_make_no_batches_are_refused(
    tracking: Tracking, spark: SparkSession, feed: Feed, trigger: Any, option: Any, mode: Any
) -> None:
    source = tracking.source(feed.stream(spark), "in", **WINDOW, front=Frontier("1 minute"))
    counted = tracking.with_watermark(source, "ts", "windows").groupBy(F.window("ts", "1 hour")).count()
    released = tracking.release(source, aggs={"n": F.count("*")})
    for writer in (tracking.write_stream(counted, source), released.writeStream, source.writeStream):
        given: Any = writer
        with pytest.raises(UsageError, match=r"in batches|leave it off|append"):
            given.trigger(**trigger) if trigger else given.option(*option) if option else given.outputMode(mode)
        if option:
            with pytest.raises(UsageError, match="leave it off"):
                given.options(**dict([option]))
    with pytest.raises(UsageError, match="checkpointLocation"):
        tracking.write_stream(counted, source).start()
    with pytest.raises(UsageError, match="checkpointLocation"):
        source.writeStream.foreachBatch(lambda *_: None).start()


QUICK = {("plain", False), ("odd", True)}
RESULTS: dict[str, Callable[[TrackedStream], tuple[list[Column], dict[str, Column]]]] = {
    "plain": lambda _: ([F.col("kind")], {"n": F.count("*")}),
    "array": lambda _: ([F.array("kind").alias("kinds")], {"n": F.count("*")}),
    "odd": lambda _: ([F.col("kind").alias("a`b")], {"n": F.count("*")}),
    "dotted": lambda _: ([F.col("kind").alias("a.b c,d")], {"n": F.count("*")}),
    "interval": lambda _: ([F.expr("make_ym_interval(1, 2)").alias("i")], {"n": F.count("*")}),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("shape", "named"),
    [
        pytest.param(
            shape, named, marks=() if (shape, named) in {("plain", False), ("odd", True)} else pytest.mark.slow
        )
        for shape in RESULTS
        for named in (False, True)
    ],
)
def test_a_format_that_starts_holds_the_results(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, shape: str, named: bool
) -> None:
    """Results in a format that is not refused come out, and can be read with the names they have."""
    feed.put(row(1, 1), row(2, 2, last=True))
    kinds: dict[str, Any] = {"substream": "tenant"} if named else WINDOW
    refused = []
    for form in ("parquet", "orc", "json", "csv", "text", "avro"):
        tracking = Tracking(spark, f"{job}-{form}", tracker.address)
        source = tracking.source(feed.stream(spark), "in", **kinds, front=Marks("is_last"))
        keys, aggs = RESULTS[shape](source)
        released = tracking.release(source, keys, aggs=aggs)
        out = tmp_path / form
        try:
            writer = released.writeStream.format(form).option("checkpointLocation", tmp_path / f"{form}-cp")
            writer.option("header", True).start(out)
        except UsageError as error:
            refused.append(form if "foreachBatch" in str(error) else str(error))
        else:
            tracking.process_all_available()
            reader = spark.read.format(form).option("header", True)
            found: DataFrame = reader.load(str(out))
            assert found.count() == 1
            if form in ("parquet", "orc", "csv"):
                assert sorted(found.columns) == sorted([*released.columns, "epoch"])
        finally:
            tracking.stop()
    assert {"text", "avro"} <= set(refused)
    assert ("csv" in refused) == (not named or shape in ("array",))
    assert "parquet" not in refused


def test_partitions_that_the_results_do_not_have_are_refused_at_the_start(
    tracking: Tracking, spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    source = tracking.source(feed.stream(spark), "in", **WINDOW)
    released = tracking.release(source, ["kind"], aggs={"n": F.count("*")})
    for columns in (["airport"], ["window"]):
        writer = released.writeStream.partitionBy(*columns).option("checkpointLocation", tmp_path / "cp")
        with pytest.raises(UsageError, match="Spark cannot write them"):
            writer.start(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_file_system_without_hard_links_is_refused_for_every_path(
    tracking: Tracking, spark: SparkSession, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tracking.source(feed.stream(spark), "in", **WINDOW)
    channel = tracking.channel("clean", str(tmp_path / "clean"))
    released = tracking.release(source, aggs={"n": F.count("*")})
    link, bad = os.link, [""]

    def links(one: Any, other: Any, **given: Any) -> None:  # such a file system is not to be had here
        if str(other).startswith(bad[0]):
            raise OSError(errno.EPERM, "Operation not permitted")
        link(one, other, **given)

    monkeypatch.setattr(os, "link", links)
    bad[0] = str(tmp_path / "clean")
    with pytest.raises(UsageError, match=r"(?s)channel 'clean'.*the file system cannot do what exactly-once needs"):
        source.writeStream.channel(channel)
    writer = released.writeStream.option("checkpointLocation", tmp_path / "cp").option("late_path", tmp_path / "late")
    for place in ("cp", "late", "receipts", "out"):
        bad[0] = str(tmp_path / place)
        with pytest.raises(UsageError, match=r"(?s)the file system cannot do what exactly-once needs.*hard links"):
            writer.receipts(tmp_path / "receipts").start(tmp_path / "out")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "path", ["hdfs://name/x", "dbfs:/x", "s3a://bucket/a*b", "gs://bucket/~x", "{tmp}/a*b", "{tmp}/[x]"]
)
def test_places_that_are_no_paths_are_refused_wherever_they_are_given(
    tracking: Tracking, spark: SparkSession, feed: Feed, tmp_path: Path, path: str
) -> None:
    place = path.replace("{tmp}", str(tmp_path))
    source = tracking.source(feed.stream(spark), "in", **WINDOW)
    released = tracking.release(source, aggs={"n": F.count("*")})
    writer = released.writeStream.option("checkpointLocation", tmp_path / "cp")
    for refused in (
        lambda: tracking.channel("clean", place),
        lambda: released.writeStream.option("checkpointLocation", place).start(tmp_path / "out"),
        lambda: writer.start(place),
        lambda: writer.receipts(place),
        lambda: (
            released.writeStream.option("checkpointLocation", tmp_path / "cp").receipts(place).start(tmp_path / "out")
        ),
        lambda: (
            released.writeStream.option("late_path", place)
            .option("checkpointLocation", tmp_path / "cp")
            .start(tmp_path / "out")
        ),
        lambda: tracking.late(place),
        lambda: tracking.late(str(tmp_path / "cp"), place),
    ):
        with pytest.raises(UsageError, match=r"on a file system|takes for a pattern|reads otherwise"):
            refused()


def test_sessions_that_cannot_be_tracked_are_refused() -> None:
    class Remote:
        """A stand-in for a session of Spark Connect, whose client is not installed here."""

    Remote.__module__ = "pyspark.sql.connect.session"
    with pytest.raises(UsageError, match=r"server= over Spark Connect.*tracker"):
        Tracking(Remote(), "job")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the session of Tracking is None: give a SparkSession"):
        Tracking(None, "job")  # type: ignore[arg-type]


def test_a_join_that_brings_rows_of_its_own_is_refused(tracking: Tracking, spark: SparkSession, feed: Feed) -> None:
    source = tracking.source(feed.stream(spark), "in", **WINDOW)
    names = spark.createDataFrame([("x", 1)], "kind string, number int")
    for how in ("right", "rightouter", "right_outer", "full", "outer", "FULL_OUTER"):
        with pytest.raises(UsageError, match="an inner or a left join"):
            source.join(names, "kind", how)
        with pytest.raises(UsageError, match="an inner or a left join"):
            source.join(names, on="kind", how=how)
    assert "number" in source.join(names, "kind", "left").columns


@pytest.mark.parametrize(
    ("option", "value", "advice"),
    [
        ("compact_from", 0, "whole number, 1 or more"),
        ("compact_from", "many", "whole number, 1 or more"),
        ("compact_from", 2.5, "whole number, 1 or more"),
        ("compact_from", True, "whole number, 1 or more"),
        ("compact_from", None, "whole number, 1 or more"),
        ("seal", "yes", "True or False"),
        ("seal", 1, "True or False"),
        ("late_path", None, "takes a path"),
        ("early_path", "", "takes a path"),
        ("path", 7, "takes a path"),
        ("checkpointLocation", None, "takes a path"),
        ("latePath", None, "option\\('late_path', None\\): takes a path"),
        ("lat_path", "late", "there is none of that name; write 'late_path'"),
        ("seall", True, "there is none of that name; write 'seal'"),
        ("compactForm", 7, "there is none of that name; write 'compact_from'"),
    ],
)
def test_an_option_is_checked_where_it_is_given(
    tracking: Tracking, spark: SparkSession, feed: Feed, option: str, value: Any, advice: str
) -> None:
    source = tracking.source(feed.stream(spark), "in", **WINDOW, front=Marks("is_last"))
    released = tracking.release(source, aggs={"n": F.count("*")})
    together = tracking.write_together({"n": released.writeStream.option("path", "results")})
    for writer in (source.writeStream, released.writeStream, together):
        with pytest.raises(UsageError, match=advice):
            writer.option(option, value)


def test_options_count_in_every_spelling(tracking: Tracking, spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    source = tracking.source(feed.stream(spark), "in", **WINDOW, front=Marks("is_last"))
    released = tracking.release(source, aggs={"n": F.count("*")})
    writer = released.writeStream.option("CheckpointLOCATION", tmp_path / "cp").option("SEAL", "True")
    assert writer.option("compactFrom", "7").option("late-path", "late").options_given == {
        "checkpointLocation": str(tmp_path / "cp"),
        "seal": "true",
        "compact_from": "7",
        "late_path": "late",
    }


def test_one_key_needs_no_list(tracking: Tracking, spark: SparkSession, feed: Feed) -> None:
    source = tracking.source(feed.stream(spark), "in", **WINDOW)
    one, several = (tracking.release(source, keys, aggs={"n": F.count("*")}) for keys in ("kind", ["kind"]))
    assert one.columns == several.columns


def test_options_of_files_are_refused_where_the_rows_go_elsewhere(
    tracking: Tracking, spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    source = tracking.source(feed.stream(spark), "in", **WINDOW, front=Marks("is_last"))
    writer = tracking.release(source, aggs={"n": F.count("*")}).writeStream.foreachBatch(lambda *_: None)
    with pytest.raises(UsageError, match=r"'compression'.*only files take options"):
        writer.option("checkpointLocation", tmp_path / "cp").option("compression", "zstd").start()


def test_a_tracked_stream_shows_its_columns_and_says_how_one_is_named(
    tracking: Tracking, spark: SparkSession, feed: Feed, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = tracking.source(feed.stream(spark), "in", **WINDOW)
    assert stream.schema.fieldNames() == stream.columns == [name for name, _ in stream.dtypes]
    stream.printSchema()
    assert " |-- tenant: " in capsys.readouterr().out
    with pytest.raises(AttributeError, match=r"write F\.col\('tenant'\)"):
        stream.tenant  # noqa: B018


def test_a_release_of_another_shape_is_refused_with_the_right_one(
    tracking: Tracking, spark: SparkSession, feed: Feed
) -> None:
    stream = tracking.source(feed.stream(spark), "in", **WINDOW)
    with pytest.raises(UsageError, match=r"aggs=\{'name'"):
        tracking.release(stream, aggs=[F.count])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"aggs=\{'name'"):
        tracking.release(stream, aggs=F.count("*"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"columns=\['name'"):
        tracking.release(stream, columns=F.col("kind"))  # type: ignore[arg-type]


@pytest.mark.parametrize("graph", [{"segments": ["in"]}, {"segments": {"in": "out"}}, {"fronts": "in"}])
def test_a_graph_of_another_shape_is_refused_where_it_is_given(spark: SparkSession, graph: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(graph))}=.*such as"):
        Tracking(spark, "shop", **graph)


def test_a_table_of_a_catalog_is_refused_with_alternatives(tracking: Tracking, spark: SparkSession, feed: Feed) -> None:
    released = tracking.release(tracking.source(feed.stream(spark), "in", **WINDOW), aggs={"n": F.count("*")})
    with pytest.raises(UsageError, match=r"toTable\('shop\.daily'\).*start\(path\).*Tables"):
        released.writeStream.toTable("shop.daily")
