"""Readers in virtual time: when each looks, and when each gets its answer, without a server or a wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any, TypeVar, cast

import pytest

from tracker.contract.events import Ended, Event
from tracker.contract.refusal import Refusal
from tracker.contract.status import Through
from tracker.contract.values import Reason
from tracker.core import Refused, Tracker
from tracker.server.lanes import Lanes
from tracker.server.limits import Limits
from tracker.server.watching import Notifier, Readers
from tracker.wire.gen import tracker_pb2 as wire

_T = TypeVar("_T")
NEVER = 1e9


class VirtualLoop(asyncio.base_events.BaseEventLoop):
    """An event loop whose time passes only while everybody waits, and at once."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = self

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        assert timeout is not None, "everybody waits for ever"
        self._now += timeout
        return []

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def now() -> float:
    return asyncio.get_running_loop().time()


def in_virtual_time(run: Callable[[], Awaitable[_T]]) -> _T:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(asyncio.ensure_future(run(), loop=loop))
    finally:
        loop.close()


class Job:
    """A stand-in for the core: a job whose substreams go through, and whose log grows, at given times."""

    log_id = "log"

    def __init__(self, through: dict[str, float], lost: Iterable[str] = (), forgotten: Iterable[str] = ()) -> None:
        self.looks: list[int] = []  #: at how many substreams each time
        self.room = 1_000_000  #: how many may be looked at from now on
        self.log: list[Event] = []
        self.readers = Readers(cast(Tracker, self), Lanes(), Limits(max_watched_names=100_000))
        self._through = through
        self._words = (frozenset(lost), frozenset(forgotten))

    def view(self, _: str) -> Job:
        return self

    def through(self, log_id: str, producer: str, epoch: int, substreams: list[tuple[str, str]]) -> Through:
        assert (log_id, producer, epoch) == ("log", "till", 7)
        self.looks.append(len(substreams))
        self.room -= len(substreams)
        assert self.room >= 0, "more is looked at than may be"
        over = {place: name for place, (_, name) in enumerate(substreams) if self._through[name] <= now()}
        lost, forgotten = (tuple(at for at, name in over.items() if name in words) for words in self._words)
        return Through(tuple(at for at in range(len(substreams)) if at not in over), lost, forgotten)

    def events(self, after: int, up_to: int, limit: int, log_id: str, *_: object) -> tuple[list[Event], int]:
        assert (up_to, log_id) == (0, "log")
        found = self.log[after : after + limit]
        return found, after + len(found)

    async def follow(self, names: Iterable[str], wait: float | None = None) -> tuple[Through, float]:
        """Return the answer, and when it came."""
        names = list(names)
        request = wire.AwaitThroughRequest(
            job="job", log_id="log", producer="till", epoch=7, scopes=["berlin"], names=names
        )
        request.scope_index.extend([0] * len(names))
        if wait is not None:
            request.wait.FromNanoseconds(int(wait * 1e9))
        return await self.readers.through(request), now()

    async def commands(self, every: float, until: float) -> None:
        while now() < until:
            await asyncio.sleep(every)
            self.readers.carried_out("job")


def numbered(count: int) -> dict[str, float]:
    return {str(number): NEVER for number in range(count)}


# ---------------------------------------------------------------- who follows a report


def test_an_answer_comes_with_the_command_that_brought_it_about() -> None:
    async def run() -> tuple[Through, float]:
        job = Job({"a": 3.0, "b": 2.0})
        asyncio.get_running_loop().call_at(3.0, job.readers.carried_out, "job")
        return await job.follow("ab", 20)

    answer, at = in_virtual_time(run)
    assert answer == Through()
    assert at == pytest.approx(3.0, abs=0.001)


def test_an_answer_that_no_command_brought_about_comes_within_half_a_second() -> None:
    async def run() -> tuple[float, int]:
        job = Job({"a": 7.2})
        _, at = await job.follow("a", 20)
        return at, len(job.looks)

    at, looks = in_virtual_time(run)
    assert 7.2 <= at <= 7.701
    assert looks <= 16


@pytest.mark.parametrize(("wait", "lasts"), [(None, 0), (0, 0), (0.3, 0.3), (2.5, 2.5), (60, 60), (86_400, 60)])
@pytest.mark.parametrize("count", [1, 2500])
def test_time_is_up_when_the_caller_says_and_after_a_minute(wait: float | None, lasts: float, count: int) -> None:
    answer, at = in_virtual_time(lambda: Job(numbered(count)).follow(numbered(count), wait))
    assert answer.pending == tuple(range(count))
    assert at == pytest.approx(lasts, rel=0.001, abs=0)


def test_places_are_those_of_the_question_whatever_was_through_before() -> None:
    async def run() -> tuple[Through, float]:
        job = Job({"a": 5.0, "b": 2.0, "c": NEVER, "d": 0.0, "e": 4.0, "f": 1.0}, lost="af", forgotten="e")
        return await job.follow("abcdef", 10)

    assert in_virtual_time(run)[0] == Through(pending=(2,), lost=(0, 5), forgotten=(4,))


@pytest.mark.parametrize("callers", [1, 50])
def test_callers_share_what_is_looked_at_and_one_of_little_waits_little(callers: int) -> None:
    """However many commands are carried out: ten thousand substreams a second in all, by their share and number."""

    async def run() -> tuple[int, float, list[int]]:
        job = Job({**numbered(100), "little": 8.0})
        job.room = 110_000 + 200 * callers
        commands = asyncio.create_task(job.commands(every=0.001, until=10.0))
        many = [asyncio.create_task(job.follow(numbered(100), 10)) for _ in range(callers)]
        _, at = await job.follow(["little"], 10)
        await asyncio.gather(*many, commands)
        return sum(looked for looked in job.looks if looked > 1), at, job.looks

    looked, at, looks = in_virtual_time(run)
    assert 50_000 <= looked <= 100_000 + 200 * callers
    assert 8.0 <= at <= 8.0 + 0.0002 * (callers + 1) + 0.002
    assert looks.count(1) <= 8.0 / (0.0001 * (callers + 1)) + 2
    assert looks.count(1) >= 8.0 / (0.0001 * (callers + 1) + 0.002)


@pytest.mark.parametrize(("end", "reason"), [("send_away", Refusal.JOURNAL_FAILED), ("stop", Refusal.STOPPING)])
def test_who_follows_is_refused_once_this_server_may_not_know(end: str, reason: Refusal) -> None:
    async def run() -> float:
        job = Job({"a": NEVER})
        asyncio.get_running_loop().call_at(1.2, getattr(job.readers, end))
        with pytest.raises(Refused) as refused:
            await job.follow("a", 20)
        assert refused.value.reason == reason
        return now()

    assert in_virtual_time(run) == pytest.approx(1.2, abs=0.001)


@pytest.mark.parametrize("index", [[], [0], [0, 0, 0], [0, 1], [1, 0], [7, 7]])
def test_each_name_has_one_of_the_scopes(index: list[int]) -> None:
    request = wire.AwaitThroughRequest(job="job", scopes=["berlin"], names=["a", "b"], scope_index=index)
    with pytest.raises(Refused) as refused:
        in_virtual_time(lambda: Job({}).readers.through(request))
    assert refused.value.reason == Refusal.MALFORMED


# ---------------------------------------------------------------- watches


def test_a_position_comes_after_a_thousand_events_or_ten_seconds_of_nothing() -> None:
    """To a reader whose filter lets nothing of them through; time counts from its last message on."""

    async def run() -> list[tuple[float, str, int]]:
        job = Job({})
        loop = asyncio.get_running_loop()
        told: list[tuple[float, str, int]] = []

        def grow(scope: str, count: int = 1) -> None:
            for seq in range(len(job.log) + 1, len(job.log) + count + 1):
                job.log.append(Event(seq, 0, "d", Ended("a", scope, "w", None, 1, Reason.COMPLETE, 0)))
            job.readers.news("job")

        for at, scope, count in [
            *[(1.0, "lima", 1), (9.0, "lima", 1)],  # the position of both at 10
            *[(12.0, "berlin", 1), (13.0, "lima", 1), (14.0, "lima", 1)],  # an event at 12, the position at 22
            *[(23.0, "lima", 999), (24.0, "lima", 1)],  # at once
            *[(25.0, "lima", 999), (26.0, "berlin", 2), (27.0, "lima", 999), (28.0, "lima", 1)],  # an event between
            (40.0, "lima", 1),
        ]:
            loop.call_at(at, grow, scope, count)
        watching: Any = job.readers.watch(wire.WatchRequest(job="job", scopes=["berlin"]))
        async with aclosing(watching) as messages:
            async for message in messages:
                told.append((now(), message.WhichOneof("kind") or "", message.seq))
                if now() >= 40.0:
                    break
        return told

    told = [(round(at, 1), kind, seq) for at, kind, seq in in_virtual_time(run)]
    assert told == [
        (10.0, "bookmark", 2),
        (12.0, "ended", 3),
        (22.0, "bookmark", 5),
        (24.0, "bookmark", 1005),
        (26.0, "ended", 2005),
        (26.0, "ended", 2006),
        (28.0, "bookmark", 3006),
        (40.0, "bookmark", 3007),
    ]


def test_a_caller_learns_that_a_watch_is_under_way_once_it_counts() -> None:
    async def run() -> None:
        job = Job({})
        counted: list[int] = []

        async def under_way() -> None:
            counted.append(len(job.readers.watches))

        watching: Any = job.readers.watch(wire.WatchRequest(job="job", scopes=["berlin"]), under_way)
        reader = asyncio.create_task(anext(watching))
        await asyncio.sleep(1)
        assert counted == [1]
        reader.cancel()

    in_virtual_time(run)


@pytest.mark.parametrize(("end", "reason"), [("send_away", Refusal.JOURNAL_FAILED), ("stop", Refusal.STOPPING)])
def test_a_watcher_is_refused_once_this_server_may_not_know(end: str, reason: Refusal) -> None:
    async def run() -> None:
        job = Job({})
        asyncio.get_running_loop().call_at(1.0, getattr(job.readers, end))
        with pytest.raises(Refused) as refused:
            async for _ in job.readers.watch(wire.WatchRequest(job="job")):
                pass
        assert refused.value.reason == reason
        assert (now(), job.readers.waits, job.readers.watches) == (1.0, 0, set())

    in_virtual_time(run)


def test_a_server_that_stops_takes_no_new_readers() -> None:
    async def run() -> None:
        job = Job({"a": NEVER})
        job.readers.stop()
        watching = anext(job.readers.watch(wire.WatchRequest(job="job")).__aiter__())
        for reader in (job.follow("a", 20), watching):
            with pytest.raises(Refused) as refused:
                await reader
            assert refused.value.reason == Refusal.STOPPING

    in_virtual_time(run)


def test_readers_that_have_gone_leave_nothing_behind() -> None:
    async def run() -> None:
        job = Job({"a": NEVER})
        watching: Any = job.readers.watch(wire.WatchRequest(job="job", scopes=["berlin"]))
        readers = [asyncio.create_task(each) for each in (job.follow("a", 2), job.follow("a", 60), anext(watching))]
        await asyncio.sleep(3)
        assert (len(job.readers.watches), job.readers.waits) == (1, 1)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        kept = [vars(each)["_waiting"] for each in vars(job.readers).values() if isinstance(each, Notifier)]
        assert kept == [{}, {}]
        assert (job.readers.watches, job.readers.waits) == (set(), 0)

    in_virtual_time(run)
