"""A mark names a command while it is carried out, and no longer: what was answered is never left out."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.journal.object_stores import Place, directory
from tests.journal.redis_server import RedisServer, needs_redis
from tracker.core import Prepared
from tracker.journal import LeftOut, Record, SqliteJournal, follow_journal, open_journal
from tracker.server import lanes, sequencer
from tracker.server.clock import Clock
from tracker.server.joblabels import JobLabels
from tracker.server.lanes import Lanes
from tracker.server.limits import Limits
from tracker.server.measures import Measures
from tracker.server.replayable import Followed, ReplayableState, recover
from tracker.server.sequencer import Sequencer
from tracker.wire.codec import Method, read_command
from tracker.wire.gen import tracker_pb2 as wire

from .tracking import ends

__all__ = ["directory"]  # a fixture


class Marked(SqliteJournal):
    """A journal whose marks can be looked at."""

    carried: tuple[int, ...] = ()

    def carrying(self, numbers: Sequence[int]) -> None:
        self.carried = tuple(numbers)
        super().carrying(numbers)


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
        state, number = recover(journal, 10**18, 10**18)
        measures = Measures(JobLabels(1, lambda _: True), state.tracker.find)
        order = Sequencer(
            state, Lanes(), journal, number, Limits(), Clock(0), lambda *_: None, lambda _: None, 1 << 30, measures
        )
        order.start()

        async def tell(method: Method, request: Any, place: int) -> None:
            payload = request.SerializeToString()
            answer = order.submit(method, payload, Prepared(read_command(method, payload)))
            assert isinstance(answer, asyncio.Future)
            await answer
            named.append((number + place, journal.carried))

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
            journal.set_aside(5, old[4], "it ends the process")
        lose()
        with closing(open_journal(where)) as journal:
            assert list(journal.recover(accept_loss=True).records) == old[:2]
            journal.append(new)
        with closing(open_journal(where)) as journal:
            recovery = journal.recover()
            numbered = enumerate(recovery.records, recovery.number + 1)
            left = [record for number, record in numbered if LeftOut.of(number, record) not in recovery.set_aside]
    assert left == old[:2] + new


@pytest.mark.parametrize("kind", ["objects", pytest.param("redis", marks=needs_redis)])
def test_a_standby_goes_on_though_covered_records_were_removed(tmp_path: Path, directory: Place, kind: str) -> None:
    with ExitStack() as stack:
        where = directory.address()
        if kind == "redis":
            server = RedisServer(tmp_path / "redis")
            stack.callback(server.kill)
            where = server.address()
        leader = stack.enter_context(closing(open_journal(where)))
        state, number = recover(leader, 10**18, 10**18)
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
        _, last = recover(standby, 10**18, 10**18, followed=Followed(standby, followed, following.place))
        assert last == number + 2
