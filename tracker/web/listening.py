"""Serving an application by the event loop that runs already, until the context ends."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext

import uvicorn
from starlette.types import ASGIApp

_KEEP_ALIVE_S = 75  # a scraper that comes every minute keeps its connection
_GRACE_S = 2  # seconds that requests under way get at the end
_CONNECTIONS = 500  # a server that tracks must not run out of files because of browsers


class CannotListenError(Exception):
    """This process cannot listen on the address."""


class _Server(uvicorn.Server):
    """A server that leaves signals to the process that it is a part of."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


@asynccontextmanager
async def listening(app: ASGIApp, address: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Serve an application while the context lasts; give its URL.

    Args:
        app: what to serve.
        address: ``HOST:PORT``; port 0 picks one.
        tls: with it, the application is served by HTTPS.

    Raises:
        ValueError: `address` has another form.
        CannotListenError: another program uses the address, or this machine does not have it.

    >>> async def example(app: ASGIApp) -> None:
    ...     async with listening(app, "127.0.0.1:0") as url:
    ...         print("metrics on", url)
    """
    host, bound = _bind(address)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,  # this process has its own
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # a header must not tell who the caller is
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
        limit_concurrency=_CONNECTIONS,
        ssl_context_factory=None if tls is None else lambda _config, _default: tls,
    )
    server = _Server(config)
    with bound:
        task = asyncio.create_task(server.serve(sockets=[bound]))
        try:
            yield f"{'https' if tls else 'http'}://{host}:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


def _bind(address: str) -> tuple[str, socket.socket]:
    """Return the host as a URL has it, and a socket that listens."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is not an address for metrics; use HOST:PORT, such as 127.0.0.1:7660")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        family = socket.AF_INET6 if ":" in bare else socket.AF_INET
        return host, socket.create_server((bare, int(port)), family=family)
    except OSError as error:
        number = error.errno or 0  # below zero if the host's name could not be resolved
        reason = os.strerror(number) if number > 0 else error.strerror
        raise CannotListenError(
            f"cannot listen on {address} for metrics: {reason}; check that no other program uses it "
            "and that the host is this machine"
        ) from error
