"""Scopes that there have to be: one that never sent anything is shown, opens a window, and is not waited for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import RECEIPT_SCHEMA, Frontier, Tracking, UsageError, session
from spark_client.fronts.front import LiveFront
from spark_client.storage.folder import Folder
from spark_client.windows.substreams import Substream
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row, rows_of
from tests.spark.waiting import soon
from tracker.client import Ended, Event
from tracker.client import Frontier as Promised
from tracker.client.texts import time_text, why_open

pytestmark = pytest.mark.spark

MINUTE = 60_000_000


class Tenants:
    """A release of each tenant's windows of ten minutes."""

    def __init__(self, tracking: Tracking, feed: Feed, front: Any, path: Path) -> None:
        self.tracking, self.job, self._path = tracking, tracking.job, path
        rows = feed.stream(tracking.spark)
        source = tracking.source(rows, "in", scope="tenant", window=("ts", "10 minutes"), front=front)
        writer = tracking.release(source, aggs={"n": F.count("*")}).writeStream
        writer.option("checkpointLocation", path / "cp").receipts(path / "receipts").start(path / "out")

    def goes_on(self) -> None:
        self.tracking.process_all_available()

    def results(self) -> list[tuple[str, int, int]]:
        self.goes_on()
        rows = rows_of(self._path / "out", self.tracking.spark, "tenant", "window.start", "n")
        return [(tenant, start.hour * 60 + start.minute, number) for tenant, start, number in rows]

    def frontiers(self) -> dict[str, object]:
        (front,) = self.tracking.client.job(self.job).fronts
        return {scope: time_text(at) for scope, at in front.frontiers.items()}

    def open(self) -> list[tuple[str, int]]:
        return sorted((each.scope, each.segments[0].sent) for each in self.tracking.client.substreams(self.job))

    def ends(self) -> list[tuple[str, str, int]]:
        client: Any = self.tracking.client
        events: list[Event] = client.list_events(self.job).events
        return sorted((e.kind.scope, e.kind.reason.name, e.kind.elements) for e in events if isinstance(e.kind, Ended))

    def receipts(self) -> list[tuple[str, str, int, int]]:
        rows = self.tracking.spark.read.schema(RECEIPT_SCHEMA).parquet(str(self._path / "receipts")).collect()
        return sorted((each.scope, each.reason, each.elements, each.results) for each in rows)


Starts = Callable[..., Tenants]


@pytest.fixture
def starts(spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path) -> Starts:
    def start(**front: Any) -> Tenants:
        tracking = BatchTracking(feed, spark, job, tracker.address)
        return Tenants(tracking, feed, Frontier("0 seconds", per_scope=True, **front), tmp_path)

    return start


@pytest.mark.thorough
def test_a_listed_tenant_without_rows_is_shown_and_explained(feed: Feed, starts: Starts) -> None:
    tenants = starts(scopes=["a", "silent"])
    assert tenants.frontiers() == {"a": "nothing yet", "silent": "nothing yet"}
    feed.put(row(1, 1), row(2, 14), row(3, 2, "stranger"))
    assert tenants.results() == [("a", 0, 1)], "nobody waits for the silent one"
    assert tenants.frontiers() == {
        "a": "2024-01-01 00:14:00",
        "silent": "nothing yet",
        "stranger": "2024-01-01 00:02:00",
    }
    assert tenants.open() == [("a", 1), ("silent", 0), ("stranger", 1)]
    client: Any = tenants.tracking.client
    (silent,) = [each for each in client.substreams(tenants.job) if each.scope == "silent"]
    (reason,) = why_open(client.job(tenants.job), client.explain(tenants.job, silent.scope, silent.name))
    assert "has listed this scope, and sent nothing of it yet" in reason
    feed.put(row(4, 16, "silent"), row(5, 20, "silent"))
    assert tenants.results() == [("a", 0, 1), ("silent", 10, 1)]
    tenants.tracking.stop()


@pytest.mark.thorough
def test_a_listed_tenant_without_rows_becomes_idle_like_any_other(feed: Feed, starts: Starts) -> None:
    """The tenant's end names it. When its rows come at last, its windows count as anybody's."""
    tenants = starts(scopes=["a", "silent"], idle_after="1 second")
    feed.put(row(1, 1))
    tenants.goes_on()
    time.sleep(1.1)
    feed.put(row(2, 11))
    soon(lambda: (tenants.goes_on(), len(tenants.ends()))[1] == 2)
    tenants.goes_on()
    assert tenants.ends() == [("a", "COMPLETE", 1), ("silent", "IDLE", 0)]
    assert tenants.receipts() == [("a", "COMPLETE", 1, 1), ("silent", "IDLE", 0, 0)]
    feed.put(row(3, 2, "silent"), row(4, 12, "silent"), row(5, 21, "silent"))
    assert ("silent", 10, 1) in tenants.results()
    assert tenants.tracking.late(tenants._path / "cp").count() == 1, "of the window that was not waited for"
    tenants.tracking.stop()


@pytest.mark.thorough
def test_a_table_of_tenants_may_grow_while_the_query_runs(feed: Feed, starts: Starts) -> None:
    listed = ["a"]
    tenants = starts(scopes=lambda: listed, refresh=0.02)
    feed.put(row(1, 1))
    tenants.goes_on()
    assert tenants.open() == [("a", 1)]
    listed.append("new")
    soon(lambda: "new" in tenants.frontiers())
    feed.put(row(2, 2))
    tenants.goes_on()
    assert tenants.open() == [("a", 2), ("new", 0)]
    tenants.tracking.stop()
    tenants = starts(scopes=lambda: listed, refresh=0.02)
    feed.put(row(3, 13))
    tenants.goes_on()
    assert tenants.open() == [("a", 1), ("new", 0)], "it has its window, and no other"
    tenants.tracking.stop()


@pytest.mark.thorough
def test_a_start_promises_nothing_of_a_silent_partition(feed: Feed, starts: Starts) -> None:
    """Else it would be waited for anew, and for ever where starts follow one another sooner than it becomes idle."""
    promised: list[tuple[datetime | None, list[str]]] = []
    for listed in (["a", "silent"], ["a", "silent"], ["a"], ["a", "new"]):
        tenants = starts(scopes=listed, partition="part", partitions=2)
        feed.put(row(feed.files, feed.files))
        assert tenants.results() == []
        silent = tenants.tracking.client.job(tenants.job).fronts[1]
        promised.append((silent.last_promise, sorted(silent.frontiers)))
        tenants.tracking.stop()
    assert [scopes for _, scopes in promised] == [["a", "silent"]] * 3 + [["a", "new", "silent"]]
    assert len({at for at, _ in promised}) == 2


@pytest.mark.thorough
def test_measured_delays_start_from_the_ceiling_for_listed_scopes(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    front = Frontier.measured("50%", ceiling="10 minutes", scopes=["a", "silent"])
    tenants = Tenants(tracking, feed, front, tmp_path)
    feed.put(row(1, 1), row(2, 20))
    assert tenants.results() == [("a", 0, 1)]
    assert tenants.open() == [("a", 1), ("silent", 0)]
    feed.put(row(3, 21, "silent"))
    tenants.goes_on()
    assert tenants.frontiers() == {"a": "2024-01-01 00:10:00", "silent": "2024-01-01 00:11:00"}
    tracking.stop()


@pytest.mark.thorough
def test_sessions_of_a_listed_tenant_without_rows_hold_nobody(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    front = Frontier("0 seconds", scopes=["a", "silent"])
    rows = feed.stream(spark)
    source = tracking.source(rows, "in", scope="tenant", window=("ts", session("10 minutes")), front=front)
    writer = tracking.release(source, aggs={"n": F.count("*")}).writeStream
    writer.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")

    def results() -> list[tuple[str, int]]:
        tracking.process_all_available()
        return [(tenant, number) for tenant, number in rows_of(tmp_path / "out", spark, "tenant", "n")]

    feed.put(row(1, 1), row(2, 8), row(3, 60))
    assert results() == [("a", 2)]
    assert {each.scope for each in tracking.client.substreams(job)} == {"a", "silent"}
    feed.put(row(4, 58, "silent"), row(5, 62, "silent"), row(6, 120, "silent"))
    assert results() == [("a", 2), ("silent", 2)]
    tracking.stop()


def started(front: Any, spark: SparkSession, checkpoint: Path) -> LiveFront:
    alive: LiveFront = front.live(spark)
    alive.look(Folder(checkpoint), None)
    return alive


@pytest.mark.parametrize("each", ["batch", "run"])
def test_each_silent_scope_gets_one_window_however_often_drivers_die(
    spark: SparkSession, feed: Feed, tmp_path: Path, each: Any
) -> None:
    """Compared with a reading of all batches: the newest window of the first one since the scope is listed."""
    draw = random.Random(each)
    tracking = Tracking(spark, "listed", "127.0.0.1:1")
    listed = ["a", "b"]
    front = Frontier("0 seconds", per_scope=True, each=each, scopes=lambda: listed)
    stream = tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "10 minutes"), front=front)
    declared: Any = stream.readable.plan.input.front
    batches: list[tuple[list[str], list[Any]]] = []
    expected = []
    seen: set[str] = set()
    for epoch in range(30):
        names = [*"abcdefgh"[: 2 + epoch // 5]]
        present = {draw.choice("abcdefghxyz") for _ in range(3)} if draw.random() < 0.8 else set()
        ends = {(scope, (epoch + draw.randrange(3)) * 10 * MINUTE) for scope in present}
        batches.append((names, [(Substream(s, str(end), end), {"_newest_0": end - 1}) for s, end in sorted(ends)]))
        newest = max((end for _, end in ends), default=None)
        new = [] if newest is None else [name for name in names if name not in seen]
        seen.update(new)
        expected.append([("in", Substream(s, str(newest), newest)) for s in new if s not in present])
    alive, epoch = started(declared, spark, tmp_path / "cp"), 0
    while epoch < len(batches):
        listed[:], groups = batches[epoch][0], batches[epoch][1]
        alive.look(Folder(tmp_path / "cp"), None, at_once=True)
        assert alive.of_groups(groups, epoch).opened == expected[epoch]
        dies = draw.random() < 0.5
        if dies:
            alive = started(declared, spark, tmp_path / "cp")
        epoch += draw.random() < 0.5 if dies else 1  # its batch was committed, or is repeated
    assert sum(map(len, expected)) >= 3
    assert {promise.scope for promise in alive.due() if isinstance(promise, Promised)} == {*batches[-1][0]}, (
        "the tracker is to know all of them"
    )


@pytest.mark.parametrize(
    ("front", "scope", "reason"),
    [
        ({"scopes": "berlin"}, "tenant", "scopes='berlin': give a list"),
        ({"scopes": 3}, "tenant", "scopes=3: give a list"),
        ({"scopes": ["a"]}, None, "give scope= to the source"),
        ({"scopes": ["a", None]}, "tenant", "has None: a scope is a text"),
        ({"scopes": ["*"]}, "tenant", r"has '\*': a scope is a text"),
        ({"scopes": ["east"]}, "part", r"Frontier\(scopes=…\): 'scope' has east, of the type string"),
        ({"scopes": [1.5]}, "tenant", r"Frontier\(scopes=…\): 'scope' is double, and the source's is string"),
        ({"scopes": ["a"], "refresh": 0}, "tenant", "refresh=0 seconds: has to be above zero"),
    ],
)
def test_lists_that_are_none_of_scopes_are_refused(
    spark: SparkSession, feed: Feed, front: dict[str, Any], scope: str | None, reason: str
) -> None:
    tracking = Tracking(spark, "listed", "127.0.0.1:1")
    with pytest.raises(UsageError, match=reason):
        tracking.source(
            feed.stream(spark),
            "in",
            scope=scope,
            window=("ts", "1 hour"),
            front=Frontier("0 seconds", **front),
        )


def test_scopes_are_listed_as_the_sources_rows_have_them(spark: SparkSession, feed: Feed) -> None:
    tracking = Tracking(spark, "listed", "127.0.0.1:1")
    forms: list[Any] = [[1, 2, 1], ["1", "2"], spark.createDataFrame([(1,), (2,)], "tenant int")]
    for number, scopes in enumerate(forms):
        front = Frontier("0 seconds", per_scope=True, scopes=scopes)
        hours: Any = {"scope": "part", "window": ("ts", "1 hour")}
        declared: Any = tracking.source(
            feed.stream(spark), f"in{number}", front=front, **hours
        ).readable.plan.input.front
        assert declared.listed == ("1", "2")
