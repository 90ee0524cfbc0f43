"""Three ways for a machine to report to the agent: the moments, and the contents of each report.

*Each action*: whenever an element is sent or received, a report of that. *Each step*: a vertex reports what
it received together with what it sends on, in one message. *Each interval*: a machine gathers, and reports at moments
of its own, an interval apart, whatever has changed, one entry for each substream and segment; where nothing has, it
sends nothing. The same steps of the same run, put into other messages; so all three add up to the same.

Machines do not start at the same instant and share no clock, so the moments of different machines are out of step:
each has a *phase*. Machines in step are the best case, since the last report that an end waits for then comes together
with all others.

A source's promise is a frontier: no more of this substream, nor of those before it. It goes with the machine's next
report where there is an interval to wait for, and by itself where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from experiments.dataflow import F8, I8, U8, Run

NO_PROMISE = -1


class Phases(StrEnum):
    """Relation between the machines' reporting moments."""

    RANDOM = "random"  #: as machines are that start when they start
    SPREAD = "evenly spread"
    IN_STEP = "in step"  #: all at the same instant

    def of(self, machines: int, interval: float, seed: int) -> F8:
        """Return when each machine's first interval begins, in hops.

        >>> Phases.SPREAD.of(4, 100.0, seed=1)
        array([ 0., 25., 50., 75.])
        """
        if self is Phases.IN_STEP:
            return np.zeros(machines)
        if self is Phases.SPREAD:
            return np.arange(machines) * interval / machines
        return np.random.default_rng(seed + 4).uniform(0, interval, machines)


@dataclass(frozen=True, slots=True)
class Said:
    """One message's content: columns of entries, and a promise."""

    machine: int
    substream: I8
    segment: I8
    xor: U8
    sent: I8
    received: I8
    promise: int  #: the last substream that the machine's source has closed; NO_PROMISE: nothing new


@dataclass(frozen=True, eq=False)
class Messages:
    """All messages of all machines, in the order in which they are sent."""

    machine: I8
    at: F8  #: when it is sent
    promise: I8
    begin: I8  #: where its entries begin; one more than there are messages
    substream: I8
    segment: I8
    xor: U8
    sent: I8
    received: I8

    def __len__(self) -> int:
        return len(self.machine)

    def said(self, order: I8) -> Iterator[Said]:
        """Yield the messages of these numbers."""
        for number in order.tolist():
            rows = slice(int(self.begin[number]), int(self.begin[number + 1]))
            yield Said(
                int(self.machine[number]),
                self.substream[rows],
                self.segment[rows],
                self.xor[rows],
                self.sent[rows],
                self.received[rows],
                int(self.promise[number]),
            )


def each_action(run: Run) -> Messages:
    """Return a message whenever an element is sent or received."""
    spoken = _Spoken.of(run)
    # Elements that an element gives rise to are reported sent before it is reported received.
    key = 2 * spoken.step + spoken.received
    return _messages(run, spoken, key, run.at[spoken.step], _promises(run, int(key.max()) + 1))


def each_step(run: Run) -> Messages:
    """Return a message for each step of an element."""
    spoken = _Spoken.of(run)
    return _messages(run, spoken, spoken.step, run.at[spoken.step], _promises(run, len(run.at)))


def each_interval(run: Run, interval: float, phases: Phases = Phases.RANDOM) -> Messages:
    """Return a message of each machine at the end of each of its intervals in which something has changed.

    Args:
        run: what happened.
        interval: in hops.
        phases: how the machines' intervals lie to one another.
    """
    spoken = _Spoken.of(run)
    phase = phases.of(run.shape.machines, interval, run.shape.seed)
    machine = run.machine[spoken.step]
    number = _number(run.at[spoken.step], interval, phase[machine])
    key = number * run.shape.machines + machine
    promises = _promises(run, 0)
    promised = _number(promises.at, interval, phase[promises.machine])
    together = _Promises(
        promised * run.shape.machines + promises.machine,
        promises.machine,
        _end(promised, interval, phase[promises.machine]),
        promises.substream,
    )
    return _messages(run, spoken, key, _end(number, interval, phase[machine]), together)


def each_worker(run: Run, interval: float) -> Messages:
    """Send the same by each vertex's instance for itself, in step, since the driver begins each epoch for all.

    There are no promises among them: those are the driver's.
    """
    spoken = _Spoken.of(run)
    number = _number(run.at[spoken.step], interval, 0.0)
    worker = run.machine[spoken.step] * run.shape.workers + run.worker[spoken.step]
    key = number * run.shape.machines * run.shape.workers + worker
    none = np.empty(0, np.int64)
    return _messages(run, spoken, key, _end(number, interval, 0.0), _Promises(none, none, np.empty(0), none))


def count_each_action(run: Run) -> int:
    """Count the messages of `each_action`."""
    return int((~run.first).sum() + (~run.last).sum()) + run.shape.machines * run.shape.substreams


def count_each_step(run: Run) -> int:
    """Count the messages of `each_step`."""
    return len(run.at) + run.shape.machines * run.shape.substreams


def _number(at: F8, interval: float, phase: F8 | float) -> I8:
    """Return the interval of a time; 0 is the one that ends when the machine's phase begins."""
    return np.floor_divide(at - phase, interval).astype(np.int64) + 1


def _end(number: I8, interval: float, phase: F8 | float) -> F8:
    return np.multiply(number, interval, dtype=np.float64) + phase


@dataclass(frozen=True, slots=True, eq=False)
class _Spoken:
    """The reportable actions of elements, one row for each time that one is sent or received."""

    step: I8  #: of the run
    received: I8  #: 1, or 0: sent
    label: U8
    edge: I8

    @classmethod
    def of(cls, run: Run) -> _Spoken:
        given, taken = np.flatnonzero(~run.last), np.flatnonzero(~run.first)
        return cls(
            step=np.concatenate([given, taken]),
            received=np.repeat([0, 1], [len(given), len(taken)]),
            label=np.concatenate([run.label[given], run.taken[taken]]),
            edge=np.concatenate([run.place[given], run.place[taken] - 1]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Promises:
    """Promises of sources, one row for each source and substream."""

    key: I8  #: of the message that has it
    machine: I8
    at: F8  #: when that is sent
    substream: I8


def _promises(run: Run, first_key: int) -> _Promises:
    """Put each promise into a message of its own."""
    machines, substreams = run.shape.machines, run.shape.substreams
    substream = np.repeat(np.arange(substreams), machines)
    machine = np.tile(np.arange(machines), substreams)
    return _Promises(first_key + np.arange(len(substream)), machine, run.closed[substream], substream)


def _messages(run: Run, spoken: _Spoken, key: I8, at: F8, promises: _Promises) -> Messages:
    """Gather rows into messages, and entries of one substream and segment within a message into one.

    Args:
        run: what happened.
        spoken: what there is to say of elements.
        key: for each row of it, which message it goes into; rows of one machine's messages are in their order.
        at: when that is sent.
        promises: what else there is to say, in which messages.
    """
    keys, place = np.unique(np.concatenate([key, promises.key]), return_inverse=True)
    count, rows = len(keys), len(key)
    machine, sent_at = np.empty(count, np.int64), np.empty(count)
    machine[place] = np.concatenate([run.machine[spoken.step], promises.machine])
    sent_at[place] = np.concatenate([at, promises.at])
    promise = np.full(count, NO_PROMISE)
    np.maximum.at(promise, place[rows:], promises.substream)

    order = np.argsort(sent_at, kind="stable")
    turn = np.empty(count, np.int64)
    turn[order] = np.arange(count)
    segments, substreams = len(run.shape.segments()), run.shape.substreams
    cell = (turn[place[:rows]] * substreams + run.substream[spoken.step]) * segments + run.segment(spoken.edge)
    by_cell = np.argsort(cell, kind="stable")
    cell, received, xor = cell[by_cell], spoken.received[by_cell], spoken.label[by_cell]
    first = np.flatnonzero(np.concatenate([[True], cell[1:] != cell[:-1]]))
    message, rest = np.divmod(cell[first], substreams * segments)
    return Messages(
        machine=machine[order],
        at=sent_at[order],
        promise=promise[order],
        begin=np.searchsorted(message, np.arange(count + 1)),
        substream=rest // segments,
        segment=rest % segments,
        xor=np.bitwise_xor.reduceat(xor, first),
        sent=np.add.reduceat(1 - received, first),
        received=np.add.reduceat(received, first),
    )
