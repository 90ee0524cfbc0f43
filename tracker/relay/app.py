"""The relay as a process: it listens, relays until a signal stops it, and ends when it has answered all it accepted."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from starlette.middleware import Middleware

from tracker.client.credentials import Credentials
from tracker.client.servers import alternatives
from tracker.security.guard import Security
from tracker.security.http import HttpGuard, serving
from tracker.security.transport import Transport
from tracker.web.application import application

from .batching import Budget
from .listening import bound
from .metrics import RelayMetrics
from .service import SERVICE, Relay, Upstream

log = logging.getLogger("tracker.relay")

_GRACE_S = 10.0  # seconds that reports under way get when the relay stops


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

    Raises:
        ValueError: `options.listen` or `options.metrics` has a wrong form, or what protects the relay cannot be used.
        CredentialsError: the relay's own certificate or token cannot be read.
        tracker.web.listening.CannotListenError: another program uses the address, or this process cannot listen there.
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
    async with upstream, AsyncExitStack() as stack:
        budget = Budget(options.max_pending_bytes)
        accepts = False

        def missing() -> str:
            return upstream.missing() if accepts else "the relay is starting or stopping"

        metrics = RelayMetrics(missing, lambda: budget.pending, budget.most)
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
            site = application(metrics.scrape, missing, middleware=[guarded])
            url = await stack.enter_async_context(serving(site, options.metrics, certificate))
        transport = Transport(SERVICE, handlers, options.max_pending_bytes)
        with bound(transport.server, options.listen, options.socket_mode, certificate) as address:
            await transport.start()
            following = asyncio.create_task(guard.follow())
            place = {"metrics": url} if url else {}
            log.info("relaying", extra={"server": options.server, "listen": address, **place})
            print(f"listening on {address}", flush=True)
            if url:
                print(f"metrics on {url}", flush=True)
            accepts = True
            await stop.wait()
            log.info("stopping")
            accepts = False
            await transport.leave()
            handlers.stop()
            following.cancel()
            await transport.stop(_GRACE_S)
        gatherer = handlers.gatherer
        log.info("stopped", extra={"reports": gatherer.taken, "messages": gatherer.sent})
