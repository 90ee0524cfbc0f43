"""The graph of a job's segments: what lies upstream of what, and the order in which ends are looked for.

A segment's number is its place in the evaluation order: by how many segments lie upstream of it, then by name. So
numbers run downstream, and everything that is kept per segment is kept by that number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tracker.contract.refusal import Refusal, Refused

_SMALL = 64  # segments of a graph that has `weights`


class Graph:
    """A set of named segments, each with the set of segments that its elements travel on next; cycles are allowed.

    Args:
        segments: for each its name and the names of those that it feeds, as ``(name, feeds)``.

    Raises:
        Refused: ``MALFORMED`` for a segment named twice, ``UNKNOWN_SEGMENT`` for a feed that is none.

    >>> graph = Graph([("b", []), ("a", ["b"])])
    >>> graph.names
    ('a', 'b')
    >>> graph.upstream.astype(int).tolist()
    [[1, 0], [1, 1]]
    """

    __slots__ = ("_downstream", "feeds", "names", "number", "weights")

    def __init__(self, segments: Iterable[tuple[str, Sequence[str]]]) -> None:
        self.feeds: dict[str, frozenset[str]] = {}
        for name, feeds in segments:
            if name in self.feeds:
                raise Refused(
                    Refusal.MALFORMED, f"segment {name!r} is defined twice; merge the two definitions into one"
                )
            self.feeds[name] = frozenset(feeds)
        for name, fed in self.feeds.items():
            for feed in sorted(fed - self.feeds.keys()):
                raise Refused(Refusal.UNKNOWN_SEGMENT, f"segment {name!r} feeds segment {feed!r}, which is not defined")
        names = sorted(self.feeds)
        reached_from = self._reached_from(names)
        order = np.argsort(reached_from.sum(axis=1), kind="stable")  # by name where the numbers are equal
        self.names: tuple[str, ...] = tuple(names[i] for i in order.tolist())
        self.number: dict[str, int] = {name: i for i, name in enumerate(self.names)}
        # By u, a bit for each g that can be reached from it: a large graph is kept in this form alone.
        self._downstream = np.packbits(reached_from[np.ix_(order, order)].T, axis=1, bitorder="little")
        #: weights[g, u] is 1 if u is g or g can be reached from u, so that a matrix product finds which segments have
        #: something unbalanced upstream. For small graphs only.
        self.weights: NDArray[np.float32] = np.zeros((0, 0), np.float32)
        if len(self.names) <= _SMALL:
            self.weights = self.upstream.astype(np.float32)

    def place(self, segment: str) -> int:
        """Return a segment's number; raises `Refused` if there is no such segment."""
        if segment not in self.number:
            raise Refused(
                Refusal.UNKNOWN_SEGMENT, f"segment {segment!r} is not one of the job's: {', '.join(self.names)}"
            )
        return self.number[segment]

    @property
    def upstream(self) -> NDArray[np.bool_]:
        """For each g and u, whether u is g or g can be reached from u."""
        return np.stack([self.downstream(number) for number in range(len(self.names))], axis=1)

    def downstream(self, number: int) -> NDArray[np.bool_]:
        """Return, for each segment, whether it is the given one or can be reached from there."""
        bits = np.unpackbits(self._downstream[number], count=len(self.names), bitorder="little")
        return bits.view(np.bool_)

    def reached(self, numbers: Iterable[int]) -> NDArray[np.bool_]:
        """Return, for each segment, whether it is one of some segments or can be reached from one."""
        reached = np.zeros(len(self.names), np.bool_)
        for number in numbers:
            reached |= self.downstream(number)
        return reached

    def _reached_from(self, names: list[str]) -> NDArray[np.bool_]:
        """Return, for each segment, those from which it can be reached, itself too; both numbered as in `names`."""
        number = {name: i for i, name in enumerate(names)}
        reached = np.eye(len(names), dtype=np.bool_)
        for name, feeds in self.feeds.items():
            reached[[number[feed] for feed in feeds], number[name]] = True
        # Warshall's closure, 64 segments to a word: a thousand segments that all feed all take a fraction of a second.
        words = np.packbits(reached, axis=1, bitorder="little")
        for i in range(len(names)):
            through = (words[:, i >> 3] >> (i & 7)) & 1 != 0
            words[through] |= words[i]
        return np.unpackbits(words, axis=1, count=len(names), bitorder="little").view(np.bool_)

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self.feeds == other.feeds

    __hash__ = None  # type: ignore[assignment]

    def differences(self, other: Graph) -> list[str]:
        """Return what `other` has otherwise, one line each; empty if the graphs are equal."""
        lines = [f"segment {name!r} is removed" for name in self.feeds if name not in other.feeds]
        for name, feeds in other.feeds.items():
            if name not in self.feeds:
                lines.append(f"segment {name!r} is new")
            elif feeds != self.feeds[name]:
                lines.append(f"segment {name!r} feeds {sorted(feeds)} instead of {sorted(self.feeds[name])}")
        return lines
