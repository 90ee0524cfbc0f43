"""Clients that repeat what has no answer."""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

from tracker.contract.commands import Opened
from tracker.contract.refusal import Refused
from tracker.wire.codec import Method
from tracker.wire.gen import tracker_pb2 as wire

from .judging import JOB, PRODUCERS, FoundOut, Log, Lost
from .rules import end_time, scope

if TYPE_CHECKING:
    from .program import Serving
    from .world import World


class Producer:
    """A client that commits epoch after epoch, with elements and promises, and repeats what has no answer."""

    def __init__(self, world: World, name: str, epochs: int) -> None:
        self._world = world
        self._name = name
        self._epochs = epochs
        self._runs = 0
        self.done = False

    def run(self) -> None:
        """Commit all epochs, and, as long as this runs, whatever is missing of them again."""
        while True:
            calm = self._world.calm
            try:
                self._live()
                self.done = calm and self._world.over
                self._world.schedule.pause(1.0)
            except Refused as refused:  # fenced, or of a tracker that knows no such job: begin again
                if refused.code not in ("FAILED_PRECONDITION", "NOT_FOUND", "ABORTED", "OUT_OF_RANGE"):
                    raise FoundOut(f"{self._name} was refused: {refused.reason}: {refused}") from refused
                self._world.schedule.pause(0.5)

    def _live(self) -> None:
        world = self._world
        self._runs += 1
        run = f"{self._name}.{self._runs}"
        segments = [wire.Segment(name="a", feeds=["b"]), wire.Segment(name="b")]
        rules = world.sent.rules.spec()
        spec = wire.JobSpec(job=JOB, deployment="d", segments=segments, fronts=PRODUCERS, **rules)
        world.insist(Method.DEFINE_JOB, wire.DefineJobRequest(spec=spec))
        world.defined = True
        opened, log_id = world.insist(
            Method.OPEN_PRODUCER, wire.OpenProducerRequest(job=JOB, producer=self._name, run=run)
        )
        assert isinstance(opened, Opened)
        world.runs(self._name, log_id)
        committed = -1 if opened.committed_epoch is None else opened.committed_epoch
        log = world.logs.setdefault(log_id, Log())
        log.runs[self._name] = self._runs
        known = log.committed.get(self._name, -1)
        if committed < known:
            raise FoundOut(f"{self._name} had epoch {known} committed in log {log_id}, and its newest is {committed}")
        for epoch in range(committed + 1, self._epochs):
            world.sent.begun.setdefault((self._name, epoch), world.wall())
            _, log_id = world.insist(Method.REPORT, self._report(run, epoch))
            log = world.logs.setdefault(log_id, Log())
            log.committed[self._name] = max(epoch, log.committed.get(self._name, -1))
            log.answered.setdefault((self._name, epoch), world.wall())
            pauses = (0.05, 0.2, 0.2, 1.0, 4.0) if world.sent.rules.any else (0.05, 0.2, 1.0)
            world.schedule.pause(world.schedule.random.choice(pauses))

    def _report(self, run: str, epoch: int) -> wire.ReportRequest:
        """Send an element of a window, receive that of the one before, if they lag, with a child, and promise."""
        rules = self._world.sent.rules
        last = self._epochs - rules.lag
        if not rules.lag:
            entries = [(epoch, 0, 0, 1, 1), (epoch, 1, 0, 1, 1)]
        else:
            entries = [(epoch, 0, self._label(epoch), 1, 0)] if epoch < last else []
            if epoch:
                entries += [(epoch - 1, 0, self._label(epoch - 1), 0, 1), (epoch - 1, 1, 0, 1, 1)]
        expected = range(epoch + 1 if epoch else 0, min(epoch + 2, last)) if rules.expects else range(0)
        windows = sorted({*expected, *(window for window, *_ in entries)})
        scopes = sorted(map(scope, windows))
        promises = [wire.Promise(frontier=wire.Frontier(front=self._name, time=end_time(epoch)))]
        for window in expected:
            number = wire.Expect(front=self._name, segment="a", substream_index=windows.index(window), elements=1)
            promises.append(wire.Promise(expect=number))
        named, segment_index, xor, sent, received = zip(*entries, strict=True)
        return wire.ReportRequest(
            job=JOB, producer=self._name, run=run, epoch=epoch, scopes=scopes, names=[f"w{each}" for each in windows],
            scope_index=[scopes.index(scope(each)) for each in windows], end_times=map(end_time, windows),
            segments=["a", "b"], substream_index=map(windows.index, named), segment_index=segment_index, xor=xor,
            sent=sent, received=received, entry_count=len(entries), commit=True, promises=promises,
        )  # fmt: skip

    def _label(self, window: int) -> int:
        return 1 + zlib.crc32(f"{self._name} {window}".encode())


def hand_over(world: World) -> None:
    """Ask again and again for a hand-over while all reporters have a run, and cancel it: none of them closes."""
    random = world.schedule.random
    for asked in range(1_000_000):
        world.schedule.pause(random.choice((0.5, 2.0)))
        request = wire.DrainRequest(job=JOB, deployment="d", drain_id=str(asked), mode=wire.DRAIN_MODE_HAND_OVER)

        async def ask(serving: Serving, request: wire.DrainRequest = request) -> None:
            if world.running.issuperset(PRODUCERS):
                await serving.command(Method.DRAIN, request)

        with suppress(Refused, Lost):
            world.call(ask)
        if random.random() < 0.3:
            world.operator.back_up()
        world.schedule.pause(random.choice((0.5, 2.0)))
        with suppress(Refused):
            world.insist(Method.CANCEL_DRAIN, wire.CancelDrainRequest(job=JOB, deployment="d"))
