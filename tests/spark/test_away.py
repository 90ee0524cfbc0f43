"""Time away: what is stopped, restored, forgotten or lost goes on right, or fails with advice that works."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking
from tests.client.processes import TRACKER, Server
from tests.spark.feed import Feed, row, rows_of
from tracker.cli.main import main
from tracker.client import TrackerClient

pytestmark = pytest.mark.spark

SHORT = timedelta(seconds=2)


class Job:
    """A release of hours by tenant, with marks; started again and again."""

    def __init__(self, spark: SparkSession, tracker: Server, job: str, feed: Feed, path: Path, **rules: Any) -> None:
        self.spark, self.tracker, self.job, self.feed, self.path = spark, tracker, job, feed, path
        self.rules = rules
        self.life = 1

    @property
    def out(self) -> Path:
        return self.path / f"out{self.life}"

    @property
    def checkpoint(self) -> Path:
        return self.path / f"cp{self.life}"

    def start(self, raw: Any = None, **trigger: Any) -> Tracking:
        tracking = Tracking(self.spark, self.job, self.tracker.address, **self.rules)
        source = tracking.source(
            self.feed.stream(self.spark) if raw is None else raw,
            "in",
            scope="tenant",
            window=("ts", "1 hour"),
            front=Marks("is_last"),
        )
        writer = tracking.release(source, aggs={"rows": F.count("*")}).writeStream
        if trigger:
            writer = writer.trigger(**trigger)
        self.query = writer.option("checkpointLocation", self.checkpoint).start(self.out)
        return tracking

    def run(self) -> None:
        """Run until all there is has been processed."""
        tracking = self.start()
        try:
            tracking.process_all_available()
        finally:
            tracking.stop()

    def results(self) -> list[tuple[str, int, int]]:
        return [(r[0], r[1].hour, r[2]) for r in rows_of(self.out, self.spark, "tenant", "window.start", "rows")]

    def refusal(self, raw: Any = None) -> str:
        """Return the refusal of the next start, or of its first batch."""
        tracking = None
        try:
            tracking = self.start(raw)
            tracking.process_all_available()
        except Exception as error:
            return str(error)
        finally:
            if tracking is not None:
                tracking.stop()
        raise AssertionError("it was not refused")


def commands(message: str) -> list[list[str]]:
    """Return the commands that a message names, in its order."""
    return [shlex.split(found)[1:] for found in re.findall(r"`(tracker [^`]+)`", message)]


def follow(command: list[str]) -> None:
    subprocess.run([*TRACKER, *command], check=True, capture_output=True, timeout=60)


@pytest.mark.thorough
def test_a_checkpoint_restored_from_a_backup_is_refused_with_advice(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    kept = Job(spark, tracker, job, feed, tmp_path)
    feed.put(row(1, 1), row(2, 2, last=True))
    kept.run()
    shutil.copytree(kept.checkpoint, tmp_path / "backup")
    feed.put(row(3, 61), row(4, 62, last=True), row(5, 121))
    kept.run()
    assert kept.results() == [("a", 0, 2), ("a", 1, 2)]
    shutil.rmtree(kept.checkpoint)
    shutil.move(tmp_path / "backup", kept.checkpoint)
    message = kept.refusal()
    assert "EPOCH_REWOUND" in message
    assert "as after a restore from a backup" in message
    (begin_anew,) = commands(message)
    follow(begin_anew)
    kept.life = 2  # new checkpoints, new paths
    feed.put(row(6, 122, last=True))
    kept.run()
    assert kept.results() == [("a", 0, 2), ("a", 1, 2), ("a", 2, 2)]


@pytest.mark.thorough
def test_after_a_checkpoint_was_lost_either_advice_works(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    kept = Job(spark, tracker, job, feed, tmp_path)
    feed.put(row(1, 1), row(2, 2, last=True), row(3, 61))
    kept.run()
    kept.life = 2
    message = kept.refusal()
    assert "FRONT_OWNED" in message
    begin_anew, take_over = commands(message)
    assert begin_anew[0] == "delete-job"
    # The new query's source begins where the former one stopped.
    rest = Feed(tmp_path / "rest")
    rest.put(row(4, 121), row(5, 122, last=True))
    follow(take_over)
    kept.life = 3
    tracking = kept.start(rest.stream(spark))
    tracking.process_all_available()
    assert kept.results() == [("a", 2, 2)]
    tracking.stop()
    kept.life = 4
    message = kept.refusal()
    assert commands(message)[0] == begin_anew
    follow(begin_anew)
    kept.life = 5
    feed.put(row(6, 62, last=True))
    kept.run()
    assert kept.results() == [("a", 0, 2), ("a", 1, 2)]


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["deleted", pytest.param("restored from a backup", marks=pytest.mark.slow)])
def test_a_tracker_that_forgot_is_noticed_by_every_query(
    how: str, spark: SparkSession, mortal_tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    def start(life: int) -> Tracking:
        tracking = Tracking(spark, job, mortal_tracker.address)
        source = tracking.source(
            feed.stream(spark), "in", window=("ts", "1 hour"), identity=["row_id"], front=Marks("is_last")
        )
        clean = tracking.channel("clean", str(tmp_path / f"clean{life}"))
        sending = source.writeStream.channel(clean).option("checkpointLocation", tmp_path / f"cp1-{life}")
        released = tracking.release(tracking.receive(clean), aggs={"rows": F.count("*")})
        receiving = released.writeStream.option("checkpointLocation", tmp_path / f"cp2-{life}")
        refused = []
        for starting in (sending.start, lambda: receiving.start(tmp_path / f"out{life}")):
            try:
                starting()
            except Exception as error:
                refused.append(str(error))
        start.refused = refused  # type: ignore[attr-defined]
        return tracking

    feed.put(row(1, 1), row(2, 2, last=True), row(3, 61))
    tracking = start(1)
    tracking.process_all_available()
    if how == "deleted":
        tracking.stop()
        TrackerClient(mortal_tracker.address).delete_job(job, force=True)
        feed.put(row(4, 62, last=True))
    else:
        backup = str(tmp_path / "backup")
        assert main(["backup", backup, "--server", mortal_tracker.address]) == 0
        feed.put(row(4, 62, last=True))
        tracking.process_all_available()
        tracking.stop()
        mortal_tracker.stop()
        assert main(["restore", backup, "--journal", mortal_tracker.journal, "--replace"]) == 0
        mortal_tracker.start()
    tracking = start(1)
    tracking.stop()
    assert len(start.refused) == 2  # type: ignore[attr-defined]
    for message in start.refused:  # type: ignore[attr-defined]
        assert "LOG_CHANGED" in message
        (begin_anew,) = commands(message)
    follow(begin_anew)
    tracking = start(2)
    tracking.process_all_available()
    assert [r[1] for r in rows_of(tmp_path / "out2", spark, "window.start", "rows")] == [2, 2]
    tracking.stop()


@pytest.mark.slow
def test_a_resting_source_is_not_taken_for_a_stopped_one(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """H6: turns of idleness are events of the job, and they expire."""
    kept = Job(spark, tracker, job, feed, tmp_path, retention=SHORT, idle_after=timedelta(seconds=0.5))
    tracking = kept.start()
    feed.put(row(1, 1), row(2, 2, last=True), row(3, 61))
    tracking.process_all_available()
    before = tracking.client.job(job)
    until = time.monotonic() + 6
    with tracking.client.open_producer(job, "another", "1") as another:
        epoch = 0
        while time.monotonic() < until or tracking.client.job(job).first_seq <= before.last_seq + 1:
            report = another.epoch(epoch)  # an end of somebody else's
            report.add("in", "b", str(epoch), 0, sent=1, received=1)
            report.close("b", str(epoch), front=None)
            report.report(commit=True)
            epoch += 1
            time.sleep(0.2)
    feed.put(row(4, 62, last=True))
    tracking.process_all_available()
    assert kept.results() == [("a", 0, 2), ("a", 1, 2)]
    tracking.stop()


@pytest.mark.slow
def test_a_rare_nightly_run_releases_what_ended_the_night_before(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """H1: the end of a batch comes after it, and is dropped long before the next night."""
    kept = Job(spark, tracker, job, feed, tmp_path, retention=SHORT)
    expected = []
    for night in range(3):
        feed.put(*[row(10 * night + i, 60 * night + i, last=i == 4) for i in range(5)])
        tracking = kept.start(availableNow=True)
        assert kept.query.awaitTermination(120)
        tracking.stop()
        time.sleep(2 * SHORT.total_seconds())
        expected.append(("a", night, 5))
        assert set(kept.results()) >= set(expected[:-1])
    kept.run()
    assert kept.results() == expected


@pytest.mark.thorough
@pytest.mark.parametrize("lost", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_release_that_was_away_for_long_finds_its_ends(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, lost: bool
) -> None:
    """The release's subscription keeps them; if that is gone, too, it asks for the substreams of its state."""
    rules = {"retention": SHORT, "segments": {"in": []}, "fronts": ["in", "other"]}
    kept = Job(spark, tracker, job, feed, tmp_path, **rules)
    feed.put(row(1, 1), row(2, 2, last=True), row(3, 61, last=True), row(4, 121, last=True), row(5, 181, last=True))
    kept.run()
    assert kept.results() == []
    with TrackerClient(tracker.address) as client:
        with client.open_producer(job, "other", "1") as other:
            report = other.epoch(0)
            for hour in range(3):  # the last one stays open
                name = f"2024-01-01T{hour:02d}:00:00Z/2024-01-01T{hour + 1:02d}:00:00Z"
                report.close("a", name, 1_704_067_200_000_000 + (hour + 1) * 3_600_000_000, "other")
            report.report(commit=True)
        newest = client.job(job).last_seq
        if lost:
            client.unsubscribe(job, str(kept.query.id))
            while client.job(job).first_seq <= newest:
                time.sleep(0.2)
        else:
            time.sleep(2 * SHORT.total_seconds())
            assert client.list_events(job, 0, newest).events, "they are kept for the release"
        kept.run()
        assert kept.results() == [("a", 0, 2), ("a", 1, 1), ("a", 2, 1)]
        with client.open_producer(job, "other", "2") as other:
            report = other.epoch(1)
            report.close("a", "2024-01-01T03:00:00Z/2024-01-01T04:00:00Z", 1_704_081_600_000_000, "other")
            report.report(commit=True)
        kept.run()
        assert kept.results() == [("a", 0, 2), ("a", 1, 1), ("a", 2, 1), ("a", 3, 1)]
        (subscription,) = client.subscriptions(job)
        assert subscription.acknowledged > newest, "what was released need not be kept"
