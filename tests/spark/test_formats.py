"""A destination is one class and one line of the registry: a format that this test adds is written as any other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client import Marks, Tracking, UsageError
from spark_client.api.released import Released
from spark_client.destinations.destination import EarlyOutput, Place, Written
from spark_client.destinations.formats import FORMATS
from spark_client.plan.batches import BatchId, Counted
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.releases import ReleasePlan
from spark_client.storage.folder import Folder
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row

pytestmark = pytest.mark.spark


class Book(Place):
    """A page for each epoch, which is written once, and a slip with the newest early results."""

    reads_all = True

    def __init__(self, to: Written) -> None:
        self._to = to
        self._path = Path(to.place)

    def check(self, schema: T.StructType, release: ReleasePlan | None, spark: SparkSession) -> None:
        if foreign := set(self._to.options) - {"ink"}:
            raise UsageError(f"a book has no option {foreign}, for {release is not None and schema.fieldNames()}")
        self._path.mkdir(parents=True, exist_ok=True)

    def directories(self) -> Iterator[tuple[str, Folder]]:
        yield "the book", Folder(self._path)

    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:
        page = self._path / f"page-{batch.epoch}.json"
        if not page.exists():
            part = page.with_suffix(".part")
            part.write_text(json.dumps({"ink": self._to.options["ink"], "rows": rows.toJSON().collect()}))
            part.rename(page)
        return {}

    def begun(self, query: str, epoch: int) -> bool:
        return (self._path / f"page-{epoch}.json").exists()

    def early(self) -> EarlyOutput | None:
        return None if self._to.early is None else self

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:
        (self._path / "slip.txt").write_text(f"{rows.count()} as of {as_of}")


def pages(path: Path) -> list[tuple[str, str, int]]:
    """Return a book's content, page by page: the ink, the kind and the number of rows."""
    written = [json.loads(page.read_text()) for page in sorted(path.glob("page-*.json"))]
    return sorted(
        (page["ink"], json.loads(each)["kind"], json.loads(each)["n"]) for page in written for each in page["rows"]
    )


def released(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, early: str | None
) -> tuple[Tracking, Released]:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    return tracking, tracking.release(source, ["kind"], aggs={"n": F.count("*")}, early=early)


def test_a_format_from_outside_is_checked_written_once_and_shown_early(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMATS, "book", Book)
    tracking, daily = released(spark, tracker, job, feed, "0 seconds")
    writer = daily.writeStream.format("book").option("checkpointLocation", tmp_path / "cp")
    with pytest.raises(UsageError, match=r"a book has no option \{'pen'\}, for \['tenant', 'window', 'kind', 'n'"):
        writer.option("pen", "red").start(tmp_path / "book")
    del writer.options_given["pen"]
    with pytest.raises(UsageError, match=r"the book .* are one inside the other"):
        writer.option("ink", "blue").start(tmp_path / "cp" / "book")
    writer.start(tmp_path / "book")
    feed.put(row(1, 5), row(2, 6, kind="y"), row(3, 70))
    tracking.process_all_available()
    feed.put(row(4, 59, kind="y", last=True))
    tracking.process_all_available()
    assert pages(tmp_path / "book") == [("blue", "x", 1), ("blue", "y", 2)]
    assert (tmp_path / "book" / "slip.txt").read_text().startswith(("1 as of", "3 as of"))
    tracking.stop()


def test_a_format_from_outside_is_one_of_several_places(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMATS, "book", Book)
    tracking, daily = released(spark, tracker, job, feed, None)
    places = {
        "book": daily.writeStream.format("book").option("path", tmp_path / "book").option("ink", "red"),
        "files": daily.writeStream.format("json").option("path", tmp_path / "files"),
    }
    tracking.write_together({"daily": places}).option("checkpointLocation", tmp_path / "cp").start()
    feed.put(row(1, 5), row(2, 59, last=True))
    tracking.process_all_available()
    assert pages(tmp_path / "book") == [("red", "x", 2)]
    assert spark.read.json(str(tmp_path / "files")).count() == 1
    tracking.stop()
