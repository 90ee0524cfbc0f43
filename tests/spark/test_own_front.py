"""A front of the user's own: promises by scope, from outside the rows, which end substreams although no row comes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Front, UsageError
from spark_client.fronts.front import LiveFront
from spark_client.storage.folder import Folder
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row, rows_of
from tests.spark.waiting import soon
from tracker.client import Frontier

pytestmark = pytest.mark.spark


class Closings(Front):
    """Tenants that have closed, as a directory of files shows it: each file is called as a tenant and has a minute."""

    overlapping = True
    refresh = 0.02
    trusts = "nothing comes of a tenant up to the minute at which it has closed"

    def __init__(self, path: Path) -> None:
        self.path = path

    def live(self, spark: SparkSession) -> LiveFront:
        return LiveClosings(self)


class LiveClosings(LiveFront):
    front: Closings

    def read(self) -> None:
        for tenant in self.front.path.iterdir():
            self.promise([Frontier(self.front.name, minute(int(tenant.read_text())), tenant.name)])


def minute(number: int) -> int:
    return (1_704_067_200 + 60 * number) * 1_000_000


def test_a_front_from_outside_ends_scopes_without_rows(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    closings = tmp_path / "closings"
    tracking = BatchTracking(feed, spark, job, tracker.address)
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", "10 minutes"), front=Closings(closings)
    )
    closings.mkdir()
    released = tracking.release(source, aggs={"rows": F.count("*")})
    released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")

    def out() -> list[tuple[str, int]]:
        tracking.process_all_available()
        return [(each[0], each[1]) for each in rows_of(tmp_path / "out", spark, "tenant", "rows")]

    feed.put(row(1, 1, "a"), row(2, 2, "a"), row(3, 3, "b"), row(4, 14, "a"))
    assert out() == []
    (closings / "a").write_text("10")
    soon(out)
    assert out() == [("a", 2)], "the tenant's later window is open, and the other tenant"
    feed.put(row(5, 4, "b"))
    assert out() == [("a", 2)]
    (closings / "b").write_text("20")
    soon(lambda: len(out()) == 2)
    assert out() == [("a", 2), ("b", 2)]
    tracking.drain()
    assert sorted(out()) == [("a", 1), ("a", 2), ("b", 2)]


def test_a_failed_look_is_repeated_and_named_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    front = Closings(tmp_path / "closings")
    front.name = "in"
    live = front.live(None)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "spark_client"):
        live.look(Folder(tmp_path), None)
    assert "what it promises by cannot be read, and is tried again" in caplog.text
    with pytest.raises(UsageError, match=r"cannot be read: .*closings"):
        live.look(Folder(tmp_path), None, at_once=True)
    front.path.mkdir()
    (front.path / "a").write_text("10")
    live.look(Folder(tmp_path), None, at_once=True)
    (first,) = live.due()
    live.look(Folder(tmp_path), None, at_once=True)
    assert live.due() == [first], "one promise, however often it is found"
    live.promised([first])
    live.look(Folder(tmp_path), None, at_once=True)
    assert live.due() == []
