"""Applications mounted beside the metrics, and who may see them."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tracker.web.listening import application, listening

from .fetching import get


class Refusing:
    """Middleware that refuses whoever has no token."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        allowed = b"authorization" in dict(scope["headers"])
        await (self._app if allowed else PlainTextResponse("no token\n", status_code=401))(scope, receive, send)


async def scrape() -> Collector:
    return CollectorRegistry()


async def page(_: Request) -> Response:
    return PlainTextResponse("a page")


def served(app: ASGIApp, path: str, **headers: str) -> tuple[int, str]:
    async def fetch() -> tuple[int, str]:
        async with listening(app, "127.0.0.1:0") as url:
            return (await asyncio.to_thread(get, f"{url}{path}", **headers))[:2]

    return asyncio.run(fetch())


def test_a_route_is_served_beside_the_metrics() -> None:
    app = application(scrape, lambda: "", [Route("/page", page)])
    assert served(app, "/page") == (200, "a page")
    assert served(app, "/metrics") == (200, "")
    assert served(app, "/") == (200, "/metrics\n/healthz\n/readyz\n")


def test_a_route_for_the_root_replaces_the_list_of_addresses() -> None:
    assert served(application(scrape, lambda: "", [Route("/", page)]), "/") == (200, "a page")


def test_middleware_guards_metrics_and_pages_but_not_health() -> None:
    app = application(scrape, lambda: "not yet", [Route("/page", page)], [Middleware(Refusing)])
    for path in ("/metrics", "/page", "/", "/other"):
        assert served(app, path) == (401, "no token\n")
    assert served(app, "/page", authorization="Bearer x") == (200, "a page")
    assert served(app, "/healthz") == (200, "alive\n")
    assert served(app, "/readyz") == (503, "not yet\n")


def test_the_end_does_not_wait_for_an_answer_that_never_ends() -> None:
    async def endless(_: Request) -> Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def begin_and_end() -> None:
        async with listening(application(scrape, lambda: "", [Route("/endless", endless)]), "127.0.0.1:0") as url:
            host, _, port = url.removeprefix("http://").rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
            await writer.drain()
        writer.close()

    asyncio.run(begin_and_end())
