"""Listening for a drain of a job, for as long as somebody wants to know."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Set
from functools import partial
from typing import Final

from spark_client.counting.runs import ONE_ATTEMPT
from spark_client.trackers.jobclient import JobClient
from tracker.client import (
    DrainMode,
    DrainRequested,
    DrainState,
    TrackerError,
    TrackerUnavailable,
)
from tracker.client.watch import Watch
from tracker.contract.refusal import Refusal

_log = logging.getLogger("spark_client")

_UNDER_WAY: Final = frozenset({DrainState.DRAINING, DrainState.TIMED_OUT})
_ASKED_FOR: Final = _UNDER_WAY | {DrainState.DRAINED}
_NO_SEGMENT = "\N{NULL}"  #: of no job: filters ends out of a watch that is for drains
_JOINING = 5.0  #: seconds in which its thread has to end when it is closed
_PAUSE = 1.0  #: seconds before a place in the events that is lost is looked for again


class DrainWatch:
    """A thread and a watch at each of the job's trackers while it is open; nothing when it is closed.

    Args:
        client: of the job.
        job: whose drains.
        deployment: of it.
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
