"""The graph of a job's segments: what lies upstream of what, and the order in which ends are looked for.

A segment's number is its place in the evaluation order: by how many segments lie upstream of it, then by name. So
numbers run downstream, and everything that is kept per segment is kept by that number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .refusal import Refused


class Graph:
    """A set of named segments, each with the set of segments that its elements travel on next; cycles are allowed.

    Args:
        segments: ``(name, feeds)`` pairs.

    Raises:
        Refused: ``MALFORMED`` for a segment named twice, ``UNKNOWN_SEGMENT`` for a feed that is none.

    >>> graph = Graph([("b", []), ("a", ["b"])])
    >>> graph.names
    ('a', 'b')
    >>> graph.upstream.astype(int).tolist()
    [[1, 0], [1, 1]]
    """

    __slots__ = ("feeds", "names", "number", "upstream")

    def __init__(self, segments: Iterable[tuple[str, Sequence[str]]]) -> None:
        self.feeds: dict[str, frozenset[str]] = {}
        for name, feeds in segments:
            if name in self.feeds:
                raise Refused.malformed(f"segment {name!r} is defined twice; merge its feeds into one")
            self.feeds[name] = frozenset(feeds)
        for name, fed in self.feeds.items():
            for feed in sorted(fed - self.feeds.keys()):
                raise Refused.invalid("UNKNOWN_SEGMENT", f"segment {name!r} feeds {feed!r}, which is not defined")
        reaching = self._reaching()
        self.names: tuple[str, ...] = tuple(sorted(self.feeds, key=lambda name: (len(reaching[name]), name)))
        self.number: dict[str, int] = {name: i for i, name in enumerate(self.names)}
        #: upstream[g, u] is 1 if u is g or g can be reached from u. Float, so that a matrix product tells which
        #: segments have something unbalanced upstream.
        self.upstream: NDArray[np.float32] = np.zeros((len(self.names), len(self.names)), np.float32)
        for name, others in reaching.items():
            self.upstream[self.number[name], [self.number[other] for other in others]] = 1

    def _reaching(self) -> dict[str, set[str]]:
        """For each segment, itself and all from which it can be reached."""
        fed_by: dict[str, list[str]] = {name: [] for name in self.feeds}
        for name, feeds in self.feeds.items():
            for feed in feeds:
                fed_by[feed].append(name)
        reaching = {}
        for name in self.feeds:
            seen, frontier = {name}, [name]
            while frontier:
                for before in fed_by[frontier.pop()]:
                    if before not in seen:
                        seen.add(before)
                        frontier.append(before)
            reaching[name] = seen
        return reaching

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self.feeds == other.feeds

    __hash__ = None  # type: ignore[assignment]

    def differences(self, other: Graph) -> list[str]:
        """What `other` has otherwise, one line each; empty if the graphs are equal."""
        lines = [f"segment {name!r} is gone" for name in self.feeds if name not in other.feeds]
        for name, feeds in other.feeds.items():
            if name not in self.feeds:
                lines.append(f"segment {name!r} is new")
            elif feeds != self.feeds[name]:
                lines.append(f"segment {name!r} feeds {sorted(feeds)} instead of {sorted(self.feeds[name])}")
        return lines
