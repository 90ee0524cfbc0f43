"""A drain: sources stop, what was read is released, queries stop between batches; the next deployment goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking, TrackingError
from spark_client.release.state import PartialState
from spark_client.runtime.definition import Definition
from spark_client.runtime.quiesce import Finish, Quiesce
from tests.client.processes import Server
from tests.spark.feed import Feed, row, rows_of
from tests.spark.waiting import soon
from tracker.client import DrainState

pytestmark = pytest.mark.spark

COLUMNS = ("tenant", "window.start", "kind", "rows")


def start(spark: SparkSession, tracker: Server, job: str, feed: Feed, path: Path, deployment: str) -> Any:
    """Start two queries joined by a channel, and one that releases what it reads itself."""
    tracking = Tracking(spark, job, tracker.address, deployment=deployment)
    where: dict[str, Any] = {"scope": "tenant", "window": ("ts", "1 hour")}
    source = tracking.source(feed.stream(spark), "in", **where, identity=["row_id"], front=Marks("is_last"))
    channel = tracking.channel("clean", str(path / "clean"))
    sending = source.writeStream.channel(channel).option("checkpointLocation", path / "cp1")
    received = tracking.release(tracking.receive(channel), ["kind"], aggs={"rows": F.count("*")})
    alone = tracking.source(feed.stream(spark), "alone", **where, front=Marks("is_last"))
    itself = tracking.release(alone, ["kind"], aggs={"rows": F.count("*")})
    queries = [
        sending.start(),
        received.writeStream.option("checkpointLocation", path / "cp2").start(path / "through"),
        itself.writeStream.option("checkpointLocation", path / "cp3").start(path / "alone"),
    ]
    return tracking, queries


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["drain", pytest.param("hand_over", marks=pytest.mark.slow)])
def test_a_drain_already_over_at_the_tracker_is_confirmed(
    spark: SparkSession,
    tracker: Server,
    job: str,
    feed: Feed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    """Somebody else has asked for it before, or a driver that died; here its last step is not done yet."""
    asked = threading.Event()
    define = Definition.define

    def defined(self: Definition, **given: Any) -> Any:
        try:
            return define(self, **given)
        finally:
            if given:
                asked.set()

    def late(self: Quiesce) -> None:
        run(self)
        assert asked.wait(300)

    run = Quiesce.run
    monkeypatch.setattr(Quiesce, "run", late)
    monkeypatch.setattr(Definition, "define", defined)
    tracking, queries = start(spark, tracker, job, feed, tmp_path, "d1")
    feed.put(row(1, 1), row(2, 2, kind="y"), row(3, 70))
    tracking.process_all_available()
    tracking.client.drain(job, "d1", "somebody's", hand_over=mode == "hand_over")
    soon(lambda: tracking.client.get_drain(job).state is DrainState.DRAINED)
    getattr(tracking, mode)(timeout=300)
    assert [query.isActive for query in queries] == [False, False, False]
    tracking.stop()


@pytest.mark.slow
def test_a_drain_releases_what_was_read_and_the_next_deployment_goes_on(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking, queries = start(spark, tracker, job, feed, tmp_path, "d1")
    feed.put(row(1, 1), row(2, 2, kind="y"), row(3, 70))
    tracking.process_all_available()
    tracking.drain(timeout=120)
    assert [query.isActive for query in queries] == [False, False, False]
    assert [query.exception() for query in queries] == [None, None, None]
    assert tracking.client.get_drain(job).state is DrainState.DRAINED
    first = [("a", 0, "x", 1), ("a", 0, "y", 1), ("a", 1, "x", 1)]
    for name in ("through", "alone"):
        rows = rows_of(tmp_path / name, spark, *COLUMNS)
        assert [(tenant, when.hour, kind, n) for tenant, when, kind, n in rows] == first
    tracking.stop()

    feed.put(row(4, 3), row(5, 4, last=True))  # between the deployments
    with pytest.raises(TrackingError, match="has been drained: start another deployment="):
        start(spark, tracker, job, feed, tmp_path, "d1")
    tracking, _ = start(spark, tracker, job, feed, tmp_path, "d2")
    tracking.process_all_available()
    for name in ("through", "alone"):
        rows = rows_of(tmp_path / name, spark, *COLUMNS)
        assert sorted((tenant, when.hour, kind, n) for tenant, when, kind, n in rows) == sorted(
            [*first, ("a", 0, "x", 2)]
        )
    tracking.stop()


@pytest.mark.thorough
def test_a_drain_is_confirmed_after_its_results_by_the_next_driver(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking, _ = start(spark, tracker, job, feed, tmp_path, "d1")
    feed.put(row(1, 1), row(2, 2, kind="y"))
    tracking.process_all_available()
    with monkeypatch.context() as dying:
        dying.setattr(Finish, "receivers_rest", lambda *_: 1 / 0)  # everything has ended, and nothing is released
        with pytest.raises(TrackingError, match="the drain failed: division by zero"):
            tracking.drain(timeout=120)
        soon(lambda: not tracking._running.drains)
    tracking.stop()
    said = tracking.client.get_drain(job)
    assert (said.state, said.unfinished_fronts, said.open_substreams) == (DrainState.DRAINING, (), 0)

    feed.put(row(3, 70, last=True))  # too late for this deployment
    tracking, queries = start(spark, tracker, job, feed, tmp_path, "d1")
    tracking.await_drained(timeout=120)
    assert tracking.client.get_drain(job).state is DrainState.DRAINED
    assert [query.isActive for query in queries] == [False, False, False]
    for name in ("through", "alone"):
        rows = rows_of(tmp_path / name, spark, *COLUMNS)
        assert [(when.hour, kind, n) for _, when, kind, n in rows] == [(0, "x", 1), (0, "y", 1)]
    tracking.stop()

    tracking, _ = start(spark, tracker, job, feed, tmp_path, "d2")
    tracking.process_all_available()
    for name in ("through", "alone"):
        rows = rows_of(tmp_path / name, spark, *COLUMNS)
        assert [(when.hour, kind, n) for _, when, kind, n in rows] == [(0, "x", 1), (0, "y", 1), (1, "x", 1)]
    assert tracking.late(str(tmp_path / "cp2")).count() + tracking.late(str(tmp_path / "cp3")).count() == 0
    tracking.stop()


@pytest.mark.thorough
def test_a_drain_cancelled_in_time_leaves_the_job_startable(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking, _ = start(spark, tracker, job, feed, tmp_path, "d1")
    feed.put(row(1, 1), row(2, 2, kind="y"))
    tracking.process_all_available()
    with monkeypatch.context() as cancelling:
        gathered = Finish.gathered

        def gathered_and_cancelled(self: Finish, status: Any) -> bool:
            try:
                return gathered(self, status)
            finally:
                tracking.client.cancel_drain(job)

        cancelling.setattr(Finish, "gathered", gathered_and_cancelled)
        with pytest.raises(TrackingError, match="the drain was cancelled when the queries that read sources had"):
            tracking.drain(timeout=120)
    tracking.stop()
    status = tracking.client.job(job)
    assert not any(producer.staged_epochs for producer in status.producers)
    assert not any(front.finished for front in status.fronts)

    feed.put(row(3, 3))
    tracking, _ = start(spark, tracker, job, feed, tmp_path, "d1")
    tracking.process_all_available()
    tracking.drain(timeout=120)
    tracking.stop()
    for name in ("through", "alone"):
        rows = rows_of(tmp_path / name, spark, *COLUMNS)
        assert [(when.hour, kind, n) for _, when, kind, n in rows] == [(0, "x", 2), (0, "y", 1)]


@pytest.mark.thorough
def test_a_driver_that_dies_as_a_drain_ends_writes_results_once(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(deployment: str) -> Tracking:
        tracking = Tracking(spark, job, tracker.address, deployment=deployment)
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last")
        )
        writer = tracking.release(source, ["kind"], aggs={"rows": F.count("*")}).writeStream
        writer.option("checkpointLocation", tmp_path / "cp").receipts(tmp_path / "receipts").start(tmp_path / "out")
        return tracking

    tracking = begin("d1")
    feed.put(row(1, 1), row(2, 2, kind="y"))
    tracking.process_all_available()
    with monkeypatch.context() as dying:
        dying.setattr(PartialState, "publish", lambda *_: 1 / 0)  # the results are out, and nobody knows
        with pytest.raises(TrackingError, match="the drain failed: division by zero"):
            tracking.drain(timeout=120)
    tracking.stop()
    assert len(rows_of(tmp_path / "out", spark, *COLUMNS)) == 2

    feed.put(row(3, 70, last=True))
    tracking = begin("d1")
    tracking.await_drained(timeout=120)
    tracking.stop()
    assert len(rows_of(tmp_path / "out", spark, *COLUMNS)) == 2

    tracking = begin("d2")
    tracking.process_all_available()
    rows = rows_of(tmp_path / "out", spark, *COLUMNS)
    assert [(when.hour, kind, n) for _, when, kind, n in rows] == [(0, "x", 1), (0, "y", 1), (1, "x", 1)]
    receipts = spark.read.parquet(str(tmp_path / "receipts")).orderBy("end_time")
    assert [(r.deployment, r.rows, r.results) for r in receipts.collect()] == [("d1", 2, 2), ("d2", 1, 1)]
    tracking.stop()
