"""The application: `/metrics`, `/healthz`, `/readyz`, and the routes that are mounted beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route

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
