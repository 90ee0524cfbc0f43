"""A pause waits for batches that have begun: at queries that have a checkpoint, a gate and a tracker, and no Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_client import Tracking
from spark_client.api.snapshots import at_rest
from spark_client.errors import TrackingError
from spark_client.release.exporting import has_gone_on
from spark_client.runtime.pausing import paused
from spark_client.runtime.queries import TrackedQuery
from tracker.client import JobSpec
from tracker.testing import LocalTracker


class Query(TrackedQuery):
    """It has committed batch 0. Batch 1 has begun under a driver that was killed, and may be run again."""

    only_sources = True

    def __init__(self, checkpoint: Path) -> None:
        super().__init__([], checkpoint, cast(Any, None))
        for name in ("offsets/0", "commits/0", "offsets/1"):
            self.write(name)
        self.error: Exception | None = None
        self.looked_at = threading.Event()  # whether it goes on
        self.query = cast(Any, self)
        self.id = "query"

    def write(self, name: str) -> None:
        path = self.checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    @property
    def run(self) -> Any:
        return SimpleNamespace(query="query", await_committed=lambda _: None)

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        self.looked_at.set()
        return self.error is None

    def exception(self) -> Exception | None:
        return self.error

    def begun(self, epoch: int) -> bool:
        return epoch == 1

    def batch(self) -> None:
        """Batch 1, which Spark runs after somebody has looked whether the query goes on."""
        assert self.looked_at.wait(60)
        with self.gate.passed(1):
            self.write("commits/1")
            self.gate.done(1)


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


@pytest.fixture
def tracker() -> Iterator[LocalTracker]:
    with LocalTracker() as tracker:
        tracker.client.define_job(JobSpec(job="shop", deployment="1", segments={"orders": []}))
        yield tracker


def test_a_batch_that_a_killed_driver_has_begun_is_completed_before_the_pause(
    query: Query, tracker: LocalTracker
) -> None:
    batch = threading.Thread(target=query.batch, daemon=True)
    batch.start()
    with paused(tracker.client, "shop", [query], timeout=60):
        assert query.gate.paused
        assert query.interrupted is None
    batch.join(60)
    assert not query.gate.paused


def test_of_a_batch_that_has_begun_and_failed_there_is_no_pause(query: Query, tracker: LocalTracker) -> None:
    query.error = RuntimeError("killed when its results were out")
    with (
        pytest.raises(TrackingError, match="killed when its results were out"),
        paused(tracker.client, "shop", [query], timeout=60),
    ):
        pytest.fail("the job is not at rest")
    assert not query.gate.paused


def test_a_source_that_fails_while_it_is_paused_makes_what_was_done_fail(query: Query, tracker: LocalTracker) -> None:
    query.write("commits/1")
    with (
        pytest.raises(TrackingError, match="failed meanwhile"),
        paused(tracker.client, "shop", [query], timeout=60),
    ):
        query.error = RuntimeError("failed meanwhile")


def test_the_end_of_a_second_pause_leaves_the_first_one_alone(query: Query, tracker: LocalTracker) -> None:
    query.write("commits/1")
    told = {"client": tracker.client, "job": "shop", "deployment": "1", "queries": [query]}
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
        paused(tracker.client, "shop", [query], timeout=0.1),
    ):
        pytest.fail("the job is not at rest")
    assert not query.gate.paused


def test_where_an_old_checkpoint_can_be_seen_it_tells_whether_its_query_has_gone_on(query: Query) -> None:
    checkpoint = query.checkpoint

    def gone_on(by: str = "one") -> bool:
        return has_gone_on(checkpoint, by, epoch=0)

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
