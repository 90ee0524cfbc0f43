"""A server of an application in the event loop that runs already, until the context ends.

Its connections are bounded, and each has a deadline for all that its peer has to do. A connection costs a peer nothing,
and this process a file. So nobody is turned away because others hold connections: a new one takes the place of another
one, and silence, halves of requests and answers that nobody reads end in time.

`application` has `/metrics`, `/healthz`, `/readyz`, and the routes that are mounted beside them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import uvicorn
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from tracker.wire.addresses import CannotListenError, host_and_port

_SWEEP_S: Final = 0.5


@dataclass(kw_only=True, eq=False)
class Connections:
    """All connections of one server."""

    most: int = 500  #: at once; the next one closes another
    most_of_peer: int = 200  #: at once, of one address
    request_s: float = 10.0  #: seconds for the handshake, and again for a whole request
    keep_alive_s: float = 75.0  #: seconds that a connection may wait for its next request
    unread_s: float = 30.0  #: seconds in which the peer may read nothing of an answer that is larger than the buffers
    tls: ssl.SSLContext | None = None  #: with it, each connection begins with a handshake
    _open: dict[Connection, None] = field(init=False, default_factory=dict)  # the oldest first
    _of_peer: Counter[str] = field(init=False, default_factory=Counter)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection) -> None:
        """Count a new connection; close another one if there are too many."""
        if self._of_peer[connection.peer] >= self.most_of_peer:
            self._close_one(connection.peer)
        elif len(self._open) >= self.most:
            ((peer, _),) = self._of_peer.most_common(1)
            self._close_one(peer)
        self._open[connection] = None
        self._of_peer[connection.peer] += 1

    def discard(self, connection: Connection) -> None:
        """Count a connection no more; it may be gone already."""
        if connection not in self._open:
            return
        del self._open[connection]
        self._of_peer[connection.peer] -= 1
        if not self._of_peer[connection.peer]:
            del self._of_peer[connection.peer]

    def _close_one(self, peer: str) -> None:
        """Close the peer's oldest connection that is idle; if each has a request under way, the oldest."""
        own = [each for each in self._open if each.peer == peer]
        victim = next((each for each in own if not each.is_busy), own[0])
        victim.abort()

    async def sweep(self) -> None:
        """Close what is over its deadline, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = time.monotonic()
            for each in list(self._open):
                if now > each.deadline:
                    each.abort()

    def close(self) -> None:
        for each in list(self._open):
            each.abort()


class Connection(H11Protocol):
    """One connection, from its first packet: the handshake, if there is TLS, and then one request after the other.

    Args:
        given: what uvicorn gives to a protocol.
    """

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._all = connections
        self._raw: asyncio.Transport | None = None
        self._is_made = False  # for HTTP: once hands are shaken
        self._early: list[bytes] = []  # what came between the handshake's end and its notice
        self._handshake: asyncio.Task[None] | None = None
        self._is_whole = True  # whether the request that began last is here as a whole
        self.peer = ""
        self.deadline = time.monotonic() + connections.request_s

    @property
    def is_busy(self) -> bool:
        """Return whether a whole request is here and its answer is under way."""
        return self._answers() and self._is_whole

    def _answers(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def abort(self) -> None:
        """Close the connection now, whatever is under way."""
        self._all.discard(self)
        if self._raw is not None:
            self._raw.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin: count the connection, and shake hands before anything else."""
        self._raw = transport
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if address else ""
        self._all.add(self)
        if self._all.tls is None:
            self._make(transport)
            return
        transport.pause_reading()  # the first bytes are for the handshake
        self._handshake = self.loop.create_task(self._shake_hands(transport, self._all.tls))

    async def _shake_hands(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        try:
            encrypted = await self.loop.start_tls(
                transport,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=self._all.request_s,
                ssl_shutdown_timeout=1,
            )
        except (OSError, asyncio.CancelledError):  # the peer has left, sent something else, or taken too long
            encrypted = None
        if encrypted is None or encrypted.is_closing():
            self.abort()
            return
        self.deadline = time.monotonic() + self._all.request_s
        self._make(encrypted)
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)

    def _make(self, transport: asyncio.Transport) -> None:
        self._is_made = True
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._all.discard(self)
        if self._is_made:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        if not self._is_made:
            self._early.append(data)
            return
        if self._is_whole and not self._answers():  # the first part of the next one
            self._is_whole = False
            self.deadline = time.monotonic() + self._all.request_s
        super().data_received(data)

    def handle_events(self) -> None:
        """Carry out what has arrived, and see whether the request is here as a whole."""
        super().handle_events()
        if self._answers() and not self.cycle.more_body and not self._is_whole:
            self._is_whole = True
            self.deadline = float("inf")  # an answer may last, as the page's streams do

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        if self._is_whole:
            self.deadline = time.monotonic() + self._all.keep_alive_s
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Give the peer time to read."""
        self.deadline = min(self.deadline, time.monotonic() + self._all.unread_s)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Go on: the peer has read."""
        if self._answers() and self._is_whole:
            self.deadline = float("inf")
        super().resume_writing()


_GRACE_S = 2  # seconds that requests under way get at the end


class _Server(uvicorn.Server):
    """A server that leaves signals to the process that it is a part of."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


@asynccontextmanager
async def listening(
    app: ASGIApp, address: str, tls: ssl.SSLContext | None = None, connections: Connections | None = None
) -> AsyncIterator[str]:
    """Serve an application while the context lasts; give its URL.

    Args:
        address: ``HOST:PORT``; port 0 picks one.
        tls: with it, the application is served by HTTPS.
        connections: bounds them; None: the usual bounds.

    Raises:
        ValueError: `address` has another form.
        CannotListenError: another program uses the address, or this machine does not have it.

    >>> async def example(app: ASGIApp) -> None:
    ...     async with listening(app, "127.0.0.1:0") as url:
    ...         print("metrics on", url)
    """
    host, bound = _bind(address)
    connections = Connections() if connections is None else connections
    connections.tls = tls
    config = uvicorn.Config(
        app,
        http=partial(Connection, connections),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,  # this process has its own
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # a header must not tell who the caller is
        timeout_keep_alive=int(connections.keep_alive_s) + 60,  # `connections` closes it before
        timeout_graceful_shutdown=_GRACE_S,
        backlog=1024,
    )
    server = _Server(config)
    with bound:
        task = asyncio.create_task(server.serve(sockets=[bound]))
        sweeping = asyncio.create_task(connections.sweep())
        try:
            yield f"{'https' if tls else 'http'}://{host}:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping
            connections.close()


def _bind(address: str) -> tuple[str, socket.socket]:
    """Return the host as a URL has it, and a socket that listens."""
    host, port = host_and_port(address, "use HOST:PORT, such as 127.0.0.1:7660, for metrics")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        family = socket.AF_INET6 if ":" in bare else socket.AF_INET
        return host, socket.create_server((bare, port), family=family)
    except OSError as error:
        number = error.errno or 0  # below zero if the host's name could not be resolved
        reason = os.strerror(number) if number > 0 else error.strerror
        raise CannotListenError(
            f"cannot listen on {address} for metrics: {reason}; check that no other program uses it "
            "and that the host is this machine"
        ) from error


Scrape: TypeAlias = Callable[[], Awaitable[Collector]]

_COMPRESSED = 1_000  # bytes: a shorter answer is sent as it is


def application(
    scrape: Scrape,
    not_ready: Callable[[], str],
    routes: Sequence[BaseRoute] = (),
    middleware: Sequence[Middleware] = (),
    is_standby: Callable[[], bool] = lambda: False,
) -> Starlette:
    """Return the application.

    `/healthz` and `/readyz` tell one word to anybody, since supervisors have no credentials. Everything else passes
    through `middleware`, which may refuse it. `/readyz?standby` is for supervisors that replace one server after the
    other: it finds a standby ready, too.

    Args:
        scrape: gathers what `/metrics` shows; called for each scrape, one at a time.
        not_ready: why this process cannot do its work now; "" while it can.
        routes: served beside the metrics. One for ``/`` replaces the list of addresses that is there otherwise.
        middleware: around `/metrics` and `routes`; the first one sees a request first.
        is_standby: whether this process waits to take another one's place.

    >>> async def scrape() -> Collector:
    ...     return CollectorRegistry()
    >>> from prometheus_client import CollectorRegistry
    >>> [route.path for route in application(scrape, lambda: "").routes]
    ['/healthz', '/readyz', '']
    """
    turn = asyncio.Lock()

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        async with turn:  # a second Prometheus waits, instead of doubling the work
            gathered = await scrape()
            # In a thread: with many jobs it takes long, and the loop has other things to do.
            text = await asyncio.to_thread(encode, gathered)
        return Response(text, headers={"content-type": content_type})

    async def healthy(_: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def ready(request: Request) -> Response:
        reason = not_ready()
        if reason and is_standby() and "standby" in request.query_params:
            return PlainTextResponse(f"{reason}\n")
        return PlainTextResponse(f"{reason or 'ready'}\n", status_code=503 if reason else 200)

    async def addresses(_: Request) -> Response:
        return PlainTextResponse("/metrics\n/healthz\n/readyz\n")

    return Starlette(
        routes=[
            Route("/healthz", healthy),
            Route("/readyz", ready),
            Mount(
                "/",
                routes=[
                    Route("/metrics", metrics, middleware=[Middleware(GZipMiddleware, minimum_size=_COMPRESSED)]),
                    *routes,
                    Route("/", addresses),
                ],
                middleware=list(middleware),
            ),
        ]
    )
