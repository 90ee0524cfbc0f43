"""A query that knows nothing of a tracker, and what a batch computation finds of it."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from spark_client import Marks, Tracking, TrackingError
from spark_client.fronts.front import Front
from spark_client.runtime.observer import Observer
from tests.client.processes import Server
from tracker.client import Ended, Late, TrackerClient

Hour = tuple[str, datetime, int]  #: a tenant's hour by its end, with its number of rows


class Untouched:
    """A query of Spark's alone, with a table of files.

    Args:
        rows: a stream with the columns of `SCHEMA`.
    """

    def __init__(self, rows: DataFrame, path: Path) -> None:
        self._rows = rows
        self.path = path
        self.checkpoint = path / "cp"

    def start(self) -> StreamingQuery:
        writer = self._rows.writeStream.format("parquet").option("path", str(self.path / "table"))
        return writer.option("checkpointLocation", str(self.checkpoint)).start()

    def run(self) -> None:
        """Run the query until all is committed that is there."""
        query = self.start()
        query.processAllAvailable()
        query.stop()

    def whole(self, spark: SparkSession) -> set[Hour]:
        """Return the hours of which its table has the row that is marked as the last: a batch computation."""
        hours = spark.read.parquet(str(self.path / "table")).groupBy(
            "tenant", F.window("ts", "1 hour").end.alias("end")
        )
        found = hours.agg(F.count("*").alias("rows"), F.max("is_last").alias("whole")).where("whole")
        return {(row.tenant, row.end, row.rows) for row in found.collect()}

    def digest(self) -> dict[str, str]:
        """Return all that is in its checkpoint, with the time of each change."""
        return digest(self.checkpoint)


def digest(path: Path) -> dict[str, str]:
    """Return all that is below a directory, with the time of each change."""
    return {
        str(
            each
        ): f"{each.stat().st_mtime_ns} {hashlib.sha256(each.read_bytes()).hexdigest() if each.is_file() else ''}"
        for each in [path, *path.rglob("*")]
    }


def observing(
    spark: SparkSession,
    tracker: Server,
    job: str,
    rows: DataFrame,
    checkpoint: Path | str | StreamingQuery,
    own: Path | str,
    front: Front | None = None,
    **options: Any,
) -> tuple[Tracking, Observer]:
    """Observe a query, by tenants and hours."""
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(rows, "rows", scope="tenant", window=("ts", "1 hour"), front=front or Marks("is_last"))
    return tracking, tracking.observe(source, checkpoint, own, every=0.05, **options)


def ended(tracking: Tracking) -> set[Hour]:
    """Return the hours that the tracker has announced, each once."""
    assert isinstance(tracking.client, TrackerClient)
    events = [event.kind for event in tracking.client.list_events(tracking.job).events]
    ends = [kind for kind in events if isinstance(kind, Ended)]
    found = {
        (kind.scope, datetime.fromtimestamp((kind.end_time or 0) / 1_000_000, UTC).replace(tzinfo=None), kind.elements)
        for kind in ends
    }
    assert len(found) == len(ends), "none ends twice"
    assert not any(isinstance(kind, Late) for kind in events)
    return found


def fails(tracking: Tracking, observer: Observer, match: str) -> None:
    """Wait until an observer has ended, and look at why."""
    with tracking:
        with pytest.raises(TrackingError, match=match):
            observer.awaitTermination()
        with pytest.raises(TrackingError, match=match):
            tracking.check()
