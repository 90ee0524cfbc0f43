"""The directories of a query: none is another one, or lies where the other's readers would see it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking, UsageError
from tests.client.processes import Server
from tests.spark.feed import Feed, row, rows_of

pytestmark = pytest.mark.spark

WINDOW: dict[str, Any] = {
    "scope": "tenant",
    "window": ("ts", "1 hour"),
    "identity": ["row_id"],
    "front": Marks("is_last"),
}
PLACES = ("source", "checkpoint", "results", "late", "early", "receipts")


@pytest.fixture
def tracking(spark: SparkSession, tracker: Server, job: str) -> Iterator[Tracking]:
    tracking = Tracking(spark, job, tracker.address)
    yield tracking
    tracking.stop()


def started(tracking: Tracking, spark: SparkSession, place: dict[str, Path]) -> None:
    feed = Feed(place["source"])
    feed.put(row(1, 1), row(2, 2, last=True))
    source = tracking.source(feed.stream(spark), "in", **WINDOW)
    released = tracking.release(source, aggs={"n": F.count("*")}, early="0 seconds")
    writer = released.writeStream.receipts(place["receipts"]).option("checkpointLocation", place["checkpoint"])
    writer.option("late_path", place["late"]).option("early_path", place["early"]).start(place["results"])


@pytest.mark.thorough
@pytest.mark.parametrize(("one", "other"), list(combinations(PLACES, 2)))
@pytest.mark.parametrize("how", ["same", "inside", "around", "linked"])
def test_two_places_that_collide_are_refused_before_anything_is_written(
    tracking: Tracking, spark: SparkSession, tmp_path: Path, one: str, other: str, how: str
) -> None:
    place = {name: tmp_path / name for name in PLACES}
    if how == "linked":
        place[one].mkdir()
        (tmp_path / "link").symlink_to(place[one])
    outer, inner = (other, one) if how == "around" else (one, other)
    place[inner] = {"same": place[one], "linked": tmp_path / "link"}.get(how, place[outer] / "within")
    with pytest.raises(UsageError, match=r"same directory|inside the other"):
        started(tracking, spark, place)
    assert not list(tmp_path.rglob("epoch=*"))


@pytest.mark.parametrize("path", ["cp/tracker/late", "cp", "raw"])
def test_a_channel_has_a_directory_of_its_own(
    tracking: Tracking, spark: SparkSession, feed: Feed, tmp_path: Path, path: str
) -> None:
    source = tracking.source(feed.stream(spark), "in", **WINDOW)
    sending = source.writeStream.channel(tracking.channel("clean", tmp_path / path))
    with pytest.raises(UsageError, match=r"channel 'clean'.*(same directory|inside the other)"):
        sending.option("checkpointLocation", tmp_path / "cp").start()


@pytest.mark.thorough
def test_a_hidden_directory_may_lie_among_results(tracking: Tracking, spark: SparkSession, tmp_path: Path) -> None:
    """Spark's users keep a checkpoint as ``_checkpoint`` in the directory of results."""
    place = {name: tmp_path / name for name in PLACES}
    place |= {name: place["results"] / f"_{name}" for name in ("checkpoint", "late", "early", "receipts")}
    started(tracking, spark, place)
    tracking.process_all_available()
    assert rows_of(place["results"], spark, "n") == [(2,)]


def test_the_places_of_two_queries_collide_likewise(tracking: Tracking, spark: SparkSession, tmp_path: Path) -> None:
    source = tracking.source(Feed(tmp_path / "more").stream(spark), "more", **WINDOW)
    started(tracking, spark, {name: tmp_path / name for name in PLACES})
    writer = tracking.release(source, aggs={"n": F.count("*")}).writeStream
    with pytest.raises(UsageError, match=r"path of the results .* late_path of another query"):
        writer.option("checkpointLocation", tmp_path / "second").start(tmp_path / "late")
