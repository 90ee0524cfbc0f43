"""Readers that wait: watchers of a job's events, and callers that await one end.

A watcher keeps only its position in the log, so a slow watcher costs no memory: it reads more when its stream accepts
more. It is woken when the log has grown, and then reads the log. However many watchers are woken at once, they continue
a few at a time (`Turns`), so that the server answers reports in between.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TypeVar

from tracker.contract.events import Ended, Event
from tracker.contract.refusal import Refusal
from tracker.contract.status import Through
from tracker.core import Refused, Tracker
from tracker.core.log import EventFilter
from tracker.wire import codec
from tracker.wire.gen import tracker_pb2 as wire

from .lanes import Lanes
from .limits import Limits
from .owning import elsewhere
from .sequencer import stopping

_AT_ONCE = 4  # readers that go on in one round of the event loop, and of which gRPC has something at a time
_STUCK_S = 0.01  # what takes longer waits for a reader that takes nothing


class Turns:
    """Turns of waiting readers, a few in each round of the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    def turn(self) -> asyncio.Future[None]:
        """Return a future that is done when it is the caller's turn."""
        turn = asyncio.get_running_loop().create_future()
        self.add([turn])
        return turn

    def add(self, waiting: list[asyncio.Future[None]] | set[asyncio.Future[None]]) -> None:
        """Complete each of these futures when its turn comes."""
        self._waiting.extend(waiting)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        granted = 0
        while self._waiting and granted < _AT_ONCE:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                granted += 1
        self._scheduled = bool(self._waiting)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._grant)


class Passage:
    """Limit on how many readers gRPC works for at a time, to receive a request or send a message.

    gRPC reports finished sends and new calls in one queue. With messages on their way to very many readers, a new call
    would wait behind all of them. A message that its reader does not take is in no queue, so after a moment it no
    longer counts.

    >>> async with passage.turn():     # doctest: +SKIP
    ...     await send()
    """

    def __init__(self) -> None:
        self._under_way: dict[object, float] = {}  # with the time when each began, the oldest first
        self._waiting: deque[asyncio.Future[object]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and hold it."""
        passing = await self._enter()
        try:
            yield
        finally:
            self._leave(passing)

    async def _enter(self) -> object:
        if not self._waiting and len(self._under_way) < _AT_ONCE:
            return self._begin()
        waiting: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._grant()
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                self._leave(waiting.result())
            raise

    def _leave(self, passing: object) -> None:
        self._under_way.pop(passing, None)
        if self._waiting:
            self._grant()

    def _begin(self) -> object:
        passing = object()
        self._under_way[passing] = asyncio.get_running_loop().time()
        return passing

    def _grant(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            if self._waiting[0].done():
                self._waiting.popleft()
                continue
            if len(self._under_way) >= _AT_ONCE:
                oldest, since = next(iter(self._under_way.items()))
                if loop.time() < since + _STUCK_S:
                    if self._timer is None:
                        self._timer = loop.call_at(since + _STUCK_S, self._look_again)
                    return
                del self._under_way[oldest]
            self._waiting.popleft().set_result(self._begin())

    def _look_again(self) -> None:
        self._timer = None
        self._grant()


class Notifier:
    """Waker of readers that wait for news of a job."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._stopped = False

    def notify(self, job: str) -> None:
        """Wake all that wait for news of this job."""
        if self._waiting:
            waiting = self._waiting.pop(job, None)
            if waiting:
                self._turns.add(waiting)

    def stop(self) -> None:
        """Wake all readers; from now on `wait` refuses."""
        self._stopped = True
        self.notify_all()

    def notify_all(self) -> None:
        """Wake all readers."""
        for job in list(self._waiting):
            self.notify(job)

    async def wait(self, job: str, timeout: float | None = None) -> None:
        """Sleep until there is news of a job, or the time is up.

        Args:
            timeout: the most seconds to wait; None: no limit.

        Raises:
            Refused: the server stops. Those who wait already are woken, and refused when they wait again.
        """
        if self._stopped:
            raise stopping()
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[job].add(waiting)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(waiting, timeout)
        finally:
            self._waiting[job].discard(waiting)
            if not self._waiting[job]:
                del self._waiting[job]


_T = TypeVar("_T")

_READ = 100  # events that one reader reads at once, before others get a turn
_BOOKMARK_EVENTS = 1_000
_BOOKMARK_S = 10.0
_LOOK_S = 1e-4  # of pause after a look at what a caller follows, for each of its substreams and each such caller
_LOOK_AGAIN_S = 0.5  # what a look has just missed, and what time does, is found then
_LONGEST_WAIT_S = 60.0
_SWEEP_S = 1.0  # seconds between two checks of every caller that awaits an end, if there was news

_Key = tuple[str, str, str]  # what identifies an end: segment, scope, name


def wanted_by(tracker: Tracker, request: wire.WatchRequest | wire.ListEventsRequest) -> EventFilter:
    """Return the filter of a request: its subscription's, or its own.

    Args:
        tracker: the state; call this in the job's lane.

    Raises:
        Refused: ``UNKNOWN_SUBSCRIPTION``, ``SUBSCRIPTION_EXPIRED``; ``MALFORMED``: the request has both filters.
    """
    if not request.subscription:
        return EventFilter(request.segments, request.scopes)
    if request.segments or request.scopes:
        raise Refused(Refusal.MALFORMED, "a subscription has its own filter; leave segments and scopes out")
    return tracker.view(request.job).filter_of(request.subscription)


@dataclass(eq=False, slots=True)
class Watch:
    """A watch under way."""

    job: str
    place: int  #: the number of the last event that was sent, or looked at and filtered out


@dataclass(eq=False)
class _Awaited:
    """The callers that await ends of one job, by the end that they await."""

    seq: int  #: the number of the last event that was read
    log_id: str
    waiting: defaultdict[_Key, set[asyncio.Future[Ended | None]]] = field(default_factory=lambda: defaultdict(set))
    fresh: asyncio.Event = field(default_factory=asyncio.Event)  #: there is news
    looking: asyncio.Task[None] | None = None


class Readers:
    """All readers that wait, within the server's limits."""

    def __init__(self, tracker: Tracker, lanes: Lanes, limits: Limits) -> None:
        self._tracker = tracker
        self._lanes = lanes
        self._turns = Turns()
        self._notifier = Notifier(self._turns)
        self._carried_out = Notifier(self._turns)
        self._followers = 0  # callers that wait for what reports have sent
        self._limits = limits
        self._count = 0
        self._names = 0  # in filters
        self.passage = Passage()
        self.watches: set[Watch] = set()  #: under way
        self._awaited: dict[str, _Awaited] = {}
        self._stopped = False
        self._sent_away = 0  # how often all who waited were sent away

    @property
    def waits(self) -> int:
        """Return how many callers await one end."""
        return self._count - len(self.watches)

    async def ask(self, job: str, work: Callable[[], _T], weight: Callable[[], int] = lambda: 0) -> _T:
        """Run a look-up in a job's lane and return its result.

        Args:
            weight: returns how many rows `work` may touch.
        """
        answer = self._lanes.run(job, work, weight, optional=True)
        return await answer if isinstance(answer, asyncio.Future) else answer

    async def long(self, work: Callable[[], _T]) -> _T:
        """Run work that takes long and does not touch the state."""
        return await asyncio.get_running_loop().run_in_executor(self._lanes.threads, work)

    def carried_out(self, job: str) -> None:
        """Wake those who follow the job's reports: a command was carried out."""
        self._carried_out.notify(job)

    def news(self, job: str) -> None:
        """Wake the readers of a job whose log has grown, or which is gone."""
        self._notifier.notify(job)
        awaited = self._awaited.get(job)
        if awaited is None:
            return
        awaited.fresh.set()
        if awaited.looking is None:
            awaited.looking = asyncio.create_task(self._look(job, awaited))

    @contextmanager
    def _counted(self, names: int = 0) -> Iterator[None]:
        self._limits.check("max_watchers", self._count + 1, "end watches without a reader, or raise the limit")
        self._limits.check(
            "max_watched_names", self._names + names, "leave the filter out, or name fewer segments and scopes"
        )
        self._count += 1
        self._names += names
        try:
            yield
        finally:
            self._count -= 1
            self._names -= names

    # ---------------------------------------------------------------- watches

    @contextmanager
    def _watching(self, job: str, place: int, names: int) -> Iterator[Watch]:
        with self._counted(names):
            watch = Watch(job, place)
            self.watches.add(watch)
            try:
                yield watch
            finally:
                self.watches.discard(watch)

    async def watch(
        self, request: wire.WatchRequest, under_way: Callable[[], Awaitable[object]] | None = None
    ) -> AsyncIterator[wire.Event]:
        """Yield the events of a job after `after_seq`, then new ones as they come.

        Where the filter passes no event for a while, bookmarks give the reader's position.

        Args:
            under_way: called before the first event, once the watch counts and its log is known.

        Raises:
            Refused: ``UNKNOWN_JOB``, ``LOG_CHANGED``, ``EVENTS_EXPIRED``, ``UNKNOWN_SUBSCRIPTION``,
                ``SUBSCRIPTION_EXPIRED``; or the server stops.
        """
        loop = asyncio.get_running_loop()
        job, log_id, subscription = request.job, request.log_id, request.subscription
        place, own, in_batches = request.after_seq, request.own_position, request.in_batches
        with self._watching(job, place, len(request.segments) + len(request.scopes)) as watch:
            # Without a `log_id`, the current log is meant. A job that is deleted and defined again has another log.
            log_id = log_id or await self.ask(job, lambda: self._tracker.view(job).log_id)
            wanted = await self.ask(job, partial(wanted_by, self._tracker, request))
            if under_way is not None:
                async with self.passage.turn():
                    await under_way()
            if not subscription:
                del request  # its filter is in `wanted`: keep it in memory only once
            passed: Event | None = None  # the last event, if it was filtered out
            count = 0
            sent_at = loop.time()
            sent_away = self._sent_away

            def read() -> tuple[list[Event], int]:
                return self._tracker.view(job).events(place, 0, _READ, log_id, wanted, own, subscription)

            while True:
                if self._sent_away != sent_away:
                    raise elsewhere()
                if subscription:  # its filter may change, and it may end
                    wanted = await self.ask(job, partial(wanted_by, self._tracker, request))
                events, place = await self.ask(job, read)
                own = True
                sent = [event for event in events if wanted.passes(event)]
                messages: Iterable[wire.Event] = map(codec.write_event, sent)
                if sent:
                    passed, count = None, 0
                    messages = [codec.write_events(sent)] if in_batches else messages
                if events and (not sent or events[-1].seq > sent[-1].seq):
                    passed, count = events[-1], count + len(events)
                if passed is not None and count >= _BOOKMARK_EVENTS:
                    messages = chain(messages, [codec.write_bookmark(passed)])
                    passed, count = None, 0
                for message in messages:
                    async with self.passage.turn():
                        yield message
                    watch.place, sent_at = message.seq, loop.time()
                watch.place = place
                if events:
                    # Events that the filter does not pass were read without a pause.
                    await self._turns.turn()
                    continue
                if passed is None:
                    await self._notifier.wait(job)
                elif (left := sent_at + _BOOKMARK_S - loop.time()) > 0:
                    await self._notifier.wait(job, left)
                else:
                    yield codec.write_bookmark(passed)
                    passed, count, sent_at = None, 0, loop.time()

    # ---------------------------------------------------------------- waits for what a report has sent

    async def through(self, request: wire.AwaitThroughRequest) -> Through:
        """Wait until all that a report has sent is through, at most for the `wait` of the request.

        Raises:
            Refused: ``MALFORMED``, ``UNKNOWN_JOB``, ``LOG_CHANGED``, ``UNKNOWN_PRODUCER``; or the server stops.
        """
        scopes, names, index = request.scopes, request.names, request.scope_index
        if len(index) != len(names) or any(place >= len(scopes) for place in index):
            raise Refused(Refusal.MALFORMED, "scope_index has to name one of `scopes` for each of `names`")
        substreams = [(scopes[place], name) for place, name in zip(index, names, strict=True)]
        until = asyncio.get_running_loop().time() + min(
            _LONGEST_WAIT_S, (codec.read_duration(request, "wait") or 0) / 1e9
        )
        left = list(range(len(names)))  # places
        lost: list[int] = []
        forgotten: list[int] = []

        def weight() -> int:
            return len(left)

        def look() -> Through:
            view = self._tracker.view(request.job)
            return view.through(request.log_id, request.producer, request.epoch, [substreams[at] for at in left])

        sent_away = self._sent_away
        with self._counted(len(names)):
            while True:
                found = await self.ask(request.job, look, weight)
                lost += [left[place] for place in found.lost]
                forgotten += [left[place] for place in found.forgotten]
                left = [left[place] for place in found.pending]
                if not left or not await self._changed(request.job, until, len(left)):
                    return Through(tuple(left), tuple(sorted(lost)), tuple(sorted(forgotten)), found.waits_for_epoch)
                if self._sent_away != sent_away:
                    raise elsewhere()

    async def _changed(self, job: str, until: float, substreams: int) -> bool:
        """Wait for a command of a job; False: time is up.

        The pause before it keeps what all callers together look at within bounds, and a caller that follows much does
        not slow one that follows little.
        """
        now = asyncio.get_running_loop().time
        self._followers += 1
        try:
            await asyncio.sleep(min(_LOOK_S * substreams * self._followers, max(0.0, until - now())))
            if until > now():
                await self._carried_out.wait(job, min(_LOOK_AGAIN_S, until - now()))
                return True
            return False
        finally:
            self._followers -= 1

    # ---------------------------------------------------------------- waits for one end

    async def ended(self, request: wire.AwaitRequest) -> Ended:
        """Wait until a substream has ended on a segment, and return its end.

        Raises:
            Refused: ``UNKNOWN_JOB``, ``UNKNOWN_SEGMENT``, ``EVENTS_EXPIRED``; or the server stops.
        """
        end_time = request.end_time if request.HasField("end_time") else None
        job, key = request.job, (request.segment, request.scope, request.name)

        def look() -> Ended | None:
            return self._tracker.view(job).ended(*key, end_time)

        with self._counted():
            while True:
                found = await self.ask(job, look)
                if found is not None:
                    return found
                with self._waiting(job, key) as waiting:
                    # The end may have come since the first look, so look again. From here on none can be missed.
                    found = await self.ask(job, look)
                    if found is None:
                        found = await waiting
                if found is not None:
                    return found

    @contextmanager
    def _waiting(self, job: str, key: _Key) -> Iterator[asyncio.Future[Ended | None]]:
        if self._stopped:
            raise stopping()
        awaited = self._awaited.get(job)
        if awaited is None:
            view = self._tracker.view(job)
            awaited = self._awaited[job] = _Awaited(view.last_seq, view.log_id)
        waiting: asyncio.Future[Ended | None] = asyncio.get_running_loop().create_future()
        awaited.waiting[key].add(waiting)
        try:
            yield waiting
        finally:
            of_key = awaited.waiting.get(key)
            if of_key is not None:
                of_key.discard(waiting)
                if not of_key:
                    del awaited.waiting[key]
            if not awaited.waiting and self._awaited.get(job) is awaited:
                del self._awaited[job]

    def stop(self) -> None:
        """Refuse all waiting readers and all new ones: the server stops."""
        self._stopped = True
        self._notifier.stop()
        self._carried_out.stop()
        self._refuse_waits(stopping)

    def send_away(self) -> None:
        """Refuse all waiting readers, because this server may not have the events for which they wait."""
        self._sent_away += 1
        self._notifier.notify_all()
        self._carried_out.notify_all()
        self._refuse_waits(elsewhere)

    def _refuse_waits(self, refusal: Callable[[], Refused]) -> None:
        for awaited in list(self._awaited.values()):
            for waiting in [each for of_key in awaited.waiting.values() for each in of_key]:
                if not waiting.done():
                    waiting.set_exception(refusal())

    async def _look(self, job: str, awaited: _Awaited) -> None:
        """Give new ends to the callers that await them.

        From time to time, have each caller look for itself: some changes that it must notice make no event.
        """
        loop = asyncio.get_running_loop()
        sweep_at = loop.time() + _SWEEP_S
        try:
            while awaited.waiting:
                awaited.fresh.clear()
                try:
                    while await self._pass_on(job, awaited):
                        pass
                except Refused:  # the job or its log is gone, or events expired before they were read
                    with suppress(Refused):
                        view = self._tracker.view(job)
                        awaited.log_id, awaited.seq = view.log_id, view.last_seq
                    await self._sweep(awaited)
                    continue
                left = sweep_at - loop.time()
                if left > 0:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(awaited.fresh.wait(), left)
                    continue
                await self._sweep(awaited)
                if not awaited.fresh.is_set():
                    break
                sweep_at = loop.time() + _SWEEP_S
        finally:
            awaited.looking = None

    async def _sweep(self, awaited: _Awaited) -> None:
        for key in list(awaited.waiting):
            await self._turns.turn()
            for waiting in list(awaited.waiting.get(key, ())):
                if not waiting.done():
                    waiting.set_result(None)  # without an end, the caller looks for itself

    async def _pass_on(self, job: str, awaited: _Awaited) -> bool:
        """Pass on the ends among the next events; return False if there are no more events."""
        events, awaited.seq = await self.ask(
            job, lambda: self._tracker.view(job).events(awaited.seq, limit=_READ, log_id=awaited.log_id)
        )
        for event in events:
            body = event.kind
            if isinstance(body, Ended):
                for waiting in awaited.waiting.get((body.segment, body.scope, body.name), ()):
                    if not waiting.done():
                        waiting.set_result(body)
        if events:
            await self._turns.turn()
        return bool(events)
