"""A checkpoint is whole or refused: pieces that are gone, or from another time, give no result of their own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Front, Marks, Schedule, Tracking, TrackingError
from tests.client.processes import Server
from tests.spark.feed import Feed, row, rows_of
from tests.spark.test_away import Job
from tests.spark.test_revisions import Job as Reopened

pytestmark = pytest.mark.spark

Spoil = Callable[[Path, list[Path]], None]


def _without_state(checkpoint: Path, copies: list[Path]) -> None:
    shutil.rmtree(checkpoint / "tracker" / "state")


def _without_the_newest_version(checkpoint: Path, copies: list[Path]) -> None:
    max((checkpoint / "tracker").rglob("version-*.json")).unlink()


def _without_what_the_batches_acted_on(checkpoint: Path, copies: list[Path]) -> None:
    shutil.rmtree(checkpoint / "tracker" / "acts")


def _acting_on_what_earlier_batches_did(checkpoint: Path, copies: list[Path]) -> None:
    shutil.rmtree(checkpoint / "tracker" / "acts")
    shutil.copytree(copies[-2] / "tracker" / "acts", checkpoint / "tracker" / "acts")


def _of_earlier_batches(batches: int) -> Spoil:
    def spoil(checkpoint: Path, copies: list[Path]) -> None:
        shutil.rmtree(checkpoint / "tracker")
        shutil.copytree(copies[-1 - batches] / "tracker", checkpoint / "tracker")

    return spoil


def _with_sparks_part_of_earlier_batches(checkpoint: Path, copies: list[Path]) -> None:
    tracker = copies[-1] / "tracker"
    shutil.rmtree(checkpoint)
    shutil.copytree(copies[0], checkpoint)
    shutil.rmtree(checkpoint / "tracker")
    shutil.copytree(tracker, checkpoint / "tracker")


@pytest.mark.thorough
def test_a_checkpoint_with_a_missing_or_older_part_is_refused(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    kept = Job(spark, tracker, job, feed, tmp_path)
    copies: list[Path] = []
    for number in range(4):
        feed.put(row(number, number))
        kept.run()
        copies.append(tmp_path / f"copy{number}")
        shutil.copytree(kept.checkpoint, copies[-1])
    feed.put(row(4, 4, last=True))
    for spoil in (
        _without_state,
        _without_the_newest_version,
        _without_what_the_batches_acted_on,
        _acting_on_what_earlier_batches_did,
        _of_earlier_batches(1),
        _of_earlier_batches(2),
        _with_sparks_part_of_earlier_batches,
    ):
        spoil(kept.checkpoint, copies)
        assert "Put back the whole checkpoint" in kept.refusal()
        assert not kept.out.exists() or kept.results() == []
        shutil.rmtree(kept.checkpoint)
        shutil.copytree(copies[-1], kept.checkpoint)
    kept.run()
    assert kept.results() == [("a", 0, 5)]


def _refused_without(lost: Path, start: Callable[[], Tracking]) -> None:
    """Start a query without a piece of its checkpoint, see that it is refused, and put the piece back."""
    aside = lost.with_name(f"{lost.name}.aside")
    lost.rename(aside)
    tracking = None
    with pytest.raises(TrackingError, match="Put back the whole checkpoint"):  # noqa: PT012
        tracking = start()
        tracking.process_all_available()
    if tracking is not None:
        tracking.stop()
    if lost.is_dir():
        shutil.rmtree(lost)
    lost.unlink(missing_ok=True)
    aside.rename(lost)


@pytest.mark.thorough
@pytest.mark.parametrize("expected", [None, 3])
def test_a_query_that_only_sends_needs_its_notes_and_counts_too(
    spark: SparkSession,
    tracker: Server,
    job: str,
    feed: Feed,
    tmp_path: Path,
    expected: int | None,
) -> None:
    front: Front = Marks("is_last")
    if expected is not None:
        counts = spark.sql(f"select 'a' as tenant, timestamp('2024-01-01') as ts, {expected}L as rows")
        front = Schedule(counts)

    def start() -> Tracking:
        tracking = Tracking(spark, job, tracker.address)
        try:
            source = tracking.source(
                feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=front
            )
            channel = tracking.channel("clean", tmp_path / "clean")
            source.writeStream.channel(channel).option("checkpointLocation", tmp_path / "send").start()
            released = tracking.release(tracking.receive(channel), aggs={"rows": F.count("*")})
            released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        except BaseException:
            tracking.stop()
            raise
        return tracking

    for number in range(2):
        feed.put(row(number, number))
        with start() as tracking:
            tracking.process_all_available()
    feed.put(row(2, 2, last=True))
    for lost in ("tracker", "tracker/log.json", "tracker/query.json", *(["tracker/counts"] if expected else [])):
        _refused_without(tmp_path / "send" / lost, start)
    with start() as tracking:
        tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, "tenant", "rows") == [("a", 3)]


@pytest.mark.thorough
def test_what_was_set_aside_is_there_or_the_query_is_refused(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    running = Reopened(spark, tracker, job, feed, tmp_path)
    running.start()
    running.put(row(1, 5, amount=10), row(2, 6, last=True))
    running.put(row(3, 7, amount=20))
    running.tracking.stop()
    kept = Path(running.checkpoint) / "tracker"
    _refused_without(kept / "quarantine", running.start)
    with running.start() as tracking:
        tracking.process_all_available()
        assert len(tracking.reopen(running.checkpoint)) == 1
        tracking.process_all_available()
        running.put(row(4, 8, "b"))
        tracking.process_all_available()
    _refused_without(kept / "revisions", running.start)
    with running.start() as tracking:
        tracking.process_all_available()
    assert sorted(result[2:] for result in running.results) == [(1, 20.0, 1), (2, 5.5, 0)]
