"""Learn how long to wait for late rows from how late rows were.

The rows of a scope come with times, in batches, and fall into windows. A window is promised to be over when the scope's
newest time is a delay beyond the window's end; a row of that window in a later batch breaks the promise. `Lateness`
chooses the delay of each scope so that no more than a given share of windows is broken:

- The *need* of a window is the least delay that would have kept it. A window is settled when the newest time is a
  ceiling beyond its end, and its need goes into its scope's histogram. Older windows weigh less and less.
- Of *n* windows, a share *a* of which may be broken, as many may need more than the delay as
  ``a * (n + 1) - broken - 2``. So what was broken lately is taken from what may be broken next, and a delay that is
  broken more often than it may be grows to the ceiling; where needs do not drift, half of the share is used up. The
  one that is added to *n*, and one of the two that are taken, are those of conformal prediction: the next need ranks
  among *n* earlier ones as any of them does. The other one stands for the window that may be broken next.
- A scope of which little was seen borrows windows of the others, so many that it has four times as many as one broken
  window is allowed in. As long as all of them are too few, it waits for the ceiling.

Sources: V. Vovk, A. Gammerman, G. Shafer, *Algorithmic Learning in a Random World*, 2005, for the rank; I. Gibbs,
E. Candès, *Adaptive Conformal Inference Under Distribution Shift*, 2021, for the correction by what was broken;
C. Masson, J. Rim, H. Lee, *DDSketch*, 2019, for the histogram with a relative error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

_PRECISION: Final = 1.05  #: of two neighbouring delays in a histogram
_BORROWED: Final = 4  #: windows that a scope has at least, if others have them, of those in which one may be broken
_REMEMBERED: Final = 20  #: the same for the windows that weigh most of all that a scope has ever had
_NEVER: Final = -(2**63)  #: before all times
_LARGEST: Final = 1e100  #: weight, before all of them are divided by it


@dataclass
class _Seen:
    """Windows that were settled, by their needs, and those that were broken. The newest weighs `unit`.

    Attributes:
        needs: the weight of windows by their need, as `_place` has it.
    """

    needs: dict[int, float] = field(default_factory=dict)
    windows: float = 0.0
    broken: float = 0.0
    unit: float = 1.0

    @property
    def number(self) -> float:
        """Return how many windows there are, by their weights."""
        return self.windows / self.unit

    def add(self, other: _Seen, weight: float) -> None:
        """Add the windows of another, each of which weighs so much of one of its own."""
        weight *= self.unit / other.unit
        self.windows += other.windows * weight
        self.broken += other.broken * weight
        for place, windows in other.needs.items():
            self.needs[place] = self.needs.get(place, 0.0) + windows * weight

    def count(self, place: int) -> None:
        """Count a window by the place of its need."""
        self.windows += self.unit
        self.needs[place] = self.needs.get(place, 0.0) + self.unit

    def settle(self, place: int, remembered: float) -> None:
        """Count a window, and let those before it weigh less.

        Args:
            remembered: how many windows all of them may weigh.
        """
        self.unit /= 1 - 1 / remembered
        self.count(place)
        if self.unit > _LARGEST:
            self.windows, self.broken = self.windows / self.unit, self.broken / self.unit
            self.needs = {place: weight / self.unit for place, weight in self.needs.items()}
            self.unit = 1.0


def _place(need: int) -> int:
    """Return the place of a need in a histogram: that of the least delay there which is no shorter."""
    place = math.ceil(math.log(need, _PRECISION)) if need > 1 else need - 1
    return place if _longest(place) >= need else place + 1


def _longest(place: int) -> int:
    """Return the delay of a place.

    >>> [_longest(_place(need)) for need in (0, 1, 2, 60_000_000)]
    [0, 1, 3, 62756984]
    """
    return math.ceil(_PRECISION**place) if place >= 0 else 0


@dataclass
class _Scope:
    """A scope: its newest time, the time that is promised, and its windows that are not settled.

    Attributes:
        open: of each window by its end, the need up to now, and whether it is broken.
        windows, broken: how many were settled, and broken, at all times.
    """

    newest: int = _NEVER
    promised: int = _NEVER
    open: dict[int, tuple[int, bool]] = field(default_factory=dict)
    seen: _Seen = field(default_factory=_Seen)
    windows: int = 0
    broken: int = 0

    def take(self, end: int) -> bool:
        """Learn that a batch has brought rows of a window, and return whether that breaks it."""
        need, broken = self.open.get(end, (0, False))
        breaks = end <= self.promised and not broken
        self.open[end] = max(need, self.newest - end + 1), broken or breaks
        return breaks

    def over(self, up_to: int) -> Iterator[int]:
        """Take the windows that end by a time, and yield their needs."""
        for end in sorted(end for end in self.open if end <= up_to):
            yield self.open.pop(end)[0]


@dataclass(frozen=True)
class Promised:
    """Promise of a scope, and how much of what was promised was kept.

    Attributes:
        scope: empty if rows have none.
        delay: that is promised now, in microseconds.
        windows: how many were settled.
        broken: of how many a row came after they were promised to be over.
    """

    scope: str
    delay: int
    windows: int
    broken: int

    @property
    def share(self) -> float:
        """Return the share of windows that were kept, from 0 to 1; 1 if there was none.

        >>> Promised("berlin", 0, windows=1000, broken=1).share
        0.999
        """
        return _kept(self.windows, self.broken)


def _kept(windows: float, broken: float) -> float:
    """Return the share of windows that are not broken; 1 if there is none."""
    return max(0.0, 1 - broken / windows) if windows else 1.0


def share(text: str) -> float:
    """Return a share, such as ``99.9%``, as a number from 0 to 1.

    Raises:
        ValueError: the text is no percentage from 0 to 100.

    >>> share("99.9%")
    0.999
    """
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1
    if not text.endswith("%") or not 0 <= percent <= 100:
        raise ValueError(f"{text!r} is no share of windows: write for example 99.9%")
    return round(percent / 100, 12)


class Lateness:
    """Delays that are learnt, scope by scope, from the rows of a stream.

    Args:
        target: the share of windows that are to be kept, above 0 and below 1.
        ceiling: the longest delay, and the one to begin with, in microseconds. A row that is later breaks its window
            again with each batch that brings one.
        floor: the shortest delay, in microseconds.
        state: what `state` gave, to go on from there.

    Raises:
        ValueError: a target that no delay reaches, or a floor above the ceiling.

    >>> lateness = Lateness(0.9, ceiling=50)
    >>> lateness.batch([("berlin", 10, 7)])                       # a row of time 7, in the window up to 10
    {'berlin': -43}
    >>> for end in range(20, 400, 10):
    ...     promised = lateness.batch([("berlin", end, end - 1)])
    >>> promised                                                  # nothing was late, so nothing is waited for
    {'berlin': 389}
    """

    def __init__(self, target: float, ceiling: int, floor: int = 0, state: Iterable[str] = ()) -> None:
        if not 0 < target < 1:
            raise ValueError("a target is a share of windows above 0 % and below 100 %, which no delay can promise")
        if not 0 <= floor <= ceiling:
            raise ValueError("the floor is negative, or above the ceiling")
        self._share = 1 - target
        self._ceiling, self._floor = ceiling, floor
        self._scopes: dict[str, _Scope] = {}
        self._all = _Seen()  # the windows of all scopes, as each of them weighs its own
        self._texts: dict[str, str] = {}  # of scopes that are as they were when `state` was asked for
        for text in state:
            name, newest, promised, opened, (needs, *seen), windows, broken = json.loads(text)
            self._texts[name] = text
            known = _Seen({int(place): weight for place, weight in needs}, *seen)
            waiting = {end: (need, is_broken) for end, need, is_broken in opened}
            self._scopes[name] = _Scope(newest, promised, waiting, known, windows, broken)
            self._all.add(known, 1.0)

    @property
    def delay(self) -> int:
        """Return the longest delay that is promised now, in microseconds."""
        return max((self._delay(each.seen) for each in self._scopes.values()), default=self._ceiling)

    @property
    def share(self) -> float:
        """Return the share of windows that were kept lately, in all scopes; 1 if there was none."""
        return _kept(self._all.windows, self._all.broken)

    @property
    def state(self) -> list[str]:
        """Return all that it has learnt, a text of each scope; the cost is that of the scopes that have changed."""
        for name, scope in self._scopes.items():
            if name not in self._texts:
                seen = [[*scope.seen.needs.items()], scope.seen.windows, scope.seen.broken, scope.seen.unit]
                opened = [[end, *known] for end, known in scope.open.items()]
                self._texts[name] = json.dumps(
                    [name, scope.newest, scope.promised, opened, seen, scope.windows, scope.broken]
                )
        return [self._texts[name] for name in self._scopes]

    def batch(self, windows: Iterable[tuple[str, int, int]]) -> dict[str, int]:
        """Learn from a batch, and return up to which time each of its scopes can be promised to be over.

        Args:
            windows: (scope, end, newest time) of each window of which the batch has rows, in microseconds.
        """
        newest: dict[str, int] = {}
        for name, end, time in windows:
            newest[name] = max(newest.get(name, time), time)
            self._texts.pop(name, None)
            scope = self._scopes.setdefault(name, _Scope())
            if scope.take(end):
                scope.broken += 1
                scope.seen.broken += scope.seen.unit
                self._all.broken += 1
        for name, time in newest.items():
            scope = self._scopes[name]
            scope.newest = max(scope.newest, time)
            for need in scope.over(scope.newest - self._ceiling):
                scope.windows += 1
                self._settle(scope.seen, need)
        for name in newest:
            scope = self._scopes[name]
            scope.promised = max(scope.promised, scope.newest - self._delay(scope.seen))
        return {name: self._scopes[name].promised for name in newest}

    def kept(self) -> list[Promised]:
        """Return what was promised of each scope, and how much of that was kept, in the order of their names."""
        return [
            Promised(name, self._delay(each.seen), each.windows, each.broken)
            for name, each in sorted(self._scopes.items())
        ]

    def _settle(self, seen: _Seen, need: int) -> None:
        """Count a window of a scope, and let those before it weigh less."""
        place, remembered = _place(need), _REMEMBERED / self._share
        self._all.add(seen, -1 / remembered)
        seen.settle(place, remembered)
        self._all.count(place)

    def _delay(self, seen: _Seen) -> int:
        """Return the least delay of a scope that may be promised, with what it borrows of the other scopes."""
        broken, others = seen.broken / seen.unit, self._all.windows - seen.number
        part = min(1.0, max(0.0, _BORROWED / self._share - seen.number) / max(others, 1.0))
        left = self._share * (seen.number + part * others + 1) - 2
        left -= broken + part * (self._all.broken - broken)
        if left < 0:
            return self._ceiling
        for place in sorted(self._all.needs if part else seen.needs, reverse=True):
            own = seen.needs.get(place, 0.0) / seen.unit
            left -= own + part * (self._all.needs[place] - own)
            if left < 0:
                return min(max(_longest(place), self._floor), self._ceiling)
        return self._floor
