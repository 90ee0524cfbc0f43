"""The page's addresses: its files, what it reads as JSON from a `Source`, and what it gets as it happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tracker.contract.refusal import Refusal, Refused
from tracker.contract.status import EventTail, Explained, Found, JobStatus, OpenSubstream, Surveyed, Wanted

from .documents import Json, event, explanation, glance, open_substream, overview, surveyed

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

_T = TypeVar("_T")


class Source(Protocol):
    """Source of jobs for the page. Each method raises `Refused` (``UNKNOWN_JOB``) for a job that does not exist."""

    @property
    def version(self) -> str:
        """The server's version."""

    @property
    def journal(self) -> str:
        """The kind of the server's journal."""

    def jobs(self) -> Sequence[str]:
        """Return the names of all jobs, sorted."""

    async def status(self, job: str, describe: Callable[[JobStatus], _T]) -> _T:
        """Return what `describe` makes of a job's state; it runs where the state is read, so it should make it
        small."""

    async def survey(self, job: str) -> Surveyed:
        """Return what the open substreams wait for. It takes its time, and other work of the job is done meanwhile. The
        source bounds how often it is counted: whoever asks again soon may get the same."""

    async def search(self, job: str, wanted: Wanted, limit: int, after: int) -> Found:
        """Return some open substreams. One call looks at a bounded number, so it may find none while others follow."""

    async def explain(self, job: str, scope: str, name: str) -> tuple[JobStatus, Explained]:
        """Return a substream, and of its job's state what explains it."""

    async def tail(self, job: str, before: int, limit: int) -> EventTail:
        """Return the newest events before a number (0: of all)."""


class Access(Protocol):
    """Judge of what a caller may see. It is asked once for each request, and again while a live view lasts."""

    def may_see(self, request: HTTPConnection, job: str) -> bool:
        """Return whether the caller may see a job."""


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
        """Return the application as middleware of a route."""
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


STUCK_S: Final = 60.0  #: a browser that takes nothing for so long is given up


def sent(data: str, event: str = "") -> str:
    """Return one message of a stream.

    Args:
        event: the message's name; "": none.

    >>> sent("{}", "hello")
    'event: hello\\ndata: {}\\n\\n'
    """
    return f"event: {event}\ndata: {data}\n\n" if event else f"data: {data}\n\n"


BEAT: Final = ": nothing new\n\n"  #: shows a browser that the stream is alive


class Streams:
    """The streams of server-sent events of one application.

    Args:
        most: how many there may be at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def full(self) -> bool:
        """Return whether there may be no more."""
        return len(self._tasks) >= self._most

    def close(self) -> None:
        """End all streams, since the server stops."""
        for task in self._tasks:
            task.cancel()

    def of(self, messages: AsyncIterator[str]) -> _EventStream:
        """Return the answer that sends messages until they end, the browser goes, or the server stops."""
        return _EventStream(self._tasks, messages)


class _EventStream:
    def __init__(self, tasks: set[asyncio.Task[None]], messages: AsyncIterator[str]) -> None:
        self._tasks = tasks
        self._messages = messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        sending = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(_disconnected(receive))
        self._tasks.add(sending)
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            with suppress(asyncio.CancelledError, TimeoutError, OSError):
                await sending
            self._tasks.discard(sending)

    async def _send(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for message in self._messages:
                body = {"type": "http.response.body", "body": message.encode(), "more_body": True}
                async with asyncio.timeout(STUCK_S):  # `wait_for` of Python 3.11 may swallow a cancellation
                    await send(body)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            closing = getattr(self._messages, "aclose", None)
            if closing is not None:
                await closing()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


log = logging.getLogger("tracker.page")

_STATE_S: Final = 1.0  #: seconds between two looks at a job
_QUICK_S: Final = 0.2  #: a survey that takes longer goes on beside the looks
_EVENTS: Final = 50


def written(value: Any) -> str:
    """Return JSON on one line, for an answer or an event of a stream."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class Feed:
    """A job as browsers that look at it see it: read once for all of them, at a bounded rate, while somebody looks.

    A browser gets the newest state when it has taken the one before, so one that is slow, or stuck, has at most one
    state waiting for it, and costs no memory beyond that.
    """

    def __init__(self, source: Source, job: str) -> None:
        self._source = source
        self._job = job
        self._news = asyncio.Condition()
        self._version = 0
        self._state = ""
        self._survey: Json | None = None
        self._refused: Refused | None = None
        self.readers = 0

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Read the job while any reader is in this context."""
        self.readers += 1
        if self.readers == 1:
            self._refused = None
            self._task = asyncio.create_task(self._read())
        try:
            yield
        finally:
            self.readers -= 1
            if not self.readers:
                self._task.cancel()

    async def next(self, version: int, timeout: float) -> tuple[int, str] | None:
        """Return the newest state that differs from the one of a version (0: any), as JSON; None if there is none in
        time.

        Raises:
            Refused: the job is gone.
        """
        async with self._news:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._news.wait_for(lambda: self._refused or self._version > version)
            if self._refused is not None:
                raise self._refused
            return (self._version, self._state) if self._version > version else None

    async def _read(self) -> None:
        counting: asyncio.Task[None] | None = None
        try:
            while True:
                if counting is None:
                    counting = asyncio.create_task(self._count())
                # A quick one is waited for, so that both show the same moment.
                done, _ = await asyncio.wait({counting}, timeout=_QUICK_S)
                if done:
                    counting.result()
                    counting = None
                state = await self._source.status(self._job, overview)
                tail = await self._source.tail(self._job, 0, _EVENTS)
                state["survey"] = self._survey
                state["events"] = [event(each) for each in tail.events]
                await self._publish(written(state), None)
                await asyncio.sleep(_STATE_S)
        except Refused as refused:
            await self._publish(None, refused)
        except Exception:
            log.exception("the page cannot read a job", extra={"job": self._job})
            await self._publish(None, Refused(Refusal.FAULT, "a fault in the server; see the server's log"))
        finally:
            if counting is not None:
                counting.cancel()

    async def _publish(self, state: str | None, refused: Refused | None) -> None:
        async with self._news:
            if state == self._state:
                return
            self._refused = refused
            if state is not None:
                self._state = state
                self._version += 1
            self._news.notify_all()

    async def _count(self) -> None:
        made = await self._source.survey(self._job)
        self._survey = {**surveyed(made.survey), "at": made.at}


class Feeds:
    """The feeds of the jobs that anybody looks at."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._feeds: dict[str, Feed] = {}

    @contextlib.asynccontextmanager
    async def of(self, job: str) -> AsyncIterator[Feed]:
        """Yield the feed of a job, for as long as the context lasts."""
        feed = self._feeds.setdefault(job, Feed(self._source, job))
        try:
            async with feed.reading():
                yield feed
        finally:
            if not feed.readers and self._feeds.get(job) is feed:
                del self._feeds[job]
