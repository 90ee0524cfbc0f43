"""Queries whose batches are given to them one by one: rules of batches need no stream.

A `BatchTracking` is a `Tracking` that starts no streaming query for rows which this package processes. In Spark's place
it makes each batch of what is there, notes in the checkpoint what Spark would, and calls the function of `foreachBatch`
in the thread that waits. Everything else is the real thing: the plan, the runtime, the tracker, what is written.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_client import Tracking
from spark_client.destinations.channel import Received
from spark_client.runtime.batches import BatchQuery
from spark_client.spark_internals.checkpoints import last_begun, last_commit, query_id
from spark_client.storage.folder import Folder
from tests.spark.feed import SCHEMA, Feed


class BatchTracking(Tracking):
    """A `Tracking` whose sources are one feed, and whose queries process batches without a stream."""

    def __init__(self, feed: Feed, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._feed = feed
        self.batched: list[BatchedQuery] = []  #: queries in the order of their start

    def _launch(self, tracked: Any, start: Any) -> Any:
        if isinstance(tracked, BatchQuery):

            def start() -> BatchedQuery:
                self.batched.append(BatchedQuery(tracked, self.spark, self._feed))
                return self.batched[-1]

        return super()._launch(tracked, start)


class BatchedQuery:
    """A query in the place of Spark's `StreamingQuery`: as much of one as is asked for here."""

    def __init__(self, tracked: BatchQuery, spark: SparkSession, feed: Feed) -> None:
        self._tracked = tracked
        self._spark = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
        self._feed = feed
        self._checkpoint = checkpoint = Path(str(tracked.checkpoint))
        self._failure: StreamingQueryException | None = None
        self.isActive = True
        self.lastProgress = None
        self.recentProgress: list[Any] = []
        self.runId = str(uuid.uuid4())
        for log in ("offsets", "commits"):
            (checkpoint / log).mkdir(parents=True, exist_ok=True)
        if query_id(Folder(checkpoint)) is None:
            (checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        self.id = str(query_id(Folder(checkpoint)))
        stream = tracked.reads[0].stream
        self._channel = stream.input.channel if isinstance(stream.input, Received) else None
        tracked.open(self.id, self.runId)

    def exception(self) -> StreamingQueryException | None:
        return self._failure

    def stop(self) -> None:
        self.isActive = False

    def processAllAvailable(self) -> None:  # noqa: N802
        """Process one batch after the other until nothing is left."""
        while self.isActive and (epoch := self.process_next()) is not None:
            self.commit(epoch)
            self._tracked.report_commits(patient=True)

    def process_next(self) -> int | None:
        """Process the next batch without committing it, and return its number; None: nothing is there."""
        batch = self._next()
        if batch is None:
            return None
        epoch, rows = batch
        try:
            self._tracked.function(rows, epoch)
        except Exception as error:
            self.isActive = False
            self._failure = StreamingQueryException(f"batch {epoch}: {error}")
            self._failure.__cause__ = error
            raise self._failure from error
        return epoch

    def commit(self, epoch: int) -> None:
        """Commit a batch in the log, as Spark does: it asks nobody."""
        (self._checkpoint / "commits" / str(epoch)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def has_committed(self, epoch: int) -> bool:
        """Return whether a batch is committed, by this driver or another one."""
        return (self._checkpoint / "commits" / str(epoch)).exists()

    def _next(self) -> tuple[int, DataFrame] | None:
        """Return the batch to process, as Spark's log has planned it or plans it now; None: nothing is there."""
        begun, committed = last_begun(Folder(self._checkpoint)), last_commit(Folder(self._checkpoint))
        if begun is None or begun == committed:
            before = [] if begun is None else self._planned(begun)
            more = list(self._there(before))
            if not more:
                return None
            begun = 0 if begun is None else begun + 1
            now = int(time.time() * 1000)
            lines = [
                "v1",
                json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": now}),
                json.dumps(before + more),
            ]
            (self._checkpoint / "offsets" / str(begun)).write_text("\n".join(lines))
        return begun, self._rows(begun)

    def _planned(self, epoch: int) -> list[Any]:
        """Return what has been read up to the end of a batch: files, or senders with their epochs."""
        read: list[Any] = json.loads((self._checkpoint / "offsets" / str(epoch)).read_text().split("\n")[2])
        return read

    def _there(self, before: list[Any]) -> Iterator[Any]:
        if self._channel is None:
            if len(before) < self._feed.files:
                yield len(before) + 1
            return
        for path in sorted(Path(str(self._channel.path)).glob("*/*")):
            each = [path.parent.name, int(path.name)] if path.name.isdigit() else None
            if each is not None and each not in before:
                yield each

    def _rows(self, epoch: int) -> DataFrame:
        before = [] if epoch == 0 else self._planned(epoch - 1)
        new = self._planned(epoch)[len(before) :]
        if self._channel is not None:
            return self._spark.createDataFrame(
                [tuple(each) for each in new] or [(None, None)], "sender string, epoch long"
            )
        files = [str(self._feed.path / f"{number:06d}.json") for number in new]
        reader = self._spark.read.schema(SCHEMA)
        return reader.json(files) if files else self._spark.createDataFrame([], SCHEMA)
