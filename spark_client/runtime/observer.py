"""An observer: it reads again what another query has committed, and changes nothing of that query.

A query's checkpoint records up to where each batch has read a source, and that the batch is committed. The
observer's own checkpoint is one of Spark's, too, in which it plans each batch itself: from where it has come to where
the other query has. Spark then runs that batch, and no other. So a source is read as Spark reads it, whatever it is,
and all that a tracked query does about restarts, promises and drains is done here as well.

To its runtime an observer is Spark's query: see `TrackedQuery.query`. Its steps, each of which may be the last one of a
process: a note of the other query's batch; what Spark notes of the source; the plan of the own batch; the batch, which
is reported; Spark's commit of it; the tracker's.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.errors import TrackingError
from spark_client.runtime.queries import FunctionQuery, sentence_of
from spark_client.spark_internals.checkpoints import (
    NOTHING_YET,
    copy_source,
    files_between,
    first_id,
    last_begun,
    last_commit,
    plan_batch,
    query_id,
    reached,
    started_query,
)
from spark_client.spark_internals.errors import cause_in
from spark_client.spark_internals.kafka import ask_for_latest_offsets
from spark_client.storage.folder import Folder

_NOTE: Final = "tracker/observed.json"  #: of the own checkpoint: up to where the other query is followed
_ROOT: Final = re.compile("^file:/+")  #: Spark writes both ``file:/a`` and ``file:///a``
_LOOK_EVERY: Final = 0.02  #: seconds between two looks at how far the observer has come


@dataclass(frozen=True)
class Observed:
    """A query that is observed.

    Attributes:
        checkpoint: of the query. It is only read.
        source: the place of the source among those of the query; None: it is the only one.
        from_now: what the query had committed when it was observed first is left out.
        every: seconds between two looks.
    """

    checkpoint: Folder
    source: int | None = None
    from_now: bool = False
    every: float = 1.0


class Observer:
    """An observer while it runs: see `Tracking.observe`. It has what a streaming query has, and `lag`.

    Attributes:
        id: as of a query of Spark's: the same for as long as it keeps its checkpoint.
        runId: another one for each start.
    """

    def __init__(
        self,
        observed: Observed,
        tracked: FunctionQuery,
        begin: Callable[[Callable[[DataFrame, int], None]], Callable[[], StreamingQuery]],
    ) -> None:
        self._observed = observed
        self._own = tracked.checkpoint
        self._tracked = tracked
        self._begin = begin
        self.id = first_id(self._own)
        self.runId = str(uuid.uuid4())
        self._note: dict[str, Any] = {}
        self._epoch = -1  # the last own batch that was planned
        self._due = False  # that one is to be run
        self._followed = -1  # the last batch of the other query that has been read again
        self._idle = False  # the last look has found nothing new
        self._step: StreamingQuery | None = None
        self._failure: Exception | None = None
        self._stopped, self._ended, self._woken = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracking-observer", daemon=True)

    def start(self) -> Observer:
        """Begin to follow, once the run is open at the tracker."""
        self._thread.start()
        return self

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """Return whether the observer follows the other query."""
        return not self._ended.is_set()

    @property
    def lag(self) -> int:
        """Return how many batches the other query has committed that have not been read again yet."""
        last = last_commit(self._observed.checkpoint)
        return 0 if last is None else max(0, last - self._followed)

    def exception(self) -> Exception | None:
        """Return why the observer has ended; None: it runs, or was stopped."""
        return self._failure

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802 - Spark's name
        """Wait until it has ended, and return whether it has.

        Args:
            timeout: seconds; None: for as long as it takes.
        """
        return self._ended.wait(timeout)

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        """Wait until all has been read again that the other query had committed when this was called.

        Raises:
            TrackingError: the observer has failed, and counts no more.
        """
        last = last_commit(self._observed.checkpoint)
        while last is not None and self.isActive and self._followed < last:
            self._woken.set()
            time.sleep(_LOOK_EVERY)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End the observer; a batch in hand is interrupted, and read again by the next start."""
        self._stopped.set()
        self._woken.set()
        if (step := self._step) is not None:
            step.stop()
        if self._thread is not threading.current_thread():
            self._thread.join()

    # ---------------------------------------------------------------- what it does

    def _run(self) -> None:
        try:
            self._tracked.run  # noqa: B018 - waits until it is open
            self._go_on()
            while not self._stopped.is_set():
                if self._due or self._plan():
                    self._carry_out()
                else:
                    self._woken.wait(self._observed.every)
                    self._woken.clear()
        except Exception as error:
            if not self._stopped.is_set():
                self._failure = error
        self._ended.set()

    def _go_on(self) -> None:
        """Go on where an observer before has come to, or begin.

        Raises:
            TrackingError: the checkpoint has become another query's.
        """
        observed, own = self._observed, self._own
        note = own.read(_NOTE)
        if note is None:
            last = last_commit(observed.checkpoint) if observed.from_now else None
            place = None if last is None else reached(observed.checkpoint, last, observed.source)
            note = {"query": started_query(observed.checkpoint), "epoch": -1, "batch": -1, "before": -1}
            if place is not None:
                copy_source(observed.checkpoint, observed.source or 0, own)
                plan_batch(own, 0, place, committed=True)
                note |= {"epoch": 0, "batch": last, "before": last}
            own.put(_NOTE, note)
        elif (found := query_id(observed.checkpoint)) != note["query"]:
            raise TrackingError(
                f"{observed.checkpoint} is the checkpoint of query {found} now, and {own} has followed query "
                f"{note['query']} there: observe it with a new checkpoint of the observer, and a new job"
            )
        begun, done = last_begun(own), last_commit(own)
        self._note = note
        self._epoch = -1 if begun is None else begun
        self._due = begun is not None and (done is None or begun > done)
        is_done = note["epoch"] <= (-1 if done is None else done)
        self._followed = note["batch"] if is_done else note["before"]

    def _plan(self) -> bool:
        """Plan the next batch, and return whether there is one: the other query has committed something new."""
        observed, followed = self._observed, self._followed
        # After a step Spark may have forgotten the batches that came next.
        last = last_commit(observed.checkpoint, followed if self._idle and followed >= 0 else None)
        self._idle = last is None or last == followed
        if last is None or last == followed:
            return False
        if last < followed:
            raise TrackingError(
                f"the query of {observed.checkpoint} has gone back to batch {last}, and its batches up to {followed} "
                "are counted: observe it with a new checkpoint of the observer, and a new job"
            )
        place = reached(observed.checkpoint, last, observed.source)
        if place is None:
            return False  # there is a later one meanwhile
        before = reached(self._own, self._epoch, 0) if self._epoch >= 0 else None
        if place[1] == (NOTHING_YET if before is None else before[1]):  # a batch that has read nothing of this source
            self._put_note(self._epoch, last)
            self._followed = last
            return False
        copy_source(observed.checkpoint, observed.source or 0, self._own)
        self._put_note(self._epoch + 1, last)
        plan_batch(self._own, self._epoch + 1, place)
        self._epoch, self._due = self._epoch + 1, True
        return True

    def _put_note(self, epoch: int, batch: int) -> None:
        self._note = {**self._note, "epoch": epoch, "batch": batch, "before": self._followed}
        self._own.put(_NOTE, self._note)

    def _carry_out(self) -> None:
        """Have Spark run the batch that is planned.

        Raises:
            TrackingError: it cannot be read again, or reported.
        """
        try:
            self._step = self._begin(_step(self.id, self._own, self._epoch, self._tracked.function))()
            if self._stopped.is_set():
                self._step.stop()
            self._step.awaitTermination()
            if last_commit(self._own) == self._epoch:  # else it was stopped
                self._due, self._followed = False, self._note["batch"]
        except Exception as error:
            if (sentence := sentence_of(error)) is not None:
                raise TrackingError(sentence) from error
            note, why = self._note, cause_in(error)
            raise TrackingError(
                f"what the query of {self._observed.checkpoint} has read after batch {note['before']}, up to batch "
                f"{note['batch']}, cannot be read again: {why}. Nothing of it counts, and nothing "
                "is lost: observe it again with the same checkpoint. If the input is gone for good "
                "(files removed or overwritten, a table vacuumed, Kafka's retention over), observe(…, from_now=True) "
                "with a new checkpoint and a new job follows what comes from then on"
            ) from error
        finally:
            self._step = None


def _step(
    query: str, own: Folder, epoch: int, function: Callable[[DataFrame, int], None]
) -> Callable[[DataFrame, int], None]:
    """Return the function of one batch, which keeps no observer: see `FunctionQuery.function`."""

    def process(batch: DataFrame, number: int) -> None:
        if number != epoch:
            raise TrackingError(f"Spark runs batch {number} of {own}, where batch {epoch} was planned")
        ask_for_latest_offsets(batch.sparkSession, query)
        function(batch, number)
        if files := files_between(own, epoch):  # Spark passes over files that are gone
            _check_unchanged(batch.sparkSession, files)

    return process


def _check_unchanged(spark: SparkSession, files: Mapping[str, int]) -> None:
    """Look for files, without reading them, and check whether they are those that another query has found.

    Args:
        files: when each had changed last, in milliseconds since 1970, by its path.

    Raises:
        RuntimeError: one was overwritten.
    """
    there = spark.read.format("binaryFile").option("__globPaths__", "false").load([*files])
    found = [(_ROOT.sub("file:/", path), changed) for path, changed in files.items()]
    before = spark.createDataFrame(found, "path string, before long")
    now = there.select(F.regexp_replace("path", _ROOT.pattern, "file:/").alias("path"), "modificationTime")
    changed = now.join(before, "path").where(F.unix_millis("modificationTime") != F.col("before"))
    if one := changed.select("path").take(1):
        raise RuntimeError(f"{one[0][0]} was overwritten after that query had found it")
