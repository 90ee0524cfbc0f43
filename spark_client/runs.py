"""One run of a tracked query: what it tells the tracker, and when.

Producer is the query's id, run the run's, epoch the batch's. An epoch is reported, staged, before Spark commits the
batch, and committed after. Whoever learns first that a batch is committed says so: the listener, or the next batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from spark_client.errors import TrackingError
from spark_client.fronts import Front
from tracker.client import (
    Event,
    Finish,
    Frontier,
    Outcome,
    Producer,
    Report,
    TrackerClient,
    TrackerError,
    TrackerUnavailable,
)

_log = logging.getLogger("spark_client")

DRIVER_UNIT = "driver"


class Run:
    """A run that is open at the tracker.

    Args:
        client: to the tracker.
        job: that is tracked.
        query: the query's id.
        run: the run's id.
        resume_epoch: the first batch that Spark has not committed.
        seals: whether it seals each batch before Spark commits it.

    Raises:
        TrackerError: the tracker refuses the run.
    """

    def __init__(
        self, client: TrackerClient, job: str, query: str, run: str, resume_epoch: int, seals: bool = False
    ) -> None:
        self.job = job
        self.query = query
        self.run = run
        self._client = client
        self._producer: Producer = client.open_producer(job, query, run, resume_epoch=resume_epoch, seals=seals)
        status = client.job(job)
        self.resume_epoch = resume_epoch
        self.log_id = status.log_id
        self.first_seq = status.last_seq  #: the job's newest event when the run began
        self.last_epoch: int | None = resume_epoch - 1 if resume_epoch else None  #: that Spark has committed
        self.failure: Exception | None = None
        self._lock = threading.RLock()
        self._staged: set[int] = set()
        self._closed = False

    # ---------------------------------------------------------------- epochs

    def report(self, epoch: int) -> Report:
        """An empty report of an epoch."""
        return self._producer.epoch(epoch)

    def send(self, report: Report, epoch: int) -> None:
        """Reports what the driver has to say of an epoch, before Spark commits it.

        Raises:
            TrackingError: the tracker refuses it, or has it for committed.
        """
        try:
            answer = report.report(units=[DRIVER_UNIT])
        except (TrackerError, TrackerUnavailable) as error:
            raise explained(error) from error
        if answer.outcome is Outcome.ALREADY_COMMITTED:
            raise TrackingError(
                f"the tracker has batch {epoch} of query {self.query} for committed, but Spark runs it again: the "
                "query's checkpoint is older than what the tracker knows. Start the query with the checkpoint it last "
                "had, or with a new one"
            )
        self.expect(epoch)

    def seal(self, epoch: int, units: Sequence[str]) -> None:
        """Fixes what counts of an epoch: the driver's report and these units. Spark may commit it afterwards.

        Raises:
            TrackingError: a report of one of them never arrived; the batch must not be committed.
        """
        try:
            self._producer.commit(epoch, units=[DRIVER_UNIT, *units], seal=True)
        except (TrackerError, TrackerUnavailable) as error:
            raise explained(error) from error

    @property
    def owes(self) -> bool:
        """Whether something is staged that waits for Spark's commit."""
        return bool(self._staged)

    def expect(self, epoch: int) -> None:
        """Something of this epoch is staged, by the driver or by executors."""
        with self._lock:
            self._staged.add(epoch)

    def committed(self, epoch: int, promises: Sequence[Frontier | Finish] = ()) -> None:
        """Spark has committed a batch: the tracker may let it take effect. Waits for a tracker that is away.

        Raises:
            TrackerError: it refuses; the run has failed then.
        """
        with self._lock:
            if self._closed or (self.last_epoch is not None and epoch <= self.last_epoch and not promises):
                return
            due = any(staged <= epoch for staged in self._staged)
            if due or promises:
                self._patiently(lambda: self._producer.commit(epoch if due else None, promises=promises))
            self._staged = {staged for staged in self._staged if staged > epoch}
            self.last_epoch = epoch if self.last_epoch is None else max(epoch, self.last_epoch)

    def promise(self, promises: Sequence[Frontier | Finish]) -> None:
        """Makes promises that no batch carries.

        Raises:
            TrackerError: a later epoch is staged, and more.
        """
        with self._lock:
            self._patiently(lambda: self._producer.commit(promises=promises))

    def close(self, resume_epoch: int) -> None:
        """The query has stopped.

        Args:
            resume_epoch: the first batch that Spark has not committed.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._patiently(lambda: self._producer.close(resume_epoch=resume_epoch))
            except TrackerError as error:
                if error.reason != "FENCED":  # another run has taken over: nothing is left to close
                    raise
            self.last_epoch = resume_epoch - 1 if resume_epoch else None

    def resume_front(self, front: Front, segment: str) -> None:
        """Tells a front what it has promised, and what has been counted of its source."""
        promised: dict[str, int] = {}
        for status in self._client.job(self.job).fronts:
            if status.front in front.names:
                promised.update(status.frontiers)
        known = self._client.substreams(self.job, include_ended=True) if front.observed() is None else ()
        front.resume(segment, known, promised)

    # ---------------------------------------------------------------- events

    def events(self, after: int, up_to: int, segments: Sequence[str], log_id: str) -> tuple[list[Event], int]:
        """What was announced on some segments in a range; and its last number.

        Raises:
            TrackingError: the log is another one, or has lost that range.
        """
        found: list[Event] = []
        try:
            while True:
                page = self._client.list_events(self.job, after, up_to, segments=segments, log_id=log_id)
                found.extend(page.events)
                if page.last_seq <= after or page.last_seq == up_to:
                    return found, max(after, page.last_seq)
                after = page.last_seq
        except (TrackerError, TrackerUnavailable) as error:
            raise explained(error) from error

    def _patiently(self, call: Callable[[], object]) -> None:
        """Repeats a call for as long as the tracker cannot be reached."""
        while True:
            try:
                call()
                return
            except TrackerUnavailable as error:
                _log.warning("query %s waits for the tracker: %s", self.query, error)
                time.sleep(1)
            except TrackerError as error:
                self.failure = error
                raise


def explained(error: Exception) -> TrackingError:
    """The error that a user sees, with what to do."""
    if isinstance(error, TrackerUnavailable):
        return TrackingError(
            f"the tracker cannot be reached ({error}). Is `tracker serve` running at the address in "
            "Tracking(server=…)? The batch was not committed; restart the query when the tracker is back"
        )
    advice = _ADVICE.get(getattr(error, "reason", ""))
    return TrackingError(f"{error}{f'. {advice}' if advice else ''}")


_ADVICE = {
    "FENCED": "Another run of this query has taken over, or this one was closed: only one may run on a checkpoint",
    "MISSING_UNITS": "A task had its report acknowledged, and the tracker does not have it: was its journal lost? The "
    "batch was not committed; restart the query",
    "EPOCH_REWOUND": "The query's checkpoint is older than what the tracker knows of it: start the query with the "
    "checkpoint it last had, or with a new one",
    "SPEC_CONFLICT": "Sources, channels or fronts have changed: give Tracking another deployment=",
    "INCOMPATIBLE_GRAPH": "Drain the running deployment first, so that nothing is open, or give Tracking(force=True)",
    "DRAINED": "The job has been drained: start with another deployment=",
    "LOG_CHANGED": "The job was deleted, or the tracker's journal was lost: start the queries with new checkpoints",
    "EVENTS_EXPIRED": "The query was stopped for longer than the job's retention: start it with a new checkpoint",
    "DEPLOYMENT_MISMATCH": "The job has moved on to another deployment: use that one, or a new name",
    "FRONT_OWNED": "Another query of this deployment speaks for the same source: a source belongs to one query",
}
