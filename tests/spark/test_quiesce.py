"""A job comes to rest: each transition, with queries that have a checkpoint, a gate and a tracker, and no Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Set
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_client import Tracking
from spark_client.api.snapshots import at_rest
from spark_client.counting.runs import Run
from spark_client.errors import TrackingError
from spark_client.release.state_export import has_gone_on
from spark_client.runtime.queries import TrackedQuery
from spark_client.runtime.quiesce import Finish, Goal, HandOver, Pause, State, advance, paused
from spark_client.storage.folder import Folder
from tracker.client import DrainState, JobSpec, TrackerClient
from tracker.testing import LocalTracker

JOB = "shop"
FRONT = cast(Any, SimpleNamespace(names=["orders"], rest=lambda frontiers: None))


class Query(TrackedQuery):
    """A query that has committed batch 0. Batch 1 has begun under a driver that was killed, and may be run again.

    Args:
        checkpoint: a directory.
        client: of the job.
        segment: that is read.
        source: whether a front promises for the rows.
        received: the segments that its application receives.
    """

    def __init__(
        self,
        checkpoint: Path,
        client: TrackerClient,
        segment: str = "orders",
        source: bool = True,
        received: Set[str] = frozenset(),
    ) -> None:
        stream = cast(Any, SimpleNamespace(segment=segment))
        read = cast(Any, SimpleNamespace(stream=stream, front=FRONT if source else None))
        super().__init__([read], Folder(checkpoint), cast(Any, None), received)
        for name in ("offsets/0", "commits/0", "offsets/1"):
            self.write(name)
        self.error: Exception | None = None
        self.looked_at = threading.Event()  # whether it goes on
        self.active = True
        self.query = cast(Any, self)
        self.id = "query"
        self.published = False
        self._run = Run(cast(Any, client), JOB, checkpoint.name, "1", 1)
        self._opened.set()

    def write(self, name: str) -> None:
        path = Path(str(self.checkpoint), name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        self.looked_at.set()
        return self.active and self.error is None

    def exception(self) -> Exception | None:
        return self.error

    def begun(self, epoch: int) -> bool:
        return epoch == 1

    def batch(self) -> None:
        """Run batch 1, as Spark does after somebody has looked whether the query goes on."""
        assert self.looked_at.wait(60)
        with self.gate.passed(1):
            self.write("commits/1")
            self.gate.done(1)

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        pass

    def stop(self, patience: float | None = None) -> None:
        self.active = False

    def drain(self) -> None:
        self.published = True


@pytest.fixture
def tracker() -> Iterator[LocalTracker]:
    with LocalTracker() as tracker:
        spec = JobSpec(job=JOB, deployment="1", segments={"orders": ["clean"], "clean": []}, fronts=["orders"])
        tracker.client.define_job(spec)
        yield tracker


@pytest.fixture
def query(tmp_path: Path, tracker: LocalTracker) -> Query:
    return Query(tmp_path / "query", tracker.client)


def reached(goal: Goal) -> State:
    """Return the state after one look."""
    return advance(goal, goal.look())


class Elsewhere:
    """A producer of another application."""

    def __init__(self, tracker: LocalTracker, name: str) -> None:
        self._producer = tracker.client.open_producer(JOB, name, "1")

    def stage(self) -> None:
        self._producer.epoch(0).report(units=["rows"])

    def commit(self) -> None:
        self._producer.commit(0)

    def close(self) -> None:
        self._producer.close()


# ---------------------------------------------------------------- to finish


@pytest.fixture
def finish(tracker: LocalTracker, query: Query) -> Finish:
    tracker.client.drain(JOB, "1", "asked")
    return Finish(query)


@pytest.fixture
def release(tracker: LocalTracker, tmp_path: Path) -> Query:
    """Start a query that receives, and has committed its batches."""
    release = Query(tmp_path / "release", tracker.client, "clean", source=False)
    release.write("commits/1")
    return release


def test_a_source_waits_until_all_that_is_received_holds_the_drain(
    tracker: LocalTracker, release: Query, tmp_path: Path
) -> None:
    query = Query(tmp_path / "query", tracker.client, received={"clean"})
    query.write("commits/1")
    tracker.client.drain(JOB, "1", "asked")
    finish, receiver = Finish(query), Finish(release)
    release.error = RuntimeError("failed, and is to be started again")
    assert reached(receiver) is State.GATHERING
    assert reached(finish) is State.GATHERING
    assert "are to be started: of clean" in finish.missing
    assert query.active
    release.error = None
    assert reached(receiver) is State.FLOWING
    assert reached(finish) is State.FLOWING
    assert not query.active


def test_finishing_stops_a_source_after_its_batch_and_then_finishes_it(
    finish: Finish, tracker: LocalTracker, query: Query
) -> None:
    assert reached(finish) is State.SOURCES
    assert query.active
    query.write("commits/1")
    assert reached(finish) is State.FLOWING
    assert not query.active
    assert all(front.finished for front in tracker.client.job(JOB).fronts)


def test_a_source_that_fails_in_its_batch_is_not_finished(finish: Finish, tracker: LocalTracker, query: Query) -> None:
    assert reached(finish) is State.SOURCES
    query.error = RuntimeError("killed in batch 1")
    with pytest.raises(TrackingError, match="killed in batch 1"):
        reached(finish)
    assert not any(front.finished for front in tracker.client.job(JOB).fronts)


def test_finishing_waits_for_what_others_have_staged_and_then_for_their_guards(
    finish: Finish, tracker: LocalTracker, query: Query
) -> None:
    other, guard = Elsewhere(tracker, "other"), Elsewhere(tracker, "other/drain")
    other.stage()
    guard.stage()
    query.write("commits/1")
    assert reached(finish) is State.FLOWING
    assert reached(finish) is State.FLOWING
    other.commit()
    assert reached(finish) is State.AT_REST
    assert query.published
    guard.commit()
    assert reached(finish) is State.DRAINED


def test_what_is_left_is_published_before_the_guard_lets_the_drain_end(
    finish: Finish, tracker: LocalTracker, query: Query, release: Query
) -> None:
    receiver = Finish(release)
    query.write("commits/1")
    assert reached(receiver) is State.FLOWING
    assert reached(finish) is State.FLOWING
    assert tracker.client.get_drain(JOB).uncommitted_producers == ("clean/drain",)
    assert reached(finish) is State.AT_REST
    assert release.active
    assert reached(receiver) is State.AT_REST
    assert not release.active
    assert [reached(goal) for goal in (finish, receiver)] == [State.DRAINED] * 2


def test_a_job_that_is_drained_at_once_still_publishes_and_stops(
    tracker: LocalTracker, query: Query, release: Query
) -> None:
    query.write("commits/1")
    tracker.client.finish_front(JOB, "orders")
    tracker.client.drain(JOB, "1", "asked")
    assert tracker.client.get_drain(JOB).state is DrainState.DRAINED
    assert [reached(Finish(each)) for each in (query, release)] == [State.DRAINED] * 2
    assert query.published
    assert not query.active
    assert not release.active
    assert not tracker.client.get_drain(JOB).uncommitted_producers


def test_a_drain_that_was_cancelled_holds_nothing_any_more(tracker: LocalTracker, release: Query) -> None:
    tracker.client.drain(JOB, "1", "asked")
    finish = Finish(release)
    assert reached(finish) is State.FLOWING
    tracker.client.cancel_drain(JOB)
    finish.stopped.set()
    with pytest.raises(TrackingError, match="the drain was cancelled"):
        reached(finish)
    assert not any(producer.staged_epochs for producer in tracker.client.job(JOB).producers)


def test_a_query_that_another_driver_has_is_left_to_that_one(
    finish: Finish, tracker: LocalTracker, query: Query
) -> None:
    tracker.client.open_producer(JOB, query.run.query, "2")
    assert reached(finish) is State.FLOWING
    assert query.active
    assert not any(front.finished for front in tracker.client.job(JOB).fronts)


# ---------------------------------------------------------------- to hand over


@pytest.fixture
def hand_over(tracker: LocalTracker, query: Query) -> HandOver:
    """Return a hand-over of a job with one run, without which it would be over at once."""
    tracker.client.drain(JOB, "1", "asked", hand_over=True)
    return HandOver(query)


def test_handing_over_passes_all_states_and_finishes_no_source(
    hand_over: HandOver, tracker: LocalTracker, query: Query
) -> None:
    assert reached(hand_over) is State.SOURCES
    query.write("commits/1")
    assert reached(hand_over) is State.FLOWING  # its guard has not come to the end yet
    assert not query.active
    assert [reached(hand_over) for _ in range(2)] == [State.AT_REST, State.DRAINED]
    assert not any(front.finished for front in tracker.client.job(JOB).fronts)


def test_handing_over_waits_for_a_run_that_nobody_hands_over(
    hand_over: HandOver, tracker: LocalTracker, query: Query
) -> None:
    other = Elsewhere(tracker, "other")
    query.write("commits/1")
    assert [reached(hand_over) for _ in range(3)] == [State.FLOWING] * 3
    assert "the run of query other is open" in hand_over.missing
    other.close()
    assert [reached(hand_over) for _ in range(3)] == [State.FLOWING, State.AT_REST, State.DRAINED]


def test_a_source_that_starts_during_a_hand_over_is_waited_for(
    hand_over: HandOver, tracker: LocalTracker, query: Query, tmp_path: Path
) -> None:
    query.write("commits/1")
    late = Query(tmp_path / "late", tracker.client)
    assert [reached(hand_over) for _ in range(3)] == [State.FLOWING] * 3
    own = HandOver(late)
    assert reached(own) is State.SOURCES
    assert reached(hand_over) is State.FLOWING
    late.write("commits/1")
    assert reached(own) is State.FLOWING
    assert not late.active
    assert [reached(goal) for goal in (hand_over, own, hand_over, own)][-1] is not State.FLOWING


def test_a_hand_over_waits_for_an_interrupted_batch(hand_over: HandOver, query: Query) -> None:
    query.active = False
    assert reached(hand_over) is State.SOURCES
    assert "was interrupted: start it again" in hand_over.missing


def test_one_that_was_stopped_takes_no_further_step(hand_over: HandOver) -> None:
    hand_over.stopped.set()
    with pytest.raises(TrackingError, match=r"stopped before the hand-over .* the hand-over goes on"):
        reached(hand_over)


# ---------------------------------------------------------------- to pause


def pause(tracker: LocalTracker, *queries: Query) -> Pause:
    return Pause(cast(Any, tracker.client), JOB, queries, float("inf"))


def test_a_pause_begins_when_interrupted_batches_are_committed(tracker: LocalTracker, query: Query) -> None:
    goal = pause(tracker, query)
    assert reached(goal) is State.GATHERING
    assert not query.gate.paused
    query.write("commits/1")
    assert reached(goal) is State.AT_REST
    assert query.gate.paused


def test_a_pause_waits_for_the_batch_that_is_inside(tracker: LocalTracker, query: Query) -> None:
    query.write("commits/1")
    goal = pause(tracker, query)
    with query.gate.passed(2):
        assert reached(goal) is State.SOURCES
    assert reached(goal) is State.AT_REST


def test_a_pause_waits_for_what_is_staged(tracker: LocalTracker, query: Query) -> None:
    query.write("commits/1")
    goal = pause(tracker, query)
    query.run.report(2).report(units=["rows"])
    assert reached(goal) is State.FLOWING
    query.run.committed(1)
    query.run.expect(2)
    query.run.committed(2)
    assert reached(goal) is State.AT_REST


def test_a_receiver_that_has_sent_something_meanwhile_takes_a_pause_back(
    tracker: LocalTracker, query: Query, tmp_path: Path
) -> None:
    release = Query(tmp_path / "release", tracker.client, "clean", source=False)
    for each in (query, release):
        each.write("commits/1")
    goal = pause(tracker, query, release)
    with release.gate.passed(2):
        assert reached(goal) is State.RECEIVERS
        release.run.report(2).report(units=["rows"])
    assert reached(goal) is State.RECEIVERS
    assert not release.gate.paused
    assert reached(goal) is State.FLOWING
    release.run.expect(2)
    release.run.committed(2)
    assert reached(goal) is State.AT_REST
    assert release.gate.paused


def test_a_batch_begun_by_a_killed_driver_is_completed_before_the_pause(query: Query, tracker: LocalTracker) -> None:
    batch = threading.Thread(target=query.batch, daemon=True)
    batch.start()
    with paused(cast(Any, tracker.client), JOB, [query], timeout=60):
        assert query.gate.paused
        assert query.interrupted is None
    batch.join(60)
    assert not query.gate.paused


def test_of_a_batch_that_has_begun_and_failed_there_is_no_pause(query: Query, tracker: LocalTracker) -> None:
    query.error = RuntimeError("killed when its results were out")
    with (
        pytest.raises(TrackingError, match="killed when its results were out"),
        paused(cast(Any, tracker.client), JOB, [query], timeout=60),
    ):
        pytest.fail("the job is not at rest")
    assert not query.gate.paused


def test_a_source_that_fails_while_paused_makes_the_work_fail(query: Query, tracker: LocalTracker) -> None:
    query.write("commits/1")
    with (
        pytest.raises(TrackingError, match="failed meanwhile"),
        paused(cast(Any, tracker.client), JOB, [query], timeout=60),
    ):
        query.error = RuntimeError("failed meanwhile")


def test_the_end_of_a_second_pause_leaves_the_first_one_alone(query: Query, tracker: LocalTracker) -> None:
    query.write("commits/1")
    told = {"client": tracker.client, "job": JOB, "deployment": "1", "queries": [query]}
    tracking = cast(Tracking, SimpleNamespace(**told, pausing=threading.Lock()))
    for _ in range(2):
        with at_rest(tracking, timeout=60):
            with pytest.raises(TimeoutError, match="another export of this job"), at_rest(tracking, timeout=0):
                pytest.fail("two at once")
            assert query.gate.paused
        assert not query.gate.paused


def test_what_does_not_begin_again_is_waited_for_until_the_timeout(query: Query, tracker: LocalTracker) -> None:
    with (
        pytest.raises(TimeoutError, match="did not come to rest in time"),
        paused(cast(Any, tracker.client), JOB, [query], timeout=0.1),
    ):
        pytest.fail("the job is not at rest")
    assert not query.gate.paused


def test_a_visible_old_checkpoint_shows_if_its_query_went_on(query: Query) -> None:
    checkpoint = Path(str(query.checkpoint))

    def gone_on(by: str = "one") -> bool:
        return has_gone_on(Folder(checkpoint), by, epoch=0)

    assert not gone_on()  # it is elsewhere
    (checkpoint / "metadata").write_text('{"id": "one"}')
    assert not gone_on()  # batch 1 was planned, and has not begun to act
    note = checkpoint / "tracker" / "events" / "1.json"
    note.parent.mkdir(parents=True)
    note.write_text('{"drain": -1}')
    assert not gone_on()  # a drain has acted instead
    note.write_text('{"after": [1], "up_to": [2], "log_id": ["x"]}')
    assert gone_on()
    assert not gone_on(by="another")
    note.unlink()
    query.write("commits/1")
    assert gone_on()
