"""Serving an application by the event loop that runs already, until the context ends."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from tracker.wire.addresses import host_and_port

from .connections import Connection, Connections

_GRACE_S = 2  # seconds that requests under way get at the end


class CannotListenError(Exception):
    """This process cannot listen on the address."""


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
