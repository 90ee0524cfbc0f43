"""A job's events as they happen, over as many connections as necessary."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
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


class Watch(Iterator[Event]):
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
        self._request = request
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

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Event:
        """Wait for the next event.

        Raises:
            StopIteration: it was closed.
            TrackerError: ``EVENTS_EXPIRED`` (retention has dropped an event of the requested range; the message gives
                the number from which none is missing), ``LOG_CHANGED`` (the job was deleted, or its journal lost its
                tail: what the caller knows of the job is no longer valid), ``UNKNOWN_JOB``. After this error it is
                closed.
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
        if not self.log_id:
            self.log_id, self.first_seq = self._find_log(self._sleep)
        with forking.using_grpc():
            stream = self._opened()
            return None if stream is None else next(stream, None)

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
