"""A job as browsers that look at it see it: read once for all of them, at a bounded rate, only while somebody looks.

A browser gets the newest state when it has taken the one before, so one that is slow, or stuck, has at most one state
waiting for it, and costs no memory beyond that.

States go to browsers as server-sent events: one message after the other, as fast as the browser takes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from tracker.contract.refusal import Refusal, Refused

from .documents import Json, event, overview, surveyed
from .source import Source

STUCK_S: Final = 60.0  #: a browser that takes nothing for so long is given up


def sent(data: str, event: str = "") -> str:
    """Return one message of a stream.

    Args:
        event: the message's name; "": none.

    >>> sent("{}", "hello")
    'event: hello\\ndata: {}\\n\\n'
    """
    return f"event: {event}\ndata: {data}\n\n" if event else f"data: {data}\n\n"


BEAT: Final = ": nothing new\n\n"  #: shows a browser that the stream is alive


class Streams:
    """The streams of one application.

    Args:
        most: how many there may be at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def full(self) -> bool:
        """Return whether there may be no more."""
        return len(self._tasks) >= self._most

    def close(self) -> None:
        """End all streams, since the server stops."""
        for task in self._tasks:
            task.cancel()

    def of(self, messages: AsyncIterator[str]) -> _EventStream:
        """Return the answer that sends messages until they end, the browser goes, or the server stops."""
        return _EventStream(self._tasks, messages)


class _EventStream:
    def __init__(self, tasks: set[asyncio.Task[None]], messages: AsyncIterator[str]) -> None:
        self._tasks = tasks
        self._messages = messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        sending = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(_disconnected(receive))
        self._tasks.add(sending)
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            with suppress(asyncio.CancelledError, TimeoutError, OSError):
                await sending
            self._tasks.discard(sending)

    async def _send(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for message in self._messages:
                body = {"type": "http.response.body", "body": message.encode(), "more_body": True}
                async with asyncio.timeout(STUCK_S):  # `wait_for` of Python 3.11 may swallow a cancellation
                    await send(body)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            closing = getattr(self._messages, "aclose", None)
            if closing is not None:
                await closing()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


log = logging.getLogger("tracker.page")

_STATE_S: Final = 1.0  #: seconds between two looks at a job
_QUICK_S: Final = 0.2  #: a survey that takes longer goes on beside the looks
_EVENTS: Final = 50


def written(value: Any) -> str:
    """Return JSON on one line, for an answer or an event of a stream."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class Feed:
    """The states of one job."""

    def __init__(self, source: Source, job: str) -> None:
        self._source = source
        self._job = job
        self._news = asyncio.Condition()
        self._version = 0
        self._state = ""
        self._survey: Json | None = None
        self._refused: Refused | None = None
        self.readers = 0

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Read the job while any reader is in this context."""
        self.readers += 1
        if self.readers == 1:
            self._refused = None
            self._task = asyncio.create_task(self._read())
        try:
            yield
        finally:
            self.readers -= 1
            if not self.readers:
                self._task.cancel()

    async def next(self, version: int, timeout: float) -> tuple[int, str] | None:
        """Return the newest state that differs from the one of a version (0: any), as JSON; None if there is none in
        time.

        Raises:
            Refused: the job is gone.
        """
        async with self._news:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._news.wait_for(lambda: self._refused or self._version > version)
            if self._refused is not None:
                raise self._refused
            return (self._version, self._state) if self._version > version else None

    async def _read(self) -> None:
        counting: asyncio.Task[None] | None = None
        try:
            while True:
                if counting is None:
                    counting = asyncio.create_task(self._count())
                # A quick one is waited for, so that both show the same moment.
                done, _ = await asyncio.wait({counting}, timeout=_QUICK_S)
                if done:
                    counting.result()
                    counting = None
                state = await self._source.status(self._job, overview)
                tail = await self._source.tail(self._job, 0, _EVENTS)
                state["survey"] = self._survey
                state["events"] = [event(each) for each in tail.events]
                await self._publish(written(state), None)
                await asyncio.sleep(_STATE_S)
        except Refused as refused:
            await self._publish(None, refused)
        except Exception:
            log.exception("the page cannot read a job", extra={"job": self._job})
            await self._publish(None, Refused(Refusal.FAULT, "a fault in the server; see the server's log"))
        finally:
            if counting is not None:
                counting.cancel()

    async def _publish(self, state: str | None, refused: Refused | None) -> None:
        async with self._news:
            if state == self._state:
                return
            self._refused = refused
            if state is not None:
                self._state = state
                self._version += 1
            self._news.notify_all()

    async def _count(self) -> None:
        made = await self._source.survey(self._job)
        self._survey = {**surveyed(made.survey), "at": made.at}


class Feeds:
    """The feeds of the jobs that anybody looks at."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._feeds: dict[str, Feed] = {}

    @contextlib.asynccontextmanager
    async def of(self, job: str) -> AsyncIterator[Feed]:
        """Yield the feed of a job, for as long as the context lasts."""
        feed = self._feeds.setdefault(job, Feed(self._source, job))
        try:
            async with feed.reading():
                yield feed
        finally:
            if not feed.readers and self._feeds.get(job) is feed:
                del self._feeds[job]
