"""The drains of a job, as one application sees them: they are heard of, begun, carried out and waited for here."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

from pyspark.sql import SparkSession

from spark_client.advice import explained
from spark_client.counting.livefronts import LiveFront
from spark_client.errors import TrackingError
from spark_client.plan.graph import JobGraph
from spark_client.runtime.drain_watch import DrainWatch
from spark_client.runtime.finishing import Finishing
from spark_client.runtime.running import Running
from spark_client.trackers.jobclient import JobClient
from tracker.client import TrackerError, TrackerUnavailable


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
        self._finishing: Finishing | None = None
        self._awaiting = 0  # threads that wait for a drain
        self._drain_id = f"spark-{uuid.uuid4().hex[:8]}"  # one, so that a request can be repeated at several trackers

    @property
    def drained(self) -> bool:
        """Whether a drain has come to a good end."""
        return self._finishing is not None and self._finishing.drained

    @property
    def under_way(self) -> bool:
        """Whether a drain has begun, and has not come to an end."""
        return self._finishing is not None and not self._finishing.ended.is_set()

    def watch(self) -> None:
        """Begins to listen for a drain, unless it does already."""
        self._watch.open()

    def request(self) -> None:
        """Asks the tracker for a drain, and begins it.

        Raises:
            TrackerError: the tracker refuses.
        """
        self._client.drain(self._job, self._deployment, self._drain_id)
        self._begin()

    def begin_if(self, drains: Callable[[], bool]) -> None:
        """Begins a drain if the job drains; none begins meanwhile.

        Args:
            drains: tells whether it does.
        """
        with self._lock:
            if drains():
                self._begin()

    def wait(self, timeout: float | None, check: Callable[[], None]) -> None:
        """Waits until a drain is over.

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
            if self._finishing is None:
                self._watch.open()
            while self._finishing is None or not self._finishing.ended.wait(0.1):
                if self._finishing is None:
                    time.sleep(0.1)
                check()
                if until is not None and time.monotonic() >= until:
                    raise TimeoutError(
                        f"job {self._job!r} is not drained after {timeout} s: {self._client.get_drain(self._job)}"
                    )
        finally:
            with self._lock:
                self._awaiting -= 1
        if (failure := self._finishing.failure) is not None:
            raise TrackingError(f"the drain failed: {failure}") from failure
        self._watch.close()

    def at_rest(self) -> None:
        """No query runs any more: nobody has to listen, unless somebody waits for a drain."""
        with self._lock:
            if self._awaiting:
                return
        self._watch.close()

    def stop(self) -> None:
        """Nothing is listened for any more, and a drain that is under way takes no further step here."""
        self._watch.close()
        finishing = self._finishing
        if finishing is not None:
            finishing.stop()

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
                    if error.reason != "EPOCH_STAGED":
                        raise
                time.sleep(0.05)  # a batch is under way: it will be committed
        except (TrackerError, TrackerUnavailable) as error:
            raise explained(error) from error

    def _begin(self) -> None:
        with self._lock:
            former = self._finishing
            if former is not None and former.stopped:
                former.ended.wait()  # it is in its last step
            if former is None or (former.ended.is_set() and not former.drained):
                self._finishing = Finishing(
                    self._spark,
                    self._client,
                    self._job,
                    self._deployment,
                    self._running,
                    lambda: self._graph.read_here,
                    self.finish,
                )
