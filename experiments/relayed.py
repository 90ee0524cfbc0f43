"""Epochs through relays: how the tracker is meant to be used on many machines.

All processes of a job are one producer. Each reports its part of an epoch, a unit, to the relay of its machine; the
relay makes few reports of them; and when all have been answered the driver commits the epoch and promises for the
sources. So nothing counts before it is committed, whatever task fails meanwhile.

The relay's own code combines. The moments of sending are simulated by its rule: the first report at once, the others
when an answer comes or when the first of them has waited for long enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby

import numpy as np

from experiments import agent, reports
from experiments.agent import JOB, RUN, Ear, Followed
from experiments.dataflow import F8, SECOND, Run, hops
from experiments.reports import Said
from tracker.relay.batching import Capacity, Part, combine
from tracker.wire.codec import Method
from tracker.wire.gen import tracker_pb2 as wire

_DRIVER = "job"
_MAX_DELAY = 0.005 * SECOND  # the relay's default


def follow(run: Run, interval: float) -> tuple[Followed, int]:
    """Let the tracker follow a run, an epoch an interval (hops).

    Returns:
        The traffic over the network, commits among the messages; and how many reports the relays got.

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
            parts = said.get((epoch, machine), [])
            data = [_report(part, worker, segments, epoch) for worker, part in enumerate(parts)]
            for together, arrival in _departures(end + hops(rng, len(parts)), rng):
                message, rows = _combined([data[worker] for worker in together])
                coming.append((arrival, message))
                entries += rows
        for at, message in sorted(coming):
            ear.tell(Method.REPORT, message, at)
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
    return ear.followed(messages, entries, rng), len(worker_reports)


def _by_epoch_and_machine(messages: reports.Messages, interval: float) -> Iterator[tuple[tuple[int, int], list[Said]]]:
    """Yield the reports of each machine's processes, epoch by epoch."""
    epoch = np.rint(messages.at / interval).astype(np.int64) - 1
    order = np.lexsort([messages.machine, epoch])
    keys = zip(epoch[order].tolist(), messages.machine[order].tolist(), strict=True)
    rows = zip(keys, messages.said(order), strict=True)
    for key, group in groupby(rows, key=lambda row: row[0]):
        yield key, [said for _, said in group]


def _report(said: Said, worker: int, segments: Sequence[str], epoch: int) -> bytes:
    message = agent.request(said, segments)
    message.producer, message.epoch = _DRIVER, epoch
    message.units.append(f"{said.machine}/{worker}")
    return message.SerializeToString()


def _departures(arrivals: F8, rng: np.random.Generator) -> Iterator[tuple[list[int], float]]:
    """Yield the reports that a relay sends together, and when the tracker has them.

    Args:
        arrivals: when each of its machine's processes has reported to it.
        rng: how long messages take.
    """
    coming = [(at, worker) for worker, at in enumerate(arrivals.tolist())]
    heapify(coming)
    answers: list[float] = []
    waiting: list[int] = []
    alarm = float("inf")
    while coming or waiting:
        now = min(coming[0][0] if coming else alarm, answers[0] if answers else alarm, alarm)
        if answers and answers[0] == now:
            heappop(answers)
        elif now < alarm:
            waiting.append(heappop(coming)[1])
            if answers:
                alarm = min(alarm, now + _MAX_DELAY)
                continue
        alarm = float("inf")
        if waiting:
            there, back = hops(rng, 2).tolist()
            heappush(answers, now + there + back)
            yield waiting, now + there
            waiting = []


def _combined(reports: Sequence[bytes]) -> tuple[bytes, int]:
    """Combine reports as the relay does. Return the result and the number of its entries."""
    if len(reports) == 1:
        return reports[0], wire.ReportRequest.FromString(reports[0]).entry_count
    room, parts = Capacity(), []
    for data in reports:
        part = Part.read(data)
        if part is None or not room.take(part):
            raise RuntimeError("the relay would not combine a report")
        parts.append(part)
    combined = combine(parts).request
    return combined, wire.ReportRequest.FromString(combined).entry_count
