"""Streams of states to browsers: each job read once for all of them, nothing piled up for a slow one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from tracker.contract.commands import DefineJob, DeleteJob
from tracker.contract.spec import Spec
from tracker.core import Tracker
from tracker.page import application
from tracker.page.application import Page
from tracker.server.inventory import Surveys
from tracker.server.lanes import Lanes
from tracker.server.limits import Limits
from tracker.server.lookups import PageSource
from tracker.server.watching import Readers


class Everybody:
    """A right to see every job."""

    def may_see(self, request: HTTPConnection, job: str) -> bool:
        return True


class Site:
    """The page over a real core, with a browser's end of the connection in the test's hands."""

    def __init__(self, access: Any = None) -> None:
        self.tracker = Tracker("log")
        self.source = PageSource("memory")
        self.page = Page(self.source, access or Everybody())
        self.app = Starlette(routes=self.page.routes())
        self.looks = 0

    def attach(self) -> None:
        lanes = Lanes()
        readers = Readers(self.tracker, lanes, Limits())
        self.source.attach(self.tracker, readers, Surveys(self.tracker, lanes))
        view = self.tracker.view

        def counted(job: str) -> Any:
            self.looks += 1
            return view(job)

        self.tracker.view = counted  # type: ignore[method-assign]

    def define(self, job: str, deployment: str = "d1") -> None:
        self.tracker.apply(DefineJob(Spec(job, deployment, (("raw", ()),))), 10**18)


class Browser:
    """One request of a browser that takes a message only when the test lets it."""

    def __init__(self, site: Site, path: str, query: str = "") -> None:
        self.taken: list[bytes] = []
        self.status = 0
        self._may_take = asyncio.Semaphore(0)
        self._gone = asyncio.Event()
        self._news = asyncio.Event()
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": query.encode(),
            "headers": [],
            "root_path": "",
        }
        self.task = asyncio.create_task(site.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        await self._may_take.acquire()
        self.taken.append(message["body"])
        self._news.set()

    async def take(self) -> str:
        """Take the next message."""
        before = len(self.taken)
        self._may_take.release()
        while len(self.taken) == before:
            self._news.clear()
            await self._news.wait()
        return self.taken[-1].decode()

    async def leave(self) -> None:
        self._gone.set()
        await self.task


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    monkeypatch.setattr(application, "_STATE_S", 0.005)
    monkeypatch.setattr(application, "_JOBS_S", 0.005)
    return lambda test: asyncio.run(asyncio.wait_for(test, 60))


@asynccontextmanager
async def sited(**options: Any) -> AsyncIterator[Site]:
    site = Site(**options)
    site.attach()
    yield site
    site.page.close()


def state(message: str) -> Any:
    return json.loads(message.partition("data: ")[2])


def test_a_slow_browser_gets_the_newest_state_alone(run: Callable[[Any], None]) -> None:
    async def test() -> None:
        async with sited() as site:
            site.define("job")
            slow, quick = (Browser(site, "/api/live/job", "job=job") for _ in range(2))
            for each in (slow, quick):
                assert "event: hello" in await each.take()
                assert state(await each.take())["deployment"] == "d1"
            for number in range(2, 30):
                site.define("job", f"d{number}")
                while state(await quick.take())["deployment"] != f"d{number}":
                    pass
            seen = [state(await slow.take())["deployment"]]  # one was waiting for it
            seen.append(state(await slow.take())["deployment"])
            assert seen[1] == "d29"
            assert len(slow.taken) == 4
            await slow.leave()
            await quick.leave()

    run(test())


def test_a_job_is_read_once_for_all_browsers_or_not_at_all(run: Callable[[Any], None]) -> None:
    async def test() -> None:
        async with sited() as site:
            site.define("job")
            many = [Browser(site, "/api/live/job", "job=job") for _ in range(30)]
            for each in many:
                await each.take()
            for each in many:
                await each.take()
            first = site.looks
            while site.looks < first + 20:
                await asyncio.sleep(0.01)
            for each in many:
                await each.leave()
            stopped = site.looks
            await asyncio.sleep(0.1)
            assert site.looks <= stopped + 1
            assert not site.page._feeds._feeds

    run(test())


def test_a_deleted_job_ends_the_stream_with_the_reason(run: Callable[[Any], None]) -> None:
    async def test() -> None:
        async with sited() as site:
            site.define("job")
            browser = Browser(site, "/api/live/job", "job=job")
            await browser.take()
            await browser.take()
            site.tracker.apply(DeleteJob("job"), 10**18)
            message = await browser.take()
            while not message.startswith("event: refused"):
                message = await browser.take()
            assert state(message)["reason"] == "UNKNOWN_JOB"
            await browser.take()  # the end
            await browser.task

    run(test())


class Only:
    """A right to see one job, until it is taken back."""

    def __init__(self, job: str) -> None:
        self.job = job

    def may_see(self, request: HTTPConnection, job: str) -> bool:
        return job == self.job


def test_a_caller_sees_only_the_jobs_that_it_may_see(run: Callable[[Any], None]) -> None:
    async def test() -> None:
        access = Only("mine")
        async with sited(access=access) as site:
            site.define("mine")
            site.define("other")
            listed = Browser(site, "/api/jobs")
            assert [each["job"] for each in json.loads(await listed.take())["jobs"]] == ["mine"]
            live = Browser(site, "/api/live/jobs")
            await live.take()
            assert [each["job"] for each in state(await live.take())["jobs"]] == ["mine"]
            await live.leave()
            for path in ("substreams", "explain", "events", "live/job"):
                for job in ("other", "nowhere"):  # both alike: who may not see a job shall not learn that there is one
                    browser = Browser(site, f"/api/{path}", f"job={job}")
                    assert "you may not see this job" in await browser.take()
                    assert browser.status == 403
            watching = Browser(site, "/api/live/job", "job=mine")
            await watching.take()
            await watching.take()
            access.job = ""  # taken back while the browser looks
            site.define("mine", "d2")
            while not watching.task.done():
                watching._may_take.release()
                await asyncio.sleep(0.005)
            assert b"d2" not in b"".join(watching.taken[3:])

    run(test())


def test_there_are_only_so_many_streams_and_closing_the_page_ends_them(
    run: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "_STREAMS", 3)

    async def test() -> None:
        async with sited() as site:
            site.define("job")
            browsers = [Browser(site, "/api/live/job", "job=job") for _ in range(3)]
            for each in browsers:
                await each.take()
            more = Browser(site, "/api/live/job", "job=job")
            assert "close some" in await more.take()
            assert more.status == 503
            await browsers[0].leave()
            another = Browser(site, "/api/live/jobs")
            await another.take()
            assert another.status == 200
            site.page.close()
            for each in (*browsers[1:], another):
                await each.task

    run(test())


def test_until_the_journal_is_read_the_page_asks_to_wait(run: Callable[[Any], None]) -> None:
    async def test() -> None:
        browser = Browser(Site(), "/api/jobs")
        assert "recovers its state" in await browser.take()
        assert browser.status == 503

    run(test())
