"""The gate in front of a query's batches: what lets a query be stopped between two of them."""

from __future__ import annotations

import threading


class Stopped(Exception):  # noqa: N818 - not an error
    """Ends a batch that must not begin.

    Spark takes an interrupted call for a stop, not for a failure, when the call's message has this form. It was never
    committed, so it will be read again.
    """

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling the tracker's stop\n: "
            "java.lang.InterruptedException: stopped between two batches"
        )


class Gate:
    """Lets batches in one at a time, until it is closed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: int | None = None  # the thread of the batch that is inside
        self._closed = False
        self._stopping = threading.Event()
        self.last_epoch: int | None = None  #: that was let in and has done its work

    def __enter__(self) -> None:
        with self._changed:
            if not self._closed:
                self._inside = threading.get_ident()
                return
        self._stopping.wait()
        raise Stopped

    def done(self, epoch: int) -> None:
        """The batch has done its work."""
        self.last_epoch = epoch

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._inside = None
            self._changed.notify_all()

    @property
    def inside(self) -> bool:
        """Whether the caller is the batch that is inside: it cannot wait for itself."""
        return self._inside == threading.get_ident()

    def close(self, timeout: float | None = None) -> bool:
        """Lets no batch in any more, and waits for the one that is inside, unless the caller is that batch.

        Args:
            timeout: seconds; None: for as long as the batch takes.

        Returns:
            Whether no batch is inside.
        """
        with self._changed:
            self._closed = True
            if self.inside:
                return False
            return self._changed.wait_for(lambda: self._inside is None, timeout)

    def release(self) -> None:
        """The query is being stopped: a batch that waits to come in may give up."""
        self._stopping.set()
