"""A job on Spark's own watermark, as its checkpoint shows it: when it closed windows, and which rows were too late."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import check_present
from spark_client.errors import UsageError
from spark_client.spark_internals.checkpoints import WatermarkBatch, batches_of, files_of, last_of_files
from spark_client.storage.directories import check_directory, read_json, write_json
from spark_client.storage.folder import Folder


class ShadowedJob:
    """A query on Spark's own watermark that is looked at and never touched.

    Args:
        checkpoint: of the query. It is only read.
        notes: a file of yours, in which its batches are noted: Spark forgets them after a hundred.

    Raises:
        UsageError: there is no checkpoint.

    >>> job = ShadowedJob("/cp/daily", "/data/shadow/daily.json")                           # doctest: +SKIP
    >>> with job.watched():                                                                 # doctest: +SKIP
    ...     tracking.await_drained()
    """

    def __init__(self, checkpoint: str | os.PathLike[str], notes: str | os.PathLike[str]) -> None:
        self._checkpoint = Folder(os.fspath(checkpoint))
        self._notes = Path(notes)
        check_directory(checkpoint, "", "give the checkpoint of the query on Spark's watermark")
        self._writing = threading.Lock()

    def note(self) -> int:
        """Note the batches that Spark has planned since the last call; call it at least every hundred batches.

        Returns:
            How many batches are noted in all.
        """
        with self._writing:
            known = self.batches
            new = batches_of(self._checkpoint, known[-1].number if known else -1)
            if new:
                write_json(self._notes, [asdict(batch) for batch in [*known, *new]])
            return len(known) + len(new)

    @contextmanager
    def watched(self, every: float = 5) -> Iterator[None]:
        """Note batches in a thread of its own, and once more at the end.

        Args:
            every: seconds between two looks at the checkpoint.
        """
        ended = threading.Event()

        def follow() -> None:
            while not ended.wait(every):
                self.note()

        thread = threading.Thread(target=follow, name="tracking-shadow", daemon=True)
        self.note()
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self.note()

    @property
    def batches(self) -> list[WatermarkBatch]:
        """The batches that are noted."""
        noted = read_json(self._notes) or []
        return [WatermarkBatch.from_json(each) for each in noted]

    def closed(self, ends: DataFrame) -> DataFrame:
        """Return when the job closed windows.

        Args:
            ends: windows, by their ``end_time``.

        Returns:
            ``end_time`` and ``closed_at``: when the batch was planned that closed the windows that end then. Those that
            were closed before the first batch that is noted, or are open, are left out.
        """
        batches = self.batches
        advances = [
            (batch.watermark, batch.at) for before, batch in pairwise(batches) if batch.watermark > before.watermark
        ]
        first = batches[0].watermark if batches and batches[0].number else 0
        spark = ends.sparkSession
        moves = spark.createDataFrame(advances, "t long, at long").withColumn("end_time", F.lit(None).cast("timestamp"))
        asked = ends.select("end_time").distinct()
        asked = asked.select(F.unix_millis("end_time").alias("t"), F.lit(None).cast("long").alias("at"), "end_time")
        later = Window.orderBy("t", F.col("at").isNotNull()).rowsBetween(0, Window.unboundedFollowing)
        found = moves.unionByName(asked).withColumn("closed", F.min("at").over(later))
        known = found.where(F.col("end_time").isNotNull() & F.col("closed").isNotNull() & (F.col("t") > first))
        return known.select("end_time", F.timestamp_millis("closed").alias("closed_at"))

    def lost(self, rows: DataFrame, source: int = 0) -> DataFrame:
        """Return which rows came too late for the job's watermark, and by how much.

        Args:
            rows: of the job's source of files, as a batch: ``end_time`` of each row's window, ``file`` (the column
                ``_metadata.file_path``), and what you like.
            source: the place of that source among the query's sources.

        Returns:
            The rows that the job has dropped, with ``batch``, in which they came, and ``minutes_late``: by so much more
            the job's delay would have had to be.

        Raises:
            UsageError: it is no source of files, or a column is not there.
        """
        check_present(("end_time", "file"), rows.columns, "lost(rows): column")
        placed = self._files(rows.sparkSession, source)
        late = F.col("_watermark") >= F.unix_millis("end_time")
        minutes = (F.col("_watermark") - F.unix_millis("end_time")) / 60_000
        named = rows.withColumn("_file", _one_name("file"))
        found = named.join(
            F.broadcast(placed.select(_one_name("_path").alias("_file"), "batch", "_watermark")), "_file"
        )
        return found.where(late).withColumn("minutes_late", minutes).drop("_file", "_watermark")

    def _files(self, spark: SparkSession, source: int) -> DataFrame:
        """Return files, the batch in which each was read, and the watermark by which that batch dropped rows."""
        in_batch: dict[int, tuple[int, int]] = {}
        before: WatermarkBatch | None = None
        read: int | None = None
        for batch in self.batches:
            if before is None:
                read = None if batch.number else -1
            elif batch.number != before.number + 1:
                read = None  # what was read since the last batch that is noted is not known
            last = self._log_offset(batch, source)
            if read is not None:
                watermark = 0 if before is None else before.watermark
                in_batch.update(dict.fromkeys(range(read + 1, last + 1), (batch.number, watermark)))
            before, read = batch, last
        paths = dict(files_of(self._checkpoint, source))
        placed = [(path, *in_batch[number]) for path, number in paths.items() if number in in_batch]
        return spark.createDataFrame(placed, "_path string, batch long, _watermark long")

    def _log_offset(self, batch: WatermarkBatch, source: int) -> int:
        """Return how far a source of files had come after a batch."""
        last = last_of_files(batch, source)
        if last is None:
            raise UsageError(
                f"source {source} of {self._checkpoint} is not one of files, so its rows cannot be told apart: "
                "leave lost= out, and the report counts by window"
            )
        return last


def _one_name(path: str) -> Column:
    """Return a file's name in one form: Spark writes ``file:/a`` and ``file:///a``, with and without escapes."""
    unescape = getattr(F, "try_url_decode", F.url_decode)  # before Spark 4.0 a name with a single % is refused
    return F.regexp_replace(F.coalesce(unescape(path), F.col(path)), "^file:/+", "file:/")
