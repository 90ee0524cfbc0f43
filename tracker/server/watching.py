"""Readers that wait: watchers of a job's events, and those who await one end.

A watcher holds nothing but its place in the log, so a slow one costs no memory: it reads on when its stream takes
more. What wakes it is only that the log grew; what it then sends is what the log says.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from tracker.core import Tracker
from tracker.core.events import Ended, Event
from tracker.wire.gen import tracker_pb2 as wire

from . import translation
from .limits import Limits
from .sequencer import stopping

_READ = 500  # events looked at before others get a turn
_BOOKMARK_EVENTS = 1_000
_BOOKMARK_S = 10.0


class Bells:
    """Wakes those who wait for news of a job."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._stopped = False

    def ring(self, jobs: set[str]) -> None:
        """There is news of these jobs."""
        for job in jobs:
            for waiting in self._waiting.pop(job, ()):
                if not waiting.done():
                    waiting.set_result(None)

    def stop(self) -> None:
        """Wake everybody for good: `wait` refuses from now on."""
        self._stopped = True
        self.ring(set(self._waiting))

    async def wait(self, job: str, timeout: float | None = None) -> bool:
        """Sleep until there is news of a job; False: there was none within `timeout` seconds.

        Raises:
            Refused: the server stops.
        """
        if self._stopped:
            raise stopping()
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[job].add(waiting)
        try:
            if timeout is None:
                await waiting
            else:
                await asyncio.wait_for(waiting, timeout)
        except TimeoutError:
            return False
        finally:
            self._waiting[job].discard(waiting)
            if not self._waiting[job]:
                del self._waiting[job]
        if self._stopped:
            raise stopping()
        return True


class Readers:
    """Everyone who waits, within the server's limits.

    Args:
        tracker: the state that is read; it changes only between two awaits.
    """

    def __init__(self, tracker: Tracker, bells: Bells, limits: Limits) -> None:
        self._tracker = tracker
        self._bells = bells
        self._limits = limits
        self._count = 0

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._limits.check("max_watchers", self._count + 1, "end a watch that nobody reads, or raise it")
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1

    async def watch(self, request: wire.WatchRequest) -> AsyncIterator[wire.Event]:
        """The events of a job after `after_seq`, then live; bookmarks where the filters let nothing through.

        Raises:
            Refused: ``UNKNOWN_JOB``, ``LOG_CHANGED``, ``EVENTS_EXPIRED``; or the server stops.
        """
        wanted = translation.EventFilter(request.segments, request.scopes)
        loop = asyncio.get_running_loop()
        with self._counted():
            # Without a log named, it is the one there is now: a job made anew is another.
            log_id = request.log_id or self._tracker.job_status(request.job).log_id
            place = request.after_seq
            passed: Event | None = None  # the last event that was filtered out since something was sent
            count = 0
            sent_at = loop.time()
            while True:
                events, place = self._tracker.events(request.job, place, limit=_READ, log_id=log_id)
                for event in events:
                    if wanted.passes(event):
                        yield translation.event(event)
                    else:
                        passed, count = event, count + 1
                        if count < _BOOKMARK_EVENTS:
                            continue
                        yield translation.bookmark(event)
                    passed, count, sent_at = None, 0, loop.time()
                if events:
                    continue
                left = None if passed is None else sent_at + _BOOKMARK_S - loop.time()
                if (left is None or left > 0) and await self._bells.wait(request.job, left):
                    continue
                if passed is not None:
                    yield translation.bookmark(passed)
                    passed, count, sent_at = None, 0, loop.time()

    async def ended(self, request: wire.AwaitRequest) -> Ended:
        """How a substream ended on a segment, once it has.

        Raises:
            Refused: ``UNKNOWN_JOB``, ``UNKNOWN_SEGMENT``, ``EVENTS_EXPIRED``; or the server stops.
        """
        end_time = request.end_time if request.HasField("end_time") else None
        with self._counted():
            while True:
                found = self._tracker.ended(request.job, request.segment, request.scope, request.name, end_time)
                if found is not None:
                    return found
                await self._bells.wait(request.job)
