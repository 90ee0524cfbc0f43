"""When a machine speaks to the agent, and what it says then.

Three ways. *Each action*: whenever an element is sent or received, a report of that. *Each step*: a vertex reports what
it received together with what it sends on, in one message. *Each interval*: a machine gathers, and reports at fixed
moments whatever has changed, one entry for each substream and segment; where nothing has, it says nothing. The same
steps of the same run, put into other messages; so all three say the same in the end.

A source's promise is a frontier: no more of this substream, nor of those before it. It goes with the machine's next
report where there is an interval to wait for, and by itself where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from experiments.dataflow import F8, I8, U8, Run

NO_PROMISE = -1


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

    @property
    def only_promises(self) -> int:
        """How many messages say nothing of any element."""
        return int((self.begin[1:] == self.begin[:-1]).sum())

    def said(self, order: I8) -> Iterator[Said]:
        """The messages of these numbers."""
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
    """A message whenever an element is sent or received."""
    taken, given = np.flatnonzero(~run.first), np.flatnonzero(~run.last)
    # What an element gives rise to is reported sent before it is reported received.
    key = np.concatenate([2 * given, 2 * taken + 1])
    return _messages(run, taken, given, key, np.concatenate([run.at[given], run.at[taken]]))


def each_step(run: Run) -> Messages:
    """A message for each step of an element."""
    taken, given = np.flatnonzero(~run.first), np.flatnonzero(~run.last)
    rows = np.concatenate([given, taken])
    return _messages(run, taken, given, rows, run.at[rows])


def each_interval(run: Run, interval: float) -> Messages:
    """A message of each machine whenever an interval is over in which it has something to say.

    Args:
        run: what happened.
        interval: in hops.
    """
    taken, given = np.flatnonzero(~run.first), np.flatnonzero(~run.last)
    rows = np.concatenate([given, taken])
    number = np.floor_divide(run.at[rows], interval).astype(np.int64)
    key = number * run.shape.machines + run.machine[rows]
    return _messages(run, taken, given, key, np.multiply(number + 1, interval, dtype=np.float64), interval)


def count_each_action(run: Run) -> int:
    """How many messages `each_action` gives."""
    return int((~run.first).sum() + (~run.last).sum()) + run.shape.machines * run.shape.substreams


def count_each_step(run: Run) -> int:
    """How many messages `each_step` gives."""
    return len(run.at) + run.shape.machines * run.shape.substreams


def _messages(run: Run, taken: I8, given: I8, key: I8, at: F8, interval: float | None = None) -> Messages:
    """Gather rows into messages, and entries of one substream and segment within a message into one.

    Args:
        run: what happened.
        taken: steps of which the reception is reported.
        given: steps of which the sending is.
        key: for each of given, then of taken, which message it goes into.
        at: when that is sent.
        interval: whether a promise goes into a message of its machine's, too; None: into its own.
    """
    machines, substreams = run.shape.machines, run.shape.substreams
    rows = np.concatenate([given, taken])
    closing = np.repeat(np.arange(substreams), machines)
    promiser = np.tile(np.arange(machines), substreams)
    if interval is None:
        promised_at = run.closed[closing]
        promise_key = np.arange(len(closing)) + (int(key.max()) + 1 if len(key) else 0)
    else:
        number = np.floor_divide(run.closed[closing], interval).astype(np.int64)
        promised_at = np.multiply(number + 1, interval, dtype=np.float64)
        promise_key = number * machines + promiser
    keys, place = np.unique(np.concatenate([key, promise_key]), return_inverse=True)
    count = len(keys)
    machine, sent_at = np.empty(count, np.int64), np.empty(count)
    machine[place] = np.concatenate([run.machine[rows], promiser])
    sent_at[place] = np.concatenate([at, promised_at])
    promise = np.full(count, NO_PROMISE)
    np.maximum.at(promise, place[len(rows) :], closing)

    order = np.argsort(sent_at, kind="stable")
    turn = np.empty(count, np.int64)
    turn[order] = np.arange(count)
    segments = len(run.shape.segments())
    edge = np.concatenate([run.place[given], run.place[taken] - 1])
    cell = (turn[place[: len(rows)]] * substreams + run.substream[rows]) * segments + run.segment(edge)
    by_cell = np.argsort(cell, kind="stable")
    cell = cell[by_cell]
    first = np.flatnonzero(np.concatenate([[True], cell[1:] != cell[:-1]]))
    is_sent = np.concatenate([np.ones(len(given), np.int64), np.zeros(len(taken), np.int64)])[by_cell]
    xor = np.concatenate([run.label[given], run.taken[taken]])[by_cell]
    cell = cell[first]
    message, rest = np.divmod(cell, substreams * segments)
    return Messages(
        machine=machine[order],
        at=sent_at[order],
        promise=promise[order],
        begin=np.searchsorted(message, np.arange(count + 1)),
        substream=rest // segments,
        segment=rest % segments,
        xor=np.bitwise_xor.reduceat(xor, first),
        sent=np.add.reduceat(is_sent, first),
        received=np.add.reduceat(1 - is_sent, first),
    )
