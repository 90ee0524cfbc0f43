"""Commands that share a sync, and the next ones, which are synced in the meantime."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tracker.contract.commands import Answer
from tracker.journal import Record, SqliteJournal
from tracker.server.replayable import recover
from tracker.server.sequencer import Sequencer
from tracker.wire.codec import Method
from tracker.wire.gen import tracker_pb2 as wire

from .sequencing import started, submitted


class Observed(SqliteJournal):
    """A journal that holds its first group until it is told to go on, and notes that the second one has begun."""

    groups: int | None = None  #: that were appended; None: they are not counted yet

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.first, self.go_on, self.second = threading.Event(), threading.Event(), threading.Event()

    def append(self, records: Sequence[Record]) -> int:
        if self.groups is not None:
            self.groups += 1
            (self.first if self.groups == 1 else self.second).set()
            assert self.go_on.wait(60)
        return super().append(records)


def define(order: Sequencer, job: str) -> asyncio.Future[Answer]:
    spec = wire.JobSpec(job=job, deployment="d", segments=[wire.Segment(name="a")])
    answer = submitted(order, Method.DEFINE_JOB, wire.DefineJobRequest(spec=spec))
    assert isinstance(answer, asyncio.Future)
    return answer


def test_a_group_is_carried_out_while_the_next_one_is_synced(tmp_path: Path) -> None:
    async def run(journal: Observed) -> list[tuple[str, bool]]:
        carried_out: list[tuple[str, bool]] = []
        order = started(
            recover(journal, 10**18, 10**18), lambda job, *_: carried_out.append((job, journal.second.wait(60)))
        )
        journal.groups = 0
        one = define(order, "one")
        assert await asyncio.to_thread(journal.first.wait, 60)
        another = define(order, "another")
        journal.go_on.set()
        await asyncio.gather(one, another)
        await order.stop(keep_snapshot=False)
        return carried_out

    with closing(Observed(tmp_path / "tracker.db")) as journal:
        assert asyncio.run(run(journal)) == [("one", True), ("another", True)]
