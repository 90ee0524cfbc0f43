"""A durable reader of a job's events: the tracker keeps them until the reader has acknowledged them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType

from tracker.client.calls import Calls
from tracker.client.watch import Watch
from tracker.contract.events import Event
from tracker.wire.gen import tracker_pb2


class Subscription(Iterator[Event]):
    """A subscription, made by `TrackerClient.subscribe`: iterate over its events, and acknowledge those that are done.

    The iteration begins after the last acknowledged event, and continues like a watch: it reconnects by itself when the
    tracker restarts, and gives each event once. It never acknowledges an event by itself. A program that ends before it
    has acknowledged an event gets the event again when it subscribes the next time. So events are delivered at least
    once, and handling an event must be safe to repeat.

    One thread iterates; any thread may acknowledge or close. `close` ends the iteration and keeps the subscription;
    `TrackerClient.unsubscribe` removes it.

    Attributes:
        job: the job's name.
        name: the subscription's name.
        acknowledged: the number of the last acknowledged event, as far as this object knows; events come after it.
        log_id: the log to which the numbers belong.
        created: whether the subscription is new.
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
        """Wait for the next event.

        Raises:
            StopIteration: it was closed.
            TrackerError: ``SUBSCRIPTION_EXPIRED`` (events were not acknowledged for longer than `max_age`, or were more
                than `max_events`, so some of them may be gone), ``UNKNOWN_SUBSCRIPTION`` (the subscription was
                removed), ``LOG_CHANGED``, ``UNKNOWN_JOB``. After this error it is closed.
            TrackerUnavailable: the tracker could not be reached for the client's `retry_for`. The caller may continue:
                the next call tries again.
        """
        return next(self._watch)

    @property
    def last_seq(self) -> int:
        """The number of the last event that was read, including events that the filter holds back. Once all events that
        were given are done, the program may acknowledge up to this number.
        """
        return self._watch.last_seq

    def ack(self, event: Event | int, timeout: float | None = None) -> int:
        """Acknowledge an event and all before it: the tracker need not keep them for this subscription.

        Args:
            event: the event, or its `seq`. An event before the last acknowledged one changes nothing.
            timeout: make one attempt of so many seconds; None: repeat it as the client does.

        Returns:
            The number of the last acknowledged event.

        Raises:
            TrackerError: ``SUBSCRIPTION_EXPIRED``, ``UNKNOWN_SUBSCRIPTION``, ``LOG_CHANGED``, ``MALFORMED`` (the event
                does not exist yet), ``UNKNOWN_JOB``.
            TrackerUnavailable: no answer in time. The caller may acknowledge it again.
        """
        seq = event.seq if isinstance(event, Event) else event
        request = tracker_pb2.AckRequest(job=self.job, name=self.name, seq=seq, log_id=self.log_id)
        calls = self._calls if timeout is None else self._calls.with_patience(timeout, 0)
        answer = calls.repeat(lambda connection: connection.stubs.Ack, request)
        self.acknowledged = answer.acknowledged
        return self.acknowledged

    def close(self) -> None:
        """End the iteration, from any thread. The subscription stays: the tracker keeps its events."""
        self._watch.close()
