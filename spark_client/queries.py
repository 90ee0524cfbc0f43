"""One tracked query while it runs: its batches, its run at the tracker, and how it is stopped between two batches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.directories import last_commit
from spark_client.errors import TrackingError
from spark_client.fronts import Front
from spark_client.intake import Intake
from spark_client.manifest import Manifest
from spark_client.observations import observation_name
from spark_client.outputs import Output
from spark_client.probes import ExecutorProbe, add_groups
from spark_client.release import ReleaseQuery
from spark_client.runs import Run, explained
from spark_client.streams import TrackedStream
from tracker.client import Frontier

_log = logging.getLogger("spark_client")

_LIVES_EVERY = 0.25  #: seconds between two looks at whether a query has ended

#: What batches are run with, in the copy of the session that Spark makes for a query.
_CONF = {
    "spark.sql.adaptive.enabled": "true",  # few files for few rows
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # with statistics, so that reading can skip
}
_OPENING = 300.0  #: seconds in which a query that starts has to be able to open its run


class Stopped(Exception):  # noqa: N818 - not an error
    """Ends a batch that must not begin.

    Spark takes an interrupted call for a stop, not for a failure, when the call's message has this form. It was never
    committed, so it will be read again.
    """

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling the tracker's stop\n: "
            "java.lang.InterruptedException: stopped between two batches"
        )


class Gate:
    """Lets batches in one at a time, until it is closed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = False
        self._closed = False
        self._stopping = threading.Event()
        self.last_epoch: int | None = None  #: that was let in and is over

    def __enter__(self) -> None:
        with self._changed:
            if not self._closed:
                self._inside = True
                return
        self._stopping.wait()
        raise Stopped

    def done(self, epoch: int) -> None:
        """The batch has done its work."""
        self.last_epoch = epoch

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._inside = False
            self._changed.notify_all()

    def close(self) -> None:
        """Lets no batch in any more; waits for the one that is inside."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._inside)

    def release(self) -> None:
        """The query is being stopped: a batch that waits to come in may give up."""
        self._stopping.set()


class TrackedQuery:
    """What all tracked queries have in common.

    Args:
        reads: the streams it takes its rows from.
        checkpoint: its own.
        open_run: opens a run at the tracker: (query id, run id, resume epoch).
    """

    def __init__(
        self, reads: Sequence[TrackedStream], checkpoint: Path, open_run: Callable[[str, str, int], Run]
    ) -> None:
        self.reads = reads
        self.checkpoint = checkpoint
        self.query: StreamingQuery | None = None
        self.gate = Gate()
        self._open_run = open_run
        self._opened = threading.Event()
        self._opening = threading.Lock()
        self._run: Run | None = None
        self._refused: Exception | None = None
        self._closed = False
        self._look_again = 0.0

    @property
    def fronts(self) -> list[Front]:
        """The fronts of its sources."""
        return [stream.input.front for stream in self.reads if stream.input.front is not None]

    @property
    def outlives_its_sources(self) -> bool:
        """Whether it has something to do when all that its sources have sent has ended."""
        return not self.fronts

    @property
    def run(self) -> Run:
        """Its run; waits until it is open.

        Raises:
            TrackingError: it could not be opened.
        """
        self._opened.wait(_OPENING)
        if self._refused is not None:
            raise explained(self._refused) from self._refused
        if self._run is None:
            raise TrackingError("the query's run was not opened: start it with the tracked writer's start()")
        return self._run

    def open(self, query: str, run: str) -> None:
        """Opens the run; what goes wrong is raised by `run`."""
        with self._opening:
            if self._opened.is_set():
                return
            last = last_commit(self.checkpoint)
            try:
                self._run = self._open_run(query, run, 0 if last is None else last + 1)
                self.resumed(self._run)
            except Exception as error:
                self._refused = error
            self._opened.set()

    def resumed(self, run: Run) -> None:
        """Tells the fronts where the tracker stands."""
        for stream in self.reads:
            if stream.input.front is not None:
                run.resume_front(stream.input.front, stream.segment)

    def follow(self) -> None:
        """Tells the tracker what Spark has committed since the last look, and closes the run if the query has ended.

        Raises:
            TrackerError: the tracker refuses it.
        """
        if self._closed or self._run is None or self.query is None:
            return
        self._committed(self._run)
        now = time.monotonic()
        if now >= self._look_again:
            self._look_again = now + _LIVES_EVERY
            if not self.query.isActive:
                self.close()

    def _committed(self, run: Run) -> None:
        if run.owes:
            last = last_commit(self.checkpoint)
            if last is not None:
                run.committed(last)

    def abandon(self) -> None:
        """The tracker has refused this run: its query must not go on untracked."""
        self._closed = True

    def close(self) -> None:
        """The query has stopped, for whatever reason."""
        self._closed = True
        last = last_commit(self.checkpoint)
        self.run.close(0 if last is None else last + 1)

    def stop(self) -> None:
        """Stops the query after the batch in hand, once that is committed, and before the next."""
        query = self.query
        if query is None:
            return
        self.gate.close()
        while query.isActive and self.gate.last_epoch is not None:
            if (last_commit(self.checkpoint) or 0) >= self.gate.last_epoch:
                break
            time.sleep(0.01)
        stopping = threading.Thread(target=query.stop, name="tracking-stop", daemon=True)
        stopping.start()
        stopping.join(0.3)  # a batch that waits at the gate must find the query marked as stopped
        self.gate.release()
        stopping.join()

    def settle(self) -> None:
        """Waits until everything that is there has been processed, and the tracker knows of it."""
        if self.query is not None and self.query.isActive:
            self.query.processAllAvailable()
            last = last_commit(self.checkpoint)
            if last is not None:
                self.run.committed(last)


class BatchQuery(TrackedQuery):
    """A query whose batches are processed by this package: it sends rows on, or releases results.

    Args:
        stream: that it reads.
        output: where rows go.
        release: what releases results there; None: rows are passed on as they are.
        sends: whether `output` sends rows on.
        labels: whether rows need labels.
        probe: makes the executors' probe of a batch; None: the driver counts.
        manifest: hears whose reports are kept; None: the query does not seal its batches.
        aggregates: that are observed on the stream: as `observed_of` gives them.
    """

    def __init__(
        self,
        stream: TrackedStream,
        checkpoint: Path,
        open_run: Callable[[str, str, int], Run],
        output: Output,
        release: ReleaseQuery | None,
        sends: bool,
        probe: Callable[[tuple[str, str, int]], ExecutorProbe] | None,
        manifest: Manifest | None,
        aggregates: Mapping[str, Column] | None,
    ) -> None:
        super().__init__([stream], checkpoint, open_run)
        self._stream = stream
        self._output = output
        self.release = release
        self._sends = sends
        self._probe = probe
        self._manifest = manifest
        self._aggregates = aggregates

    @property
    def outlives_its_sources(self) -> bool:
        return self.release is not None or not self.fronts

    def process(self, batch: DataFrame, epoch: int) -> None:
        """The body of `foreachBatch`."""
        run = self.run
        with self.gate:
            if run.failure is not None:
                raise explained(run.failure)
            if epoch:
                run.committed(epoch - 1)  # else Spark would not have begun this one
            spark = batch.sparkSession
            for key, value in _CONF.items():
                spark.conf.set(key, value)
            if self._manifest is not None:
                self._manifest.begin()
            name = (run.query, run.run, epoch)
            probe = None if self._probe is None else self._probe(name)
            rows = self._stream.input.rows(batch, run.query, epoch)
            intake = None
            if rows is not None:
                releases = self.release is not None
                labels = self._sends and not releases
                xors = self.release is not None and self.release.xors
                intake = Intake(
                    self._stream,
                    rows,
                    name,
                    probe,
                    labels,
                    rides=releases,
                    xors=xors,
                    aggregates=self._aggregates,
                    running=lambda: self.query,
                )
            if self.release is not None:
                self.release.process(intake, run, epoch, spark)
            elif intake is not None:
                self._forward(intake, run, epoch)
            if self._manifest is not None:
                run.seal(epoch, self._manifest.units)
            self.gate.done(epoch)

    def _forward(self, intake: Intake, run: Run, epoch: int) -> None:
        sent = self._output.write(intake.rows, run, epoch, intake.told)
        report = run.report(epoch)
        for segment, groups in sent.items():
            add_groups(report, segment, "sent", groups)
        intake.say(report, intake.count() if intake.must_count else None)
        run.send(report, epoch)


class NativeQuery(TrackedQuery):
    """A query that Spark runs with its own stateful operators. Its promises ride in commits."""

    outlives_its_sources = True
    _heard: int | None = None  # the last batch whose promises have been made

    def _committed(self, run: Run) -> None:
        last = last_commit(self.checkpoint)
        if last is None or not self._owes(last) or self.query is None:
            return
        newest = self.query.lastProgress
        if newest is None or not self._owes(newest["batchId"]):
            return  # Spark tells of a batch a little after its commit
        alone = newest["batchId"] == last and (self._heard == last - 1 or run.resume_epoch == last)
        for progress in [newest] if alone else self.query.recentProgress:  # which are up to a hundred
            epoch = progress["batchId"]
            if epoch <= last and self._owes(epoch):
                run.expect(epoch)
                run.committed(epoch, self._promises(progress["observedMetrics"]))
                self._heard = epoch

    def _promises(self, observed: Mapping[str, Any]) -> list[Frontier]:
        promises: list[Frontier] = []
        for stream in self.reads:
            metrics = observed.get(observation_name(stream.segment))
            if stream.input.front is not None and metrics is not None:
                promises.extend(stream.input.front.of_observed(metrics.asDict()).frontiers)
        return promises

    def settle(self) -> None:
        if self.query is None or not self.query.isActive:
            return
        self.query.processAllAvailable()
        last = last_commit(self.checkpoint)
        while last is not None and self._owes(last) and self.query.isActive:
            time.sleep(0.01)

    def _owes(self, epoch: int) -> bool:
        """Whether the promises of a batch that this run has seen committed have still to be made."""
        return epoch >= self.run.resume_epoch and (self._heard is None or epoch > self._heard)

    def abandon(self) -> None:
        super().abandon()
        if self.query is not None:
            threading.Thread(target=self.query.stop, name="tracking-stop", daemon=True).start()

    def stop(self) -> None:
        """Stops the query when it rests."""
        if self.query is not None and self.query.isActive:
            self.query.stop()
