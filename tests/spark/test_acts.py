"""Substreams that end while no batch comes are released between two batches, once, whatever happens there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking, TrackingError
from spark_client.counting.runs import BETWEEN, Run
from spark_client.release.single import SingleRelease
from spark_client.runtime.batches import BatchQuery
from spark_client.spark_internals.checkpoints import last_commit
from spark_client.storage.directories import read_json, write_json
from spark_client.storage.folder import Folder
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.conftest import CHANNELS
from tests.spark.feed import Feed, row, rows_of
from tests.spark.test_drain_races import await_death, dying
from tests.spark.test_release import release_twice
from tests.spark.waiting import soon

pytestmark = pytest.mark.spark


def start(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, path: Path, to: Any = None
) -> tuple[Tracking, Any]:
    """Start a release into files, or into a function."""
    tracking = Tracking(spark, job, tracker.address)
    writer = writer_of(tracking, feed, path)
    return tracking, writer.start(path / "out") if to is None else writer.foreachBatch(to).start()


def writer_of(tracking: Tracking, feed: Feed, path: Path) -> Any:
    rows = feed.stream(tracking.spark)
    source = tracking.source(rows, "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    return tracking.release(source, aggs={"rows": F.count("*")}).writeStream.option("checkpointLocation", path / "cp")


def released(spark: SparkSession, path: Path) -> list[tuple[Any, ...]]:
    return [tuple(each) for each in rows_of(path / "out", spark, "tenant", "rows")]


def test_what_ends_is_released_though_no_batch_comes(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking, _ = start(spark, tracker, job, feed, tmp_path)
    feed.put(row(1, 1), row(2, 2, last=True))
    soon(lambda: (tmp_path / "out").is_dir() and released(spark, tmp_path) == [("a", 2)])
    assert last_commit(Folder(tmp_path / "cp")) == 0, "there was one batch"
    assert [path.name for path in (tmp_path / "out").glob("epoch=*")] == ["epoch=-2"]  # the second act
    tracking.stop()


def test_results_come_as_soon_as_due_but_once_in_a_trigger(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    query = writer_of(tracking, feed, tmp_path).trigger(processingTime="1 hour").start(tmp_path / "out")
    [batched] = tracking.batched
    feed.put(row(1, 1), row(2, 2, last=True))
    query.processAllAvailable()
    soon(lambda: (tmp_path / "out").is_dir() and released(spark, tmp_path) == [("a", 2)])
    feed.put(row(3, 61), row(4, 62), row(5, 63, last=True))
    query.processAllAvailable()
    assert not batched._tracked.may_release, "the hour is not over"
    feed.put(row(6, 121))
    query.processAllAvailable()
    assert released(spark, tmp_path) == [("a", 2), ("a", 3)]
    assert sorted(path.name for path in (tmp_path / "out").glob("epoch=*")) == ["epoch=-2", "epoch=2"]
    tracking.stop()


@pytest.mark.thorough
def test_a_failure_between_two_batches_ends_the_query_which_starts_again(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    taken: list[tuple[int, int]] = []

    def fail_once(rows: DataFrame, epoch: int) -> None:
        taken.append((epoch, rows.count()))
        if len(taken) == 1:
            raise ConnectionError("the place is away")

    tracking, query = start(spark, tracker, job, feed, tmp_path, fail_once)
    feed.put(row(1, 1, last=True))
    with pytest.raises(StreamingQueryException, match="the place is away"):
        query.awaitTermination()
    assert not query.isActive
    with pytest.raises(TrackingError, match="the place is away"):
        tracking.check()
    tracking.stop()
    tracking, query = start(spark, tracker, job, feed, tmp_path, fail_once)
    soon(lambda: len(taken) == 2)
    tracking.stop()
    assert taken == [(-2, 1), (-2, 1)]


def test_a_release_that_failed_is_due_until_it_has_been_done(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def fail_once(_: DataFrame, epoch: int) -> None:
        taken.append(epoch)
        if len(taken) == 1:
            raise ConnectionError("the place is away")

    # Another attempt comes before the query is stopped: it must not find that nothing is left to be done.
    monkeypatch.setattr(BatchQuery, "break_off", lambda *_: None)
    tracking, _ = start(spark, tracker, job, feed, tmp_path, fail_once)
    feed.put(row(1, 1, last=True))
    soon(lambda: taken)
    tracking.process_all_available()
    tracking.stop()
    assert taken == [-2, -2]


@pytest.mark.thorough
@CHANNELS
@pytest.mark.parametrize("step", ["sent", "published"])
def test_what_is_sent_on_between_two_batches_is_counted_once(
    spark: SparkSession,
    tracker: Server,
    job: str,
    feed: Feed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    def begin() -> Tracking:
        tracking = Tracking(spark, job, tracker.address)
        release_twice(tracking, feed.stream(spark), tmp_path, {"n": F.count("*")}, {"rows": F.sum("n")})
        return tracking

    tracking = begin()
    feed.put(row(1, 1, kind="x"), row(2, 2, kind="y"), row(3, 3, kind="x", last=True))
    # The driver dies before the state without these results is published, or before the tracker knows that it is.
    with monkeypatch.context() as dead:
        if step == "sent":
            dead.setattr(SingleRelease, "publish", killed_if(lambda it, _, epoch: it.to.sent_on and epoch < 0))
        else:
            dead.setattr(Run, "await_committed", killed_if(lambda it, _: it.query.endswith(BETWEEN)))
        await_death(tracking)
    tracking.stop()
    tracking = begin()
    tracking.process_all_available()
    assert released(spark, tmp_path) == [("a", 3)]
    assert list(tracking.client.substreams(job)) == []
    tracking.stop()


def killed_if(condition: Callable[..., bool]) -> Callable[..., None]:
    """Return a method that dies under a condition on its arguments; else it does what it did."""
    methods: dict[int, Callable[..., None]] = {3: SingleRelease.publish, 2: Run.await_committed}

    def method(*given: Any) -> None:
        if condition(*given):
            raise RuntimeError("killed in batch")
        methods[len(given)](*given)

    return method


def as_version_2_left_it(checkpoint: Path) -> None:
    """Write a checkpoint as version 0.2 did: with a last source that made batches happen, and notes by batch."""
    for entry in (checkpoint / "offsets").glob("[0-9]*"):
        entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)
        entry.write_text(entry.read_text() + '\n{"seq":0,"log_id":"0"}')
    tracker = checkpoint / "tracker"
    (tracker / "events").mkdir()
    for note in (tracker / "acts").glob("*.json"):
        content = read_json(note)
        write_json(tracker / "events" / f"{content.pop('batch')}.json", content)
        note.unlink()
    (tracker / "acts").rmdir()
    for version in (tracker / "state").glob("version-*.json"):
        _, epoch, _, driver = version.stem.split("-")
        content = read_json(version)
        del content["acts"]
        version.with_name(f"version-{epoch}-{driver}.json").write_text(json.dumps(content))
        version.unlink()


@pytest.mark.thorough
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_checkpoint_of_version_2_goes_on(
    spark: SparkSession,
    tracker: Server,
    job: str,
    feed: Feed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupted: bool,
) -> None:
    tracking, _ = start(spark, tracker, job, feed, tmp_path)
    feed.put(row(1, 1), row(2, 2, "b"))
    tracking.process_all_available()
    feed.put(row(3, 3))
    with dying(monkeypatch, Run, "send", 1 if interrupted else -1):
        if interrupted:
            await_death(tracking)
        else:
            tracking.process_all_available()
    tracking.stop()
    as_version_2_left_it(tmp_path / "cp")
    for minute in (4, 5):
        tracking, _ = start(spark, tracker, job, feed, tmp_path)
        feed.put(row(10 + minute, minute, last=minute == 5))
        tracking.process_all_available()
        tracking.stop()
    assert released(spark, tmp_path) == [("a", 4)]
