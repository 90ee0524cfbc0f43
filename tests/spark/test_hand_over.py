"""Hand-over: a deployment stops, its windows stay open, and the next one goes on; no window is split.

Each test ends with the results of all deployments against those of one batch over all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Tracking, TrackingError, UsageError
from spark_client.counting.runs import Run
from spark_client.runtime.quiesce import HandOver
from tests.client.processes import Server
from tests.spark.conftest import AT_THE_START
from tests.spark.feed import Feed, row, rows_of
from tests.spark.waiting import soon
from tracker.client import DrainMode, DrainState, TrackerClient

pytestmark = pytest.mark.spark

COLUMNS = ("tenant", "window.start", "kind", "rows", "amount")


class Job:
    """A job whose deployments can be started one after the other: in → clean → release, and a loop beside it."""

    def __init__(self, spark: SparkSession, tracker: Server, job: str, feed: Feed, path: Path) -> None:
        self.spark, self.address, self.job, self.feed, self.path = spark, tracker.address, job, feed, path
        self.queries: list[Any] = []
        self.sharded = False

    def tracking(self, deployment: str) -> Tracking:
        return Tracking(self.spark, self.job, self.address, deployment, sharded=self.sharded)

    def source(self, tracking: Tracking) -> Any:
        return tracking.source(
            self.feed.stream(self.spark),
            "in",
            scope="tenant",
            window=("ts", "1 hour"),
            identity=["row_id"],
            front=Marks("is_last"),
        )

    def declared(self, deployment: str) -> tuple[Tracking, list[Any]]:
        """Declare a sender, and a release that receives from it; the writers are not started."""
        tracking = self.tracking(deployment)
        channel = tracking.channel("clean", str(self.path / "clean"))
        sending = self.source(tracking).writeStream.channel(channel).option("checkpointLocation", self.path / "cp1")
        return tracking, [sending, self.released(tracking, tracking.receive(channel), "cp2")]

    def released(self, tracking: Tracking, stream: Any, checkpoint: str, **aggs: Any) -> Any:
        aggs = aggs or {"rows": F.count("*"), "amount": F.sum("amount")}
        writer = tracking.release(stream, ["kind"], aggs=aggs, completeness=True).writeStream
        return writer.option("checkpointLocation", self.path / checkpoint).option("path", str(self.path / "out"))

    def start(self, deployment: str) -> Tracking:
        tracking, writers = self.declared(deployment)
        self.queries = [writer.start() for writer in writers]
        return tracking

    def put(self, *rows: Any) -> None:
        self.feed.put(*rows)

    def is_complete(self, tracking: Tracking) -> None:
        """Check that all windows have ended, each with one result, and that it is that of a batch."""
        tracking.process_all_available()
        tracking.stop()
        batch = self.feed.batch(self.spark).groupBy("tenant", F.window("ts", "1 hour"), "kind")
        wanted = batch.agg(F.count("*").alias("rows"), F.sum("amount").alias("amount")).select(*COLUMNS)
        assert self.results() == sorted(tuple(each) for each in wanted.collect())
        assert {each[0] for each in rows_of(self.path / "out", self.spark, "completeness")} == {"whole"}

    def results(self, columns: Sequence[str] = COLUMNS) -> list[tuple[Any, ...]]:
        return rows_of(self.path / "out", self.spark, *columns)

    def is_handed_over(self, tracking: Tracking) -> None:
        drain = tracking.client.get_drain(self.job)
        assert (drain.state, drain.mode) == (DrainState.DRAINED, DrainMode.HAND_OVER)
        assert [query.isActive for query in self.queries] == [False] * len(self.queries)
        assert [query.exception() for query in self.queries] == [None] * len(self.queries)
        assert all(producer.closed for producer in tracking.client.job(self.job).producers)


@pytest.fixture
def it(spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path) -> Job:
    return Job(spark, tracker, job, feed, tmp_path)


@pytest.mark.thorough
def test_windows_that_are_open_stay_open_and_the_next_deployment_goes_on(it: Job) -> None:
    tracking = it.start("1")
    it.put(row(1, 1), row(2, 2, kind="y"), row(3, 70))
    it.put(row(4, 3, "b"), row(5, 4, "b", last=True))
    tracking.process_all_available()
    tracking.hand_over(timeout=600)
    it.is_handed_over(tracking)
    assert [result[0] for result in it.results()] == ["b"]
    assert tracking.client.job(it.job).open_substreams == 2
    tracking.stop()

    it.put(row(6, 5), row(7, 71, kind="y"))  # between the deployments
    with pytest.raises(TrackingError, match="has been handed over: start another deployment="):
        it.start("1")
    tracking = it.start("2")
    it.put(row(8, 6, amount=7), row(9, 7, last=True), row(10, 75, last=True))
    it.is_complete(tracking)


# ---------------------------------------------------------------- when it is asked for


@pytest.mark.slow
def test_a_hand_over_asked_before_the_start_ends_with_it(it: Job) -> None:
    tracking = it.start("1")
    it.put(row(1, 1), row(2, 2, kind="y"))
    tracking.process_all_available()
    tracking.client.drain(it.job, "2", "early", hand_over=True)
    it.put(row(3, 3))
    tracking.process_all_available()  # it is another deployment's
    tracking.hand_over(timeout=600)
    tracking.stop()
    with pytest.raises(TrackingError, match=r"deployment '2' of job '[^']*' has been handed over"):
        it.start("2")
    tracking = it.start("3")
    it.put(row(4, 4, last=True))
    it.is_complete(tracking)


@pytest.mark.slow
def test_a_hand_over_asked_at_the_start_waits_for_needed_queries(it: Job) -> None:
    tracking, (sending, release) = it.declared("1")
    it.queries = [sending.start()]
    it.put(row(1, 1), row(2, 2, kind="y"))
    tracking.process_all_available()
    tracking.client.drain(it.job, "1", "asked", hand_over=True)
    soon(lambda: "elements are in flight on 'clean': if the query that reads it does not run" in missing(tracking))
    with pytest.raises(TimeoutError, match=r"is not handed over after 0\.0 s; it goes on\. It waits: elements"):
        tracking.await_drained(timeout=0.0)
    it.put(row(3, 3))  # for the next deployment: the source has stopped
    it.queries.append(release.start())
    tracking.await_drained(timeout=600)
    it.is_handed_over(tracking)
    (substream,) = tracking.client.substreams(it.job)
    assert {s.segment: (s.sent, s.received) for s in substream.segments}["clean"] == (2, 2)
    tracking.stop()
    tracking = it.start("2")
    it.put(row(4, 4, last=True))
    it.is_complete(tracking)


@pytest.mark.slow
def test_unstarted_queries_are_not_waited_for_if_nothing_is_in_flight(it: Job) -> None:
    tracking, (sending, _) = it.declared("1")
    it.queries = [sending.start()]
    tracking.hand_over(timeout=600)
    it.is_handed_over(tracking)
    tracking.stop()
    tracking = it.start("2")
    it.put(row(1, 1, last=True))
    it.is_complete(tracking)


@pytest.mark.slow
def test_a_second_hand_over_is_the_same_and_a_drain_is_refused(it: Job) -> None:
    tracking = it.start("1")
    it.put(row(1, 1))
    tracking.process_all_available()
    tracking.client.drain(it.job, "1", "asked", hand_over=True)
    tracking.hand_over(timeout=600)
    tracking.hand_over(timeout=600)
    it.is_handed_over(tracking)
    with pytest.raises(TrackingError, match=r"DRAIN_MISMATCH.*which hands over, is done; start the next deployment"):
        tracking.drain(timeout=600)
    tracking.stop()
    tracking = it.start("2")
    it.put(row(2, 2, last=True))
    it.is_complete(tracking)


@pytest.mark.slow
def test_a_hand_over_cancelled_after_sources_stopped_leaves_the_job_startable(
    it: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = it.start("1")
    it.put(row(1, 1))
    tracking.process_all_available()
    with monkeypatch.context() as cancelling:
        cancelling.setattr(HandOver, "_settle", lambda *_: TrackerClient(it.address).cancel_drain(it.job) and False)
        with pytest.raises(TrackingError, match="the hand-over was cancelled when the queries that read sources had"):
            tracking.hand_over(timeout=600)
    tracking.stop()
    assert all(producer.closed for producer in tracking.client.job(it.job).producers)
    tracking = it.start("1")
    it.put(row(2, 2))
    tracking.process_all_available()
    tracking.hand_over(timeout=600)
    it.is_handed_over(tracking)
    tracking.stop()
    tracking = it.start("2")
    it.put(row(3, 3, last=True))
    it.is_complete(tracking)


# ---------------------------------------------------------------- drivers that die


def missing(tracking: Tracking) -> str:
    """Return what the queries here wait for."""
    return "; ".join(each.missing for each in tracking._running.followed if each.missing)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["gathered", "sources_rest", "has_flowed", "receivers_rest", "let_go"])
def test_a_driver_that_dies_in_a_hand_over_continues_it(it: Job, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    tracking = it.start("1")
    it.put(row(1, 1), row(2, 2, kind="y"))
    tracking.process_all_available()
    it.put(row(3, 3))
    with monkeypatch.context() as dying:
        dying.setattr(HandOver, step, lambda *_: 1 / 0)
        with pytest.raises(TrackingError, match="the drain failed: division by zero"):
            tracking.hand_over(timeout=600)
        soon(lambda: not tracking._running.drains)
    # No stop(): its runs and guards stay open at the tracker, until the next driver takes them over.
    assert tracking.client.get_drain(it.job).state is DrainState.DRAINING
    it.put(row(4, 4))
    again = it.start("1")
    again.await_drained(timeout=600)
    it.is_handed_over(again)
    tracking.stop()
    again.stop()
    tracking = it.start("2")
    it.put(row(5, 5, last=True))
    it.is_complete(tracking)


@pytest.mark.thorough
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_batch_that_was_interrupted_is_completed(it: Job, monkeypatch: pytest.MonkeyPatch, epoch: int) -> None:
    tracking = it.start("1")
    for number in range(epoch):
        it.put(row(10 + number, 1))
        tracking.process_all_available()
    send = Run.send

    def die(self: Run, report: Any, number: int) -> Any:
        if number == epoch:
            raise RuntimeError(f"killed in batch {number}")
        return send(self, report, number)

    with monkeypatch.context() as dying:
        dying.setattr(Run, "send", die)
        it.put(row(2, 2), row(3, 3, kind="y"))
        soon(lambda: any("killed in batch" in str(query.failure()) for query in tracking._running.queries))
    tracking.client.drain(it.job, "1", "asked", hand_over=True)
    soon(lambda: "was interrupted: start it again" in missing(tracking))
    tracking.stop()
    it.put(row(4, 4))  # for the next deployment
    # A run that was closed before anybody asked holds nothing: then the next deployment completes its batch.
    if tracking.client.get_drain(it.job).state is not DrainState.DRAINED:
        tracking = it.start("1")
        tracking.await_drained(timeout=600)
        it.is_handed_over(tracking)
        (substream,) = tracking.client.substreams(it.job)
        assert {s.segment: (s.sent, s.received) for s in substream.segments}["clean"] == (epoch + 2, epoch + 2)
        tracking.stop()
    tracking = it.start("2")
    it.put(row(5, 5, last=True))
    it.is_complete(tracking)


# ---------------------------------------------------------------- other jobs


@pytest.mark.slow
def test_a_loop_runs_empty_before_it_stops(it: Job) -> None:
    def start(deployment: str) -> tuple[Tracking, Any]:
        tracking = it.tracking(deployment)
        clean, retry = (tracking.channel(name, str(it.path / name)) for name in ("clean", "retry"))
        routes = [(clean, "attempts >= amount"), (retry, None)]
        first = it.source(tracking).withColumn("attempts", F.lit(1)).writeStream.route(routes)
        again = tracking.receive(retry).withColumn("attempts", F.col("attempts") + 1).writeStream.route(routes)
        release = it.released(tracking, tracking.receive(clean), "cp3")
        it.queries = [first.option("checkpointLocation", it.path / "cp1").start(), release.start()]
        return tracking, again.option("checkpointLocation", it.path / "cp2")

    tracking, again = start("1")
    it.put(row(1, 1), row(2, 2, amount=3), row(3, 3, amount=5, kind="y"))
    tracking.process_all_available()  # two rows wait for the loop
    tracking.client.drain(it.job, "1", "asked", hand_over=True)
    soon(lambda: "'retry'" in missing(tracking))
    it.queries.append(again.start())
    tracking.await_drained(timeout=600)
    it.is_handed_over(tracking)
    assert it.results() == []
    tracking.stop()
    tracking, again = start("2")
    it.queries.append(again.start())
    it.put(row(4, 4, amount=2, last=True))
    it.is_complete(tracking)


@pytest.mark.slow
def test_two_applications_hand_over_together(it: Job) -> None:
    def start(deployment: str) -> list[Tracking]:
        graph = {"in": ["clean"], "clean": []}
        one, other = (
            Tracking(it.spark, it.job, it.address, deployment, segments=graph, fronts=["in"]) for _ in range(2)
        )
        sending = it.source(one).writeStream.channel(one.channel("clean", str(it.path / "clean")))
        received = other.receive(other.channel("clean", str(it.path / "clean")))
        it.queries = [
            sending.option("checkpointLocation", it.path / "cp1").start(),
            it.released(other, received, "cp2").start(),
        ]
        return [one, other]

    one, other = start("1")
    for number in range(5):
        it.put(row(number, number + 1))
    one.client.drain(it.job, "1", "asked", hand_over=True)
    for application in (one, other):
        application.await_drained(timeout=600)
    it.is_handed_over(one)
    one.stop()
    other.stop()
    one, other = start("2")
    it.put(row(9, 9, last=True))
    one.process_all_available()
    one.stop()
    it.is_complete(other)


@pytest.mark.slow
def test_a_job_over_several_trackers_is_handed_over_by_all_of_them(it: Job, mortal_trackers: list[Server]) -> None:
    it.address = ",".join(tracker.address for tracker in mortal_trackers)
    it.sharded = True
    tracking = it.start("1")
    it.put(*[row(number, number, f"tenant {number}") for number in range(9)])
    tracking.process_all_available()
    it.put(*[row(10 + number, number, f"tenant {number}") for number in range(9)])
    tracking.hand_over(timeout=600)
    it.is_handed_over(tracking)
    tracking.stop()
    tracking = it.start("2")
    it.put(*[row(20 + number, 30 + number, f"tenant {number}", last=True) for number in range(9)])
    it.is_complete(tracking)


@pytest.mark.slow
def test_queries_with_an_exact_watermark_keep_their_windows(it: Job) -> None:
    def start(deployment: str) -> tuple[Tracking, Any]:
        tracking = it.tracking(deployment)
        source = tracking.source(it.feed.stream(it.spark), "in", window=("ts", "1 minute"), front=Frontier("0 seconds"))
        counted = tracking.with_watermark(source, "ts", "windows").groupBy(F.window("ts", "10 minutes"), "kind")
        writer = tracking.write_stream(counted.agg(F.count("*").alias("rows")), source).outputMode("append")
        writer = writer.format("parquet").option("path", str(it.path / "out"))
        it.queries = [writer.option("checkpointLocation", str(it.path / "cp")).start()]
        return tracking, source

    tracking, _ = start("1")
    it.put(row(1, 1), row(2, 9), row(3, 25))
    tracking.process_all_available()
    it.put(row(4, 26))
    tracking.hand_over(timeout=600)
    it.is_handed_over(tracking)
    tracking.stop()
    tracking, source = start("2")
    it.put(row(5, 27), row(6, 41, kind="y"))
    tracking.process_all_available()
    tracking.finish(source)
    tracking.process_all_available()
    tracking.stop()
    columns = ("window.start", "kind", "rows")
    found = it.spark.read.parquet(str(it.path / "out")).select(*columns)
    batch = it.feed.batch(it.spark).groupBy(F.window("ts", "10 minutes"), "kind").agg(F.count("*").alias("rows"))
    assert sorted(map(tuple, found.collect())) == sorted(map(tuple, batch.select(*columns).collect()))


# ---------------------------------------------------------------- another graph


@pytest.mark.slow
def test_each_deployment_in_a_row_may_have_another_graph(it: Job) -> None:
    tracking = it.start("1")
    it.put(row(1, 1), row(2, 2, kind="y"))
    tracking.process_all_available()
    tracking.hand_over(timeout=600)
    tracking.stop()

    # A step and a channel more: in → checked → clean.
    tracking = it.tracking("2")
    checked, clean = (tracking.channel(name, str(it.path / name)) for name in ("checked", "clean"))
    writers = [
        it.source(tracking).writeStream.channel(checked).option("checkpointLocation", it.path / "cp1"),
        tracking.receive(checked).writeStream.channel(clean).option("checkpointLocation", it.path / "cp3"),
        it.released(tracking, tracking.receive(clean), "cp2"),
    ]
    it.queries = [writer.start() for writer in writers]
    it.put(row(3, 3), row(4, 4, kind="y"), row(5, 65, last=True))
    tracking.process_all_available()
    it.put(row(6, 6))
    tracking.hand_over(timeout=600)
    it.is_handed_over(tracking)
    assert [result[1].hour for result in it.results()] == [1]
    tracking.stop()

    # And without them again.
    tracking = it.start("3")
    it.put(row(7, 7, last=True))
    it.is_complete(tracking)


@pytest.mark.slow
def test_what_is_released_into_a_channel_stays_in_its_state(it: Job) -> None:
    def start(deployment: str) -> Tracking:
        tracking = it.tracking(deployment)
        clean, hours = (tracking.channel(name, str(it.path / name)) for name in ("clean", "hours"))
        sending = it.source(tracking).writeStream.channel(clean).option("checkpointLocation", it.path / "cp1")
        aggs = {"n": F.count("*"), "a": F.sum("amount")}
        counted = tracking.release(tracking.receive(clean), ["kind"], aggs=aggs).writeStream.channel(hours)
        release = it.released(tracking, tracking.receive(hours), "cp3", rows=F.sum("n"), amount=F.sum("a"))
        writers = [sending, counted.option("checkpointLocation", it.path / "cp2"), release]
        it.queries = [writer.start() for writer in writers]
        return tracking

    tracking = start("1")
    it.put(row(1, 1), row(2, 2, kind="y"), row(3, 70, last=True))
    tracking.process_all_available()
    tracking.hand_over(timeout=600)
    it.is_handed_over(tracking)
    (open_one,) = tracking.client.substreams(it.job)
    in_flight = {s.segment: s.sent - s.received for s in open_one.segments if s.sent != s.received}
    assert in_flight == {"clean.held": 1}
    tracking.stop()
    tracking = start("2")
    it.put(row(4, 4, last=True))
    it.is_complete(tracking)


# ---------------------------------------------------------------- other aggregates


@AT_THE_START
@pytest.mark.thorough
def test_aggregates_may_be_renamed_moved_or_left_out_but_not_added(it: Job) -> None:
    """All of them bigints, or halves of one: a column that was taken for another would not be noticed."""

    def start(deployment: str, out: str, **aggs: Any) -> Tracking:
        tracking = it.tracking(deployment)
        writer = tracking.release(it.source(tracking), ["kind"], aggs=aggs).writeStream
        it.queries = [writer.option("checkpointLocation", it.path / "cp").start(it.path / out)]
        return tracking

    first = {"rows": F.count("*"), "most": F.max("amount"), "amount": F.sum("amount"), "least": F.min("amount")}
    tracking = start("1", "out1", **first)
    it.put(row(1, 1, amount=4), row(2, 2, amount=3, kind="y"), row(3, 65, "b", amount=2, last=True))
    tracking.process_all_available()
    tracking.hand_over(timeout=600)
    tracking.stop()

    it.put(row(4, 4, amount=9))
    with pytest.raises(UsageError, match=r"the aggregate 'mean' \(.*\) is new, and what is open holds no part of it\."):
        start("2", "out2", **first, mean=F.avg("value"))
    tracking = start("2", "out2", smallest=F.min("amount"), total=F.sum("amount"), elements=F.count("*"))
    tracking.process_all_available()
    tracking.hand_over(timeout=600)
    tracking.stop()
    with pytest.raises(UsageError, match=r"the aggregate 'most' \(.*\) is new, and what is open holds no part of it\."):
        start("3", "out3", **first)

    tracking = start("3", "out3", total=F.sum("amount"), elements=F.count("*"), again=F.count("*"))
    it.put(row(5, 5, amount=1), row(6, 6, kind="y", amount=7), row(7, 7, last=True))
    tracking.process_all_available()
    tracking.stop()
    batch = it.feed.batch(it.spark).groupBy("tenant", F.window("ts", "1 hour"), "kind")
    wanted = batch.agg(F.sum("amount").alias("total"), F.count("*").alias("n"), F.count("*").alias("again"))
    columns = ("tenant", "kind", "total")
    assert rows_of(it.path / "out3", it.spark, *columns, "elements", "again") == sorted(
        tuple(each) for each in wanted.where("tenant = 'a'").select(*columns, "n", "again").collect()
    )
    assert rows_of(it.path / "out1", it.spark, "tenant", "rows", "most", "amount", "least") == [("b", 1, 2, 2, 2)]


@pytest.mark.slow
def test_late_rows_are_reopened_by_a_version_with_fewer_aggregates(it: Job) -> None:
    def start(deployment: str, **aggs: Any) -> Tracking:
        tracking = it.tracking(deployment)
        writer = tracking.release(it.source(tracking), aggs=aggs, revisions=True).writeStream
        writer.option("checkpointLocation", it.path / "cp").start(it.path / f"out{deployment}")
        return tracking

    tracking = start("1", rows=F.count("*"), most=F.max("amount"), least=F.min("amount"))
    it.put(row(1, 1, amount=4, last=True))
    tracking.process_all_available()
    it.put(row(2, 2, amount=9), row(3, 3, amount=5))
    tracking.process_all_available()
    tracking.hand_over(timeout=600)
    tracking.stop()
    tracking = start("2", smallest=F.min("amount"), rows=F.count("*"))
    assert [revision.rows for revision in tracking.reopen(str(it.path / "cp"))] == [2]
    tracking.process_all_available()
    tracking.stop()
    assert rows_of(it.path / "out2", it.spark, "rows", "smallest", "revision") == [(2, 5, 1)]
