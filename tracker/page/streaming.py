"""Server-sent events: one message after the other, as fast as the browser takes them and no faster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from starlette.types import Receive, Scope, Send

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
