"""Punctuations: each instance of a vertex tells each instance of the next that a substream is over.

A source passes a punctuation to the first vertex of its machine when it closes the substream. An instance of a vertex
passes it on once it has come on every channel, to every instance of the next vertex. On one channel nothing overtakes a
punctuation, nor it anything: neither an element of its substream, nor an earlier punctuation. All of it happens on the
same run that the agent follows: the same elements at the same times.

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
    """What it took to follow a run."""

    messages: int  #: between two machines
    local_messages: int  #: between two processes of one machine
    bytes: int  #: of those between two machines, each as large as a promise of the contract
    delay: (
        F8  #: for each substream that was followed, hops from when it was over to when the last vertex knew, on average
    )


def count(size: int, machines: int, substreams: int) -> tuple[int, int]:
    """How many messages there are on a line, between machines and on one."""
    between = substreams * (size - 1) * machines * (machines - 1)
    within = substreams * (machines + (size - 1) * machines)
    return between, within


def follow(run: Run, most: int) -> Punctuated:
    """Let punctuations follow a run.

    Args:
        run: on a line.
        most: follow about so many punctuations; the others are counted only.

    Raises:
        NoProtocolError: the graph has a loop.
        OvertakenError: the simulation is wrong.
    """
    shape = run.shape
    if shape.kind is Kind.LOOP:
        raise NoProtocolError("a punctuation cannot pass a loop")
    channels = (shape.size - 1) * shape.machines**2 + shape.machines
    followed = run.start(max(1, most // channels) * shape.per_substream)
    delay = _delays(followed)
    between, within = count(shape.size, shape.machines, shape.substreams)
    each = np.mean([_size(shape.size // 2, shape.machines // 2, at) for at in range(shape.substreams)])
    return Punctuated(between, within, round(between * float(each)), delay)


def _size(vertex: int, machine: int, substream: int) -> int:
    frontier = wire.Frontier(front=f"v{vertex}/m{machine}", time=substream)
    return wire.Promise(frontier=frontier).ByteSize()


def _delays(run: Run) -> F8:
    shape = run.shape
    rng = np.random.default_rng(shape.seed + 2)
    machines = shape.machines
    chunk = max(1, _MOST_AT_ONCE // machines**2)
    machine = run.machine.reshape(shape.elements, -1)
    at = run.at.reshape(shape.elements, -1)
    newest = np.zeros((shape.size, machines, machines))  # on each channel into each vertex
    delays = []
    for begin in range(0, shape.substreams, chunk):
        end = min(begin + chunk, shape.substreams)
        rows = slice(begin * shape.per_substream, end * shape.per_substream)
        substream = np.arange(shape.elements)[rows] // shape.per_substream - begin
        knows = np.repeat(run.closed[begin:end, None], machines, axis=1)  # (substream, machine)
        for vertex in range(shape.size):
            coming = knows[:, :, None] + hops(rng, (end - begin, machines, machines))  # (…, from, to)
            if vertex == 0:
                coming[:, ~np.eye(machines, dtype=np.bool_)] = 0  # only from the machine's own source
            channel = (substream, machine[rows, vertex], machine[rows, vertex + 1])
            np.maximum.at(coming, channel, at[rows, vertex + 1])
            coming[0] = np.maximum(coming[0], newest[vertex])
            coming = np.maximum.accumulate(coming, axis=0)
            newest[vertex] = coming[-1]
            knows = coming.max(axis=1)
            _check(knows[substream, machine[rows, vertex + 1]] >= at[rows, vertex + 1])
        delays.append(knows.mean(axis=1) - run.over[begin:end])
    return np.concatenate(delays)


def _check(in_order: NDArray[np.bool_]) -> None:
    if not in_order.all():
        raise OvertakenError("an element came after the punctuation of its substream")
