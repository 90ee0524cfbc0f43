"""Access by HTTP to the status page and the metrics, with the tokens of the calls.

The page's own files are open to anybody, since they are the same everywhere. The page's data of jobs, and the metrics,
need a token if the calls do.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tracker.contract.refusal import Refused
from tracker.web.listening import listening
from tracker.wire.addresses import is_local

from .guard import Caller, Guard
from .identities import METRICS, PAGE, DeniedError
from .transport import Certificate

_CALLER: Final = "tracker.caller"  #: where the scope of a request has its `Caller`
_STATUS: Final = {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403}


class HttpGuard:
    """Middleware that refuses requests without a token that allows them.

    On a loopback address it also refuses requests for another host: a page from elsewhere could read this one by a name
    of its own that resolves to this machine (DNS rebinding).

    Args:
        listen: ``HOST:PORT`` where the application is served.
    """

    def __init__(self, app: ASGIApp, guard: Guard, listen: str) -> None:
        self._app = app
        self._guard = guard
        self._is_local = is_local(listen)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # nothing else is served
        request = HTTPConnection(scope)
        try:
            if self._is_local:
                _check_host(request.headers.get("host", ""))
            path = scope["path"]
            if path not in ("", "/") and not path.startswith("/static/"):
                scope[_CALLER] = self._identified(request)
        except Refused as refused:
            headers = {"WWW-Authenticate": "Bearer"} if refused.code == "UNAUTHENTICATED" else {}
            answer = JSONResponse(
                {"reason": refused.reason, "error": refused.detail}, _STATUS[refused.code], headers=headers
            )
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _identified(self, request: HTTPConnection) -> Caller:
        is_metrics = request.scope["path"] == "/metrics"
        headers = [("authorization", value) for value in request.headers.getlist("authorization")]
        caller = self._guard.caller(METRICS if is_metrics else PAGE, headers, dict)
        if is_metrics and not caller.identity.sees_all:
            raise DeniedError(
                caller.identity.name,
                f"client {caller.identity.name!r} may not read the metrics, which have the names of all jobs: its "
                'entry in the server\'s tokens file needs jobs = ["*"]',
            )
        return caller


class JobAccess:
    """Judge of which jobs the status page shows to a caller (`tracker.page.application.Access`)."""

    def may_see(self, request: HTTPConnection, job: str) -> bool:
        """Return whether the caller of a request that `HttpGuard` let pass may see a job, and still may."""
        caller: Any = request.scope.get(_CALLER)
        if not isinstance(caller, Caller):
            return False
        try:
            caller.authorize(job)
        except Refused:
            return False
        return True


def _check_host(host: str) -> None:
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    bare = name.strip("[]").rstrip(".").lower()
    if bare == "localhost" or bare.endswith(".localhost"):
        return
    try:
        if ipaddress.ip_address(bare).is_loopback:
            return
    except ValueError:
        pass
    raise DeniedError(
        "",
        f"this address serves its own machine, and the request is for {host[:100]!r}; open it as localhost or "
        "127.0.0.1",
    )


@asynccontextmanager
async def serving(app: ASGIApp, listen: str, certificate: Certificate | None) -> AsyncIterator[str]:
    """Serve an application while the context lasts, by HTTPS if there is a certificate; give its URL.

    Args:
        app: the application; its `HttpGuard` is not added here, since health answers anybody.
        listen: ``HOST:PORT``; port 0 picks one.
        certificate: the server's; None: no TLS.

    Raises:
        ValueError, tracker.wire.addresses.CannotListenError: as `tracker.web.listening.listening`.
    """
    if certificate is None:
        async with listening(app, listen) as url:
            yield url
        return
    context = certificate.context()
    following = asyncio.create_task(certificate.follow(context))
    try:
        async with listening(app, listen, context) as url:
            yield url
    finally:
        following.cancel()
