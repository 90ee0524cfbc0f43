"""Headers that keep a browser from doing more with the page than show it."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Scripts, styles and requests of this address only, none inline, and no text that becomes HTML.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class SafeHeaders:
    """Adds the headers to every answer of an application.

    Args:
        app: the application.
        cache: for how long browsers may keep an answer: the value of ``Cache-Control``.
    """

    def __init__(self, app: ASGIApp, cache: str) -> None:
        self._app = app
        self._cache = cache

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers["cache-control"] = self._cache
            await send(message)

        await self._app(scope, receive, with_headers)

    @classmethod
    def of(cls, cache: str) -> list[Middleware]:
        """The same as middleware of a route."""
        return [Middleware(cls, cache=cache)]
