"""Late rows are in the quarantine, and from there in one revision of their substream, whoever asks for it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import LATE_SCHEMA, RECEIPT_SCHEMA, Marks, Tracking, UsageError
from spark_client.release.parts import RowTally
from spark_client.release.quarantine import Item, Quarantine
from spark_client.release.revisions import Revisions
from spark_client.storage.directories import write_first, write_json
from spark_client.storage.folder import Folder
from spark_client.windows.fixed import Fixed
from spark_client.windows.named import Named
from spark_client.windows.substreams import Substream
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.conftest import AT_THE_START
from tests.spark.feed import Feed, row, rows_of
from tests.spark.states import hinder

pytestmark = pytest.mark.spark

RESULTS = ("tenant", "kind", "rows", "mean", "revision")


class Job:
    """A release with revisions that can be started again and again."""

    def __init__(self, spark: SparkSession, tracker: Server, job: str, feed: Feed, path: Path) -> None:
        self.spark, self.address, self.name, self.feed, self.path = spark, tracker.address, job, feed, path
        self.checkpoint = str(path / "cp")

    def start(self) -> Tracking:
        self.tracking = tracking = BatchTracking(self.feed, self.spark, self.name, self.address)
        self.source = source = tracking.source(
            self.feed.stream(self.spark),
            "in",
            scope="tenant",
            window=("ts", "1 hour"),
            identity=["row_id"],
            front=Marks("is_last"),
        )
        aggs = {"rows": F.count("*"), "mean": F.avg("amount")}
        released = tracking.release(source, ["kind"], aggs=aggs, revisions=True)
        writer = released.writeStream.option("checkpointLocation", self.checkpoint)
        writer.receipts(self.path / "receipts").start(self.path / "out")
        return tracking

    def put(self, *rows: Any) -> None:
        self.feed.put(*rows)
        self.tracking.process_all_available()

    @property
    def results(self) -> list[Any]:
        return rows_of(self.path / "out", self.spark, *RESULTS)

    @property
    def late(self) -> list[Any]:
        late = self.tracking.late(self.checkpoint)
        amounts = late.select("kind", "scope", F.get_json_object("data", "$.mean"), "revision")
        assert late.schema.fieldNames() == [*LATE_SCHEMA.fieldNames(), "revision"]
        return sorted(((r[0], r[1], r[3]) for r in amounts.collect()), key=str)

    def receipts(self) -> list[Any]:
        rows = self.spark.read.schema(RECEIPT_SCHEMA).parquet(str(self.path / "receipts")).where("rows > 0")
        return sorted(
            (r.scope, r.end_time.hour, r.revision, r.reason, r.elements, r.rows, r.results) for r in rows.collect()
        )


@pytest.fixture
def running(spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path) -> Any:
    running = Job(spark, tracker, job, feed, tmp_path)
    running.start()
    yield running
    running.tracking.stop()


@pytest.mark.thorough
def test_late_rows_are_reopened_once_as_a_numbered_revision(running: Job) -> None:
    assert running.late == []
    running.put(row(1, 5, amount=10), row(2, 6, "b", last=True), row(3, 8, last=True))
    running.put(row(4, 7, amount=20), row(5, 9, kind="y", amount=40), row(6, 9, "b"))  # late, as rows
    running.tracking.stop()
    tracking = running.start()  # it has forgotten what is over
    running.put(row(7, 10, amount=1))  # late, and known as such after it was aggregated
    assert running.late == [("aggregate", "a", None), ("row", "a", None), ("row", "a", None), ("row", "b", None)]
    first = [("a", "x", 2, 5.5, 0), ("b", "x", 1, 1.0, 0)]
    assert running.results == first

    (made,) = tracking.reopen(running.checkpoint, scope="a", end_time=datetime(2024, 1, 1, 1, tzinfo=UTC))
    assert (made.name, made.number, made.rows) == ("2024-01-01T00:00:00Z/2024-01-01T01:00:00Z#r1", 1, 3)
    assert tracking.reopen(running.checkpoint, scope="a") == []
    tracking.process_all_available()
    # The state of the first was dropped: a revision is of the late rows alone.
    again = [("a", "x", 2, 10.5, 1), ("a", "y", 1, 40.0, 1)]
    assert running.results == sorted([*first, *again])
    assert running.late == [("aggregate", "a", 1), ("row", "a", 1), ("row", "a", 1), ("row", "b", None)]

    running.put(row(8, 11, amount=7))  # later still
    assert [(made.substream.scope, made.number, made.rows) for made in tracking.reopen(running.checkpoint)] == [
        ("a", 2, 1),
        ("b", 1, 1),
    ]
    tracking.process_all_available()
    assert running.results == sorted([*first, *again, ("a", "x", 1, 7.0, 2), ("b", "x", 1, 1.0, 1)])
    assert running.receipts() == [
        ("a", 1, 0, "COMPLETE", 2, 2, 1),
        ("a", 1, 1, "COMPLETE", 3, 3, 2),
        ("a", 1, 2, "COMPLETE", 1, 1, 1),
        ("b", 1, 0, "COMPLETE", 1, 1, 1),
        ("b", 1, 1, "COMPLETE", 1, 1, 1),
    ]
    # Once everything late is reopened, a substream's receipts make up all that was ever put.
    receipts = running.spark.read.parquet(str(running.path / "receipts")).groupBy(F.col("scope").alias("tenant"))
    raw = running.feed.batch(running.spark).groupBy("tenant")
    label = F.expr(f"coalesce(nullif(xxhash64('{running.name}', row_id), 0L), 1L)")
    audited = raw.agg(F.count("*"), F.bit_xor(label)).orderBy("tenant").collect()
    assert receipts.agg(F.sum("rows"), F.bit_xor("xor")).orderBy("tenant").collect() == audited
    status = tracking.client.job(running.name)
    assert (status.open_substreams, status.in_flight) == (0, 0)


@pytest.mark.slow
def test_the_next_driver_finishes_an_interrupted_revision(running: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    running.put(row(1, 5, last=True))
    running.put(row(2, 6, amount=3))
    with monkeypatch.context() as dying:
        # The revision is written down, and the tracker learns nothing of it.
        dying.setattr("spark_client.release.revisions.Revisions.tell", lambda *_: None)
        assert len(running.tracking.reopen(running.checkpoint)) == 1
    running.tracking.process_all_available()
    assert [r[4] for r in running.results] == [0]
    running.tracking.stop()

    # The batch that writes the revision does everything but publish its state.
    hindrance = hinder(Path(running.checkpoint) / "tracker" / "state", restarts=1)
    running.start()
    with pytest.raises(Exception, match="version"):
        running.tracking.process_all_available()
    running.tracking.stop()
    hindrance.rmdir()
    running.start()
    running.tracking.process_all_available()
    assert running.tracking.reopen(running.checkpoint) == []
    running.tracking.process_all_available()
    assert running.results == [("a", "x", 1, 1.0, 0), ("a", "x", 1, 3.0, 1)]
    assert running.receipts() == [("a", 1, 0, "COMPLETE", 1, 1, 1), ("a", 1, 1, "COMPLETE", 1, 1, 1)]


@pytest.mark.slow
def test_late_rows_are_set_aside_once_by_a_restarted_driver(running: Job) -> None:
    running.put(row(1, 5, last=True))
    hindrance = hinder(Path(running.checkpoint) / "tracker" / "state")
    with pytest.raises(Exception, match="version"):
        running.put(row(2, 6, amount=3))  # set aside as a row
    running.tracking.stop()
    hindrance.rmdir()
    tracking = running.start()
    tracking.process_all_available()
    assert running.late == [("row", "a", None)]
    tracking.finish(running.source)
    assert [made.rows for made in tracking.reopen(running.checkpoint)] == [1]  # though the job's sources are all over
    tracking.process_all_available()
    assert running.results == [("a", "x", 1, 1.0, 0), ("a", "x", 1, 3.0, 1)]
    assert running.receipts() == [("a", 1, 0, "COMPLETE", 1, 1, 1), ("a", 1, 1, "LATE", 1, 1, 1)]


@pytest.mark.parametrize(
    ("length", "offset", "has"), [(24, 0, False), (1, 1, True), (1, 0.5, False), (0, 0, False), (2, 1, False)]
)
def test_only_windows_that_the_query_still_cuts_are_reopened(
    tmp_path: Path, length: int, offset: float, has: bool
) -> None:
    """After hours have become days, say: a revision of an hour would be a result of no window that the release has."""
    hour = 3_600_000_000
    late = Fixed(hour, scope="tenant").substream("a", 3 * hour)
    rule = Fixed(length * hour, int(offset * hour), scope="tenant") if length else Named("load", scope="tenant")
    shape: dict[str, Any] = {"keys": {}, "aggregates": {}, "parts": {}}
    write_json(tmp_path / "tracker" / "query.json", {**shape, "substreams": {**rule.to_json(), "zone": None}})
    items = [Item(late, 3, "row", RowTally(1), shape)]
    if has:
        assert Revisions(Folder(tmp_path))._made_of(late, 1, items).rows == 1
    else:
        with pytest.raises(UsageError, match=r"does not cut any more.* Read them from the table of late rows"):
            Revisions(Folder(tmp_path))._made_of(late, 1, items)


def test_two_releases_cannot_share_a_table_of_late_rows(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(1)
    for query in ("one", "other"):
        write_json(tmp_path / query / "metadata", {"id": query})
    one, other = (Quarantine(Folder(tmp_path / query), Folder(tmp_path / "late"), None) for query in ("one", "other"))
    one.put(7, "row", rows, rows, {Substream("a", "w", None): RowTally(1)})
    one.put(7, "row", rows, rows, {Substream("a", "w", None): RowTally(1)})
    with pytest.raises(UsageError, match="has the late rows of another query"):
        other.put(7, "row", rows, rows, {Substream("a", "w", None): RowTally(1)})


@AT_THE_START
def test_what_cannot_be_revised_is_refused(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", substream="tenant", identity=["row_id"], front=Marks("is_last"))
    clean, sums = (tracking.channel(name, str(tmp_path / name)) for name in ("clean", "sums"))
    source.writeStream.channel(clean)
    released = tracking.release(tracking.receive(clean), aggs={"rows": F.count("*")}, revisions=True)
    assert released.columns == ["tenant", "rows", "revision"]
    with pytest.raises(UsageError, match="substreams that are over"):
        released.writeStream.channel(sums)
    with pytest.raises(UsageError, match="keeps nothing that could be reopened"):
        tracking.reopen(str(tmp_path / "cp"))
    named = tracking.source(feed.stream(spark), "named", substream="tenant")
    query = tracking.release(named, aggs={"rows": F.count("*")}, revisions=True).writeStream
    query.option("checkpointLocation", tmp_path / "cp2").start(tmp_path / "out2")
    feed.put(row(1, 1, "monday#r1"))
    with pytest.raises(Exception, match="is like that of a revision"):
        tracking.process_all_available()
    revision = {"substream": ["", "monday", None], "number": 1, "account": [1, None, 0, 0], "parts": [[0, "row"]]}
    write_first(tmp_path / "cp" / "tracker" / "revisions" / "000000.json", [revision])
    plain = tracking.release(source, aggs={"rows": F.count("*")})
    with pytest.raises(UsageError, match="would drop them"):
        plain.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
    tracking.stop()
