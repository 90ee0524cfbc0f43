"""Elements on their way through a dataflow: where each is, and when.

Two graphs. A *line* of N vertices, each with an instance on every machine: an element enters at the source of one
machine, goes to the first vertex there, and from each vertex to the next on a machine drawn at random (RR-N in the
papers). A *loop*: from the first vertex an element goes round, to a machine drawn at random each time, and leaves
after a number of rounds that nobody knows before.

Elements come at random, 100 a second on average. Time is counted in hops: what one message takes from a process to
another, on average, be they on one machine or two. Half of it is the same for all, the rest is drawn from an
exponential distribution, so messages overtake each other.

This module knows nothing of tracking, but that each element has a label on each edge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

F8: TypeAlias = NDArray[np.float64]
I8: TypeAlias = NDArray[np.int64]
U8: TypeAlias = NDArray[np.uint64]
Bools: TypeAlias = NDArray[np.bool_]

HOP_NS = 100_000  #: 0.1 ms, as between machines of one data centre
SECOND = 1e9 / HOP_NS  #: in hops
BETWEEN_ELEMENTS = SECOND / 100  #: on average; the papers' rate: 100 elements a second


class Kind(StrEnum):
    LINE = "line"
    LOOP = "loop"


@dataclass(frozen=True, slots=True)
class Shape:
    """One configuration."""

    kind: Kind = Kind.LINE
    size: int = 30  #: a line's vertices; a loop's rounds, on average
    machines: int = 15
    per_substream: int = 10  #: elements
    elements: int = 50_000
    segments_apart: bool = False  #: each edge of the graph is a segment of its own; else all are one
    seed: int = 1

    @property
    def substreams(self) -> int:
        return -(-self.elements // self.per_substream)

    @property
    def workers(self) -> int:
        """Number of processes on each machine: the source, and an instance of each vertex."""
        return 2 if self.kind is Kind.LOOP else self.size + 1

    @property
    def key(self) -> tuple[int, int, int]:
        """The parameters that the papers vary."""
        return self.size, self.machines, self.per_substream

    def segments(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return the graph as a job's spec has it."""
        if not self.segments_apart:
            return (("flow", ("flow",)),)
        if self.kind is Kind.LOOP:
            return ("in", ("loop",)), ("loop", ("loop",))
        names = [f"edge{edge}" for edge in range(self.size)]
        return tuple((name, tuple(names[edge + 1 : edge + 2])) for edge, name in enumerate(names))


def hops(rng: np.random.Generator, shape: int | tuple[int, ...]) -> F8:
    """Draw the travel times of messages."""
    return 0.5 + 0.5 * rng.standard_exponential(shape)


@dataclass(frozen=True, eq=False)
class Run:
    """The events of a run, one row a *step*: an element entered (its place is 0), or was handled at a vertex (1, 2, …).

    At each step but the last an element is sent on, at each but the first it was received. Rows are in the order of
    elements, and of places within one.
    """

    shape: Shape
    element: I8
    place: I8
    machine: I8
    at: F8
    label: U8  #: of the element on the edge that it is sent on with; 0 in its last step
    last: Bools  #: whether it leaves the graph with this step
    closed: F8  #: for each substream, when the sources know that there will be no more of it

    @cached_property
    def substream(self) -> I8:
        return self.element // self.shape.per_substream

    @property
    def worker(self) -> I8:
        """The process of its machine that took each step."""
        return np.minimum(self.place, self.shape.workers - 1)

    @property
    def first(self) -> Bools:
        first: Bools = self.place == 0
        return first

    @cached_property
    def taken(self) -> U8:
        """The label under which the element was received; 0 in its first step."""
        labels = np.zeros_like(self.label)
        labels[1:] = self.label[:-1]  # the row before is the same element's step before, or another's last
        return labels

    def segment(self, edge: I8) -> I8:
        """Return the segment's number, for edges numbered from an element's entry."""
        if not self.shape.segments_apart:
            return np.zeros_like(edge)
        return np.minimum(edge, 1) if self.shape.kind is Kind.LOOP else edge

    @cached_property
    def out(self) -> F8:
        """For each substream and segment, when its last element was taken off that segment and all upstream of it."""
        segments = len(self.shape.segments())
        out = np.zeros((self.shape.substreams, segments))
        rows = ~self.first
        np.maximum.at(out, (self.substream[rows], self.segment(self.place[rows] - 1)), self.at[rows])
        return np.maximum.accumulate(out, axis=1)

    @cached_property
    def travelled(self) -> I8:
        """For each substream and segment, how many elements were sent there."""
        counts = np.zeros((self.shape.substreams, len(self.shape.segments())), np.int64)
        rows = ~self.last
        np.add.at(counts, (self.substream[rows], self.segment(self.place[rows])), 1)
        return counts

    @cached_property
    def over(self) -> F8:
        """For each substream, when it was over: closed, and its last element out of the graph."""
        return np.maximum(self.closed, self.out[:, -1])

    def start(self, elements: int) -> Run:
        """Return the same run, as if it had had only its first elements."""
        if elements >= self.shape.elements:
            return self
        shape = replace(self.shape, elements=elements)
        rows = slice(0, int(np.searchsorted(self.element, elements)))
        return Run(
            shape,
            self.element[rows],
            self.place[rows],
            self.machine[rows],
            self.at[rows],
            self.label[rows],
            self.last[rows],
            self.closed[: shape.substreams],
        )


def simulate(shape: Shape) -> Run:
    """Let a configuration's elements run through.

    >>> run = simulate(Shape(size=3, machines=2, elements=20))
    >>> len(run.at), run.travelled.sum()
    (80, np.int64(60))
    """
    rng = np.random.default_rng(shape.seed)
    entering = np.cumsum(rng.exponential(BETWEEN_ELEMENTS, shape.elements + 1))  # first: the same for all shapes
    if shape.kind is Kind.LOOP:
        handled = rng.geometric(1 / shape.size, shape.elements)
    else:
        handled = np.full(shape.elements, shape.size)
    steps = handled + 1
    past = np.cumsum(steps)
    begin = past - steps
    element = np.repeat(np.arange(shape.elements), steps)
    place = np.arange(past[-1]) - begin[element]
    last = np.zeros(past[-1], np.bool_)
    last[past - 1] = True
    machine = rng.integers(shape.machines, size=past[-1])
    entered = place <= 1  # the first vertex is reached on the machine of the source
    machine[entered] = element[entered] % shape.machines
    taken = hops(rng, past[-1])
    taken[begin] = 0
    travelled = np.cumsum(taken)
    at = entering[element] + travelled - travelled[begin][element]
    label = rng.integers(1, 2**64, past[-1], np.uint64)
    label[last] = 0
    # All sources close a substream when the next one's first element comes.
    next_first = np.minimum(np.arange(1, shape.substreams + 1) * shape.per_substream, shape.elements)
    return Run(shape, element, place, machine, at, label, last, entering[next_first])
