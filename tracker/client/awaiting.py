"""Calls in an event loop. Waits take no thread: thousands of them share a connection.

Waits are those of the synchronous client, started as futures, so addresses, credentials and forks are handled as
there. They differ in that they do not block: they neither pause nor check whether the tracker is reachable. Reports,
which are answered soon, take turns on a few threads that nothing else uses.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar, cast

import grpc

from tracker.client import forking
from tracker.client.calls import Backoff, Calls, out_of_quota, refusal, retry_delay
from tracker.client.connection import Connection
from tracker.client.waiting import LOOK_EVERY_S, ONE_LOOK_S, not_so_far, reached
from tracker.contract.events import Ended
from tracker.wire import codec
from tracker.wire.gen import tracker_pb2

Request = TypeVar("Request")
Response = TypeVar("Response")

_LONGEST_WAIT: Final = 60.0  #: seconds that one Await lasts before it is made again


_threads = ThreadPoolExecutor(8, "tracker-report")


def _in_child() -> None:
    global _threads
    _threads = ThreadPoolExecutor(8, "tracker-report")


forking.after_fork_in_child(_in_child)


async def in_thread(call: Callable[..., Response], *arguments: object) -> Response:
    """Make a call that is answered soon in a thread that is kept for such calls: no other work can hold it back."""
    return await asyncio.get_running_loop().run_in_executor(_threads, call, *arguments)


async def end_of(calls: Calls, request: tracker_pb2.AwaitRequest, timeout: float | None) -> Ended:
    """Wait until a substream has ended: see `TrackerClient.await_end`."""
    until = math.inf if timeout is None else time.monotonic() + timeout
    patience = _Patience(calls, request)
    while True:
        left = max(ONE_LOOK_S, until - time.monotonic())
        try:
            answer = await _answer(calls, lambda connection: connection.stubs.Await, request, min(left, _LONGEST_WAIT))
            return codec.read_ended(answer.ended)
        except grpc.RpcError as error:
            pause = patience.after(error, waits=True)
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError(
                f"{request.name!r} of scope {request.scope!r} has not ended on {request.segment!r} within {timeout} s"
            )
        await asyncio.sleep(min(left, pause))


async def progress_of(calls: Calls, job: str, segment: str, end_time: int, timeout: float | None) -> int:
    """Wait until a segment has come so far: see `TrackerClient.await_progress`."""
    until = math.inf if timeout is None else time.monotonic() + timeout
    request = tracker_pb2.GetJobRequest(job=job)
    patience = _Patience(calls, request)
    come = None
    while True:
        pause = LOOK_EVERY_S
        try:
            answer = await _answer(calls, lambda connection: connection.stubs.GetJob, request, calls.timeout)
        except grpc.RpcError as error:
            pause = patience.after(error)
        else:
            patience.reset()
            come = reached(codec.read_job_status(answer), segment)
            if come is not None and come >= end_time:
                return come
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError(not_so_far(job, segment, come, end_time, timeout))
        await asyncio.sleep(min(left, pause))


class _Patience:
    """Consequence of failed attempts: a refusal, a pause, or that the tracker has been away for too long."""

    def __init__(self, calls: Calls, request: object) -> None:
        self._calls = calls
        self._request = request
        self._backoff = Backoff()
        self._failing_since: float | None = None

    def after(self, error: grpc.RpcError, waits: bool = False) -> float:
        """Return the seconds to wait before the next attempt.

        Args:
            error: why the attempt has failed.
            waits: a deadline that has passed is no failure: the call waits for something to happen.

        Raises:
            TrackerError: the tracker refuses the call.
            TrackerUnavailable: it has not answered for the client's `retry_for`.
        """
        refused = refusal(error)
        if refused is not None:
            raise refused from None
        if waits and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            self.reset()
            return 0.0
        now = time.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        pause = self._backoff.after(error)
        over_quota = retry_delay(error) is not None
        if now + pause - self._failing_since > self._calls.retry_for:
            if over_quota:
                raise out_of_quota(error) from None
            raise self._calls.unavailable(self._request, error, self._backoff.failures) from error
        return pause

    def reset(self) -> None:
        """The tracker has answered."""
        self._backoff.reset()
        self._failing_since = None


async def _answer(
    calls: Calls,
    method: Callable[[Connection], grpc.UnaryUnaryMultiCallable[Request, Response]],
    request: Request,
    seconds: float,
) -> Response:
    """Make one attempt.

    Raises:
        grpc.RpcError: it failed.
    """
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def wake(_: object) -> None:  # in a thread of gRPC's
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(done.set)

    with forking.using_grpc():
        connection = calls.waiting_connection()  # without a reference it would be closed
        call = method(connection).future(request, timeout=seconds)
        forking.may_last(call, call.cancel)
    try:
        call.add_done_callback(wake)
        await done.wait()
        if call.code() is not grpc.StatusCode.OK:
            if call.code() is grpc.StatusCode.UNAVAILABLE:
                calls.failed_at(connection.address)
            raise cast(grpc.RpcError, call)
        return call.result()
    finally:
        call.cancel()
        forking.is_over(call)
