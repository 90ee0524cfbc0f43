"""Histograms that cost next to nothing to add to.

prometheus_client's own take a lock and go through the bounds one by one for each observation; and they cannot take many
equal observations at once, such as the thousand ends of one report. Its exposition is used as it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Distribution:
    """Frequency of values between some bounds. Add to it from one thread; read it from any.

    Args:
        bounds: the upper bounds of the buckets, ascending; one more bucket takes what is above.

    >>> seconds = Distribution([0.1, 1.0])
    >>> seconds.add(0.1)
    >>> seconds.add(5.0, times=2)
    >>> seconds.buckets(), seconds.sum
    ([('0.1', 1), ('1.0', 1), ('+Inf', 3)], 10.1)
    """

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Add a value, or as many of it."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """Return the bounds, and how many values did not lie above each."""
        return list(zip([*map(str, self._bounds), "+Inf"], accumulate(self._counts), strict=True))
