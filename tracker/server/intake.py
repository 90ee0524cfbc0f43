"""Requests of callers: received one by one, bounded over all callers together, and parsed in turns.

gRPC has a message in memory before the server can look at it, and does not announce its size. So the server watches
its own memory. Large requests arrive slowly. While many requests are slow and the process grows by more than half of
`max_pending_bytes`, the server rejects the oldest of them. It counts the bytes of a request that has arrived until the
request is carried out.

Besides, blocks of memory go back to the system, and all objects are looked at, when that delays no request for long.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import Message

from tracker.contract.bounds import check_bounds
from tracker.contract.commands import Command
from tracker.contract.refusal import Refusal
from tracker.core import Refused
from tracker.security.guard import Caller
from tracker.wire import codec
from tracker.wire.codec import Method
from tracker.wire.gen import tracker_pb2 as wire

from .limits import Limits, Shape, check_command, check_counts, least_limit, most_promises, pieces, shape_of

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_PAGE = os.sysconf("SC_PAGE_SIZE")
_NEVER = 1 << 30  # collections of the middle generation
_SHARE = 1000  # full collections take at most one part in so many of the time
_PAUSE_S = 10.0  # seconds between two of them, at least


def return_large_blocks() -> None:
    """Make glibc return large blocks to the system as soon as they are freed.

    By default, glibc raises the size from which it does so each time a large block is freed, and it keeps a heap for
    each thread. After a few large messages, the process would keep hundreds of megabytes. With a size of our own, glibc
    would return more than 128 KiB at the end of its heap, too. A report of 10,000 entries would then take and return
    that memory each time; so glibc may keep a few megabytes there.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 4 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 8 << 20)
        libc.mallopt(_M_ARENA_MAX, 2)


async def collect_garbage_rarely() -> None:
    """Run full garbage collections, each long after the one before, until the task is cancelled.

    A full collection visits every name of every substream: 30 ms for a million of them, in which nobody is served. By
    default, Python runs one as soon as the objects that it has not visited yet are a quarter of those that it has. Most
    of what a server has is in few large lists, so this would be several times a second while it answers large
    requests. Garbage that only a full collection finds is rare, and small.
    """
    young, middle, full = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    try:
        pause = _PAUSE_S
        while True:
            await asyncio.sleep(pause)
            began = time.perf_counter()
            gc.collect()
            pause = max(_PAUSE_S, _SHARE * (time.perf_counter() - began))
    finally:
        gc.set_threshold(young, middle, full)


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE
    except OSError:  # other systems than Linux do not have this file
        return 0


def return_free_memory() -> None:
    """Return to the system what glibc has free."""
    # glibc keeps blocks that were freed in the middle of its heaps; after large messages these may be gigabytes.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


Context: TypeAlias = "grpc.aio.ServicerContext[bytes, Message]"

_LOOK_S = 0.05  # seconds between two looks at the receptions under way
_SLOW_S = 0.1  # a request that takes longer to arrive is large, or its caller has stopped sending
_COPIES = 3  # copies of a message that gRPC has in memory while it receives it
_AT_ONCE = 64 << 10  # bytes: a smaller request is parsed on the event loop, and counted afterwards
_PARSED_AT_ONCE = 640 << 10  # bytes: so is a report without promises, which takes 3 ms, whatever it holds
_ITEMS_AT_ONCE = 24_000  # strings: with at most so many, the report's command is made on the event loop, too
_PROMISE_ITEMS = 8  # the cost of a promise, in strings
_THREADS = 2
_TRIM = 16 << 20  # bytes: after a larger request, the process returns memory to the system
_TRIM_S = 5.0  # seconds: but not more often than this
_LATER = "retry later"

_SHAPES = {
    Method.DEFINE_JOB: shape_of(wire.DefineJobRequest.DESCRIPTOR),
    Method.REPORT: shape_of(wire.ReportRequest.DESCRIPTOR),
    Method.COMMIT: shape_of(wire.CommitRequest.DESCRIPTOR),
}
_NOTHING_COUNTED = Shape()


@dataclass(slots=True, eq=False)
class _Reception:
    since: float
    turned_away: bool = False


class Intake:
    """Receiver of requests that makes commands of them, within the limits.

    Attributes:
        under_way: how many calls and streams of reports are, by their limits.
    """

    def __init__(self, limits: Limits, turn_away: Callable[[Context, Exception], Awaitable[None]]) -> None:
        self._limits = limits
        self._turn_away = turn_away
        self._receptions: dict[Context, _Reception] = {}
        self._watching: asyncio.Task[None] | None = None
        self.under_way = Counter[str]()
        self._bytes = 0
        self._threads = ThreadPoolExecutor(_THREADS, "intake")
        self._trimmed = 0.0
        self._uncounted = least_limit(limits)  # bytes: a request of this size cannot exceed any limit

    # ---------------------------------------------------------------- receiving

    async def receive(self, context: Context) -> bytes | None:
        """Receive a call's request.

        Returns:
            The request's bytes, or None if the server has rejected the call or the caller has gone.

        Raises:
            Refused: ``LIMIT``: too many bytes are under way.
        """
        self._receptions[context] = _Reception(time.monotonic())
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        try:
            data = await context.read()
        finally:
            reception = self._receptions.pop(context)
        if reception.turned_away or not isinstance(data, bytes):
            return None
        if self._bytes and self._bytes + len(data) > self._limits.max_pending_bytes:
            self._limits.check("max_pending_bytes", self._bytes + len(data), _LATER)
        return data

    @contextmanager
    def held(self, data: bytes) -> Iterator[None]:
        """Count a request's bytes while it is parsed and carried out."""
        self._bytes += len(data)
        try:
            yield
        finally:
            self._bytes -= len(data)
            if len(data) > _TRIM:
                self._trim()

    def call(self) -> AbstractContextManager[None]:
        """Count a call while it is under way.

        Raises:
            Refused: ``LIMIT``: too many calls are under way.
        """
        return self._counted("max_calls", _LATER)

    def report_stream(self) -> AbstractContextManager[None]:
        """Count a stream of reports while it is under way.

        Raises:
            Refused: ``LIMIT``: too many of them are under way.
        """
        return self._counted("max_report_streams", "use fewer report streams")

    @contextmanager
    def _counted(self, limit: str, remedy: str) -> Iterator[None]:
        self._limits.check(limit, self.under_way[limit] + 1, remedy)
        self.under_way[limit] += 1
        try:
            yield
        finally:
            self.under_way[limit] -= 1

    async def _watch(self) -> None:
        """Watch slow receptions, as long as any reception is under way."""
        before = 0  # bytes in memory when the first of the receptions that are slow now was found
        allowed = max(1, self._limits.max_pending_bytes // (_COPIES * self._limits.max_message_bytes))
        while self._receptions:
            await asyncio.sleep(_LOOK_S)
            now = time.monotonic()
            slow = [
                (context, reception)
                for context, reception in self._receptions.items()
                if now - reception.since > _SLOW_S and not reception.turned_away
            ]
            if len(slow) <= allowed:
                before = 0
                continue
            memory = resident_bytes()
            before = before or memory
            if memory - before > self._limits.max_pending_bytes // 2:
                for context, reception in slow[: len(slow) - allowed]:
                    reception.turned_away = True
                    await self._turn_one_away(context)
                before = 0
                self._trim()
        self._watching = None

    async def _turn_one_away(self, context: Context) -> None:
        refused = Refused(
            Refusal.LIMIT,
            f"limit max_pending_bytes={self._limits.max_pending_bytes} exceeded by the requests that are being "
            f"received; {_LATER}",
        )
        with suppress(Exception):
            await self._turn_away(context, refused)

    def _trim(self) -> None:
        """Return the memory of large messages to the system."""
        if time.monotonic() - self._trimmed > _TRIM_S:
            self._trimmed = time.monotonic()
            asyncio.get_running_loop().call_later(
                1.0, lambda: asyncio.get_running_loop().run_in_executor(self._threads, return_free_memory)
            )

    # ---------------------------------------------------------------- reading

    async def command(self, method: Method, data: bytes) -> Command:
        """Parse a request into its command."""
        self._check_size(method, len(data))
        if len(data) <= _AT_ONCE:
            return self._command(method, data)
        if method is Method.REPORT and (command := self._middling_report(data)) is not None:
            return command
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._command, method, data)

    def _check_size(self, method: Method, size: int) -> None:
        check = self._limits.check
        check("max_message_bytes", size, "split the request")
        if method is Method.DEFINE_JOB:
            check("max_spec_bytes", size, "shorten names, combine segments and fronts")
        elif method not in (Method.REPORT, Method.COMMIT):
            check("max_question_bytes", size, "a name has at most 512 bytes")

    def _middling_report(self, data: bytes) -> Command | None:
        """Parse a report of middle size; None if the report has to be cut into pieces first.

        Most of such a report is columns and names, which the parser reads very fast. So parsing it and then counting
        its content is cheaper than walking over its bytes, or passing it to a thread.
        """
        if len(data) > _PARSED_AT_ONCE or _PROMISE_ITEMS * most_promises(data) > _ITEMS_AT_ONCE:
            return None
        request = codec.parse(wire.ReportRequest, data)
        strings = sum(map(len, (request.units, request.scopes, request.names, request.segments)))
        if strings + _PROMISE_ITEMS * len(request.promises) > _ITEMS_AT_ONCE:
            return None
        command = codec.read_report(request)
        check_command(command, self._limits)
        check_bounds(command)
        return command

    def _command(self, method: Method, data: bytes) -> Command:
        if len(data) <= _AT_ONCE:
            command = codec.read_command(method, data)
            if len(data) > self._uncounted:
                check_command(command, self._limits)
            check_bounds(command)
            return command
        shape = _SHAPES.get(method, _NOTHING_COUNTED)
        check_counts(data, shape, self._limits)
        if method is Method.REPORT:
            command = codec.read_large_report(pieces(data, shape))
        else:
            command = codec.read_command(method, data)
        check_bounds(command)
        return command

    def question(self, kind: type[Any], data: bytes) -> Any:
        """Parse the message of a look-up."""
        self._limits.check("max_message_bytes", len(data), "split the request")
        self._limits.check("max_question_bytes", len(data), "ask for less in one call")
        check_counts(data, shape_of(kind.DESCRIPTOR), self._limits)
        return codec.parse(kind, data)

    def asked(self, kind: type[Any], data: bytes, caller: Caller) -> Any:
        """Parse the message of a look-up about a job, which its caller must be allowed to read."""
        request = self.question(kind, data)
        caller.authorize(request.job)
        return request
