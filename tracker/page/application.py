"""The page's addresses: its files, what it reads as JSON, and what it gets as it happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tracker.contract.refusal import Refused
from tracker.contract.status import OpenSubstream, Wanted

from .documents import Json, event, explanation, glance, open_substream
from .feed import BEAT, Feeds, Streams, sent, written
from .source import Access, Source

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


_FILES: Final = Path(__file__).parent / "static"
_PAGE: Final = 50  #: jobs, substreams or events in one answer
_MOST: Final = 200  #: the same, if a caller asks for more
_SEARCH_S: Final = 0.25  #: seconds after which a search answers with what it has
_BEAT_S: Final = 10.0  #: a stream of states is never silent for longer
_JOBS_S: Final = 2.0  #: seconds between two looks at the list of jobs
_STREAMS: Final = 100  #: browsers that are kept up to date at a time
_DIGITS: Final = 20  #: of a number in a request
_LONGEST_TEXT: Final = 2_000  #: characters that are searched for
_STATUS: Final = {"NOT_FOUND": 404, "INVALID_ARGUMENT": 400, "UNAVAILABLE": 503, "RESOURCE_EXHAUSTED": 503}


class SafeHeaders:
    """Application with the headers on every answer.

    Args:
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
        """Return the same as middleware of a route."""
        return [Middleware(cls, cache=cache)]


class Page:
    """The status page.

    Args:
        access: decides who may see which job.

    >>> from starlette.applications import Starlette
    >>> def site(source: Source, access: Access) -> Starlette:
    ...     return Starlette(routes=Page(source, access).routes())
    """

    def __init__(self, source: Source, access: Access) -> None:
        self._source = source
        self._access = access
        self._feeds = Feeds(source)
        self._streams = Streams(_STREAMS)

    def close(self) -> None:
        """End what is sent to browsers, since the server stops."""
        self._streams.close()

    def routes(self) -> list[BaseRoute]:
        """Return the routes, to be mounted at the root of an application."""
        answers: dict[str, Callable[[Request], Awaitable[Json | ASGIApp]]] = {
            "/server": self._server,
            "/jobs": self._jobs,
            "/substreams": self._substreams,
            "/explain": self._explain,
            "/events": self._events,
            "/live/jobs": self._live_jobs,
            "/live/job": self._live_job,
        }
        return [
            Route("/", _index, middleware=SafeHeaders.of("no-cache")),
            Mount("/static", app=StaticFiles(directory=_FILES), middleware=SafeHeaders.of("no-cache")),
            Mount(
                "/api",
                routes=[Route(path, _answering(answer)) for path, answer in answers.items()],
                middleware=SafeHeaders.of("no-store"),
            ),
        ]

    # ---------------------------------------------------------------- who may see what

    def _job(self, request: Request) -> str:
        """Return the job that a request is about, if its caller may see it: the only place that decides it."""
        job = request.query_params.get("job", "")
        if not self._access.may_see(request, job):
            raise HTTPException(403, "you may not see this job; ask for a token whose scopes cover it")
        return job

    def _visible(self, request: Request, text: str) -> list[str]:
        words = text.casefold().split()
        return [
            job
            for job in self._source.jobs()
            if all(word in job.casefold() for word in words) and self._access.may_see(request, job)
        ]

    # ---------------------------------------------------------------- answers

    async def _server(self, _: Request) -> Json:
        return {"version": self._source.version, "journal": self._source.journal}

    async def _jobs(self, request: Request) -> Json:
        jobs = self._visible(request, _text(request, "text"))
        start = _number(request, "after", 0)
        lines = []
        for job in jobs[start : start + _PAGE]:
            try:
                lines.append(await self._source.status(job, glance))
            except Refused:
                continue  # it was deleted a moment ago
        following = start + _PAGE if start + _PAGE < len(jobs) else None
        return {"jobs": lines, "all": len(jobs), "start": start, "following": following}

    async def _substreams(self, request: Request) -> Json:
        job = self._job(request)
        kind = request.query_params.get("kind", "")
        wanted = Wanted(
            text=_text(request, "text"),
            front=request.query_params.get("front"),
            segment=request.query_params.get("segment"),
            staged=kind == "staged",
            ordered=kind == "ordered",
            stalled=kind == "stalled",
        )
        limit = min(max(1, _number(request, "limit", _PAGE)), _MOST)
        after: int | None = _number(request, "after", -1)
        until = time.monotonic() + _SEARCH_S
        taken: list[OpenSubstream] = []
        looked = 0
        while after is not None:
            found = await self._source.search(job, wanted, limit - len(taken), after)
            taken += found.substreams
            looked += found.looked
            after = found.following
            if len(taken) == limit or time.monotonic() > until:
                break
        return {
            "substreams": [open_substream(each) for each in taken],
            "looked": looked,
            "following": None if after is None else str(after),
        }

    async def _explain(self, request: Request) -> Json:
        job = self._job(request)
        scope, name = request.query_params.get("scope", ""), request.query_params.get("name", "")
        return explanation(*await self._source.explain(job, scope, name), scope, name)

    async def _events(self, request: Request) -> Json:
        job = self._job(request)
        limit = min(max(1, _number(request, "limit", _PAGE)), _MOST)
        tail = await self._source.tail(job, _number(request, "before", 0), limit)
        return {
            "events": [event(each) for each in tail.events],
            "first_seq": tail.first_seq,
            "last_seq": tail.last_seq,
        }

    # ---------------------------------------------------------------- streams

    async def _live_job(self, request: Request) -> ASGIApp:
        job = self._job(request)

        async def states() -> AsyncIterator[str]:
            version = 0
            async with self._feeds.of(job) as feed:
                while self._access.may_see(request, job):
                    try:
                        news = await feed.next(version, _BEAT_S)
                    except Refused as refused:
                        yield sent(written({"reason": refused.reason, "error": refused.detail}), "refused")
                        return
                    if news is None:
                        yield BEAT
                    else:
                        version, state = news
                        yield sent(state)

        return self._stream(states())

    async def _live_jobs(self, request: Request) -> ASGIApp:
        async def lists() -> AsyncIterator[str]:
            before, at = "", 0.0
            while True:
                now = written(await self._jobs(request))
                if now != before:
                    yield sent(now)
                elif time.monotonic() - at > _BEAT_S:
                    yield BEAT
                else:
                    await asyncio.sleep(_JOBS_S)
                    continue
                before, at = now, time.monotonic()
                await asyncio.sleep(_JOBS_S)

        return self._stream(lists())

    def _stream(self, messages: AsyncIterator[str]) -> ASGIApp:
        if self._streams.full:
            raise HTTPException(503, f"{_STREAMS} browsers are kept up to date already; close some")
        return self._streams.of(_greeted(messages))


def _answering(answer: Callable[[Request], Awaitable[Json | ASGIApp]]) -> Callable[[Request], Awaitable[ASGIApp]]:
    """Return what answers with JSON, or as it likes; what is refused as JSON, too."""

    async def call(request: Request) -> ASGIApp:
        try:
            found = await answer(request)
        except Refused as refused:
            return _written({"reason": refused.reason, "error": refused.detail}, _STATUS.get(refused.code, 500))
        except HTTPException as refused:
            return _written({"reason": "", "error": refused.detail}, refused.status_code)
        return _written(found) if isinstance(found, dict) else found

    return call


def _written(value: Json, status: int = 200) -> Response:
    return Response(written(value), status, media_type="application/json")


def _text(request: Request, name: str) -> str:
    text = request.query_params.get(name, "")
    if len(text) > _LONGEST_TEXT:
        raise HTTPException(400, f"{name} has more than {_LONGEST_TEXT:,} characters; search for a part of it")
    return text


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > _DIGITS:
        raise HTTPException(400, f"{name}={text[:40]!r} is not a number")
    return int(text)


async def _index(_: Request) -> Response:
    return FileResponse(_FILES / "index.html")


async def _greeted(messages: AsyncIterator[str]) -> AsyncIterator[str]:
    """Tell the browser first which time it is here."""
    yield sent(written({"now": int(time.time() * 1000)}), "hello")
    async for message in messages:
        yield message
