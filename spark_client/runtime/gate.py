"""The gate in front of a query's batches: what lets a query be stopped between two of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from spark_client.spark_internals.errors import INTERRUPTED


class Stopped(Exception):  # noqa: N818 - not an error
    """End of a batch that must not begin. It was never committed, so it will be read again."""

    def __init__(self) -> None:
        super().__init__(INTERRUPTED)


class Gate:
    """Gate for batches, one at a time, until closed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: int | None = None  # the thread of the batch that is inside
        self._closed = False
        self._paused = False
        self._admitted: int | None = None  # the epoch that may come in though it is closed
        self._stopping = threading.Event()
        self._left_at = float("-inf")  # the monotonic time at which the last one inside has done its work
        self.last_epoch: int | None = None  #: that was let in and has done its work

    @contextmanager
    def passed(self, epoch: int) -> Iterator[None]:
        """Let a batch in; one that may not come in waits for the query to be stopped, or to go on.

        Raises:
            Stopped: it must not begin.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._inside is None and (not self._paused or self._closed))
            enters = not self._closed or epoch == self._admitted
            if enters:
                self._inside = threading.get_ident()
        if not enters:
            self._stopping.wait()
            raise Stopped
        with self._leaving():
            yield

    @contextmanager
    def between(self) -> Iterator[bool]:
        """Keep batches out meanwhile, and yield whether that can be: none is inside, and the gate is open."""
        with self._changed:
            free = self._inside is None and self.is_open
            if free:
                self._inside = threading.get_ident()
        with self._leaving() if free else nullcontext():
            yield free

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """Leave at the end, and let in who waits."""
        try:
            yield
        finally:
            with self._changed:
                self._inside = None
                self._left_at = time.monotonic()
                self._changed.notify_all()

    def done(self, epoch: int) -> None:
        """Note that a batch has done its work."""
        self.last_epoch = epoch

    def admit(self, epoch: int | None) -> None:
        """Close the gate for all batches but one that had begun, in this life or an earlier one; None: for all."""
        with self._changed:
            self._closed = True
            self._admitted = epoch
            self._changed.notify_all()

    def pause(self) -> None:
        """Let no batch in until `go_on`."""
        with self._changed:
            self._paused = True

    def go_on(self) -> None:
        """Let in a batch that waits since `pause`."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    @property
    def paused(self) -> bool:
        """Return whether a batch would wait for `go_on`."""
        return self._paused

    def is_busy(self, soon: float) -> bool:
        """Return whether a batch is inside, or something was done within so many seconds."""
        return self.busy or time.monotonic() - self._left_at < soon

    @property
    def is_open(self) -> bool:
        """Return whether a batch that comes is let in."""
        return not self._closed and not self._paused

    @property
    def busy(self) -> bool:
        """Return whether a batch is inside."""
        return self._inside is not None

    @property
    def inside(self) -> bool:
        """Return whether the caller is the batch that is inside: it cannot wait for itself."""
        return self._inside == threading.get_ident()

    def close(self, timeout: float | None = None) -> bool:
        """Let no batch in any more, and wait for the one that is inside, unless the caller is that batch.

        Args:
            timeout: seconds; None: for as long as the batch takes.

        Returns:
            True if no batch is inside.
        """
        with self._changed:
            self._closed = True
            self._admitted = None
            self._changed.notify_all()
            if self.inside:
                return False
            return self._changed.wait_for(lambda: self._inside is None, timeout)

    def release(self) -> None:
        """Let a batch that waits to come in give up, as the query is being stopped."""
        self._stopping.set()
