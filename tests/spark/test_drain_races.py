"""Drains that meet a batch that was interrupted, or a driver that was fenced: every result is there once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking, TrackingError
from spark_client.counting.runs import Run
from spark_client.release.single import SingleRelease
from spark_client.runtime.gate import Gate
from spark_client.storage.folder import Folder
from tests.client.processes import Server
from tests.spark.feed import Feed, row, rows_of
from tests.spark.waiting import soon

pytestmark = pytest.mark.spark


class _KilledError(RuntimeError):
    """Nothing that the driver would have done after this comes about."""


def await_death(tracking: Tracking) -> None:
    """Wait until a query of the job dies."""
    soon(lambda: any("killed in batch" in str(query.failure()) for query in tracking._running.queries))


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, what: Any, name: str, epoch: int, wait: Any = None) -> Iterator[None]:
    """Let a method that gets an epoch, last, die at one of them, when `wait` has returned."""
    original = getattr(what, name)

    def die(self: Any, *given: Any) -> Any:
        if given[-1] != epoch:
            return original(self, *given)
        if wait is not None:
            wait()
        raise _KilledError(f"killed in batch {epoch}")

    with monkeypatch.context() as patched:
        patched.setattr(what, name, die)
        yield


class Job:
    """A release that reads its source itself; or a sender and a release that receives from it."""

    def __init__(self, spark: SparkSession, tracker: Server, job: str, feed: Feed, path: Path) -> None:
        self._spark, self._address, self._job, self._feed, self.path = spark, tracker.address, job, feed, path

    def source(self, tracking: Tracking) -> Any:
        return tracking.source(
            self._feed.stream(self._spark),
            "in",
            scope="tenant",
            window=("ts", "1 hour"),
            identity=["row_id"],
            front=Marks("is_last"),
        )

    def tracking(self, deployment: str) -> Tracking:
        return Tracking(self._spark, self._job, self._address, deployment)

    def release(self, deployment: str = "1") -> Tracking:
        tracking = self.tracking(deployment)
        self._release(tracking, self.source(tracking), "cp")
        return tracking

    def _release(self, tracking: Tracking, stream: Any, checkpoint: str) -> None:
        writer = tracking.release(stream, aggs={"rows": F.count("*")}).writeStream.receipts(self.path / "receipts")
        writer.option("checkpointLocation", self.path / checkpoint).start(self.path / "out")

    def through(self, deployment: str = "1", routed: bool = False) -> Tracking:
        tracking = self.tracking(deployment)
        channel = tracking.channel("clean", str(self.path / "clean"))
        writer = self.source(tracking).writeStream
        writer = writer.route([(channel, F.lit(True))]) if routed else writer.channel(channel)
        received = tracking.receive(channel)
        writer.option("checkpointLocation", self.path / "cp1").start()
        self._release(tracking, received, "cp2")
        return tracking

    def rows(self) -> list[tuple[Any, ...]]:
        return rows_of(self.path / "out", self._spark, "tenant", "window.start", "rows")

    def by_tenant(self) -> list[tuple[str, int]]:
        return sorted((tenant, rows) for tenant, _, rows in self.rows())

    def receipts(self) -> list[tuple[str, int]]:
        table = self._spark.read.parquet(str(self.path / "receipts"))
        return sorted((r.scope, r.rows) for r in table.collect())


@pytest.fixture
def it(spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path) -> Job:
    return Job(spark, tracker, job, feed, tmp_path)


# ---------------------------------------------------------------- a batch that had published, and was interrupted


@pytest.mark.thorough
def test_a_release_that_died_and_starts_into_a_drain_releases_once(
    it: Job, feed: Feed, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = it.release()
    feed.put(row(1, 1, "a"), row(2, 2, "b"), row(3, 3, "a", last=True))
    with dying(monkeypatch, SingleRelease, "publish", -2):  # the second act, between the batches 0 and 1
        await_death(tracking)
    tracking.stop()
    assert it.by_tenant() == [("a", 2)]  # it is out, and nobody knows
    tracking.client.drain(job, "1", "asked")

    feed.put(row(4, 4, "b"))  # for the next deployment
    tracking = it.release()
    tracking.await_drained(timeout=900)
    assert it.by_tenant() == [("a", 2), ("b", 1)]
    assert it.receipts() == [("a", 2), ("b", 1)]
    tracking.stop()

    tracking = it.release("2")
    tracking.process_all_available()
    feed.put(row(5, 5, "b", last=True))
    tracking.process_all_available()
    tracking.stop()
    assert it.by_tenant() == [("a", 2), ("b", 1), ("b", 2)]
    assert it.receipts() == [("a", 2), ("b", 1), ("b", 2)]


@pytest.mark.thorough
def test_a_batch_that_fails_in_a_drain_is_completed_first(
    it: Job, feed: Feed, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests = threading.Event()
    admit = Gate.admit

    def admit_and_tell(self: Gate, epoch: int | None) -> None:
        admit(self, epoch)
        rests.set()

    monkeypatch.setattr(Gate, "admit", admit_and_tell)
    tracking = it.release()
    feed.put(row(1, 1, "a"), row(2, 2, "b"), row(3, 3, "a", last=True))
    with dying(monkeypatch, SingleRelease, "publish", -2, wait=lambda: rests.wait(600)):
        soon(lambda: it.by_tenant() == [("a", 2)])
        with pytest.raises(TrackingError, match="killed in batch -2"):
            tracking.drain(timeout=900)
        soon(lambda: not tracking._running.drains)
    assert not any(front.finished for front in tracking.client.job(job).fronts)
    tracking.stop()

    tracking = it.release()
    tracking.await_drained(timeout=900)
    tracking.stop()
    assert it.by_tenant() == [("a", 2), ("b", 1)]
    assert it.receipts() == [("a", 2), ("b", 1)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("routed", "epoch"),
    [pytest.param(False, 0, marks=pytest.mark.slow), (False, 1), pytest.param(True, 1, marks=pytest.mark.slow)],
    ids=["a channel, at once", "a channel", "routes"],
)
def test_what_a_dead_sender_has_published_is_sent_before_the_drain_ends(
    it: Job, feed: Feed, job: str, monkeypatch: pytest.MonkeyPatch, routed: bool, epoch: int
) -> None:
    tracking = it.through(routed=routed)
    for number in range(epoch):
        feed.put(row(10 + number, 1, "a"))
        tracking.process_all_available()
    with dying(monkeypatch, Run, "send", epoch):
        feed.put(row(2, 2, "a"), row(3, 3, "b"))
        await_death(tracking)
        soon(lambda: any((it.path / "clean").glob(f"*/{epoch:012d}")))
    tracking.stop()
    tracking.client.drain(job, "1", "asked")
    feed.put(row(4, 4, "b"))  # for the next deployment

    tracking = it.through(routed=routed)
    tracking.await_drained(timeout=900)
    tracking.stop()
    assert it.by_tenant() == [("a", epoch + 1), ("b", 1)]

    tracking = it.through("2", routed)
    tracking.process_all_available()
    feed.put(row(5, 5, "b", last=True))
    tracking.process_all_available()
    tracking.stop()
    assert it.by_tenant() == [("a", epoch + 1), ("b", 1), ("b", 2)]


@pytest.mark.thorough
def test_a_batch_that_has_published_nothing_is_left_to_the_next_deployment(
    it: Job, feed: Feed, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = it.through()
    feed.put(row(1, 1, "a"))
    tracking.process_all_available()
    sending = tracking._running.queries[0]
    with monkeypatch.context() as dead:
        dead.setattr(Run, "await_committed", lambda *_: 1 / 0)  # Spark has planned the batch, and it does nothing
        feed.put(row(2, 2, "a"))
        soon(lambda: sending.failure() is not None)
    tracking.stop()
    assert sending.interrupted is None
    tracking.client.drain(job, "1", "asked")
    tracking = it.through()
    tracking.await_drained(timeout=900)
    tracking.stop()
    assert it.by_tenant() == [("a", 1)]
    tracking = it.through("2")
    feed.put(row(3, 3, "a", last=True))
    tracking.process_all_available()
    tracking.stop()
    assert it.by_tenant() == [("a", 1), ("a", 2)]


# ---------------------------------------------------------------- a drain of a driver that is fenced


class Pause:
    """A stop for whoever writes a note first, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, note: str) -> None:
        self._create, self._note = Folder.create, note
        self.reached, self.goes_on = threading.Event(), threading.Event()
        monkeypatch.setattr(Folder, "create", lambda *given: self._pausing(*given))

    def _pausing(self, folder: Folder, name: str, content: Any) -> Any:
        if name == self._note and not self.reached.is_set():
            self.reached.set()
            assert self.goes_on.wait(600)
        return self._create(folder, name, content)


class Acting:
    """An act of a driver, in a thread of its own."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act
        self._said = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._act()
        except TrackingError as error:
            self._said = str(error)

    def refusal(self) -> str:
        """Return why the driver was not allowed to act."""
        self._thread.join(600)
        return self._said


@pytest.mark.thorough
def test_the_note_of_a_fenced_drain_releases_nothing_again(
    spark: SparkSession, it: Job, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = it.release()
    feed.put(row(1, 1, "a"), row(2, 2, "b"))
    one.process_all_available()
    (dead,) = one._running.queries
    one.stop()
    one.client.finish_front(one.job, "in")  # both windows have ended, and nobody has released them
    pause = Pause(monkeypatch, "000000000001.json")
    drain = Acting(lambda: dead.drain())
    assert pause.reached.wait(600)  # it was the newest, and stands still

    with dying(monkeypatch, SingleRelease, "publish", -2):
        two = it.release()
        await_death(two)
    two.stop()
    assert it.by_tenant() == [("a", 1), ("b", 1)]
    pause.goes_on.set()
    assert drain.refusal()

    three = it.release()
    three.process_all_available()
    three.drain(timeout=900)
    three.stop()
    assert it.by_tenant() == [("a", 1), ("b", 1)]
    assert it.receipts() == [("a", 1), ("b", 1)]


def test_a_driver_that_stood_still_publishes_nothing_beside_its_successor(
    spark: SparkSession, it: Job, feed: Feed, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = it.release()
    (dead,) = one._running.queries
    with monkeypatch.context() as dying:
        dying.setattr(Run, "await_committed", lambda *_: 1 / 0)  # in the batch that is to release the first window
        feed.put(row(1, 1, "a", last=True), row(2, 2, "b"))
        soon(lambda: dead.failure() is not None)
    one.stop()
    pause = Pause(monkeypatch, "000000000001.json")
    batch = Acting(lambda: dead.processor.process(None, dead.run, 1, spark))  # type: ignore[attr-defined]
    assert pause.reached.wait(600)  # it goes on where it had stopped, and stands still before it has chosen
    one.client.drain(job, "1", "asked")

    two = it.release()
    two.await_drained(timeout=900)
    assert it.by_tenant() == [("a", 1), ("b", 1)]
    pause.goes_on.set()
    assert "another run of the query has taken over" in batch.refusal()
    two.stop()
    assert it.by_tenant() == [("a", 1), ("b", 1)]
    assert it.receipts() == [("a", 1), ("b", 1)]
