"""A driver commits a batch although another one has fenced it: Spark's commit asks no tracker.

At each moment of that commit, between two steps of the driver that takes over, every row counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks
from spark_client.counting.runs import Run
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row, rows_of
from tests.spark.waiting import soon
from tracker.client import Ended, TrackerClient

pytestmark = pytest.mark.spark

OPTIONS: dict[str, dict[str, Any]] = {
    "driver": {},
    "sealed": {"seal": True},
    "outbox": {"outbox": True},
    "executors": {"probe": "executors", "seal": True},
}
HELD = ("sends", "releases")  #: the query whose driver is fenced
MOMENTS = ("it opens", "it looks", "it has looked", "it has processed the batch itself")


def cases() -> Iterator[Any]:
    """Yield options, queries and moments: one soon, the others at leisure."""
    for kind, held, moment in product(OPTIONS, HELD, MOMENTS):
        soon = (kind, held, moment) == ("driver", "releases", "it has looked")
        yield pytest.param(kind, held, moment, marks=() if soon else pytest.mark.thorough)


def started(
    feed: Feed, spark: SparkSession, job: str, tracker: Server, path: Path, seal: bool = False, **options: Any
) -> BatchTracking:
    """Start a query that sends rows on, and one that releases them."""
    tracking = BatchTracking(feed, spark, job, tracker.address, **options)
    source = tracking.source(
        feed.stream(spark),
        "in",
        scope="tenant",
        window=("ts", "1 hour"),
        identity=["row_id"],
        front=Marks("is_last"),
        counted=True,
    )
    channel = tracking.channel("clean", str(path / "clean"))
    sends = source.writeStream.channel(channel).option("checkpointLocation", path / "cp0")
    sends.option("seal", seal).start()
    releases = tracking.release(tracking.receive(channel), aggs={"rows": F.count("*")}).writeStream
    releases.option("checkpointLocation", path / "cp1").option("seal", seal).start(path / "out")
    return tracking


def ends_of(job: str, tracker: Server) -> list[Ended]:
    """Return the ends that were announced."""
    with TrackerClient(tracker.address) as client:
        return [each.kind for each in client.list_events(job).events if isinstance(each.kind, Ended)]


@pytest.mark.parametrize(("kind", "held", "moment"), list(cases()))
def test_a_batch_that_is_committed_before(
    spark: SparkSession,
    tracker: Server,
    job: str,
    feed: Feed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    held: str,
    moment: str,
) -> None:
    start = partial(started, feed, spark, job, tracker, tmp_path, **OPTIONS[kind])
    first = start()
    feed.put(row(1, 1), row(2, 2, "b"))
    first.process_all_available()
    feed.put(row(3, 3), row(4, 4, "b"), row(5, 5))
    sends, releases = first.batched
    if held == "releases":
        sends.processAllAvailable()
    fenced = releases if held == "releases" else sends
    epoch = fenced.process_next()
    assert epoch == 1

    def commits_once() -> None:
        if not fenced.has_committed(1):
            fenced.commit(1)

    if moment == "it opens":
        commits_once()
    elif moment == "it looks":
        resume = Run.resume

        def resume_late(run: Run, committed: int | None, begun: int | None) -> None:
            if run.query == fenced.id:
                commits_once()
            resume(run, committed, begun)

        monkeypatch.setattr(Run, "resume", resume_late)
    second = start()
    if moment == "it has looked":
        commits_once()
    feed.put(row(6, 6, last=True), row(7, 7, "b", last=True))
    second.process_all_available()
    first.stop()
    assert sorted(rows_of(tmp_path / "out", spark, "tenant", "rows")) == [("a", 4), ("b", 3)]
    assert Counter((end.segment, end.scope, end.elements) for end in ends_of(job, tracker)) == Counter(
        (segment, *end) for segment in ("in", "clean") for end in (("a", 4), ("b", 3))
    )
    assert second.client.job(job).in_flight == 0
    second.stop()


@pytest.mark.thorough
def test_a_batch_that_is_committed_while_nothing_comes_takes_effect(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    start = partial(started, feed, spark, job, tracker, tmp_path)
    first = start()
    feed.put(row(1, 1), row(2, 2, last=True))
    epoch = first.batched[0].process_next()
    assert epoch == 0
    second = start()
    first.batched[0].commit(0)
    soon(lambda: [end.segment for end in ends_of(job, tracker)] == ["in"])
    second.process_all_available()
    assert second.client.job(job).ended_substreams == 1
    assert rows_of(tmp_path / "out", spark, "tenant", "rows") == [("a", 2)]
    first.stop()
    second.stop()
