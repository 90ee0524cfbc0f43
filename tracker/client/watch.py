"""A job's events as they happen, over however many connections it takes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

import grpc

from tracker.client import forking
from tracker.client.calls import Backoff, Calls, refusal
from tracker.contract.callers import Event
from tracker.wire import codec
from tracker.wire.gen import tracker_pb2

if TYPE_CHECKING:
    from grpc import _CallIterator


class Watch(Iterator[Event]):
    """An iterator over a job's events that never ends by itself: made by `TrackerClient.watch`.

    A lost connection and a server that restarts are not seen here: it comes back with the last `seq` seen, so each
    event is given once and none is missed. One thread iterates; any may close it.

    Attributes:
        first_seq: from this event on none is missing that the filters let through: where a watch from 0 starts. 0
            before the first event was asked for, and where the log was named.
        last_seq: the last event that was looked at, filtered ones included: where another watch would go on.
        log_id: the log it reads; empty before the first event was asked for.
    """

    def __init__(
        self,
        calls: Calls,
        find_log: Callable[[Callable[[float], object]], tuple[str, int]],
        request: tracker_pb2.WatchRequest,
    ) -> None:
        self._calls = calls
        self._find_log = find_log
        self._request = request
        self.first_seq = 0
        self.last_seq = request.after_seq
        self.log_id = request.log_id
        self._closed = threading.Event()
        self._backoff = Backoff()
        self._lock = threading.Lock()
        self._stream: _CallIterator[tracker_pb2.Event] | None = None
        self._pid = os.getpid()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Event:
        """Waits for the next event.

        Raises:
            StopIteration: it was closed.
            TrackerError: ``EVENTS_EXPIRED`` (retention has dropped an event that was asked for; the message says from
                where on none is missing), ``LOG_CHANGED`` (the job was deleted, or its journal lost its tail: what is
                known of it holds no more), ``UNKNOWN_JOB``. It is closed then.
            TrackerUnavailable: no sign of the tracker for as long as the client's `retry_for` says. Going on is
                allowed: the next call tries again.
        """
        while not self._closed.is_set():
            try:
                message = self._next_message()
            except grpc.RpcError as error:
                refused = refusal(error)
                if refused is not None and not self._closed.is_set():
                    self.close()
                    raise refused from None
                message = None
            except _ClosedError:
                break
            if message is None:
                self._come_back()
                continue
            self._backoff.reset()
            self.last_seq = message.seq
            event = codec.read_event(message)
            if event is not None:
                return event
        raise StopIteration

    def close(self) -> None:
        """Ends the iteration, from any thread; one that waits for an event stops waiting."""
        self._closed.set()
        self._let_go()

    def _next_message(self) -> tracker_pb2.Event | None:
        """The next message; None if the server has ended the stream, or this was closed."""
        if not self.log_id:
            self.log_id, self.first_seq = self._find_log(self._sleep)
        with forking.using_grpc():
            stream = self._opened()
            return None if stream is None else next(stream, None)

    def _opened(self) -> _CallIterator[tracker_pb2.Event] | None:
        with self._lock:
            if self._pid != os.getpid():
                self._stream, self._pid = None, os.getpid()
            if self._closed.is_set():
                return None
            if self._stream is None:
                self._request.after_seq = self.last_seq
                self._request.log_id = self.log_id
                self._stream = self._calls.connection().stubs.Watch(self._request)
                forking.may_last(self._stream, self._stream.cancel)
            return self._stream

    def _let_go(self) -> None:
        with forking.using_grpc(), self._lock:
            stream, self._stream = self._stream, None
            if stream is not None and self._pid == os.getpid():
                stream.cancel()
                forking.is_over(stream)

    def _come_back(self) -> None:
        """After a lost stream. A stream that stays silent does not say whether it stands, so another call asks."""
        self._let_go()
        with suppress(_ClosedError):
            self._sleep(self._backoff.next())
            self._calls.wait_until_reachable(self._sleep)

    def _sleep(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise _ClosedError


class _ClosedError(Exception):
    """The watch was closed while it waited for the tracker."""
