"""Schedules that promise which rows come, as in docs/howto/sources.md: a copy does not stand for a missing row."""

from __future__ import annotations

import random
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, timedelta
from functools import reduce
from operator import xor as ixor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Counts, Schedule, TrackingError, UsageError
from spark_client.counting.probes import TaskPromises
from spark_client.fronts.front import IDENTITIES
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.dying import Driver, KilledError
from tests.spark.feed import START, Feed, row, rows_of
from tracker.client import TrackerClient
from tracker.client.texts import why_open

pytestmark = pytest.mark.spark

DEAD = (KilledError, TrackingError, StreamingQueryException)
WHEN = START.replace(tzinfo=UTC)


def start(tracking: Any, feed: Feed, front: Schedule, path: Path, **given: Any) -> Any:
    raw = feed.stream(tracking.spark)
    source = tracking.source(raw, "in", scope="tenant", window=("ts", "1 hour"), front=front, **given)
    writer = tracking.release(source, aggs={"rows": F.count("*")}).writeStream
    writer.option("checkpointLocation", path / "cp").start(path / "out")
    return source


def results(tracking: Any, path: Path) -> list[tuple[str, int]]:
    tracking.process_all_available()
    return [(tenant, rows) for tenant, rows in rows_of(path / "out", tracking.spark, "tenant", "rows")]


@pytest.mark.parametrize("probe", ["driver", pytest.param("executors", marks=pytest.mark.thorough)])
def test_a_copy_does_not_stand_for_a_missing_row(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, probe: str
) -> None:
    feed.put(row(1, 1), row(2, 2), row(3, 3), row(3, 3))
    front = Schedule([("a", WHEN, 4, 1 ^ 2 ^ 3 ^ 4)], identity="row_id")
    for _ in range(2):  # a restart remembers which rows came
        tracking = BatchTracking(feed, spark, job, tracker.address, probe=probe)
        source = start(tracking, feed, front, tmp_path)
        assert results(tracking, tmp_path) == []
        (name,) = {each.name for each in tracking.client.substreams(job) if each.scope == "a"}
        explained = "".join(why_open(tracking.client.job(job), TrackerClient(tracker.address).explain(job, "a", name)))
        assert "4 of 4 expected elements sent, but not the promised ones" in explained
        if feed.files == 1:
            tracking.stop()
            feed.put(row(9, 9, "b"))
    feed.put(row(4, 4))
    assert results(tracking, tmp_path) == []
    tracking.expect(source, [("a", WHEN, 5, 1 ^ 2 ^ 4)], revise=True)  # the copy is one of them
    assert results(tracking, tmp_path) == [("a", 5)]
    tracking.stop()


def of_rows(rows: DataFrame) -> DataFrame:
    """Return the schedule of some rows: tenant, hour, count, and the XOR of the identities."""
    hour = F.date_trunc("hour", "ts").alias("when")
    identities = F.bit_xor(F.xxhash64("row_id", "amount")).alias("xor")
    return rows.groupBy("tenant", hour).agg(F.count("*").alias("count"), identities)


@pytest.mark.thorough
@pytest.mark.parametrize("probe", ["driver", "executors"])
def test_only_what_is_exactly_as_promised_ends(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, probe: str
) -> None:
    draw = random.Random(probe)
    promised = [row(n, draw.randrange(6 * 60), draw.choice("abc"), amount=draw.randrange(9)) for n in range(1, 120)]
    delivered = list(promised)
    for place in draw.sample(range(len(promised)), 5):  # another row, or a copy, comes in place of this one
        missing = promised[place]
        copy = next(each for each in promised if each != missing and each["tenant"] == missing["tenant"])
        delivered[place] = draw.choice([{**missing, "amount": 77}, {**copy, "ts": missing["ts"]}])
    draw.shuffle(delivered)
    (whole := Feed(tmp_path / "promised")).put(*promised)
    counts = of_rows(whole.batch(spark)).collect()
    for first in range(0, len(delivered), 20):
        feed.put(*delivered[first : first + 20])
    driver = Driver(tmp_path)
    for dies_at in [*draw.sample(range(5, 120), 3), None]:
        dying: Any = nullcontext() if dies_at is None else suppress(*DEAD)
        with driver.living(dies_at), dying:
            tracking = BatchTracking(feed, spark, job, tracker.address, probe=probe)
            front = Schedule(spark.createDataFrame(counts), identity=F.xxhash64("row_id", "amount"))
            start(tracking, feed, front, tmp_path)
            tracking.process_all_available()
            tracking.stop()
    same = {tuple(each) for each in of_rows(feed.batch(spark)).collect()} & {tuple(each) for each in counts}
    assert rows_of(tmp_path / "out", spark, "tenant", "window.start") == sorted(each[:2] for each in same)
    assert 0 < len(same) < len(counts), "both kinds are there"


@pytest.mark.thorough
def test_parts_are_promised_with_the_identities_of_their_rows(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    given: list[tuple[Any, ...]] = [("a", WHEN, 2, "left", 1 ^ 2)]
    front = Schedule(lambda: Counts(given), part="part", parts=2, identity="row_id", refresh=0.01)
    tracking = BatchTracking(feed, spark, job, tracker.address)
    start(tracking, feed, front, tmp_path)
    feed.put(row(1, 1), row(2, 2), row(3, 3))
    assert results(tracking, tmp_path) == []
    given.append(("a", WHEN, 1, "right", 3))
    feed.put(row(9, 9, "b"))
    assert results(tracking, tmp_path) == [("a", 3)]
    tracking.stop()


@pytest.mark.thorough
def test_the_rest_of_what_a_drain_has_cut_short_is_counted(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    front = Schedule([("a", WHEN, 3, 1 ^ 2 ^ 3)], identity="row_id")
    tracking = BatchTracking(feed, spark, job, tracker.address)
    start(tracking, feed, front, tmp_path)
    feed.put(row(1, 1), row(2, 2))
    tracking.process_all_available()
    tracking.drain()
    tracking.stop()
    tracking = BatchTracking(feed, spark, job, tracker.address, deployment="next")
    start(tracking, feed, front, tmp_path)
    feed.put(row(3, 3))
    assert results(tracking, tmp_path) == [("a", 1), ("a", 2)]
    tracking.stop()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("amount", "row_id"),
        *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((None, "row_id"), ("row_id", None))),
    ],
)
def test_identities_change_only_while_nothing_is_open(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, before: str | None, after: str | None
) -> None:
    rows = [row(n, 60 * (n // 5) + n, amount=10 * n) for n in (1, 2, 3, 5, 6, 7)]

    def live(identity: str | None, some: list[Any], given: Any = (), deployment: str = "1") -> Any:
        feed.put(*some)
        tracking = BatchTracking(feed, spark, job, tracker.address, deployment)
        front = Schedule(given, identity=identity, complete=False, revise=True)
        start(tracking, feed, front, tmp_path)
        found = results(tracking, tmp_path)
        tracking.stop()
        return found

    def promised(identity: str | None, hour: int) -> list[Any]:
        some = [each for each in rows if each["row_id"] // 5 == hour]
        xor = () if identity is None else (reduce(ixor, (each[identity] for each in some)),)
        return [("a", WHEN + timedelta(hours=hour), len(some), *xor)]

    assert live(before, rows[:1]) == []
    if after is not None:
        was = "not given" if before is None else before
        with pytest.raises(UsageError, match=f"its identity was {was}, is row_id, and 1 substreams are open of which"):
            live(after, rows[1:2], promised(after, 0))
        feed.files, feed.rows = 1, []
        (feed.path / "000002.json").unlink()
    assert live(before, rows[1:3], promised(before, 0)) == [("a", 3)]
    assert live(after, rows[3:5]) == [("a", 3)]
    assert live(after, rows[5:], promised(after, 1)) == [("a", 3), ("a", 3)]


def test_a_drain_lets_rows_be_identified_otherwise(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    start(tracking, feed, Schedule(identity="amount"), tmp_path)
    feed.put(row(1, 1), row(2, 2))
    tracking.process_all_available()
    tracking.drain()
    tracking.stop()
    tracking = BatchTracking(feed, spark, job, tracker.address, deployment="next")
    start(tracking, feed, Schedule([("a", WHEN, 1, 3)], identity="row_id", complete=False), tmp_path)
    feed.put(row(3, 3))
    assert results(tracking, tmp_path) == [("a", 1), ("a", 2)]
    tracking.stop()


def test_tasks_add_identities_up_batch_by_batch() -> None:
    seen: dict[Any, Any] = {}
    promises = TaskPromises((IDENTITIES,), lambda groups: None)  # type: ignore[arg-type, return-value]
    for rows in ([1, 2], [2, 7]):
        batch = pa.record_batch({promises.columns[0]: pa.array(rows, pa.int64())})
        promises.see(seen, batch, pa.array(["a"] * 2), pa.array(["s", "s"]))
    assert seen == {("a", "s"): {IDENTITIES: 1 ^ 7}}


@pytest.mark.parametrize(
    ("given", "identity", "said"),
    [
        ([("a", WHEN, 3)], "row_id", "rows of .scope, when, count, xor."),
        ([("a", WHEN, 3, 0.5)], "row_id", "integer of 64 bits, not 0.5"),
        ([("a", WHEN, 3, 2**64)], "row_id", "integer of 64 bits"),
        ([("a", WHEN, 3, None)], "row_id", "integer of 64 bits, not None"),
        ([("a", WHEN, 3, 1)], "tenant", "string, and identities of rows are integers: give a bigint"),
    ],
)
def test_what_is_no_identity_is_refused(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, given: Any, identity: str, said: str
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    with pytest.raises(UsageError, match=said):
        start(tracking, feed, Schedule(given, identity=identity), tmp_path)


def test_a_tracker_that_would_count_only_is_refused(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = replace(TrackerClient(tracker.address).server_info(), features=(), version="0.2.0")
    monkeypatch.setattr(TrackerClient, "server_info", lambda client: older)
    tracking = BatchTracking(feed, spark, job, tracker.address)
    with pytest.raises(TrackingError, match=r"Schedule\(<table>\) needs a later tracker than this one, 0.2.0: upgrade"):
        start(tracking, feed, Schedule([("a", WHEN, 1, 1)], identity="row_id"), tmp_path)


def test_a_row_without_an_identity_fails_its_batch(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    start(tracking, feed, Schedule([("a", WHEN, 1, 1)], identity="row_id"), tmp_path)
    feed.put({**row(1, 1), "row_id": None})
    with pytest.raises(TrackingError, match="row_id is null"):
        tracking.process_all_available()
