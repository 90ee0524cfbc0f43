"""A drain's place at the tracker: it is confirmed when results are out, not when substreams have ended.

The tracker has a job for drained as soon as everything has ended and no epoch is staged. Results come after the ends.
So whoever has some to release keeps an epoch staged meanwhile, an empty one, of a producer of its own for each query;
it is committed last. A driver that dies leaves its epochs staged, so the drain waits for the next one, which stages
them again in one step and goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from spark_client.errors import TrackingError
from spark_client.runs import Run
from tracker.client import DrainState, DrainStatus, Producer, TrackerClient, TrackerUnavailable

_log = logging.getLogger("spark_client")

_HOLDS = "/drain"  # after a query's id: the producer that holds its drain
_UNIT = "results"
_LOOK_EVERY = 0.1  # seconds


class Drain:
    """A drain under way, as one application sees it.

    Args:
        client: to the tracker.
        job: that is drained.
        deployment: of it.
        runs: of the queries that have something to do when everything has ended.

    Raises:
        TrackerError: the tracker refuses, as another driver has taken over.
    """

    def __init__(self, client: TrackerClient, job: str, deployment: str, runs: Iterable[Run]) -> None:
        self._client = client
        self._job = job
        self._deployment = deployment
        self._held: list[tuple[Producer, int]] = []
        for run in runs:
            producer = client.open_producer(job, f"{run.query}{_HOLDS}", run.run)
            epoch = 0 if producer.committed_epoch is None else producer.committed_epoch + 1
            producer.epoch(epoch).report(units=[_UNIT])
            self._held.append((producer, epoch))

    def check(self) -> DrainStatus:
        """How far it is.

        Raises:
            TrackingError: it was cancelled, or another deployment has taken over.
        """
        drain = self._client.get_drain(self._job)
        if drain.deployment != self._deployment:
            raise TrackingError(f"deployment {drain.deployment!r} has taken over")
        if drain.state is DrainState.CANCELLED:
            self.confirm()  # nothing is held any more
            raise TrackingError("it was cancelled when the queries that read sources had stopped: start them again")
        return drain

    def await_ends(self) -> None:
        """Waits until the job would be drained, but for what is held here and by other applications.

        Raises:
            TrackingError: as `check`.
        """
        while True:
            try:
                drain = self.check()
            except TrackerUnavailable as error:
                _log.warning("the drain of job %s waits for the tracker: %s", self._job, error)
                continue
            staged = [producer for producer in drain.uncommitted_producers if not producer.endswith(_HOLDS)]
            if not (drain.unfinished_fronts or drain.open_substreams or staged):
                return
            time.sleep(_LOOK_EVERY)

    def confirm(self) -> None:
        """Holds it no longer: everything is out.

        Raises:
            TrackerError: the tracker refuses, as another driver has taken over.
        """
        for producer, epoch in self._held:
            producer.commit(epoch)
            producer.close()
