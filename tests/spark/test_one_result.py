"""One final result for each key, and no late row in it: whatever the probe, the steps, the fronts and the moment."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking
from spark_client.counting.runs import Run
from spark_client.runtime.queryplan import CountingMode
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row, rows_of
from tracker.client import TrackerClient

pytestmark = pytest.mark.spark

BATCHES = 6
TENANTS = 12


class Play:
    """A play for each tenant: rows in some batches, a mark in one, and in one a second front that closes it."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.batches: list[list[dict[str, Any]]] = [[] for _ in range(BATCHES)]
        self.closes: list[list[str]] = [[] for _ in range(BATCHES)]  # by the other front, while the batch runs
        self.ends: dict[str, int] = {}  # the last batch whose rows are not late
        number = 0
        for tenant in (f"t{place}" for place in range(TENANTS)):
            # From the first batch on the tracker knows the tenant: a close of what it does not know has no effect.
            marked, closed = rng.randrange(BATCHES), rng.randrange(1, BATCHES)
            self.closes[closed].append(tenant)
            # The mark takes effect when its batch is committed; the other front's word at once, within its batch.
            self.ends[tenant] = marked if closed <= marked else closed - 1
            for batch in range(BATCHES):
                for place in range(max(rng.randrange(-1, 4), batch == marked, batch == 0)):
                    number += 1
                    kind = rng.choice("xy") if batch or place else "x"
                    last = batch == marked and place == 0
                    self.batches[batch].append(row(number, rng.uniform(0, 59), tenant, kind, last=last))

    def expected(self, filtered: bool) -> tuple[dict[str, int], dict[str, int]]:
        """Count the rows of each tenant that its result is made of, and those that are late."""
        released: dict[str, int] = {}
        late: dict[str, int] = {}
        for number, rows in enumerate(self.batches):
            for fields in rows:
                if not filtered or fields["kind"] == "x":
                    into = released if number <= self.ends[fields["tenant"]] else late
                    into[fields["tenant"]] = into.get(fields["tenant"], 0) + 1
        return released, late


def late_of(tracking: Tracking, checkpoint: Path, key: Callable[[Row], Any] = lambda row: row["scope"]) -> Counter[Any]:
    """Count the rows that were set aside, by tenant or by what else `key` returns."""
    late = Counter[Any]()
    for found in tracking.late(str(checkpoint)).collect():
        rows = 1 if found["kind"] == "row" else json.loads(found["data"])["rows"]
        late[key(found)] += rows
    return late


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("probe", "filtered", "restarts", "seed"),
    [
        ("driver", True, True, 1),
        pytest.param("executors", True, False, 2, marks=pytest.mark.slow),
        *(
            pytest.param(probe, filtered, restarts, seed, marks=pytest.mark.slow)
            for seed in range(3, 7)
            for probe in ("driver", "executors")
            for filtered in (True, False)
            for restarts in (True, False)
        ),
    ],
)
def test_no_late_row_is_in_a_result_and_none_is_lost(
    spark: SparkSession,
    tracker: Server,
    job: str,
    feed: Feed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    probe: CountingMode,
    filtered: bool,
    restarts: bool,
    seed: int,
) -> None:
    play = Play(seed)

    def start() -> Tracking:
        fronts: dict[str, Any] = {"segments": {"in": []}, "fronts": ["in", "other"]}
        tracking = BatchTracking(
            feed, spark, job, tracker.address, probe=probe, retention=timedelta(seconds=1), **fronts
        )
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last")
        )
        rows = source.where("kind = 'x'") if filtered else source
        writing = tracking.release(rows, aggs={"rows": F.count("*")}).writeStream
        writing = writing.receipts(tmp_path / "receipts").option("checkpointLocation", tmp_path / "cp")
        writing.option("compact_from", 2).start(tmp_path / "out")
        return tracking

    tracking = start()
    other = TrackerClient(tracker.address).open_producer(job, "other", "1")
    send = Run.send
    closed: set[int] = set()

    def close_and_send(self: Run, report: Any, epoch: int) -> None:
        """Promise for the other front after the batch has read the events and before it is committed."""
        number = feed.files - 1
        if number not in closed:
            closed.add(number)
            promises = other.epoch(number)
            for tenant in play.closes[number]:
                promises.close(tenant, WINDOW, END, "other")
            promises.report(commit=True)
        send(self, report, epoch)

    monkeypatch.setattr(Run, "send", close_and_send)
    for number, batch in enumerate(play.batches):
        if restarts and number % 2:
            tracking.stop()
            time.sleep(1.5)  # what has ended is forgotten
            tracking = start()
        feed.put(*batch)
        tracking.process_all_available()
    released, late = play.expected(filtered)
    got = dict(rows_of(tmp_path / "out", spark, "tenant", "rows"))
    assert got == released
    assert late_of(tracking, tmp_path / "cp") == late
    receipts = spark.read.parquet(str(tmp_path / "receipts")).collect()
    assert {r["scope"]: r["rows"] for r in receipts if r["rows"]} == released
    assert all(r["rows"] == r["elements"] for r in receipts), "what is counted is what reaches the release"
    tracking.stop()


WINDOW = "2024-01-01T00:00:00Z/2024-01-01T01:00:00Z"
END = 1_704_070_800_000_000


@pytest.mark.slow
def test_rows_of_a_name_after_retention_are_late(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """W3: the tracker has forgotten all but the name, and the driver that released it is gone."""

    def start(deployment: str) -> Tracking:
        tracking = BatchTracking(feed, spark, job, tracker.address, deployment, retention=timedelta(seconds=1))
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", substream="kind", front=Marks("is_last"), identity=["row_id"]
        )
        writer = tracking.release(source, aggs={"rows": F.count("*")}).writeStream
        writer.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        return tracking

    tracking = start("1")
    feed.put(row(1, 1, kind="session-1"), row(2, 2, kind="session-1", last=True), row(3, 3, kind="open"))
    tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, "kind", "rows") == [("session-1", 2)]
    deadline = time.monotonic() + 60
    while {s.name for s in tracking.client.substreams(job, include_ended=True)} != {"open"}:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    tracking.stop()
    tracking = start("1")
    feed.put(row(4, 4, kind="session-1"))
    tracking.process_all_available()
    feed.put(row(5, 5, kind="session-1", last=True))  # again, and as if it were a second life
    tracking.process_all_available()
    assert {s.name for s in tracking.client.substreams(job)} == {"open"}
    tracking.drain(120)
    assert rows_of(tmp_path / "out", spark, "kind", "rows") == [("open", 1), ("session-1", 2)]
    assert late_of(tracking, tmp_path / "cp") == {"a": 2}


@pytest.mark.thorough
def test_what_a_drain_has_closed_is_marked_and_its_rest_too(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    def start(deployment: str) -> Tracking:
        tracking = BatchTracking(feed, spark, job, tracker.address, deployment)
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last")
        )
        released = tracking.release(source, aggs={"rows": F.count("*")}, completeness=True)
        writer = released.writeStream.receipts(tmp_path / "receipts")
        writer.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        return tracking

    tracking = start("1")
    feed.put(row(1, 1), row(2, 2, last=True), row(3, 3, "b"), row(4, 4, "b"), row(5, 5, "c"))
    tracking.process_all_available()
    tracking.drain(120)
    tracking = start("2")
    feed.put(row(6, 6, "b", last=True), row(7, 7, "c"), row(8, 8, "d", last=True))
    tracking.process_all_available()
    tracking.drain(120)
    tracking = start("3")
    feed.put(row(9, 9, "c", last=True))
    tracking.process_all_available()
    tracking.stop()
    assert rows_of(tmp_path / "out", spark, "tenant", "completeness", "rows") == [
        ("a", "whole", 2),
        ("b", "drained", 2),
        ("b", "rest", 1),
        ("c", "drained", 1),
        ("c", "drained rest", 1),
        ("c", "rest", 1),
        ("d", "whole", 1),
    ]
    receipts = spark.read.parquet(str(tmp_path / "receipts")).select(
        "scope", "deployment", "by_drain", "rows", "before"
    )
    assert sorted(tuple(r) for r in receipts.collect()) == [
        ("a", "1", False, 2, 0),
        ("b", "1", True, 2, 0),
        ("b", "2", False, 1, 2),
        ("c", "1", True, 1, 0),
        ("c", "2", True, 1, 1),
        ("c", "3", False, 1, 2),
        ("d", "2", False, 1, 0),
    ]
