"""A drain's place at the tracker: it is confirmed when results are out, not when substreams have ended.

The tracker has a job for drained as soon as everything has ended and no epoch is staged. Results come after the ends.
So whoever has some to release keeps an epoch staged meanwhile, an empty one, of a producer of its own for each query;
it is committed last. A driver that dies leaves its epochs staged, so the drain waits for the next one, which stages
them again in one step and goes on.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterable, Iterator

from spark_client.counting.runs import Run
from spark_client.errors import TrackingError
from spark_client.trackers.jobclient import JobClient, JobProducer
from tracker.client import DrainState, DrainStatus, TrackerError, TrackerUnavailable
from tracker.contract.refusal import Refusal

_log = logging.getLogger("spark_client")

_GUARD = "/drain"  # after a query's id: the producer that holds its drain
_UNIT = "results"
_LOOK_EVERY = 0.1  # seconds


class Drain:
    """A drain under way, as one application sees it.

    Args:
        client: of the job.
        job: that is drained.
        deployment: of it.
        runs: of the queries that have something to do when everything has ended.
        stopped: set when this application takes no part in it any more.

    Raises:
        TrackerError: the tracker refuses, as another driver has taken over.
    """

    def __init__(
        self, client: JobClient, job: str, deployment: str, runs: Iterable[Run], stopped: threading.Event
    ) -> None:
        self._client = client
        self._job = job
        self._deployment = deployment
        self._stopped = stopped
        self._guards: list[tuple[Run, JobProducer, int]] = [(run, *self._guard(run)) for run in runs]

    def _guard(self, run: Run) -> tuple[JobProducer, int]:
        producer = self._client.open_producer(self._job, f"{run.query}{_GUARD}", f"{run.run}/{uuid.uuid4().hex[:8]}")
        epoch = 0 if producer.committed_epoch is None else producer.committed_epoch + 1
        producer.epoch(epoch).report(units=[_UNIT])
        return producer, epoch

    def check(self) -> DrainStatus:
        """Return how far it is.

        Raises:
            TrackingError: it was cancelled, another deployment has taken over, or the queries here were stopped.
        """
        if self._stopped.is_set():
            raise TrackingError(
                "the queries were stopped while their job drained: start them again under the same deployment=, and "
                "the drain goes on"
            )
        drain = self._client.get_drain(self._job)
        if drain.deployment != self._deployment:
            raise TrackingError(f"deployment {drain.deployment!r} has taken over")
        if drain.state is DrainState.CANCELLED:
            self.confirm()  # nothing is held any more
            raise TrackingError("it was cancelled when the queries that read sources had stopped: start them again")
        return drain

    def await_ends(self) -> None:
        """Wait until the job would be drained, but for what is held here and by other applications.

        Raises:
            TrackingError: as `check`.
        """
        for drain in self._looks():
            staged = [producer for producer in drain.uncommitted_producers if not producer.endswith(_GUARD)]
            if not (drain.unfinished_fronts or drain.open_substreams or staged):
                return

    def await_drained(self) -> None:
        """Wait until the job is drained, everywhere.

        Raises:
            TrackingError: as `check`.
        """
        for drain in self._looks():
            if drain.state is DrainState.DRAINED:
                return

    def _looks(self) -> Iterator[DrainStatus]:
        while True:
            try:
                yield self.check()
            except TrackerUnavailable as error:
                _log.warning("the drain of job %s waits for the tracker: %s", self._job, error)
            self._stopped.wait(_LOOK_EVERY)

    def confirm(self) -> None:
        """Hold it no longer: everything is out.

        Raises:
            TrackerError: the tracker refuses, as another driver has taken over.
        """
        for run, producer, epoch in self._guards:
            try:
                producer.commit(epoch)
                producer.close()
            except TrackerError as error:
                if error.reason != Refusal.FENCED or not run.is_current():
                    raise
                # A driver whose run is over took the hold away from this one. Its own must not stay.
                again, epoch = self._guard(run)
                again.commit(epoch)
                again.close()
