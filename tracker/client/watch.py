"""A job's events as they happen, over as many connections as necessary; a durable reader acknowledges them."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

import grpc

from tracker.client import forking
from tracker.client.calls import Backoff, Calls, out_of_quota, refusal, retry_delay
from tracker.client.connection import Connection
from tracker.client.errors import TrackerError
from tracker.contract.events import Event
from tracker.wire import codec
from tracker.wire.gen import tracker_pb2

if TYPE_CHECKING:
    from grpc import _CallIterator


from tracker.contract.events import EventPage


class Watch(Iterator[Event], AbstractContextManager["Watch"]):
    """An iterator over a job's events that never ends by itself, made by `TrackerClient.watch`.

    When a connection is lost or the server restarts, it reconnects and continues after the last event, so it gives each
    event once and misses none. One thread iterates; any thread may close it. If nobody does, it ends with the last
    reference to it, or with the program.

    Attributes:
        first_seq: the number from which no event that the filters pass is missing: where a watch from 0 starts. It is 0
            before the first call of `next`, and if the caller gave a `log_id`.
        last_seq: the number of the last event that was read, including events that the filters hold back: another
            watch can continue from here.
        log_id: the log that it reads; empty before the first call of `next`, unless the caller gave it.
    """

    def __init__(
        self,
        calls: Calls,
        find_log: Callable[[Callable[[float], object]], tuple[str, int]],
        request: tracker_pb2.WatchRequest,
    ) -> None:
        self._calls = calls
        self._find_log = find_log
        request.in_batches = True
        self._request = request
        self._ready: deque[tracker_pb2.Event] = deque()  # that have come in one message
        self.first_seq = 0
        self.last_seq = request.after_seq
        self.log_id = request.log_id
        self._closed = threading.Event()
        self._backoff = Backoff()
        self._quota_since = 0.0  # the monotonic time since which a quota has refused it; 0: none does
        self._lock = threading.Lock()
        self._stream: _CallIterator[tracker_pb2.Event] | None = None
        self._connection: Connection | None = None  # the stream's: without a reference it would be closed
        self._pid = os.getpid()
        self._end: weakref.finalize[[grpc.Call, int], Watch] | None = None  # ends the stream, once

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> Event:
        """Wait for the next event.

        Raises:
            StopIteration: the watch was closed.
            TrackerError: ``EVENTS_EXPIRED`` (retention has dropped an event of the requested range; the message gives
                the number from which none is missing), ``LOG_CHANGED`` (the job was deleted, its journal lost its
                tail, or a backup was restored: what the caller knows of the job is no longer valid), ``UNKNOWN_JOB``.
                After this error it is closed.
            TrackerUnavailable: the tracker could not be reached for the client's `retry_for`. The caller may continue:
                the next call tries again.
        """
        while not self._closed.is_set():
            pause = 0.0
            try:
                message = self._next_message()
            except grpc.RpcError as error:
                refused = refusal(error) or self._out_of_quota(error)
                if refused is not None and not self._closed.is_set():
                    self.close()
                    raise refused from None
                message, pause = None, self._backoff.after(error)
            except _ClosedError:
                break
            if message is None:
                self._come_back(pause)
                continue
            self._backoff.reset()
            self._quota_since = 0.0
            self.last_seq = message.seq
            event = codec.read_event(message)
            if event is not None:
                return event
        raise StopIteration

    def close(self) -> None:
        """End the iteration, from any thread. A thread that waits for an event stops waiting."""
        self._closed.set()
        self._let_go()

    def _next_message(self) -> tracker_pb2.Event | None:
        """Return the next message; None if the server has ended the stream, or this watch was closed."""
        if self._ready:
            return self._ready.popleft()
        if not self.log_id:
            self.log_id, self.first_seq = self._find_log(self._sleep)
        with forking.using_grpc():
            stream = self._opened()
            message = None if stream is None else next(stream, None)
        if message is not None:
            self._ready.extend(message.more)
        return message

    def _opened(self) -> _CallIterator[tracker_pb2.Event] | None:
        with self._lock:
            if self._pid != os.getpid():
                self._stream, self._connection, self._pid = None, None, os.getpid()
            if self._closed.is_set():
                return None
            if self._stream is None:
                self._request.after_seq = self.last_seq
                self._request.log_id = self.log_id
                self._connection = self._calls.waiting_connection()
                self._stream = self._connection.stubs.Watch(self._request)
                forking.may_last(self._stream, self._stream.cancel)
                self._end = weakref.finalize(self, _end, self._stream, self._pid)
            return self._stream

    def _let_go(self) -> None:
        with forking.using_grpc(), self._lock:
            if self._end is not None:
                self._end()
            self._stream, self._connection = None, None

    def _out_of_quota(self, error: grpc.RpcError) -> TrackerError | None:
        """Return the error if a quota has refused the stream for as long as the client waits, else None."""
        if retry_delay(error) is None:
            return None
        now = time.monotonic()
        self._quota_since = self._quota_since or now
        return out_of_quota(error) if now - self._quota_since >= self._calls.retry_for else None

    def _come_back(self, pause: float) -> None:
        """Wait for the tracker after a lost stream. A silent stream does not show whether it works, so this makes
        another call."""
        self._let_go()
        with suppress(_ClosedError):
            self._sleep(pause or self._backoff.next())
            self._calls.wait_until_reachable(self._sleep)

    def _sleep(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise _ClosedError


def _end(stream: grpc.Call, pid: int) -> None:
    # Objects are freed in any thread, even in one that is about to fork. So this must not wait for the end of a fork.
    if pid == os.getpid():
        stream.cancel()
        forking.is_over(stream)


class _ClosedError(Exception):
    """The watch was closed while it waited for the tracker."""


class Subscription(Iterator[Event], AbstractContextManager["Subscription"]):
    """A subscription, made by `TrackerClient.subscribe`: iterate over its events, and acknowledge those that are done.

    The iteration begins after the last acknowledged event, and continues like a watch: it reconnects by itself when the
    tracker restarts, and gives each event once. It never acknowledges an event by itself. A program that ends before it
    has acknowledged an event gets the event again when it subscribes the next time. So events are delivered at least
    once, and handling an event must be safe to repeat.

    One thread iterates; any thread may acknowledge or close. `close` ends the iteration and keeps the subscription;
    `TrackerClient.unsubscribe` removes it.

    Attributes:
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> Event:
        """Wait for the next event.

        Raises:
            StopIteration: the watch was closed.
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


def pages(read: Callable[[int, int], EventPage], after: int, up_to: int | None = None) -> Iterator[EventPage]:
    """Yield the pages of a range of one log, until nothing more is there.

    Args:
        read: reads a page: the events after a number, up to a number; 0: up to the newest.
        up_to: the events up to it; None: up to the newest.

    >>> def every_event(client, job):
    ...     for page in pages(lambda after, up_to: client.list_events(job, after, up_to), 0):
    ...         yield from page.events
    """
    while up_to is None or after < up_to:
        page = read(after, up_to or 0)
        yield page
        if page.last_seq <= after:
            return
        after = page.last_seq
