"""A dry run over a DataFrame; and beside it real queries, under Spark's watermark and under the fronts it advises."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Counts, Frontier, Schedule, Tracking, UsageError, replay, sliding
from tests.client.processes import Server
from tests.spark.feed import START, Feed, row
from tracker.client import TrackerClient
from tracker.replay.history import NEVER, Columns, History, Windows
from tracker.replay.promises import Frontier as TriedFrontier
from tracker.replay.promises import Measured, Promise, Watermark
from tracker.replay.reading import Names, read
from tracker.replay.report import Options, Replay

pytestmark = pytest.mark.spark

MINUTE = 60_000_000
SINCE = int(START.replace(tzinfo=timezone.utc).timestamp()) * 1_000_000


def minutes(seed: int, files_wanted: int) -> list[list[tuple[int, str]]]:
    """Return files of rows, as minutes and tenants: a file in four is empty, and one row in five comes late."""
    drawn = np.random.default_rng(seed)
    files: list[list[tuple[int, str]]] = []
    for number in range(files_wanted):
        tenants = [] if number % 4 == 2 else drawn.choice(["a", "b", "c"], drawn.integers(1, 8)).tolist()
        late = (drawn.integers(1, 90, len(tenants)) * (drawn.random(len(tenants)) < 0.2)).tolist()
        files.append([(100 + 10 * number - delay, tenant) for tenant, delay in zip(tenants, late, strict=True)])
    return files


def tried(files: list[list[tuple[int, str]]], promise: Promise) -> dict[tuple[str, int], tuple[int, int]]:
    """Return of each window the number of the file that released it, and its rows then; windows without are left out.

    File n arrives at minute n, and is read by the trigger of that minute.
    """
    rows = [(SINCE + at * MINUTE, number * MINUTE, tenant) for number, each in enumerate(files) for at, tenant in each]
    names = ["a", "b", "c"]
    event, arrived = (np.array([each[place] for each in rows], np.int64) for place in (0, 1))
    scope = np.array([names.index(tenant) for *_, tenant in rows], np.int64)
    history = History(Columns(event, arrived, scope, names, "ts"), Windows(60 * MINUTE), MINUTE)
    at = promise.release(history).at
    on_time = np.bincount(history.window[history.batch <= at[history.window]], minlength=len(at))
    return {
        (names[history.scope[n]], int(history.end[n])): (int(at[n]) // MINUTE, int(on_time[n]))
        for n in range(len(at))
        if at[n] < NEVER and on_time[n]
    }


def micros(moment: datetime) -> int:
    return int(moment.replace(tzinfo=timezone.utc).timestamp()) * 1_000_000


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 2])
def test_sparks_own_watermark_releases_the_windows_that_the_dry_run_gives(
    spark: SparkSession, feed: Feed, tmp_path: Path, seed: int
) -> None:
    files = minutes(seed, 16)
    for each in files:
        feed.put(*(row(0, at, tenant) for at, tenant in each))
    found: dict[tuple[str, int], tuple[int, int]] = {}

    def take(batch: DataFrame, number: int) -> None:
        for each in batch.collect():
            found[each.tenant, micros(each.window.end)] = (number, each["count"])

    hourly = feed.stream(spark).withWatermark("ts", "20 minutes").groupBy("tenant", F.window("ts", "1 hour")).count()
    query = hourly.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    query.start().awaitTermination()
    expected = tried(files, Watermark(20 * MINUTE))
    assert found == expected
    assert len(found) > 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("front", "promise"),
    [
        (Frontier("20 minutes"), TriedFrontier(20 * MINUTE)),
        (Frontier("20 minutes", per_scope=True), TriedFrontier(20 * MINUTE, per_scope=True)),
        (Frontier.measured("50%", ceiling="20 minutes"), Measured(0.5, 20 * MINUTE)),
    ],
)
def test_the_trackers_frontier_releases_the_windows_that_the_dry_run_gives(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, front: Any, promise: Promise
) -> None:
    files = minutes(1, 24)
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "rows", scope="tenant", window=("ts", "1 hour"), front=front)
    released = tracking.release(source, aggs={"rows": F.count("*")})
    released.writeStream.option("checkpointLocation", str(tmp_path / "cp")).start(str(tmp_path / "hourly"))
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for number, each in enumerate(files):
        feed.put(*(row(0, at, tenant) for at, tenant in each))
        tracking.process_all_available()
        if (tmp_path / "hourly").exists() and [*(tmp_path / "hourly").glob("epoch=*/*.parquet")]:
            for result in spark.read.parquet(str(tmp_path / "hourly")).collect():
                found.setdefault((result.tenant, micros(result.window.end)), (number, result.rows))
    assert found == tried(files, promise)
    assert len(found) > 3


def rows_of(spark: SparkSession, number: int = 400) -> DataFrame:
    """Return a row a minute of two shops; one in seven comes two hours late."""
    rows = spark.range(number, numPartitions=3).withColumn("shop", F.concat(F.lit("shop "), F.col("id") % 2))
    late = F.when(F.col("id") % 7 == 0, 7200).otherwise(0)
    return rows.select(
        F.timestamp_seconds(F.col("id") * 60 + 1_700_000_000).alias("ts"),
        F.timestamp_seconds(F.col("id") * 60 + 1_700_000_000 + late).alias("arrived at"),
        "shop",
    )


PROMISES = ["watermark=1h", "per-scope=3h", "wait=3h", "least=90%", "measured=90%", "counts"]


@pytest.mark.thorough
def test_a_dataframe_gives_what_its_file_gives(spark: SparkSession, tmp_path: Path) -> None:
    history = rows_of(spark).unionByName(rows_of(spark, 5).withColumn("ts", F.lit(None).cast("timestamp")))
    history.write.parquet(str(tmp_path / "history"))
    found = replay(history, "ts", "arrived at", "shop", promises=PROMISES)
    options = Options(promises=tuple(PROMISES))
    assert (
        found.document() == Replay.of(read(tmp_path / "history", Names("ts", "arrived at", "shop")), options).document()
    )
    assert found.nulls == 5
    assert found.table().splitlines()[1].split()[:2] == ["watermark=1h", "14"]
    walls = history.select(*(F.col(name).cast("timestamp_ntz") for name in ("ts", "arrived at")), "shop")
    assert replay(walls, "ts", "arrived at", "shop", promises=PROMISES).document() == found.document()
    assert replay(history, F.col("ts"), F.col("arrived at")).scopes == 0


def line(result: Any, name: str) -> str:
    [code] = [each.code for each in result.advice if each.name == name]
    return str(code)


LINES = ["counts"]
MORE = ["per-scope=3h", "frontier=3h", "wait=3h", "least=100%", "measured=99%/3h"]


@pytest.mark.parametrize("promise", [*LINES, *(pytest.param(line, marks=pytest.mark.thorough) for line in MORE)])
def test_the_line_of_each_promise_declares_a_source(spark: SparkSession, feed: Feed, job: str, promise: str) -> None:
    code = line(replay(rows_of(spark, 20_000), "ts", "arrived at", "shop", promises=[promise]), promise)
    names = {"tracking": Tracking(spark, job), "Frontier": Frontier, "Schedule": Schedule, "Counts": Counts}
    times = {"datetime": datetime, "timedelta": timedelta, "timezone": timezone}
    raw = feed.stream(spark).withColumnRenamed("tenant", "shop")
    assert eval(code, {**names, **times, "raw": raw, "counts": []}).columns[:2] == ["row_id", "ts"]


@pytest.mark.thorough
def test_the_line_for_windows_that_overlap_declares_a_source(spark: SparkSession, feed: Feed, job: str) -> None:
    found = replay(rows_of(spark, 20_000), "ts", "arrived at", slide="30min", promises=["frontier=3h"])
    names = {"tracking": Tracking(spark, job), "raw": feed.stream(spark), "Frontier": Frontier, "sliding": sliding}
    assert eval(line(found, "frontier=3h"), names).columns[:2] == ["row_id", "ts"]


@pytest.mark.thorough
def test_the_line_of_a_wait_ends_a_window_by_the_clock(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    history = replay(rows_of(spark), "ts", "arrived at", "shop", window="5s", promises=["wait=3h"])
    code = line(history, "wait=3h").replace("milliseconds=10805000", "milliseconds=8000")  # as of wait=3s
    assert "=8000" in code
    feed.put(row(1, 0) | {"ts": (datetime.now(timezone.utc) + timedelta(hours=9)).isoformat()})
    tracking = Tracking(spark, job, tracker.address)
    raw = feed.stream(spark).withColumnRenamed("tenant", "shop")
    names = {"Schedule": Schedule, "Counts": Counts, "datetime": datetime, "timedelta": timedelta, "timezone": timezone}
    source = eval(code, {**names, "tracking": tracking, "raw": raw})
    released = tracking.release(source, aggs={"rows": F.count("*")})
    released.writeStream.option("checkpointLocation", str(tmp_path / "cp")).start(str(tmp_path / "windows"))
    tracking.process_all_available()  # from here on a batch is quick
    start = datetime.fromtimestamp(int(datetime.now().timestamp()) // 5 * 5 + 30, timezone.utc)
    feed.put(*(row(n, 0) | {"ts": (start + timedelta(seconds=n)).isoformat()} for n in (1, 2)))
    end = start + timedelta(seconds=5)
    window = f"{start:%Y-%m-%dT%H:%M:%SZ}/{end:%Y-%m-%dT%H:%M:%SZ}"
    ended = TrackerClient(tracker.address).wait_for_end(job, "events", "a", window, timeout=120)
    assert datetime.now(timezone.utc) >= end + timedelta(seconds=3)
    assert ended.elements == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"time": "at"}, "time='at' is not a column of the rows, which have: ts, arrived at, shop, day, wall"),
        ({"time": "shop"}, "time='shop' is string: a time is a timestamp"),
        ({"arrived": "day"}, "arrived='day' is date: a time is a timestamp"),
        ({"time": "wall"}, "so no delay is known: cast one of them"),
        ({"promises": ["luck"]}, "'luck' is no promise: there are watermark"),
    ],
)
def test_what_cannot_be_replayed_is_refused(spark: SparkSession, arguments: dict[str, Any], reason: str) -> None:
    rows = rows_of(spark).withColumns({"day": F.to_date("ts"), "wall": F.col("ts").cast("timestamp_ntz")})
    with pytest.raises(UsageError, match=reason):
        replay(rows, **({"time": "ts", "arrived": "arrived at"} | arguments))


def test_a_stream_is_refused(spark: SparkSession, feed: Feed) -> None:
    with pytest.raises(UsageError, match=r"these rows are a stream: read them with spark\.read"):
        replay(feed.stream(spark), "ts", "ts")
