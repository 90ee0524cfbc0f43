"""Listening for a drain of a job, for as long as somebody wants to know."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from spark_client.counting.job_reader import ONE_ATTEMPT
from tracker.client import (
    DrainRequested,
    DrainState,
    TrackerClient,
    TrackerError,
    TrackerUnavailable,
)
from tracker.client.watch import Watch

_log = logging.getLogger("spark_client")

_NO_SEGMENT = "\N{NULL}"  #: of no job: filters ends out of a watch that is for drains
_JOINING = 5.0  #: seconds in which its thread has to end when it is closed
_PAUSE = 1.0  #: seconds before a place in the events that is lost is looked for again


class DrainWatch:
    """One thread and one watch at the tracker while it is open; nothing when it is closed.

    Args:
        client: to the tracker.
        job: whose drains.
        deployment: of it.
        requested: called when a drain of it was asked for; may be called again for the same one.
    """

    def __init__(self, client: TrackerClient, job: str, deployment: str, requested: Callable[[], object]) -> None:
        self._client = client
        self._impatient = TrackerClient(client.address, ONE_ATTEMPT, 0, client.credentials, client.metrics)
        self._job = job
        self._deployment = deployment
        self._requested = requested
        self._lock = threading.Lock()
        self._watch: Watch | None = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def open(self) -> None:
        """Begins to listen, unless it does already. A drain that is under way is found, too."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._closed = closed = threading.Event()
                self._thread = threading.Thread(target=lambda: self._listen(closed), name="tracking-watch", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Listens no more: when this returns, nothing is called any more."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._closed.set()
            if self._watch is not None:
                self._watch.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOINING)

    def _listen(self, closed: threading.Event) -> None:
        complained = False
        while not closed.is_set():
            try:
                # First the place in the events, then how things stand: what comes between is seen twice, not missed.
                status = self._impatient.job(self._job)
                with self._lock:
                    if closed.is_set():
                        return
                    watch = self._watch = self._client.watch(
                        self._job, status.last_seq, segments=[_NO_SEGMENT], log_id=status.log_id
                    )
                drain = self._impatient.get_drain(self._job)
                complained = False
                under_way = drain.state in (DrainState.DRAINING, DrainState.TIMED_OUT)
                if under_way and drain.deployment == self._deployment and not closed.is_set():
                    self._requested()
                for event in watch:
                    mine = isinstance(event.kind, DrainRequested) and event.deployment == self._deployment
                    if mine and not closed.is_set():
                        self._requested()
            except TrackerUnavailable as error:
                if not complained:
                    _log.warning("the watch over job %s waits for the tracker: %s", self._job, error)
                complained = True
            except TrackerError as error:
                if error.reason == "UNKNOWN_JOB":
                    _log.error("the watch over job %s has ended: %s", self._job, error)
                    return
                # The watch paused for longer than events are kept, or the log is another: only new events matter.
                _log.info("the watch over job %s starts again: %s", self._job, error)
            closed.wait(_PAUSE)
