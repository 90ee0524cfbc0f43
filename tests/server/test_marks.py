"""A mark names a command while it is carried out, and no longer: what was answered is never left out."""

from __future__ import annotations

import asyncio
import json
import resource
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.journal.object_stores import Place, directory
from tests.journal.redis_server import RedisServer, needs_redis
from tracker.core import Prepared, Refused
from tracker.journal import JournalError, LeftOut, Record, SqliteJournal, follow_journal, open_journal
from tracker.server import lanes, sequencer
from tracker.server.clock import Clock
from tracker.server.lanes import Lanes
from tracker.server.limits import Limits
from tracker.server.measures import JobLabels, Measures
from tracker.server.replayable import Followed, ReplayableState, Started, recover
from tracker.server.sequencer import JournalHealth, Sequencer
from tracker.server.snapshots import Snapshots
from tracker.wire.codec import Method, read_command
from tracker.wire.gen import tracker_pb2 as wire

from .tracking import ends

__all__ = ["directory"]  # a fixture


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own."""
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
        measures = Measures(JobLabels(1, lambda _: True), recovered.state.tracker.find)
        health, snapshots = JournalHealth(lambda _: None, measures), Snapshots(journal, measures, 1 << 30)
        order = Sequencer(recovered, Lanes(), Limits(), Clock(0), health, snapshots, lambda *_: None)
        order.start()

        async def tell(method: Method, request: Any, place: int) -> None:
            payload = request.SerializeToString()
            answer = order.submit(method, payload, Prepared(read_command(method, payload)))
            assert isinstance(answer, asyncio.Future)
            await answer
            named.append((recovered.number + place, journal.carried))

        segments = [wire.Segment(name="a", feeds=["b"]), wire.Segment(name="b")]
        spec = wire.JobSpec(job="job", deployment="d", segments=segments, fronts=["f"])
        requests = [
            (Method.DEFINE_JOB, wire.DefineJobRequest(spec=spec)),
            (Method.OPEN_PRODUCER, wire.OpenProducerRequest(job="job", producer="p", run="r")),
            *((Method.REPORT, ends(epoch)) for epoch in range(30)),
        ]
        await asyncio.gather(*(tell(method, each, place) for place, (method, each) in enumerate(requests, 1)))
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
        measures = Measures(JobLabels(1, lambda _: True), recovered.state.tracker.find)
        health, snapshots = JournalHealth(lambda _: None, measures), Snapshots(journal, measures, 1 << 30)
        order = Sequencer(recovered, Lanes(), Limits(), Clock(0), health, snapshots, lambda *_: None)
        order.start()
        journal.takes_notes = False
        spec = wire.JobSpec(job="job", deployment="d", segments=[wire.Segment(name="a")])
        request = wire.DefineJobRequest(spec=spec)
        payload = request.SerializeToString()
        answer = order.submit(Method.DEFINE_JOB, payload, Prepared(read_command(Method.DEFINE_JOB, payload)))
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
            assert (await answer).created
            await order.stop(keep_snapshot=False)

    with closing(Unnoted(tmp_path / "tracker.db")) as journal:
        asyncio.run(ask(journal))


@needs_redis
def test_a_note_is_written_again_after_its_connection_broke(redis: RedisServer) -> None:
    with closing(open_journal(redis.address())) as journal:
        journal.recover()
        number = journal.append(records(1_000, 1))
        assert journal.carrying([number])
        redis.client().client_kill_filter(_type="normal", skipme=True)
        while journal.carrying([]):  # the system takes what it cannot deliver for a while
            pass
        while not journal.carrying([]):
            time.sleep(0.01)
        journal.append(records(1_001, 1))
    with closing(open_journal(redis.address())) as journal:
        assert journal.recover().unanswered == frozenset()


@needs_redis
@pytest.mark.parametrize("ends", ["the tracker", "the server, too"])
def test_a_note_on_a_server_that_has_ended_names_no_command(redis: RedisServer, ends: str) -> None:
    with closing(open_journal(redis.address())) as journal:
        journal.recover()
        number = journal.append(records(1_000, 1))
        assert journal.carrying([number])
        redis.wait_until(lambda: f"[{number}]" in str(redis.client().hgetall("{tracker}:marks")))
        if ends == "the server, too":
            redis.freeze()
            assert journal.carrying([])  # the system has it, the server has not read it, and the answer leaves
            redis.kill()
            redis.start()
    for start in range(3):
        with closing(open_journal(redis.address())) as journal:
            assert journal.recover().unanswered == (frozenset({number}) if ends == "the tracker" else frozenset())
            if start:  # the first one ends before it replays the record, the second one while it does
                journal.replaying(number)


@needs_redis
def test_a_note_that_cannot_be_read_names_nothing(redis: RedisServer) -> None:
    with closing(open_journal(redis.address())) as journal:
        journal.recover()
    for note in ("", "{", "[]", "{}", '{"replayed": 1}'):
        redis.client().hset("{tracker}:marks", "1", note)
        with closing(open_journal(redis.address())) as journal:
            recovery = journal.recover()
            assert (recovery.unanswered, recovery.suspect) == (frozenset(), 0)


@needs_redis
def test_of_the_notes_of_two_terms_the_later_one_counts(redis: RedisServer) -> None:
    run = redis.client().info("server")["run_id"]
    notes = {str(term): json.dumps({"replayed": 0, "starts": 0, "carried": [term], "server": run}) for term in (9, 10)}
    redis.client().hset("{tracker}:marks", mapping=notes)
    with closing(open_journal(redis.address())) as journal:
        assert journal.recover().unanswered == frozenset({10})


@needs_redis
def test_a_user_who_may_not_ask_for_the_run_trusts_no_note(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    redis.client().execute_command("ACL", "SETUSER", "old", "on", ">secret", "~*", "+@all", "-info")
    monkeypatch.setenv("TRACKER_JOURNAL_PASSWORD", "secret")
    for _ in range(2):
        with closing(open_journal(redis.address("&user=old"))) as journal:
            assert journal.recover().unanswered == frozenset()
            assert journal.carrying([journal.append(records(1_000, 1))])


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


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "unanswered"])
@pytest.mark.parametrize("kind", ["file", "objects", pytest.param("redis", marks=needs_redis)])
def test_only_a_left_out_record_that_was_answered_changes_log_ids_later(
    tmp_path: Path, directory: Place, kind: str, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """The start that leaves the record out ends before its own record; a later one then does what it had to do."""

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
        for _ in range(2):
            with closing(open_journal(where)) as journal:
                recover(journal, 1, 10)
        with closing(open_journal(where)) as journal:
            recovery = journal.recover()
            starts = [Started.read(each.payload) for each in recovery.records if each.method == Method.STARTED]
    assert {each.number for each in recovery.set_aside} == {number}
    accepted = (answered, answered)
    assert [(bool(each.lost_tail), each.fences) for each in starts] == [(False, False), accepted, (False, False)]


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
