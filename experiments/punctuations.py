"""Punctuations: each instance of a vertex sends each instance of the next word that a substream is over.

A source passes a punctuation to the first vertex of its machine when it closes the substream. An instance of a vertex
passes it on once it has come on every channel, to every instance of the next vertex. On one channel nothing overtakes a
punctuation, nor it anything: neither an element of its substream, nor an earlier punctuation. All of it happens on the
same run that the agent follows: the same elements at the same times.

*Gathered*, a machine passes its vertices' punctuations on once an interval, all that go to one other machine in one
message, and of each vertex only the newest, since it includes the earlier ones. That is what batching does for reports;
here every vertex on the way waits for the next moment of its machine.

They cannot go round a loop: the vertex there would wait for its own punctuation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.dataflow import F8, Kind, Run, hops
from tracker.wire.gen import tracker_pb2 as wire

_MOST_AT_ONCE = 4_000_000  # channels × substreams of one vertex held in memory


class NoProtocolError(Exception):
    """There is no such protocol for this graph."""


class OvertakenError(Exception):
    """A punctuation came before an element of its substream."""


@dataclass(frozen=True, slots=True)
class Punctuated:
    """The cost of following a run."""

    messages: int  #: between two machines
    local_messages: int  #: between two processes of one machine
    bytes: int  #: of those between two machines, each as large as a promise of the contract
    delay: (
        F8  #: for each substream that was followed, hops from when it was over to when the last vertex knew, on average
    )


def count(size: int, machines: int, substreams: int) -> tuple[int, int]:
    """Count the messages on a line, between machines and on one."""
    between = substreams * (size - 1) * machines * (machines - 1)
    within = substreams * (machines + (size - 1) * machines)
    return between, within


@dataclass(frozen=True, slots=True)
class Gathering:
    """The moments at which machines pass on what they have gathered."""

    interval: float  #: hops
    phase: F8  #: of each machine

    def departure(self, known: F8) -> F8:
        """Return when the knowledge of each machine leaves it.

        Args:
            known: (…, machine), in hops.
        """
        return np.ceil((known - self.phase) / self.interval) * self.interval + self.phase


def follow(run: Run, most: int, gathering: Gathering | None = None) -> Punctuated:
    """Let punctuations follow a run.

    Args:
        run: on a line.
        most: follow about so many punctuations; the others are counted only. (Those of a run that is followed in part
            are extrapolated where they are gathered.)
        gathering: when machines pass them on; None: each at once.

    Raises:
        NoProtocolError: the graph has a loop.
        OvertakenError: the simulation is wrong.
    """
    shape = run.shape
    if shape.kind is Kind.LOOP:
        raise NoProtocolError("a punctuation cannot pass a loop")
    channels = (shape.size - 1) * shape.machines**2 + shape.machines
    followed = run.start(max(1, most // channels) * shape.per_substream)
    delay, departures = _delays(followed, gathering)
    between, within = count(shape.size, shape.machines, shape.substreams)
    each = float(np.mean([_size(shape.size // 2, shape.machines // 2, at) for at in range(shape.substreams)]))
    if gathering is None:
        return Punctuated(between, within, round(between * each), delay)
    # Messages after the last close of a part come once; those before it go on for the rest of the run.
    scale, end = shape.substreams / followed.shape.substreams, float(followed.closed[-1])
    promises = sum(1 if at > end else scale for of_vertex in departures for _, at in of_vertex)
    messages = sum(1 if at > end else scale for _, at in set().union(*departures))
    others = shape.machines - 1
    return Punctuated(round(messages * others), within, round(promises * others * each), delay)


def _size(vertex: int, machine: int, substream: int) -> int:
    frontier = wire.Frontier(front=f"v{vertex}/m{machine}", time=substream)
    return wire.Promise(frontier=frontier).ByteSize()


def _delays(run: Run, gathering: Gathering | None) -> tuple[F8, list[set[tuple[int, float]]]]:
    """Return each substream's delay, and for each vertex when which machine passed on anything to the others."""
    shape = run.shape
    rng = np.random.default_rng(shape.seed + 2)
    machines = shape.machines
    chunk = max(1, _MOST_AT_ONCE // machines**2)
    machine = run.machine.reshape(shape.elements, -1)
    at = run.at.reshape(shape.elements, -1)
    newest = np.zeros((shape.size, machines, machines))  # on each channel into each vertex
    delays = []
    departures: list[set[tuple[int, float]]] = [set() for _ in range(shape.size - 1)]
    others = ~np.eye(machines, dtype=np.bool_)
    for begin in range(0, shape.substreams, chunk):
        end = min(begin + chunk, shape.substreams)
        rows = slice(begin * shape.per_substream, end * shape.per_substream)
        substream = np.arange(shape.elements)[rows] // shape.per_substream - begin
        knows = np.repeat(run.closed[begin:end, None], machines, axis=1)  # (substream, machine)
        for vertex in range(shape.size):
            leaves = knows[:, :, None]  # (…, from, to)
            if gathering is not None and vertex > 0:
                sent = gathering.departure(knows)
                leaves = np.where(others, sent[:, :, None], leaves)
                for sender in range(machines):
                    departures[vertex - 1] |= {(sender, moment) for moment in np.unique(sent[:, sender]).tolist()}
            coming = leaves + hops(rng, (end - begin, machines, machines))
            if vertex == 0:
                coming[:, others] = 0  # only from the machine's own source
            channel = (substream, machine[rows, vertex], machine[rows, vertex + 1])
            np.maximum.at(coming, channel, at[rows, vertex + 1])
            coming[0] = np.maximum(coming[0], newest[vertex])
            coming = np.maximum.accumulate(coming, axis=0)
            newest[vertex] = coming[-1]
            knows = coming.max(axis=1)
            _check(knows[substream, machine[rows, vertex + 1]] >= at[rows, vertex + 1])
        delays.append(knows.mean(axis=1) - run.over[begin:end])
    return np.concatenate(delays), departures


def _check(in_order: NDArray[np.bool_]) -> None:
    if not in_order.all():
        raise OvertakenError("an element came after the punctuation of its substream")
