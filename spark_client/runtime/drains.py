"""The drains of a job, as one application sees them: they are heard of, begun, carried out and waited for here."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

from pyspark.sql import SparkSession

from spark_client.advice import explained
from spark_client.errors import TrackingError
from spark_client.fronts.front import LiveFront
from spark_client.plan.graph import JobGraph
from spark_client.runtime.attempts import Attempt
from spark_client.runtime.drain_watch import DrainWatch
from spark_client.runtime.finishing import Finishing
from spark_client.runtime.handing_over import HandingOver
from spark_client.runtime.running import Running
from spark_client.trackers.jobclient import JobClient
from tracker.client import DrainMode, TrackerError, TrackerUnavailable
from tracker.contract.refusal import Refusal


class Drains:
    """Drains of one job.

    Args:
        spark: the session.
        client: of the job.
        job: the job's name.
        deployment: of it.
        running: the queries of this application.
        graph: of the job.
    """

    def __init__(
        self, spark: SparkSession, client: JobClient, job: str, deployment: str, running: Running, graph: JobGraph
    ) -> None:
        self._spark = spark
        self._client = client
        self._job = job
        self._deployment = deployment
        self._running = running
        self._graph = graph
        self._lock = threading.RLock()
        self._watch = DrainWatch(client, job, deployment, self._begin)
        self._attempt: Attempt | None = None
        self._awaiting = 0  # threads that wait for a drain
        self._drain_id = f"spark-{uuid.uuid4().hex[:8]}"  # one, so that a request can be repeated at several trackers

    @property
    def drained(self) -> bool:
        """Whether a drain has come to a good end."""
        return self._attempt is not None and self._attempt.drained

    @property
    def under_way(self) -> bool:
        """Whether a drain has begun, and has not come to an end."""
        return self._attempt is not None and not self._attempt.ended.is_set()

    def watch(self) -> None:
        """Begin to listen for a drain, unless it does already."""
        self._watch.open()

    def request(self, mode: DrainMode) -> None:
        """Ask the tracker for a drain, and begin it.

        Args:
            mode: what becomes of what is open.

        Raises:
            TrackingError: the tracker refuses, or cannot be reached.
        """
        if self.drained and self._attempt is not None and self._attempt.mode is mode:
            return
        hand_over = mode is DrainMode.HAND_OVER
        try:
            self._client.drain(self._job, self._deployment, self._drain_id, hand_over=hand_over)
        except (TrackerError, TrackerUnavailable) as error:
            raise explained(error, self._job, self._client.command_options) from error
        self._begin(mode)

    def begin_if(self, drains: Callable[[], DrainMode | None]) -> None:
        """Begin a drain if the job drains; none begins meanwhile.

        Args:
            drains: gives its mode; None: the job does not drain.
        """
        with self._lock:
            mode = drains()
            if mode is not None:
                self._begin(mode)

    def wait(self, timeout: float | None, check: Callable[[], None]) -> None:
        """Wait until a drain is over.

        Args:
            timeout: seconds; None: for as long as it takes.
            check: raises what has gone wrong in a query.

        Raises:
            TimeoutError: not in time.
            TrackingError: it failed.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._awaiting += 1
        try:
            if self._attempt is None:
                self._watch.open()
            while self._attempt is None or not self._attempt.ended.wait(0.1):
                if self._attempt is None:
                    time.sleep(0.1)
                check()
                if until is not None and time.monotonic() >= until:
                    raise TimeoutError(self._not_in_time(timeout))
        finally:
            with self._lock:
                self._awaiting -= 1
        if (failure := self._attempt.failure) is not None:
            raise TrackingError(f"the drain failed: {failure}") from failure
        self._watch.close()

    def _not_in_time(self, timeout: float | None) -> str:
        missing = "" if self._attempt is None or not self._attempt.missing else f" It waits: {self._attempt.missing}."
        drain = self._client.get_drain(self._job)
        what = "handed over" if drain.mode is DrainMode.HAND_OVER else "drained"
        return f"job {self._job!r} is not {what} after {timeout} s; it goes on.{missing} {drain}"

    def at_rest(self) -> None:
        """No query runs any more: nobody has to listen, unless somebody waits for a drain."""
        with self._lock:
            if self._awaiting:
                return
        self._watch.close()

    def stop(self) -> None:
        """Nothing is listened for any more, and a drain that is under way takes no further step here."""
        self._watch.close()
        attempt = self._attempt
        if attempt is not None:
            attempt.stop()

    def finish(self, front: LiveFront) -> None:
        """A source will send nothing more.

        Args:
            front: the source's.

        Raises:
            TrackingError: the tracker refuses.
        """
        try:
            reading = next((q for q in self._running.queries if front in q.fronts), None)
            if reading is None or reading.query is None or not reading.query.isActive:
                for name in front.names:
                    self._client.finish_front(self._job, name)
                return
            while True:
                try:
                    reading.run.promise(front.finish())
                    return
                except TrackerError as error:
                    if error.reason != Refusal.EPOCH_STAGED:
                        raise
                time.sleep(0.05)  # a batch is under way: it will be committed
        except (TrackerError, TrackerUnavailable) as error:
            raise explained(error) from error

    def _begin(self, mode: DrainMode) -> None:
        with self._lock:
            former = self._attempt
            if former is not None and (former.stopped or former.mode is not mode):
                former.ended.wait()  # it is in its last step, or finds that its own drain was cancelled
            if former is None or (former.ended.is_set() and not former.drained):
                self._attempt = self._attempt_to(mode)
                self._attempt.begin()

    def _attempt_to(self, mode: DrainMode) -> Attempt:
        if mode is DrainMode.HAND_OVER:
            return HandingOver(self._client, self._job, self._deployment, self._running)
        return Finishing(
            self._spark,
            self._client,
            self._job,
            self._deployment,
            self._running,
            lambda: self._graph.read_here,
            self.finish,
        )
