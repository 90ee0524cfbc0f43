"""A tracker that is away: batches go on, reports wait in the checkpoint, and the results are those of a batch."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Schedule, Tracking, TrackingError, UsageError
from spark_client.counting.runs import Run
from tests.client.processes import Server
from tests.spark.dying import Driver, KilledError
from tests.spark.feed import Feed, row, rows_of
from tests.spark.waiting import soon
from tracker.client import Outcome

pytestmark = pytest.mark.spark

TENANTS, HOURS = "ab", range(3)


class Life:
    """A job by hours of tenants, whose tracker and driver come and go.

    Args:
        channel: whether one query sends the rows on, and another one releases them.
        seals: whether the queries seal their batches.
    """

    def __init__(
        self,
        spark: SparkSession,
        tracker: Server,
        job: str,
        path: Path,
        channel: bool = False,
        seals: bool = False,
        front: Any = None,
        **given: Any,
    ) -> None:
        self.spark, self.tracker, self.job, self.path = spark, tracker, job, path
        self.feed = Feed(path / "raw")
        self.channel, self.seals, self.given = channel, seals, given
        self.front = front or Marks("is_last")
        self.is_up = True
        self.number = 0
        self.start()

    def start(self) -> None:
        given = {"outbox": True, "retry_for": 0.5, **self.given}
        self.tracking = tracking = Tracking(self.spark, self.job, self.tracker.address, **given)
        rows = source = tracking.source(
            self.feed.stream(self.spark), "in", scope="tenant", window=("ts", "1 hour"), front=self.front
        )
        self.queries = []
        if self.channel:
            sent = tracking.channel("clean", str(self.path / "clean"))
            writer = source.writeStream.channel(sent).option("checkpointLocation", self.path / "cp1")
            self.queries.append(writer.option("seal", self.seals).start())
            rows = tracking.receive(sent)
        writer = tracking.release(rows, aggs={"n": F.count("*"), "ids": F.sum("row_id")}).writeStream
        writer = writer.option("checkpointLocation", self.path / "cp2").option("compact_from", 3)
        writer = writer.option("seal", self.seals)
        self.queries.append(writer.start(self.path / "out"))

    def rows(self, *given: tuple[str, int], last: bool = False) -> None:
        """Put rows, of (tenant, hour), in a file, which is a batch; with `last` each is the last one of its hour."""
        first, self.number = self.number, self.number + len(given)
        self.feed.put(*(row(first + n, 60 * hour + 1, tenant, last=last) for n, (tenant, hour) in enumerate(given)))
        for query in self.queries:
            query.processAllAvailable()

    def kill_tracker(self) -> None:
        if self.is_up:
            self.tracker.kill()
        self.is_up = False

    def start_tracker(self) -> None:
        if not self.is_up:
            self.tracker.start()
        self.is_up = True

    @property
    def kept(self) -> int:
        return len(list((self.path / "cp2" / "tracker" / "outbox").glob("*.json")))

    def results(self) -> list[tuple[Any, ...]]:
        names = ("tenant", "window.start", "n", "ids")
        found = rows_of(self.path / "out", self.spark, *names) if (self.path / "out").is_dir() else []
        return sorted((tenant, start.hour, n, ids) for tenant, start, n, ids in found)

    def expected(self) -> tuple[list[tuple[Any, ...]], int]:
        """Return each hour with the rows up to the file of its last one; and how many rows came after that."""
        own: dict[tuple[str, int], list[int]] = {}
        over: set[tuple[str, int]] = set()
        late = 0
        for path in sorted((self.path / "raw").glob("*.json")):
            ended = set()
            for each in map(json.loads, path.read_text().splitlines()):
                key = each["tenant"], int(each["ts"][11:13])
                if key in over:
                    late += 1
                else:
                    own.setdefault(key, []).append(each["row_id"])
                    ended |= {key} if each["is_last"] else set()
            over |= ended
        return sorted((*key, len(ids), sum(ids)) for key, ids in own.items() if key in over), late

    def check(self) -> None:
        """Check that all that ended is out, with its own rows, and what came later is late."""
        self.tracking.process_all_available()
        results, late = self.expected()
        assert self.results() == results
        assert self.tracking.late(str(self.path / "cp2")).count() == late
        assert self.kept == 0
        assert list(self.tracking.client.substreams(self.job)) == []


@pytest.fixture
def lives(spark: SparkSession, mortal_tracker: Server, job: str, tmp_path: Path) -> Iterator[Any]:
    started: list[Life] = []

    def start(**given: Any) -> Life:
        started.append(Life(spark, mortal_tracker, job, tmp_path, **given))
        return started[-1]

    yield start
    for life in started:
        life.start_tracker()
        with suppress(Exception):
            life.tracking.stop(timeout=5)


ALL = [(tenant, hour) for tenant in TENANTS for hour in HOURS]


WAYS: dict[str, dict[str, Any]] = {
    "driver": {},
    "channel": {"channel": True},
    "tasks": {"probe": "executors", "channel": True},
    "sealed": {"probe": "executors", "channel": True, "seals": True},
}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way == "driver" else pytest.mark.thorough) for way in WAYS]
)
def test_batches_go_on_and_nothing_is_lost(lives: Any, way: str) -> None:
    life = lives(**WAYS[way])
    life.rows(*ALL)
    life.tracking.process_all_available()
    life.kill_tracker()
    life.rows(*ALL[:3])
    life.rows(*ALL[:2], last=True)
    if not life.channel:  # where rows that come later are late depends on how far the receiver is
        life.rows(*ALL[:4])
    assert life.kept >= 2
    assert life.results() == [], "results wait for the tracker"
    life.start_tracker()
    soon(lambda: life.kept == 0)
    life.rows(*ALL[2:], last=True)
    life.check()


@pytest.mark.thorough
def test_a_driver_that_starts_again_sends_what_was_kept(lives: Any) -> None:
    life = lives()
    life.rows(*ALL)
    life.kill_tracker()
    life.rows(*ALL[:2], last=True)
    life.rows(*ALL[:3])
    life.tracking.stop(timeout=5)
    life.start_tracker()
    life.start()
    life.rows(*ALL, last=True)
    life.check()


@pytest.mark.thorough
def test_rows_that_wait_are_not_identified_otherwise(lives: Any) -> None:
    """The tracker knows of none of them, and so of no open substream."""
    life = lives(front=Schedule(identity="row_id"))
    life.kill_tracker()
    life.rows(*ALL[:2])
    assert life.kept == 1
    life.tracking.stop(timeout=5)
    life.start_tracker()
    life.front = Schedule(identity="amount")
    with pytest.raises(UsageError, match="its identity was row_id, is amount, and rows have come that wait to be told"):
        life.start()


@pytest.mark.thorough
def test_a_drain_waits_until_the_tracker_has_been_told_all(lives: Any) -> None:
    life = lives()
    life.rows(*ALL)
    life.kill_tracker()
    life.rows(*ALL[:2])
    with pytest.raises(TrackingError):
        life.tracking.drain(timeout=1)
    life.start_tracker()
    life.tracking.drain(timeout=600)
    assert [(tenant, hour, n) for tenant, hour, n, _ in life.results()] == [
        (tenant, hour, 2 if (tenant, hour) in ALL[:2] else 1) for tenant, hour in ALL
    ]


@pytest.mark.thorough
def test_a_run_that_ends_by_itself_releases_what_it_has_kept(
    spark: SparkSession, mortal_tracker: Server, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed(tmp_path / "raw")
    feed.put(*(row(n, 60 * hour) for n, (_, hour) in enumerate(ALL[:3])))
    tracking = Tracking(spark, job, mortal_tracker.address, outbox=True, retry_for=0.5)
    front = Frontier("0 seconds", each="run")
    source = tracking.source(feed.stream(spark), "in", window=("ts", "1 hour"), front=front)
    send = Run.send

    def dying(*given: Any) -> list[Outcome]:
        mortal_tracker.kill()
        return send(*given)

    monkeypatch.setattr(Run, "send", dying)
    writer = tracking.release(source, aggs={"n": F.count("*")}).writeStream
    query = writer.option("checkpointLocation", tmp_path / "cp").trigger(availableNow=True).start(tmp_path / "out")
    soon(lambda: (tmp_path / "cp" / "commits" / "0").exists())
    assert not list((tmp_path / "out").rglob("*.parquet"))
    mortal_tracker.start()
    query.awaitTermination()
    tracking.stop()
    assert [tuple(each) for each in rows_of(tmp_path / "out", spark, "n")] == [(1,)] * 2


def drawn(seed: int, life: Life, driver: Driver) -> list[str]:
    """Draw a job's life: rows, late ones among them, come while tracker and driver die and start again."""
    choose = random.Random(seed)
    happened: list[str] = []

    def some(number: int) -> list[tuple[str, int]]:
        # Where rows that come late through a channel belong depends on how far the receiver is.
        ended = {(tenant, hour) for tenant, hour, *_ in life.expected()[0]} if life.channel else set()
        choice = [each for each in ALL if each not in ended]
        return choose.sample(choice, min(number, len(choice)))

    for _ in range(14):
        what = choose.choice(["rows", "rows", "rows", "last", "kill", "start", "die"])
        happened.append(what)
        if what == "kill":
            life.kill_tracker()
        elif what == "start":
            life.start_tracker()
        elif what == "die":
            with driver.living(dies_at=choose.randrange(30)):
                with suppress(KilledError, TrackingError, StreamingQueryException):
                    life.start_tracker()
                    life.rows(*some(2))
                    soon(lambda: life.kept == 0 or driver.dead)
                driver.dead = True
                with suppress(KilledError, TrackingError):
                    life.tracking.stop(timeout=5)
            life.start()
        else:
            life.rows(*some(choose.randint(1, 3)), last=what == "last")
    life.start_tracker()
    life.rows(*some(len(ALL)), last=True)
    return happened


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(1, 16))
def test_whatever_happens_the_results_are_those_of_a_batch(lives: Any, tmp_path: Path, seed: int) -> None:
    life = lives(**random.Random(seed).choice([*WAYS.values()]))
    happened = drawn(seed, life, Driver(tmp_path / "cp2"))
    try:
        life.check()
    except AssertionError as error:
        raise AssertionError(f"after {happened}: {error}") from error
