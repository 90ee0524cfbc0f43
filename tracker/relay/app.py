"""The relay as a process: it listens, relays until a signal stops it, and ends when it has answered all it accepted."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from starlette.middleware import Middleware

from tracker.client.credentials import Credentials
from tracker.client.servers import alternatives
from tracker.security.http import HttpGuard, serving
from tracker.security.settings import Security
from tracker.web.application import application

from .batching import Budget
from .listening import bound
from .metrics import RelayMetrics
from .service import SERVICE, Relay
from .upstream import Upstream

log = logging.getLogger("tracker.relay")

_GRACE_S = 10.0  # seconds that reports under way get when the relay stops


class Readiness:
    """Readiness of a relay to serve, and to reach the tracker.

    Attributes:
        serving: whether the relay accepts calls.
    """

    def __init__(self, upstream: Upstream) -> None:
        self.serving = False
        self._upstream = upstream

    def missing(self) -> str:
        """Return why the relay is not ready; "" if it is."""
        return self._upstream.missing() if self.serving else "the relay is starting or stopping"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a relay.

    Raises:
        ValueError: an option is out of range.

    >>> Options(server="tracker.shop:7654", listen="unix:/run/relay.sock").max_delay
    0.005
    """

    server: str  #: the tracker's address, or several joined by ``+``, exactly as its clients use it
    listen: str  #: ``unix:PATH`` or ``HOST:PORT``; port 0 picks one
    socket_mode: int = 0o660  #: the permissions of the socket file
    max_delay: float = 0.005  #: the most seconds that a report waits for others
    max_pending_bytes: int = 256 << 20  #: of requests that are not answered yet, and of one message
    metrics: str = ""  #: HOST:PORT of `/metrics`, `/healthz` and `/readyz`; port 0 picks one; "" serves none
    credentials: Credentials = field(default_factory=Credentials)  #: what it shows to the tracker
    security: Security = field(default_factory=Security)  #: who may call it

    def __post_init__(self) -> None:
        if self.max_delay < 0 or self.max_pending_bytes < 1:
            raise ValueError("the delay must not be negative, and max-pending must be above zero")
        alternatives(self.server)


async def relay(options: Options) -> None:
    """Relay until SIGTERM or SIGINT; print ``listening on ADDRESS`` when ready. The tracker need not run yet.

    With `options.metrics`, a second line has ``metrics on http://HOST:PORT``.

    Args:
        options: which tracker to report to, and where to listen.

    Raises:
        ValueError: `options.listen` or `options.metrics` has a wrong form, or what protects the relay cannot be used.
        CredentialsError: the relay's own certificate or token cannot be read.
        CannotListenError, tracker.web.listening.CannotListenError: another program uses the address, or this process
            cannot listen there.
    """
    options.security.check_exposed(options.listen)
    if options.metrics:
        options.security.check_exposed(options.metrics, "metrics")
    guard, certificate = options.security.guard, options.security.certificate
    upstream = Upstream(options.server, options.credentials)
    upstream.check_token()  # a token that cannot be read ends the start, not each report
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 0),  # with it, two relays on one port would each get a part of the callers
            ("grpc.max_receive_message_length", options.max_pending_bytes),
            ("grpc.max_send_message_length", -1),
            # As in the tracker: watchers may ping often, and the connection of a vanished one is closed.
            ("grpc.http2.min_ping_interval_without_data_ms", 500),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.http2.ping_timeout_ms", 20_000),
        ]
    )
    async with upstream, AsyncExitStack() as stack:
        budget = Budget(options.max_pending_bytes)
        readiness = Readiness(upstream)
        metrics = RelayMetrics(readiness.missing, lambda: budget.pending, budget.most)
        handlers = Relay(
            options.server,
            upstream,
            options.max_delay,
            budget,
            metrics,
            guard,
            options.credentials.cert is not None,
        )
        url = ""
        if options.metrics:
            guarded = Middleware(HttpGuard, guard=guard, listen=options.metrics)
            site = application(metrics.scrape, readiness.missing, middleware=[guarded])
            url = await stack.enter_async_context(serving(site, options.metrics, certificate))
        server.add_generic_rpc_handlers((handlers,))
        health_service = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
        with bound(server, options.listen, options.socket_mode, certificate) as address:
            await server.start()
            following = asyncio.create_task(guard.follow())
            for name in ("", SERVICE):
                await health_service.set(name, health_pb2.HealthCheckResponse.SERVING)
            place = {"metrics": url} if url else {}
            log.info("relaying", extra={"server": options.server, "listen": address, **place})
            print(f"listening on {address}", flush=True)
            if url:
                print(f"metrics on {url}", flush=True)
            readiness.serving = True
            await stop.wait()
            log.info("stopping")
            readiness.serving = False
            await health_service.enter_graceful_shutdown()
            handlers.stop()
            following.cancel()
            await server.stop(_GRACE_S)
        gatherer = handlers.gatherer
        log.info("stopped", extra={"reports": gatherer.taken, "messages": gatherer.sent})
