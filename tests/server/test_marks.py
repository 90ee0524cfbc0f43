"""A mark names a command while it is carried out, and no longer: what was answered is never left out."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.client.processes import Line
from tests.journal.object_stores import Place, directory
from tests.journal.redis_server import RedisServer, needs_redis
from tracker.contract.commands import Answer
from tracker.core import Refused
from tracker.journal import JournalError, LeftOut, Record, SqliteJournal, follow_journal, mark, open_journal
from tracker.server import lanes, sequencer
from tracker.server.owning import stand_by
from tracker.server.replayable import Followed, ReplayableState, Started, recover
from tracker.wire.codec import Method
from tracker.wire.gen import tracker_pb2 as wire

from .sequencing import started, submitted
from .tracking import ends

__all__ = ["directory"]  # a fixture


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """Yield a server of the test's own."""
    server = RedisServer(tmp_path / "redis")
    yield server
    server.kill()


class Marked(SqliteJournal):
    """A journal whose marks can be looked at."""

    carried: tuple[int, ...] = ()

    def carrying(self, numbers: Sequence[int]) -> bool:
        self.carried = tuple(numbers)
        return super().carrying(numbers)


@pytest.mark.parametrize("in_threads", [False, True], ids=["on the loop", "in threads"])
def test_whoever_has_an_answer_is_named_by_no_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_threads: bool
) -> None:
    monkeypatch.setattr(sequencer, "_TURN_S", -1.0)  # each command has a turn of its own
    if in_threads:
        monkeypatch.setattr(lanes, "LONG", -1)
        monkeypatch.setattr(lanes, "_VERY_LONG", -1)
    named: list[tuple[int, tuple[int, ...]]] = []

    async def commands(journal: Marked) -> int:
        recovered = recover(journal, 10**18, 10**18)
        order = started(recovered)

        async def tell(method: Method, request: Any, place: int) -> None:
            answer = submitted(order, method, request)
            assert isinstance(answer, asyncio.Future)
            answered = await answer
            assert answered is not None
            assert isinstance(answered, Answer)
            named.append((recovered.number + place, journal.carried))

        segments = [wire.Segment(name="a", feeds=["b"]), wire.Segment(name="b")]
        spec = wire.JobSpec(job="job", deployment="d", segments=segments, fronts=["f"])
        requests = [
            (Method.DEFINE_JOB, wire.DefineJobRequest(spec=spec)),
            (Method.OPEN_PRODUCER, wire.OpenProducerRequest(job="job", producer="p", run="r")),
            *((Method.REPORT, ends(epoch)) for epoch in range(30)),
        ]
        await asyncio.gather(*(tell(method, each, place) for place, (method, each) in enumerate(requests, 1)))
        with pytest.raises(Refused, match="job"):
            await tell(Method.OPEN_PRODUCER, wire.OpenProducerRequest(job="nothing", producer="p", run="r"), 0)
        assert order.pending_bytes == 0
        await order.stop(keep_snapshot=False)
        return len(requests)

    with closing(Marked(tmp_path / "tracker.db")) as journal:
        assert asyncio.run(commands(journal)) == len(named)
    assert [(number, carried) for number, carried in named if number in carried] == []


class Unnoted(SqliteJournal):
    """A journal that takes no note for a while."""

    takes_notes = True

    def carrying(self, numbers: Sequence[int]) -> bool:
        return self.takes_notes and super().carrying(numbers)


@pytest.mark.parametrize("ends", ["notes are taken again", "the server stops"])
def test_no_answer_leaves_while_a_note_may_name_its_command(tmp_path: Path, ends: str) -> None:
    async def ask(journal: Unnoted) -> None:
        recovered = recover(journal, 10**18, 10**18)
        order = started(recovered)
        journal.takes_notes = False
        spec = wire.JobSpec(job="job", deployment="d", segments=[wire.Segment(name="a")])
        answer = submitted(order, Method.DEFINE_JOB, wire.DefineJobRequest(spec=spec))
        assert isinstance(answer, asyncio.Future)
        while "job" not in recovered.state.tracker.jobs():
            await asyncio.sleep(0)
        assert await asyncio.wait([answer], timeout=0.2) == (set(), {answer})
        if ends == "the server stops":
            await order.stop(keep_snapshot=False)
            with pytest.raises(Refused, match="stopping"):
                await answer
        else:
            journal.takes_notes = True
            assert (await answer).created  # type: ignore[union-attr]
            await order.stop(keep_snapshot=False)

    with closing(Unnoted(tmp_path / "tracker.db")) as journal:
        asyncio.run(ask(journal))


def test_a_note_that_a_broken_file_does_not_take_is_none(tmp_path: Path) -> None:
    with closing(SqliteJournal(tmp_path / "tracker.db")) as journal:
        journal.recover()
        assert journal.carrying([1])
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            assert not journal.carrying([])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert journal.carrying([])


# ---------------------------------------------------------------- when a mark is out of date

REPLICATED = pytest.mark.parametrize("kind", ["objects", pytest.param("redis", marks=needs_redis)])


@pytest.fixture
def where(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    """Return the address of a journal."""
    if kind == "redis":
        server: RedisServer = request.getfixturevalue("redis")
        return server.address()
    objects: Place = request.getfixturevalue("directory")
    return objects.address() if kind == "objects" else f"sqlite:{tmp_path}/tracker.db"


def suspected(where: str, number: int) -> frozenset[int]:
    """Return the records that count as unanswered at a start, after one that has ended while it replayed a record."""
    with closing(open_journal(where)) as journal:
        journal.recover()
        journal.replaying(number)
    with closing(open_journal(where)) as journal:
        recovery = journal.recover()
        assert recovery.suspect in (number, 0)
        return recovery.unanswered


@needs_redis
@pytest.mark.parametrize("answered", [True, False])
def test_a_note_counts_though_the_line_to_redis_swallows_all(redis: RedisServer, answered: bool) -> None:
    line = Line(f"127.0.0.1:{redis.port}")
    with closing(line):
        address = redis.address().replace(f"127.0.0.1:{redis.port}", line.address)
        journal = open_journal(address)
        journal.recover()
        number = journal.append(records(1_000, 1))
        line.hold()  # nothing of this process comes to Redis any more, and it has no reason to notice
        assert journal.carrying([number])
        if answered:
            assert journal.carrying([])
        line.cut()
        journal.close()
        assert suspected(address, number) == (frozenset() if answered else {number})


@pytest.mark.parametrize("kind", ["file", "objects", pytest.param("redis", marks=needs_redis)])
@pytest.mark.parametrize("run", [b"another run", b""], ids=["power was lost", "nobody can tell"])
def test_after_a_loss_of_power_a_mark_names_no_command(
    where: str, kind: str, run: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may have a note that was taken back since."""
    with closing(open_journal(where)) as journal:
        journal.recover()
        number = journal.append(records(1_000, 1))
        assert journal.carrying([number])
    assert suspected(where, number) == {number}
    monkeypatch.setattr(mark, "system_run", lambda: run)
    assert suspected(where, number) == frozenset()


@REPLICATED
def test_a_writer_that_lives_may_still_answer_what_its_mark_names(
    where: str, kind: str, redis: RedisServer, directory: Place
) -> None:
    asleep = open_journal(where.replace("lease=1", "lease=0.5"))
    with closing(asleep):
        asleep.recover()
        number = asleep.append(records(1_000, 1))
        assert asleep.carrying([number])
        asleep._lease._closed.set()  # type: ignore[attr-defined]
        asleep._lease._beating.join()  # type: ignore[attr-defined]
        assert suspected(where, number) == frozenset()


@REPLICATED
def test_a_mark_of_another_life_of_the_store_names_no_command(
    where: str, kind: str, redis: RedisServer, directory: Place
) -> None:
    def live(noted: bool) -> int:
        with closing(open_journal(where)) as journal:
            journal.recover()
            number = journal.append(records(1_000, 1))
            assert not noted or journal.carrying([number])
            return number

    live(noted=True)
    if kind == "redis":
        redis.client().flushall()
    else:
        directory.objects.delete([name for folder in ("log", "claims") for name in directory.objects.names(folder)])
    assert suspected(where, live(noted=False)) == frozenset()


@needs_redis
def test_what_an_earlier_version_noted_in_redis_is_removed(redis: RedisServer) -> None:
    redis.client().hset("{tracker}:marks", "1", "{}")
    with closing(open_journal(redis.address())) as journal:
        assert journal.recover().unanswered == frozenset()
    assert not redis.client().exists("{tracker}:marks")


def records(first: int, count: int) -> list[Record]:
    return [Record(Method.TICK, at, b"x") for at in range(first, first + count)]


def lose_rows(path: Path) -> None:
    with closing(sqlite3.connect(path)) as log, log:
        log.execute("DELETE FROM log WHERE first >= 3")


def lose_entries(server: RedisServer) -> None:
    client = server.client()
    for name, _ in client.xrange("{tracker}:log")[3:]:  # the first one is a claim
        client.xdel("{tracker}:log", name)


@pytest.mark.parametrize("kind", ["file", "objects", pytest.param("redis", marks=needs_redis)])
def test_a_record_with_the_number_of_a_lost_one_is_replayed(tmp_path: Path, directory: Place, kind: str) -> None:
    lose: Callable[[], None]
    with ExitStack() as stack:
        where, lose = f"sqlite:{tmp_path}/tracker.db", partial(lose_rows, tmp_path / "tracker.db")
        if kind == "objects":
            where, lose = directory.address(), lambda: directory.lose(*directory.groups()[2:])
        elif kind == "redis":
            server = RedisServer(tmp_path / "redis")
            stack.callback(server.kill)
            where, lose = server.address(), partial(lose_entries, server)
        old, new = records(1_000, 6), records(2_000, 6)
        with closing(open_journal(where)) as journal:
            assert list(journal.recover().records) == []
            for record in old:
                journal.append([record])
            journal.set_aside(5, old[4], "it ends the process", answered=False)
        lose()
        with closing(open_journal(where)) as journal:
            assert list(journal.recover(accept_loss=True).records) == old[:2]
            journal.append(new)
        with closing(open_journal(where)) as journal:
            recovery = journal.recover()
            numbered = enumerate(recovery.records, recovery.number + 1)
            left = [record for number, record in numbered if LeftOut.of(number, record) not in recovery.set_aside]
    assert left == old[:2] + new


@pytest.mark.parametrize("goes_on", [False, True], ids=["alone", "another goes on"])
@pytest.mark.parametrize("answered", [True, False], ids=["answered", "unanswered"])
@pytest.mark.parametrize("kind", ["file", "objects", pytest.param("redis", marks=needs_redis)])
def test_only_a_left_out_record_that_was_answered_changes_log_ids_later(
    tmp_path: Path, directory: Place, kind: str, monkeypatch: pytest.MonkeyPatch, answered: bool, goes_on: bool
) -> None:
    """The start that leaves the record out ends before its own record; a later one then does what it had to do, even
    where the store has lost that start's claim, and the leader before it has gone on."""

    def fail(*_: object) -> int:
        raise JournalError("the disk is broken")

    with ExitStack() as stack:
        where = {"file": f"sqlite:{tmp_path}/tracker.db", "objects": directory.address()}.get(kind, "")
        if kind == "redis":
            server = RedisServer(tmp_path / "redis")
            stack.callback(server.kill)
            where = server.address()
        with closing(open_journal(where)) as journal:
            recover(journal, 1, 1)
            number = journal.append(records(2, 3))
            journal.carrying([] if answered else [number])
        with closing(open_journal(where)) as journal:  # which ends while it replays the record
            journal.recover()
            journal.replaying(number)
        with closing(open_journal(where)) as journal, monkeypatch.context() as broken:
            broken.setattr(journal, "append", fail)
            with pytest.raises(JournalError, match="broken"):
                recover(journal, 1, 10, answered, frozenset({number} if answered else {}))
        if goes_on:
            with closing(open_journal(where)) as journal:
                list(journal.recover().records)
                journal.append([Record(Method.TICK, 5, b"x")])
        for _ in range(2):
            with closing(open_journal(where)) as journal:
                recover(journal, 1, 10)
        with closing(open_journal(where)) as journal:
            recovery = journal.recover()
            starts = [Started.read(each.payload) for each in recovery.records if each.method == Method.STARTED]
    assert {each.number for each in recovery.set_aside} == {number}
    accepted = (answered, answered)
    assert [(bool(each.lost_tail), each.fences) for each in starts] == [(False, False), accepted, (False, False)]


@REPLICATED
def test_a_standby_changes_log_ids_for_what_it_left_out(
    where: str, kind: str, redis: RedisServer, directory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start that left an acknowledged record out has ended before its own record, which changes them."""
    with closing(open_journal(where)) as journal:
        number = recover(journal, 1, 1).number + 1
        for record in records(2, 6):
            journal.append([record])
    with closing(open_journal(where)) as journal, monkeypatch.context() as broken:
        broken.setattr(journal, "append", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            recover(journal, 1, 10, True, frozenset({number}))
    for told in (True, False):
        standby = follow_journal(where)
        assert standby is not None
        with closing(standby):
            followed = stand_by(standby, lambda: False, lambda: None)
            assert followed is not None
            assert followed.place is not None
            assert followed.place.number > number
            last = recover(standby, 1, 20, followed=followed).number
        with closing(open_journal(where)) as journal:
            recovery = journal.recover()
            start = Started.read(list(recovery.records)[last - recovery.number - 1].payload)
        assert (bool(start.lost_tail), start.fences) == (told, told)


@pytest.mark.parametrize("kind", ["objects", pytest.param("redis", marks=needs_redis)])
def test_a_standby_goes_on_though_covered_records_were_removed(tmp_path: Path, directory: Place, kind: str) -> None:
    with ExitStack() as stack:
        where = directory.address()
        if kind == "redis":
            server = RedisServer(tmp_path / "redis")
            stack.callback(server.kill)
            where = server.address()
        leader = stack.enter_context(closing(open_journal(where)))
        recovered = recover(leader, 10**18, 10**18)
        state, number = recovered.state, recovered.number
        standby = follow_journal(where)
        assert standby is not None
        stack.callback(standby.close)
        dump, following = standby.follow()
        followed = ReplayableState(dump)
        for each, record in following.records():
            followed.replay(each, record)
        for _ in range(4):
            number = leader.append([Record(Method.TICK, 2 * 10**18, b"\0")])
            leader.snapshot(number, state.dump())
        leader.append([Record(Method.TICK, 2 * 10**18, b"\0")])  # which removes what no snapshot needs
        leader.close()
        while not standby.try_to_own():
            pass
        last = recover(standby, 10**18, 10**18, followed=Followed(standby, followed, following.place)).number
        assert last == number + 2
