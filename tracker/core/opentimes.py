"""The end times that are still open on each segment: what ordering waits for, and how far progress has come."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

NONE_OPEN = 2**63  #: above every end time

_LONG = 2000  # a list of so many times is cut in two


class _Sorted:
    """Distinct numbers in order, in lists of moderate length."""

    __slots__ = ("_firsts", "_lists")

    def __init__(self) -> None:
        self._lists: list[list[int]] = []
        self._firsts: list[int] = []  # the lists' first numbers, or lower ones

    def add(self, number: int) -> None:
        """Add a number that is not there."""
        if not self._lists:
            self._lists.append([number])
            self._firsts.append(number)
            return
        at = max(0, bisect_right(self._firsts, number) - 1)
        numbers = self._lists[at]
        insort(numbers, number)
        self._firsts[at] = min(self._firsts[at], number)
        if len(numbers) > _LONG:
            half = len(numbers) // 2
            self._lists.insert(at + 1, numbers[half:])
            self._firsts.insert(at + 1, numbers[half])
            del numbers[half:]

    def remove(self, number: int) -> None:
        """Remove a number that is there."""
        at = bisect_right(self._firsts, number) - 1
        numbers = self._lists[at]
        del numbers[bisect_left(numbers, number)]
        if not numbers:
            del self._lists[at], self._firsts[at]

    def least_above(self, number: int) -> int | None:
        """Return the least that is higher than a number."""
        at = max(0, bisect_right(self._firsts, number) - 1)
        for numbers in self._lists[at : at + 2]:
            place = bisect_right(numbers, number)
            if place < len(numbers):
                return numbers[place]
        return None


class OpenTimes:
    """A multiset of end times for each segment, asked only for its least.

    Substreams join with their end time on all segments at once and leave segment by segment. A time is kept once,
    whatever the number of segments, and what has left it by segment; so what is kept depends on what has ended.

    >>> times = OpenTimes(2)
    >>> times.join(20); times.join(10)
    >>> times.leave(0, 10)
    >>> times.least(0), times.least(1)
    (20, 10)
    """

    __slots__ = ("_departed", "_gone", "_joined", "_joins", "_left", "_owed", "_segments", "_times")

    def __init__(self, segments: int) -> None:
        self._segments = segments
        self._joined: dict[int, int] = {}  # by end time: how many have joined
        self._owed: dict[int, int] = {}  # by end time: how often somebody has to leave yet, over all segments
        self._left: dict[int, dict[int, int]] = {}  # by segment and end time: how many have left
        self._gone: dict[int, int] = {}  # by segment: a time up to which all have left
        self._times = _Sorted()
        self._joins = 0  # how many have ever joined
        self._departed: dict[int, int] = {}  # by segment: how many have ever left

    def __bool__(self) -> bool:
        return bool(self._joined)

    def join(self, end_time: int) -> None:
        """Add a substream, open on every segment."""
        self._joins += 1
        joined = self._joined.get(end_time, 0)
        self._joined[end_time] = joined + 1
        self._owed[end_time] = self._owed.get(end_time, 0) + self._segments
        if not joined:
            self._times.add(end_time)
        for segment, gone in self._gone.items():
            if end_time <= gone:
                self._gone[segment] = end_time - 1

    def leave(self, segment: int, end_time: int) -> None:
        """Remove a substream from a segment on which it has ended."""
        left = self._left.get(segment)
        if left is None:
            left = self._left[segment] = {}
        left[end_time] = left.get(end_time, 0) + 1
        self._departed[segment] = self._departed.get(segment, 0) + 1
        owed = self._owed[end_time] = self._owed[end_time] - 1
        if not owed:
            del self._owed[end_time], self._joined[end_time]
            self._times.remove(end_time)
            for counts in self._left.values():
                del counts[end_time]

    def open_on(self, segment: int) -> int:
        """Return how many are open on a segment."""
        return self._joins - self._departed.get(segment, 0)

    def least(self, segment: int) -> int:
        """Return the least open end time; ``NONE_OPEN`` if there is none."""
        left = self._left.get(segment, {})
        time = self._times.least_above(self._gone.get(segment, -NONE_OPEN - 1))
        while time is not None and left.get(time) == self._joined[time]:
            self._gone[segment] = time
            time = self._times.least_above(time)
        return NONE_OPEN if time is None else time
