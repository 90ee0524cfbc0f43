"""A line to a store of objects that writes down what is asked, and breaks when it is meant to."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

_REQUEST: re.Pattern[bytes] = re.compile(
    rb"(?:^|\n)(GET|PUT|HEAD|POST|DELETE) (/[^ \r\n]*) HTTP/1\.1\r\n((?:[^\r\n]+\r\n)*)"
)

_ERROR = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Request(NamedTuple):
    """One request.

    Attributes:
        kind: the method; of a GET that lists, LIST; of a PUT that copies, COPY; of one that creates, CREATE.
        path: with what is asked.
        own: whether this package asks, which does so by obstore; else Spark does, by Hadoop's client.
    """

    kind: str
    path: str
    own: bool


class Line:
    """A port whose bytes are passed on to a server.

    Attributes:
        asked: all requests, in order.
        settings: of Hadoop's client, to reach the store by this line.
        fault: what becomes of a request: None, ``before`` (it does not arrive), ``after`` (its answer does not),
            ``500`` (it is done, and the answer is an error).
    """

    def __init__(self, to: int) -> None:
        self.asked: list[Request] = []
        self.settings: dict[str, str] = {}
        self.fault: Callable[[Request], str | None] = lambda request: None
        self._to = to
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self.port: int = server.result().sockets[0].getsockname()[1]

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(_end_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def count(self, since: int = 0, below: str = "") -> Counter[str]:
        """Count the requests of each kind on paths with some text."""
        return Counter(request.kind for request in self.asked[since:] if below in request.path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            theirs, ours = await asyncio.open_connection("127.0.0.1", self._to)
            mute: asyncio.Future[bytes] = self._loop.create_future()  # what answers in place of the store
            await asyncio.gather(self._up(reader, ours, writer, mute), self._down(theirs, writer, mute))

    async def _up(
        self,
        reader: asyncio.StreamReader,
        ours: asyncio.StreamWriter,
        writer: asyncio.StreamWriter,
        mute: asyncio.Future[bytes],
    ) -> None:
        with suppress(OSError, asyncio.CancelledError):
            while data := await reader.read(1 << 16):
                for found in _REQUEST.finditer(data):
                    request = _request(found[1].decode(), found[2].decode(), found[3].lower())
                    self.asked.append(request)
                    fault = self.fault(request)
                    if fault == "before":
                        writer.close()
                        ours.close()
                        return
                    if fault is not None and not mute.done():
                        mute.set_result(_ERROR if fault == "500" else b"")
                ours.write(data)
                await ours.drain()
        ours.close()

    async def _down(
        self, theirs: asyncio.StreamReader, writer: asyncio.StreamWriter, mute: asyncio.Future[bytes]
    ) -> None:
        with suppress(OSError, asyncio.CancelledError):
            while data := await theirs.read(1 << 16):
                if mute.done() and not data.startswith(b"HTTP/1.1 100"):
                    writer.write(mute.result())
                    break
                writer.write(data)
                await writer.drain()
        writer.close()


async def _end_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _request(method: str, path: str, headers: bytes) -> Request:
    kind = method
    if method == "GET" and "list-type=2" in path:
        kind = "LIST"
    elif method == "PUT" and b"x-amz-copy-source" in headers:
        kind = "COPY"
    elif method == "PUT" and b"if-none-match" in headers:
        kind = "CREATE"
    return Request(kind, path, b"user-agent: object_store/" in headers)
