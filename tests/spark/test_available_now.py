"""A run with `availableNow` takes its backlog in batches, and releases all that they have ended before it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Tracking, UsageError
from spark_client.fronts import frontier
from spark_client.spark_internals.checkpoints import last_commit
from spark_client.spark_internals.readers import ASKS_WHERE_IT_ENDS
from spark_client.storage.folder import Folder
from tests.client.processes import Server
from tests.spark.conftest import CHANNELS
from tests.spark.feed import Feed, row, rows_of

pytestmark = pytest.mark.spark

COLUMNS = ("tenant", "window.start", "rows")


def night(spark: SparkSession, tracker: Server, job: str, feed: Feed, path: Path, through: bool) -> None:
    """Run once: all that is there, and then the program ends."""
    with Tracking(spark, job, tracker.address) as tracking:
        rows = tracking.source(
            feed.stream(spark),
            "in",
            scope="tenant",
            window=("ts", "1 hour"),
            identity=["row_id"],
            front=Marks("is_last"),
        )
        writers: list[tuple[Any, str, tuple[Path, ...]]] = []
        if through:
            channel = tracking.channel("clean", str(path / "clean"))
            writers.append((rows.writeStream.channel(channel), "cp1", ()))
            rows = tracking.receive(channel, max_epochs_per_trigger=1)
        results = tracking.release(rows, aggs={"rows": F.count("*")})
        writers.append((results.writeStream, "cp2", (path / "out",)))
        for writer, checkpoint, to in writers:
            query = writer.option("checkpointLocation", path / checkpoint).trigger(availableNow=True).start(*to)
            assert query.awaitTermination(900)
            assert query.exception() is None


@pytest.mark.parametrize(
    "through", [False, pytest.param(True, marks=[CHANNELS, pytest.mark.thorough])], ids=["alone", "through a channel"]
)
def test_a_nightly_run_releases_what_it_has_ended(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, through: bool
) -> None:
    due: list[tuple[str, int, int]] = []
    last = -1
    for day in range(2):
        for number in range(2):
            hour = 2 * day + number
            feed.put(row(10 * hour, 60 * hour), row(10 * hour + 1, 60 * hour + 1), row(10 * hour + 2, 60 * hour, "b"))
            feed.put(
                *[row(10 * hour + 3 + place, 60 * hour + 9, tenant, last=True) for place, tenant in enumerate("ab")]
            )
            due += [("a", hour, 3), ("b", hour, 2)]
        night(spark, tracker, job, feed, tmp_path, through)
        out = [(tenant, when.hour, rows) for tenant, when, rows in rows_of(tmp_path / "out", spark, *COLUMNS)]
        assert out == sorted(due)
        batches = last_commit(Folder(tmp_path / "cp2"))
        assert batches is not None
        if not through or ASKS_WHERE_IT_ENDS:
            assert batches - last >= 4, "a file, or one of the sender's epochs, is a batch"
        last = batches
    night(spark, tracker, job, feed, tmp_path, through)  # nothing is there: it ends


class Nights:
    """A release behind a frontier that moves after each run, over files whose order is not that of their times."""

    def __init__(self, spark: SparkSession, tracker: Server, job: str, feed: Feed, path: Path) -> None:
        self._given = spark, tracker, job, feed, path
        self._number = 0

    def put(self, *minutes: int, tenant: str = "a") -> None:
        """Put a file of rows."""
        feed = self._given[3]
        feed.put(*[row(self._number + place, minute, tenant) for place, minute in enumerate(minutes)])
        self._number += len(minutes)

    def run(self, stop_after: int | None = None, **trigger: bool) -> list[tuple[Any, ...]]:
        """Run one night.

        Args:
            stop_after: batches after which its program is stopped; None: it comes to its end.

        Returns:
            Tenant, hour and number of rows of all results so far.
        """
        spark, tracker, job, feed, path = self._given
        with Tracking(spark, job, tracker.address) as tracking:
            rows = tracking.source(
                feed.stream(spark),
                "in",
                scope="tenant",
                window=("ts", "1 hour"),
                front=Frontier("0 seconds", per_scope=True, each="run"),
            )
            writing = tracking.release(rows, aggs={"rows": F.count("*")}).writeStream
            query = writing.option("checkpointLocation", path / "cp").trigger(**trigger).start(path / "out")
            if stop_after is not None:
                while (last_commit(Folder(path / "cp")) or 0) < stop_after - 1:
                    assert query.isActive
                query.stop()
            assert query.awaitTermination(900)
        out = rows_of(path / "out", spark, *COLUMNS) if (path / "out").is_dir() else []
        return [(tenant, when.hour, n) for tenant, when, n in out]


@pytest.fixture
def nights(spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path) -> Nights:
    return Nights(spark, tracker, job, feed, tmp_path)


@pytest.mark.thorough
def test_the_order_of_a_nights_files_makes_no_row_late(nights: Nights) -> None:
    nights.put(190, 200)
    nights.put(10, 20, 70)
    nights.put(130)
    nights.put(30, tenant="b")
    assert nights.run(availableNow=True) == [("a", 0, 2), ("a", 1, 1), ("a", 2, 1)]
    nights.put(210, 500)
    nights.put(205)
    assert nights.run(availableNow=True) == [("a", 0, 2), ("a", 1, 1), ("a", 2, 1), ("a", 3, 4)]


@pytest.mark.thorough
def test_a_run_that_dies_before_its_promise_is_made_up_for(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(front: object) -> None:
        raise RuntimeError("the driver dies here")

    nights.put(70)
    nights.put(10)
    with monkeypatch.context() as patch:
        patch.setattr(frontier._AfterRun, "ran", dies)
        assert nights.run(availableNow=True) == []
    assert nights.run(availableNow=True) == [("a", 0, 1)], "with nothing new to read"


@pytest.mark.thorough
def test_a_run_that_is_stopped_promises_nothing(nights: Nights) -> None:
    nights.put(70)
    for minute in range(30):
        nights.put(minute)
    assert nights.run(stop_after=2, availableNow=True) == []
    assert nights.run(availableNow=True) == [("a", 0, 30)]


def test_a_frontier_of_runs_wants_runs_that_end(nights: Nights) -> None:
    with pytest.raises(UsageError, match="availableNow"):
        nights.run(processingTime="1 second")  # type: ignore[arg-type]
