"""A durable reader of a job's events: the tracker keeps them until they have been acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType

from tracker.client.calls import Calls
from tracker.client.watch import Watch
from tracker.contract.callers import Event
from tracker.wire.gen import tracker_pb2


class Subscription(Iterator[Event]):
    """A subscription that stands, as `TrackerClient.subscribe` gives it: iterate it, and acknowledge what is done.

    The iteration begins after what was acknowledged when this object was made, and goes on like a watch: it comes back
    by itself when the tracker restarts, and gives each event once. It acknowledges nothing by itself. A program that
    ends before it has acknowledged an event gets it again when it subscribes the next time: at least once, so what it
    does with an event has to bear repetition.

    One thread iterates; any may acknowledge or close. Closing ends the iteration and keeps the subscription;
    `TrackerClient.unsubscribe` ends it.

    Attributes:
        job: the job's name.
        name: the subscription's.
        acknowledged: its place, as far as this object knows: its events come after this one.
        log_id: the log that the numbers count in.
        created: whether it did not exist before.
    """

    def __init__(
        self, calls: Calls, watch: Callable[[int], Watch], job: str, name: str, answer: tracker_pb2.SubscribeResponse
    ) -> None:
        self._calls = calls
        self._watch = watch(answer.acknowledged)
        self.job = job
        self.name = name
        self.acknowledged = answer.acknowledged
        self.log_id = answer.log_id
        self.created = answer.created

    def __repr__(self) -> str:
        return f"Subscription(job={self.job!r}, name={self.name!r}, acknowledged={self.acknowledged})"

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> Event:
        """Waits for the next event.

        Raises:
            StopIteration: it was closed.
            TrackerError: ``SUBSCRIPTION_EXPIRED`` (it left events lying for longer than `max_age`, or more than
                `max_events`: what was not acknowledged may be gone), ``UNKNOWN_SUBSCRIPTION`` (somebody has
                unsubscribed it), ``LOG_CHANGED``, ``UNKNOWN_JOB``. It is closed then.
            TrackerUnavailable: no sign of the tracker for as long as the client's `retry_for` says. Going on is
                allowed: the next call tries again.
        """
        return next(self._watch)

    @property
    def last_seq(self) -> int:
        """The last event that was looked at, those included that the filter held back: all up to it may be
        acknowledged once what was given is done.
        """
        return self._watch.last_seq

    def ack(self, event: Event | int, timeout: float | None = None) -> int:
        """Acknowledges an event and all before it: the tracker need not keep them for this subscription.

        Args:
            event: the event, or its `seq`. One before an acknowledged one changes nothing.
            timeout: seconds in which one attempt is made; None: as many attempts as the client makes.

        Returns:
            The subscription's place now.

        Raises:
            TrackerError: ``SUBSCRIPTION_EXPIRED``, ``UNKNOWN_SUBSCRIPTION``, ``LOG_CHANGED``, ``MALFORMED`` (it has not
                happened yet), ``UNKNOWN_JOB``.
            TrackerUnavailable: no answer in time. It may be acknowledged again.
        """
        seq = event.seq if isinstance(event, Event) else event
        request = tracker_pb2.AckRequest(job=self.job, name=self.name, seq=seq, log_id=self.log_id)
        calls = self._calls if timeout is None else Calls(self._calls.address, timeout, retry_for=0)
        answer = calls.repeat(lambda connection: connection.stubs.Ack, request)
        self.acknowledged = answer.acknowledged
        return self.acknowledged

    def close(self) -> None:
        """Ends the iteration, from any thread. The subscription stays: the tracker keeps its events."""
        self._watch.close()
