"""The end times that are still open on each segment: what ordering waits for, and how far progress has come."""

from __future__ import annotations

import heapq

NONE_OPEN = 2**63  #: above every end time


class OpenTimes:
    """A multiset of end times for each segment, asked only for its least.

    Substreams join with their end time on all segments at once and leave segment by segment. Joining and leaving
    cost O(segments) and O(log of distinct end times), amortised.

    >>> times = OpenTimes(2)
    >>> times.join(20); times.join(10)
    >>> times.leave(0, 10)
    >>> times.least(0), times.least(1)
    (20, 10)
    """

    __slots__ = ("_counts", "_heaps", "_segments")

    def __init__(self, segments: int) -> None:
        self._segments = segments
        self._counts: dict[int, list[int]] = {}  # by end time: how many are open, by segment
        self._heaps: list[list[int]] = [[] for _ in range(segments)]  # may name times that nobody has any more

    def __bool__(self) -> bool:
        return bool(self._counts)

    def join(self, end_time: int) -> None:
        """A substream is open on every segment."""
        counts = self._counts.get(end_time)
        if counts is None:
            counts = self._counts[end_time] = [0] * self._segments
        for segment in range(self._segments):
            if not counts[segment]:
                heapq.heappush(self._heaps[segment], end_time)
            counts[segment] += 1

    def leave(self, segment: int, end_time: int) -> None:
        """A substream has ended on a segment."""
        counts = self._counts[end_time]
        counts[segment] -= 1
        if not any(counts):
            del self._counts[end_time]

    def least(self, segment: int) -> int:
        """The least open end time; ``NONE_OPEN`` if there is none."""
        heap = self._heaps[segment]
        while heap:
            counts = self._counts.get(heap[0])
            if counts is not None and counts[segment]:
                return heap[0]
            heapq.heappop(heap)
        return NONE_OPEN
