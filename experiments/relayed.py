"""Epochs through relays: how the tracker is meant to be used on many machines.

All processes of a job are one producer. Each reports its part of an epoch, a unit, to the relay of its machine; the
relay makes one report of them, with the relay's own code; and when all have been answered the driver commits the epoch
and promises for the sources. So an epoch costs a message of each machine and one more, and nothing counts before it is
committed, whatever task fails meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from experiments import agent, reports
from experiments.agent import JOB, RUN, Ear, Followed
from experiments.dataflow import Run, hops
from experiments.reports import Said
from tracker.relay.combining import Part, Room, combine
from tracker.server.translation import Method
from tracker.wire.gen import tracker_pb2 as wire

_DRIVER = "job"


def follow(run: Run, interval: float) -> tuple[Followed, int]:
    """Let the tracker follow a run, an epoch an interval (hops).

    Returns:
        What it took over the network, commits among the messages; and how many reports the relays got.

    Raises:
        agent.WrongEndError: an end came early, twice, incomplete or not at all.
    """
    rng = np.random.default_rng(run.shape.seed + 3)
    ear = Ear(run, agent.new_tracker(run, producers=[_DRIVER]))
    fronts = agent.names_of_machines(run)
    segments = [name for name, _ in run.shape.segments()]
    worker_reports = reports.each_worker(run, interval)
    said = dict(_by_epoch_and_machine(worker_reports, interval))
    last = int(max(run.over) // interval)
    messages = entries = 0
    promised = -1
    for epoch in range(last + 1):
        end = (epoch + 1) * interval
        coming = []
        for machine in range(run.shape.machines):
            parts = said.get((epoch, machine))
            if parts:
                data, rows = _combined(parts, segments, epoch)
                to_relay, to_tracker = hops(rng, 2).tolist()
                coming.append((end + to_relay + to_tracker, data))
                entries += rows
        for at, data in sorted(coming):
            ear.tell(Method.REPORT, data, at)
        messages += len(coming)
        closed = int(np.searchsorted(run.closed, end)) - 1
        request = wire.CommitRequest(job=JOB, producer=_DRIVER, run=RUN, epoch=epoch)
        if closed > promised:
            promised = closed
            for front in fronts:
                request.promises.add(frontier=wire.Frontier(front=front, time=closed))
        answered = max((at for at, _ in coming), default=end)
        # The answer to the relay, its to the process, that one's to the driver; and the commit.
        ear.tell(Method.COMMIT, request.SerializeToString(), answered + float(hops(rng, 4).sum()))
        messages += 1
    return ear.followed(messages, entries, 0, rng), len(worker_reports)


def _by_epoch_and_machine(messages: reports.Messages, interval: float) -> Iterator[tuple[tuple[int, int], list[Said]]]:
    """What each machine's processes have to say of each epoch."""
    epoch = np.rint(messages.at / interval).astype(np.int64) - 1
    order = np.lexsort([messages.machine, epoch])
    keys = zip(epoch[order].tolist(), messages.machine[order].tolist(), strict=True)
    rows = zip(keys, messages.said(order), strict=True)
    for key, group in groupby(rows, key=lambda row: row[0]):
        yield key, [said for _, said in group]


def _combined(parts: Sequence[Said], segments: Sequence[str], epoch: int) -> tuple[bytes, int]:
    """What the relay makes of its machine's reports, and how many entries that has."""
    room, read = Room(), []
    for worker, said in enumerate(parts):
        message = agent.request(said, segments)
        message.producer, message.epoch = _DRIVER, epoch
        message.units.append(f"{said.machine}/{worker}")
        part = Part.read(message.SerializeToString())
        if part is None or not room.take(part):
            raise RuntimeError("the relay would not combine a report")
        read.append(part)
    data = combine(read).request
    return data, wire.ReportRequest.FromString(data).entry_count
