"""A life in one process: queries start, fail, start again and stop; nothing of what was stopped acts any more."""

from __future__ import annotations

import gc
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Schedule, Tracking, TrackingError
from spark_client.runtime import assembly
from spark_client.spark_internals.checkpoints import query_id
from spark_client.storage.folder import Folder
from tests.client.processes import Server
from tests.spark.conftest import Threads
from tests.spark.feed import START, Feed, row, rows_of
from tests.spark.waiting import soon
from tracker.client import DrainState, TrackerClient

pytestmark = pytest.mark.spark

COLUMNS = ("tenant", "window.start", "kind", "rows")


def release(
    spark: SparkSession, server: str, job: str, feed: Feed, path: Path, deployment: str = "1", **options: Any
) -> Tracking:
    """Start a release that reads the source itself."""
    tracking = Tracking(spark, job, server, deployment, **options)
    source = tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    writer = tracking.release(source, ["kind"], aggs={"rows": F.count("*")}).writeStream
    writer.option("checkpointLocation", path / "cp").start(path / "out")
    return tracking


def called(
    spark: SparkSession, server: str, job: str, feed: Feed, path: Path, function: Any, **options: Any
) -> tuple[Tracking, Any]:
    """Return a source whose batches a function takes, not started."""
    tracking = Tracking(spark, job, server, **options)
    source = tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    return tracking, source.writeStream.foreachBatch(function).option("checkpointLocation", path / "cp")


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["stopped", "left"])
def test_what_was_stopped_takes_no_part_in_the_next_ones_drain(
    threads: Threads, spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, how: str
) -> None:
    one = release(spark, tracker.address, job, feed, tmp_path)
    feed.put(row(1, 1))
    one.process_all_available()
    if how == "stopped":
        one.stop()  # else a notebook's cell is run again: Spark stops the former run of the query
    two = release(spark, tracker.address, job, feed, tmp_path)
    feed.put(row(2, 2))
    two.process_all_available()
    two.drain(timeout=900)
    assert two.client.get_drain(job).state is DrainState.DRAINED
    assert [(tenant, kind, n) for tenant, _, kind, n in rows_of(tmp_path / "out", spark, *COLUMNS)] == [("a", "x", 2)]
    two.stop()
    one.stop()
    soon(lambda: not threads())


def test_a_run_that_was_superseded_writes_nothing_in_a_drain(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    one = release(spark, tracker.address, job, feed, tmp_path)
    feed.put(row(1, 1))
    one.process_all_available()
    (dead,) = one._running.queries
    one.stop()
    two = release(spark, tracker.address, job, feed, tmp_path)
    feed.put(row(2, 2))
    two.process_all_available()
    (front,) = (live.front for live in two._running.queries[0].fronts)
    two._running.finish(front)  # so the window has ended, and the dead one has rows of it
    with pytest.raises(TrackingError, match="writes nothing more: another run of the query has taken over"):
        dead.drain()
    two.process_all_available()
    assert [n for *_, n in rows_of(tmp_path / "out", spark, *COLUMNS)] == [2]
    two.stop()


@pytest.mark.thorough
def test_lives_leave_nothing_behind(
    threads: Threads, spark: SparkSession, job: str, feed: Feed, tmp_path: Path
) -> None:
    """Spark itself keeps a socket for each query with `foreachBatch`; a life may leave no more than such a query."""

    def files() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    def live(number: int) -> None:
        with release(spark, tracker.address, job, feed, tmp_path) as tracking:
            feed.put(row(number, number))
            tracking.process_all_available()
        soon(lambda: not threads())

    feed.put(row(0, 0, last=True))
    (tmp_path / "server").mkdir()
    tracker = Server(tmp_path / "server", "memory", "--limit", "max_watchers=1")
    try:
        live(0)
        before = files()
        for number in range(1, 9):
            live(number)
        # Threads that call the JVM at the same time share a few connections more, which stay; others close a bit later.
        soon(lambda: files() <= before + 8 + 5)
        with TrackerClient(tracker.address) as client, client.watch(job) as watch:
            assert next(watch).seq == 1, "the only watch that is allowed is free"
    finally:
        tracker.stop()


@pytest.mark.thorough
def test_a_query_that_ends_by_itself_leaves_no_thread(
    threads: Threads, spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking, writer = called(spark, tracker.address, job, feed, tmp_path, lambda rows, epoch: rows.count())
    feed.put(row(1, 1))
    writer.trigger(availableNow=True).start().awaitTermination()
    soon(lambda: not threads())
    feed.put(row(2, 2, last=True))
    writer.start().awaitTermination()  # and it can be started again
    soon(lambda: not threads())
    assert tracking.client.job(job).producers[0].committed_epoch == 1
    tracking.drain(timeout=900)


@pytest.mark.thorough
def test_a_query_is_known_by_its_own_id_whoever_starts_beside_it(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    others = Feed(tmp_path / "others")
    others.put(row(1, 1))
    over = threading.Event()

    def start_others(place: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            writer = others.stream(spark).writeStream.format("noop").trigger(availableNow=True)
            writer.option("checkpointLocation", str(tmp_path / f"other-{place}-{number}")).start().awaitTermination()

    beside = [threading.Thread(target=start_others, args=(place,)) for place in range(2)]
    for thread in beside:
        thread.start()
    try:
        for number in range(6):
            path = tmp_path / str(number)
            tracking, writer = called(spark, tracker.address, f"{job}-{number}", feed, path, lambda rows, epoch: None)
            query = writer.start()
            (producer,) = tracking.client.job(f"{job}-{number}").producers
            assert (producer.producer, producer.run) == (str(query.id), str(query.runId))
            assert query_id(Folder(path / "cp")) == str(query.id)
            tracking.stop()
    finally:
        over.set()
        for thread in beside:
            thread.join()


@pytest.mark.slow
def test_trackings_in_several_threads_of_one_session_each_know_their_queries(
    threads: Threads, spark: SparkSession, tracker: Server, job: str, tmp_path: Path
) -> None:
    wrong: list[object] = []

    def live(number: int) -> None:
        feed = Feed(tmp_path / f"raw-{number}")
        try:
            for _ in range(2):
                tracking = release(spark, tracker.address, f"{job}-{number}", feed, tmp_path / str(number))
                feed.put(row(1, 1, last=True))
                tracking.process_all_available()
                tracking.stop()
            (producer,) = tracking.client.job(f"{job}-{number}").producers
            if producer.producer != query_id(Folder(tmp_path / str(number) / "cp")):
                wrong.append((number, producer))
        except Exception as error:
            wrong.append(error)

    lives = [threading.Thread(target=live, args=(number,)) for number in range(3)]
    for thread in lives:
        thread.start()
    for thread in lives:
        thread.join()
    assert wrong == []
    soon(lambda: not threads())


def test_an_old_failure_does_not_haunt_the_query_that_was_started_again(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    away = threading.Event()
    away.set()

    def deliver(rows: DataFrame, epoch: int) -> None:
        rows.count()
        if away.is_set():
            raise ConnectionError("the place is away")

    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    results = tracking.release(source, aggs={"rows": F.count("*")})
    writer = results.writeStream.foreachBatch(deliver).option("checkpointLocation", tmp_path / "cp")
    query = writer.start()
    feed.put(row(1, 1, last=True), row(2, 70))
    soon(lambda: not query.isActive)
    with pytest.raises(TrackingError, match="the place is away") as raised:
        tracking.check()
    assert raised.value.__cause__ is not None
    away.clear()
    writer.start()
    tracking.check()
    tracking.process_all_available()
    tracking.drain(timeout=900)
    assert tracking.client.get_drain(job).state is DrainState.DRAINED
    tracking.stop()


@pytest.mark.thorough
def test_a_query_that_fails_in_a_drain_holds_it_until_restarted(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    away = threading.Event()
    away.set()
    delivered: list[int] = []

    def deliver(rows: DataFrame, epoch: int) -> None:
        if away.is_set():
            raise ConnectionError("the place is away")
        delivered.extend(r.rows for r in rows.collect())

    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=Marks("is_last")
    )
    channel = tracking.channel("clean", str(tmp_path / "clean"))
    sending = source.writeStream.channel(channel).option("checkpointLocation", tmp_path / "cp1")
    results = tracking.release(tracking.receive(channel), aggs={"rows": F.count("*")})
    writer = results.writeStream.foreachBatch(deliver).option("checkpointLocation", tmp_path / "cp2")
    sending.start()
    writer.start()
    feed.put(row(1, 1), row(2, 2))
    tracking.process_all_available()
    with pytest.raises(TrackingError, match="the place is away"):
        tracking.drain(timeout=900)
    assert tracking.client.get_drain(job).state is DrainState.DRAINING
    away.clear()
    writer.start()
    tracking.await_drained(timeout=900)
    assert delivered == [2]
    tracking.stop()


@pytest.mark.thorough
def test_stop_returns_while_the_tracker_is_away_and_work_resumes(
    threads: Threads, spark: SparkSession, mortal_tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = release(spark, mortal_tracker.address, job, feed, tmp_path, retry_for=1)
    feed.put(row(1, 1))
    tracking.process_all_available()
    mortal_tracker.kill()
    tracking.stop()
    tracking.stop()
    soon(lambda: not threads())
    mortal_tracker.start()
    with release(spark, mortal_tracker.address, job, feed, tmp_path) as again:
        feed.put(row(2, 2, last=True))
        again.process_all_available()
    assert [n for *_, n in rows_of(tmp_path / "out", spark, *COLUMNS)] == [2]


@pytest.mark.thorough
def test_stop_returns_in_a_batch_while_the_tracker_is_away(
    spark: SparkSession, mortal_tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    inside = threading.Event()

    def lose_the_tracker(rows: DataFrame, epoch: int) -> None:
        rows.count()
        mortal_tracker.freeze()
        inside.set()

    tracking, writer = called(spark, mortal_tracker.address, job, feed, tmp_path, lose_the_tracker, retry_for=1)
    query = writer.start()
    feed.put(row(1, 1))
    assert inside.wait(600)
    stopping = [threading.Thread(target=tracking.stop) for _ in range(2)]
    for thread in stopping:
        thread.start()
    for thread in stopping:
        thread.join(600)
    assert not any(thread.is_alive() for thread in stopping)
    soon(lambda: not query.isActive)  # a call to the tracker may be under way
    mortal_tracker.thaw()


def test_stop_in_a_batch_lets_it_end_and_no_other_begin(
    threads: Threads, spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    epochs: list[int] = []

    def stop(rows: DataFrame, epoch: int) -> None:
        epochs.append(rows.count())
        tracking.stop()
        epochs.append(epoch)

    feed.put(row(1, 1))
    feed.put(row(2, 2))
    tracking, writer = called(spark, tracker.address, job, feed, tmp_path, stop)
    query = writer.start()
    assert query.awaitTermination(600)
    assert query.exception() is None
    assert epochs == [1, 0]
    soon(lambda: not threads())
    assert tracking.client.job(job).producers[0].committed_epoch == 0


@pytest.mark.thorough
def test_stop_interrupts_a_batch_that_does_not_end(
    threads: Threads, spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    inside, over = threading.Event(), threading.Event()

    def stay(rows: DataFrame, epoch: int) -> None:
        inside.set()
        over.wait(120)

    tracking, writer = called(spark, tracker.address, job, feed, tmp_path, stay)
    query = writer.start()
    feed.put(row(1, 1))
    assert inside.wait(600)
    tracking.stop(timeout=0.5)
    over.set()
    assert query.awaitTermination(600)
    soon(lambda: not threads())


def test_stop_while_a_query_starts_leaves_none_running(
    threads: Threads,
    spark: SparkSession,
    tracker: Server,
    job: str,
    feed: Feed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches: list[int] = []
    tracking, writer = called(spark, tracker.address, job, feed, tmp_path, lambda rows, epoch: batches.append(epoch))
    feed.put(row(1, 1))
    opened, stopped = threading.Event(), threading.Event()
    open_run = assembly.open_run

    def slowly(*given: Any, **more: Any) -> Any:
        opened.set()
        assert stopped.wait(600)
        return open_run(*given, **more)

    monkeypatch.setattr(assembly, "open_run", slowly)
    raised: list[Exception] = []

    def start() -> None:
        try:
            writer.start()
        except TrackingError as error:
            raised.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    assert opened.wait(600)
    tracking.stop()
    stopped.set()
    starting.join(600)
    assert not starting.is_alive()
    assert "stopped while it started" in str(raised[0])
    assert batches == []
    soon(lambda: not threads())


@pytest.mark.thorough
def test_one_front_serves_several_trackings(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    schedule = Schedule((name, START, 2) for name in "ab")
    feed.put(row(1, 1), row(2, 2), row(3, 3, "b"))
    for number, front in enumerate([schedule, schedule, Frontier("0 seconds"), Marks("is_last")]):
        tracking = Tracking(spark, f"{job}-{number}", tracker.address)
        source = tracking.source(
            feed.stream(spark), f"in-{number}", scope="tenant", window=("ts", "1 hour"), front=front
        )
        writer = source.writeStream.foreachBatch(lambda rows, epoch: None)
        writer.option("checkpointLocation", tmp_path / f"cp{number}").start()
        tracking.process_all_available()
        if front is schedule:
            closed = {s.scope: s.closed for s in tracking.client.substreams(f"{job}-{number}", include_ended=True)}
            assert closed == {"a": True, "b": False}
        tracking.stop()


def test_a_failure_begins_with_our_sentence(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = release(spark, tracker.address, job, feed, tmp_path)
    query = tracking._running.queries[0].query
    assert query is not None
    feed.put({**row(1, 1), "ts": None})
    soon(lambda: not query.isActive)
    with pytest.raises(TrackingError, match=r"^1 rows? ") as raised:
        tracking.check()
    assert raised.value.__cause__ is not None
    said = str(query.exception())
    assert len(said[: said.index("belong")].splitlines()) < 14, said
    tracking.stop()


@pytest.mark.thorough
def test_a_drain_that_was_stopped_goes_on_in_the_same_tracking(
    threads: Threads, spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=Marks("is_last")
    )
    channel = tracking.channel("clean", str(tmp_path / "clean"))
    sending = source.writeStream.channel(channel).option("checkpointLocation", tmp_path / "cp1")
    results = tracking.release(tracking.receive(channel), aggs={"rows": F.count("*")})
    sending.start()
    feed.put(row(1, 1))
    tracking._running.queries[0].settle()
    with pytest.raises(TimeoutError):
        tracking.drain(timeout=1)  # it waits for the query that receives
    tracking.stop()
    soon(lambda: not threads())
    with pytest.raises(TrackingError, match="stopped"):
        tracking.await_drained(timeout=1)
    results.writeStream.option("checkpointLocation", tmp_path / "cp2").start(tmp_path / "out")
    sending.start()
    tracking.await_drained(timeout=900)
    assert rows_of(tmp_path / "out", spark, "tenant", "rows") == [("a", 1)]
    tracking.stop()


@pytest.mark.thorough
def test_notes_of_a_query_are_under_its_own_id(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    with release(spark, tracker.address, job, feed, tmp_path) as tracking:
        feed.put(row(1, 1, last=True))
        tracking.process_all_available()
    assert json.loads((tmp_path / "out" / "_query.json").read_text()) == query_id(Folder(tmp_path / "cp"))
