"""Batches leave nothing behind but results: no directory for a batch that had none, and notes of the newest only."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking
from tests.client.processes import Server
from tests.spark.feed import Feed, row, rows_of

pytestmark = pytest.mark.spark


def entries(path: Path) -> list[str]:
    """List a directory's entries, but for its owner's name and the counts for the ledger."""
    return sorted(found.name for found in path.iterdir() if found.name[0] != "_") if path.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize(
    "through_a_channel",
    [False, True],
    ids=["from the source", "through a channel"],
)
def test_only_batches_with_results_leave_a_directory(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, through_a_channel: bool
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    front = Marks("is_last")
    rows = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=front
    )
    clean, checkpoint, out, receipts = (tmp_path / name for name in ("clean", "cp2", "out", "receipts"))
    if through_a_channel:
        channel = tracking.channel("clean", str(clean))
        sending = rows.writeStream.channel(channel).option("checkpointLocation", tmp_path / "cp1")
        rows = tracking.receive(channel)
        released = tracking.release(rows.where("amount > 0"), aggs={"rows": F.count("*")})
        sending.start()
    else:
        released = tracking.release(rows.where("amount > 0"), aggs={"rows": F.count("*")})
    released.writeStream.option("checkpointLocation", checkpoint).receipts(receipts).start(out)

    for hour in range(12):
        feed.put(row(10 * hour, 60 * hour), row(10 * hour + 1, 60 * hour + 1, "b"))
        tracking.process_all_available()
    assert entries(out) == entries(receipts) == []
    feed.put(row(1001, 5, "nothing", amount=0, last=True))  # it ends, and no row of it is left to be released
    tracking.process_all_available()
    assert entries(out) == []
    feed.put(row(1002, 59, last=True), row(1003, 119, last=True))
    tracking.process_all_available()
    assert len(entries(out)) == 1
    feed.put(row(1004, 6, "nothing", amount=0), row(1005, 7, "nothing", amount=0))  # too late, and dropped
    tracking.process_all_available()
    late = checkpoint / "tracker" / "late"
    assert entries(late) == []
    feed.put(row(1006, 3))  # too late
    tracking.process_all_available()
    assert len(entries(late)) == 1
    for hour in range(2, 5):
        feed.put(row(2000 + hour, 60 * hour + 59, last=True))
        tracking.process_all_available()
    tracking.stop()

    assert len(entries(out)) == 4
    assert len(rows_of(out, spark, "tenant", "window.start")) == 5
    kept = checkpoint / "tracker"
    assert len(entries(kept / "events")) <= 3
    assert len(entries(kept / "overdue")) <= 3
    assert len(list((kept / "state").glob("version-*.json"))) == 2
    assert len(list((kept / "state").glob("epoch-*"))) + len(list((kept / "state").glob("merged-*"))) <= 25
    assert len(list(clean.glob("*/[0-9]*"))) <= 3
    (mine,) = receipts.iterdir()
    assert len(entries(mine)) == 5
