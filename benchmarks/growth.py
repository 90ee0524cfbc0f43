"""Costs of the core with few open substreams and with many: they should be equal.

A job that runs for long has about as many open at any time: as some end, others begin. Here a thousand begin with each
report, with an element each that is sent and received; a second report has entries for a thousand others among those
that are open, in random order; and a promise ends the thousand oldest. Each of the three is timed by itself.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks import workload
from benchmarks.figures import Figure
from benchmarks.workload import FRONT, JOB, SEGMENT
from tracker.contract.commands import Answer, Command, Reported
from tracker.core import DefineJob, Frontier, OpenProducer, Report, Spec, Tracker
from tracker.load.shared import memory

_NOW = 1_800_000_000 * 10**9
_AT_ONCE = 1_000


@dataclass
class _Costs:
    """Seconds of processor time for each substream or entry, a figure for each turn."""

    opened: list[float] = field(default_factory=list)
    reported: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)


def measure(sizes: list[int], turns: int) -> Iterator[Figure]:
    """Measure the cost of opening and of ending a substream, and of an entry by id, with so many open.

    Args:
        sizes: how many are open; the first is what the others are held against. Memory is measured with the last.
        turns: how often a thousand open, are reported on, and end.
    """
    few: _Costs | None = None
    for size in sizes:
        before = memory(os.getpid())
        job = _Job(size)
        held = memory(os.getpid()) - before
        costs = job.turn(turns)
        few = few or costs
        what = {"opening one": "opened", "an entry by id": "reported", "ending one": "ended"}
        for name, attribute in what.items():
            yield Figure(
                what=f"{name}, {size:,} open",
                unit="s",
                runs=getattr(costs, attribute),
                floor=getattr(few, attribute),
                floor_is=f"with {sizes[0]:,} open",
                note=f"processor time; {_AT_ONCE:,} a report",
            )
        if size == sizes[-1]:
            name_length = len(workload.names(np.arange(1))[0])
            yield Figure(
                what=f"memory of one, {size:,} open",
                unit="bytes",
                runs=[held / size],
                floor=[float(name_length)],
                floor_is="its name",
                note="the process, before and after",
            )
        del job
        gc.collect()


class _Job:
    """A tracker with one job that has so many substreams open."""

    def __init__(self, size: int) -> None:
        self._tracker = Tracker("bench")
        spec = Spec(JOB, "d1", ((SEGMENT, ()),), fronts=(FRONT,))
        self._apply(DefineJob(spec))
        self._apply(OpenProducer(JOB, "sender", "r1"))
        self._log_id = self._tracker.view(JOB).status().log_id
        self._epoch = 0
        self._ids: NDArray[np.uint64] = np.empty(size, np.uint64)
        for place in range(0, size, _AT_ONCE):
            self._open(place)
        self._size = size
        self._next = size

    def turn(self, turns: int) -> _Costs:
        """Open a thousand, report on a thousand, end a thousand; so many times, and one that is not counted."""
        costs = _Costs()
        rng = np.random.default_rng(0)
        for turn in range(turns + 1):
            opened = self._open(self._next)
            reported = self._report(self._ids[rng.choice(self._size, _AT_ONCE, replace=False)])
            ended = self._end(self._next - self._size)
            self._next += _AT_ONCE
            if turn:
                costs.opened.append(opened / _AT_ONCE / 1e9)
                costs.reported.append(reported / _AT_ONCE / 1e9)
                costs.ended.append(ended / _AT_ONCE / 1e9)
        return costs

    def _open(self, place: int) -> int:
        places = np.arange(place, place + _AT_ONCE)
        report = self._entries(
            names=workload.names(places),
            scopes=workload.scopes(),
            scope_index=workload.scope_index(places),
            end_times=workload.end_times(places),
            want_ids=True,
        )
        start = time.thread_time_ns()
        answer = self._apply(report)
        spent = time.thread_time_ns() - start
        assert isinstance(answer, Reported)
        assert answer.substream_ids is not None
        self._ids[places % len(self._ids)] = answer.substream_ids
        return spent

    def _report(self, ids: NDArray[np.uint64]) -> int:
        report = self._entries(substream_ids=ids, log_id=self._log_id)
        start = time.thread_time_ns()
        self._apply(report)
        return time.thread_time_ns() - start

    def _end(self, place: int) -> int:
        (through,) = workload.end_times(np.array([place])).tolist()
        promise = Report(
            JOB, "sender", "r1", self._turned(), units=["unit"], promises=(Frontier(FRONT, through),), commit=True
        )
        before = self._tracker.view(JOB).status().ended_substreams
        start = time.thread_time_ns()
        self._apply(promise)
        spent = time.thread_time_ns() - start
        if self._tracker.view(JOB).status().ended_substreams - before != _AT_ONCE:
            raise RuntimeError("the promise has not ended what it should have")
        return spent

    def _entries(self, **named: object) -> Report:
        """Return a thousand entries: an element each, sent and received."""
        ones = np.ones(_AT_ONCE, np.uint32)
        return Report(
            job=JOB,
            producer="sender",
            run="r1",
            epoch=self._turned(),
            units=["unit"],
            segments=[SEGMENT],
            substream_index=np.arange(_AT_ONCE, dtype=np.uint32),
            segment_index=np.zeros(_AT_ONCE, np.uint32),
            xor=np.zeros(_AT_ONCE, np.uint64),
            sent=ones,
            received=ones,
            entry_count=_AT_ONCE,
            commit=True,
            **named,  # type: ignore[arg-type]
        )

    def _turned(self) -> int:
        self._epoch += 1
        return self._epoch

    def _apply(self, command: Command) -> Answer:
        return self._tracker.apply(command, _NOW)
