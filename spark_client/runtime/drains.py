"""Drains and hand-overs of a job, as one application sees them: listened for, asked for, begun and waited for."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Set
from functools import partial
from typing import Final

from pyspark.sql import SparkSession

from spark_client.advice import explained
from spark_client.counting.runs import ONE_ATTEMPT
from spark_client.errors import TrackingError
from spark_client.fronts.front import Front
from spark_client.plan.graph import JobGraph
from spark_client.runtime.quiesce import Drain, Finish, HandOver, Quiesce
from spark_client.runtime.running import Running
from spark_client.trackers.jobclient import JobClient
from tracker.client import DrainMode, DrainRequested, DrainState, TrackerError, TrackerUnavailable
from tracker.client.watch import Watch
from tracker.contract.refusal import Refusal

_log = logging.getLogger("spark_client")

_UNDER_WAY: Final = frozenset({DrainState.DRAINING, DrainState.TIMED_OUT})
_ASKED_FOR: Final = _UNDER_WAY | {DrainState.DRAINED}
_NO_SEGMENT = "\N{NULL}"  #: of no job: filters ends out of a watch that is for drains
_JOINING = 5.0  #: seconds in which its thread has to end when it is closed
_PAUSE = 1.0  #: seconds before a place in the events that is lost is looked for again


class Drains:
    """Drains of one job.

    Args:
        running: the queries of this application.
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
        self._attempt: Quiesce | None = None
        self._mode: DrainMode | None = None  # of the attempt
        self._awaiting = 0  # threads that wait for a drain
        self._drain_id = f"spark-{uuid.uuid4().hex[:8]}"  # one, so that a request can be repeated at several trackers

    @property
    def drained(self) -> bool:
        """Return whether a drain has come to a good end."""
        return self._attempt is not None and self._attempt.reached

    @property
    def under_way(self) -> bool:
        """Return whether a drain has begun, and has not come to an end."""
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
        if self.drained and self._attempt is not None and self._mode is mode:
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
        found = "" if self._attempt is None else self._attempt.goal.missing
        missing = f" It waits: {found}." if found else ""
        drain = self._client.get_drain(self._job)
        what = "handed over" if drain.mode is DrainMode.HAND_OVER else "drained"
        return f"job {self._job!r} is not {what} after {timeout} s; it goes on.{missing} {drain}"

    def at_rest(self) -> None:
        """Listen no longer, as no query runs any more, unless somebody waits for a drain."""
        with self._lock:
            if self._awaiting:
                return
        self._watch.close()

    def stop(self) -> None:
        """Listen no longer, and take no further step of a drain that is under way."""
        self._watch.close()
        attempt = self._attempt
        if attempt is not None:
            attempt.stop()

    def finish(self, front: Front) -> None:
        """Finish a source: it will send nothing more.

        Raises:
            TrackingError: the tracker refuses.
        """
        try:
            queries = self._running.queries
            reading = next((query for query in queries if any(live.front is front for live in query.fronts)), None)
            if reading is not None and reading.query is not None and reading.query.isActive:
                reading.finish(front)
            else:
                for name in front.names:
                    self._client.finish_front(self._job, name)
        except (TrackerError, TrackerUnavailable) as error:
            raise explained(error) from error

    def _begin(self, mode: DrainMode) -> None:
        with self._lock:
            former = self._attempt
            if former is not None and (former.goal.stopped.is_set() or self._mode is not mode):
                former.ended.wait()  # it is in its last step, or finds that its own drain was cancelled
            if former is None or (former.ended.is_set() and not former.reached):
                self._mode, self._attempt = mode, Quiesce(self._goal(mode))
                self._attempt.begin()

    def _goal(self, mode: DrainMode) -> Drain:
        own = self._client, self._job, self._deployment, lambda: self._running.queries
        if mode is DrainMode.HAND_OVER:
            return HandOver(*own)
        return Finish(*own, self._spark, lambda: self._graph.read_here)


class DrainWatch:
    """A thread and a watch at each of the job's trackers while it is open; nothing when it is closed.

    Args:
        requested: called with its mode when a drain of it was asked for, and every tracker has it; may be called again
            for the same one, and by several threads.
    """

    def __init__(self, client: JobClient, job: str, deployment: str, requested: Callable[[DrainMode], object]) -> None:
        self._client = client
        self._impatient = client.with_patience(ONE_ATTEMPT, 0)
        self._job = job
        self._deployment = deployment
        self._requested = requested
        self._lock = threading.Lock()
        self._watches: dict[int, Watch] = {}  # by log
        self._threads: dict[int, threading.Thread] = {}
        self._closed = threading.Event()

    def open(self) -> None:
        """Begin to listen, unless it does already. A drain that is under way is found, too."""
        with self._lock:
            if not self._threads:
                self._closed = threading.Event()
            for log in range(len(self._client.logs(self._job))):
                thread = self._threads.get(log)
                if thread is None or not thread.is_alive():
                    listen = partial(self._listen, self._closed, log)
                    self._threads[log] = thread = threading.Thread(target=listen, name="tracking-watch", daemon=True)
                    thread.start()

    def close(self) -> None:
        """Listen no more: when this returns, nothing is called any more."""
        with self._lock:
            threads, self._threads = self._threads, {}
            self._closed.set()
            for watch in self._watches.values():
                watch.close()
        for thread in threads.values():
            if thread is not threading.current_thread():
                thread.join(_JOINING)

    def _listen(self, closed: threading.Event, log: int) -> None:
        complained = False
        while not closed.is_set():
            try:
                # First the place in the events, then how things stand: what comes between is seen twice, not missed.
                logs = self._impatient.logs(self._job)
                alone, (impatient, name) = len(logs) == 1, logs[log]
                status = impatient.job(name)
                with self._lock:
                    if closed.is_set():
                        return
                    client, _ = self._client.logs(self._job)[log]
                    watch = self._watches[log] = client.watch(
                        name, status.last_seq, segments=[_NO_SEGMENT], log_id=status.log_id
                    )
                found = self._under_way(_UNDER_WAY)
                complained = False
                if found is not None and not closed.is_set():
                    self._requested(found)
                for event in watch:
                    asked = event.kind
                    if not isinstance(asked, DrainRequested) or event.deployment != self._deployment:
                        continue
                    # Of several trackers, each announces it, and the last one when all have it.
                    everywhere = asked.mode if alone else self._under_way(_ASKED_FOR)
                    if everywhere is not None and not closed.is_set():
                        self._requested(everywhere)
            except TrackerUnavailable as error:
                if not complained:
                    _log.warning("the watch over job %s waits for the tracker: %s", self._job, error)
                complained = True
            except TrackerError as error:
                if error.reason == Refusal.UNKNOWN_JOB:
                    _log.error("the watch over job %s has ended: %s", self._job, error)
                    return
                # The watch paused for longer than events are kept, or the log is another: only new events matter.
                _log.info("the watch over job %s starts again: %s", self._job, error)
            closed.wait(_PAUSE)

    def _under_way(self, states: Set[DrainState]) -> DrainMode | None:
        """Return the mode of the deployment's drain; None: it is in none of these states, at the tracker that is least
        far."""
        drain = self._impatient.get_drain(self._job)
        return drain.mode if drain.state in states and drain.deployment == self._deployment else None
