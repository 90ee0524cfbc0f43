"""One attempt to bring a deployment to its end, in a thread of its own: what all ways to do so have in common."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from typing import Protocol

from spark_client.runtime.queries import TrackedQuery
from tracker.client import DrainMode

_log = logging.getLogger("spark_client")

_JOINING = 5.0  #: seconds in which its thread has to end when it is stopped
_LOOK_EVERY = 0.01  #: seconds


class Queries(Protocol):
    """The queries of an application."""

    @property
    def queries(self) -> list[TrackedQuery]:
        """The newest run of each."""
        ...


class Attempt(ABC):
    """One attempt to drain. Another one can follow it if it fails or is stopped.

    Args:
        job: that is drained.

    Attributes:
        mode: what becomes of what is open.
        ended: set when it has come to an end, whichever.
        failure: why it could not go on.
    """

    mode: DrainMode

    def __init__(self, job: str) -> None:
        self._job = job
        self._stopped = threading.Event()
        self.ended = threading.Event()
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="tracking-drain", daemon=True)

    @property
    def drained(self) -> bool:
        """Whether it has come to a good end."""
        return self.ended.is_set() and self.failure is None

    @property
    def stopped(self) -> bool:
        """Whether it was told to take no further step."""
        return self._stopped.is_set()

    @property
    def missing(self) -> str:
        """What it waits for, as far as this application can tell; empty: nothing in particular."""
        return ""

    def begin(self) -> None:
        """Start its thread."""
        self._thread.start()

    def stop(self) -> None:
        """It takes no further step."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOINING)

    @abstractmethod
    def _drain(self) -> None:
        """Carry it out."""

    def _run(self) -> None:
        try:
            self._drain()
        except Exception as error:
            if self._stopped.is_set():
                _log.info("the drain of job %s goes on when its queries are started again: %s", self._job, error)
            else:
                _log.exception("the drain of job %s failed", self._job)
            self.failure = error
        self.ended.set()

    def _await_the_batch_that_has_begun(self, tracked: TrackedQuery) -> None:
        """Finish what has been published: the batch belongs to this deployment, whichever driver began it.

        Spark runs it again before any other batch.
        """
        tracked.rest()
        while tracked.interrupted is not None and tracked.query is not None and tracked.query.isActive:
            if self._stopped.wait(_LOOK_EVERY):
                return
