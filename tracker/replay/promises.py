"""Promises that are tried on a history: a protocol, and one class a kind.

A kind is a class with `needs` and `release`, and a line in `KINDS`; nobody asks which kind a promise is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tracker import lateness
from tracker.contract.values import I8
from tracker.replay.history import NEVER, Groups, History, ReplayError

_UNITS: Final = {
    **dict.fromkeys(["us"], 1),
    **dict.fromkeys(["ms"], 1_000),
    **dict.fromkeys(["s", "sec", "second", "seconds"], 1_000_000),
    **dict.fromkeys(["m", "min", "minute", "minutes"], 60_000_000),
    **dict.fromkeys(["h", "hour", "hours"], 3_600_000_000),
    **dict.fromkeys(["d", "day", "days"], 86_400_000_000),
}
_PART: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)")
_AHEAD: Final = 300_000_000  #: the front's default
_LONGEST: Final = 36_500 * 86_400_000_000


def microseconds(text: str) -> int:
    """Return a length of time in microseconds.

    Raises:
        ReplayError: the text is no length of time, or a century or more.

    >>> microseconds("5min"), microseconds("1 hour 30 minutes"), microseconds("1.5h")
    (300000000, 5400000000, 5400000000)
    """
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip() or any(unit not in _UNITS for _, unit in parts):
        raise ReplayError(f"{text!r} is no length of time: write for example 30s, 5min, 1h or 1d")
    micros = round(sum(float(number) * _UNITS[unit] for number, unit in parts))
    if micros >= _LONGEST:
        raise ReplayError(f"{text!r} is too long: give less than a hundred years")
    return micros


def in_words(micros: int) -> str:
    """Return a length of time as Spark's functions and `Frontier` take it.

    >>> in_words(5_400_000_000), in_words(0), in_words(86_400_000_000)
    ('1 hour 30 minutes', '0 seconds', '1 day')
    """
    parts = []
    for unit, size in (("day", "d"), ("hour", "h"), ("minute", "min"), ("second", "s"), ("millisecond", "ms")):
        number, micros = divmod(micros, _UNITS[size])
        parts += [f"{number} {unit}{'s' if number > 1 else ''}"] if number else []
    parts += [f"{micros} microseconds"] if micros else []
    return " ".join(parts) or "0 seconds"


def _ahead(history: History) -> str:
    """Return the argument ``ahead=`` of a front, behind others; empty: it is the front's default."""
    if history.ahead == _AHEAD:
        return ""
    return ", ahead=None" if history.ahead is None else f', ahead="{in_words(history.ahead)}"'


@dataclass(frozen=True, eq=False)
class Release:
    """Times at which windows would have been released under a promise.

    Attributes:
        at: of each window the trigger that released it, or `NEVER`: int64[windows].
        front: the argument `front=` that makes this promise, as Python; empty: `tracking.source` takes no such promise.
        judged: the windows that count; None: all.
        note: a remark for readers.
    """

    at: I8
    front: str = ""
    judged: NDArray[np.bool_] | None = None
    note: str = ""


class Promise(Protocol):
    """A promise that is tried."""

    @property
    def guess(self) -> bool:
        """True if it rests on arrivals that may be others tomorrow."""

    @property
    def needs(self) -> str:
        """A clause: what has to be true of a source that makes this promise."""

    def release(self, history: History) -> Release:
        """Return when the windows of a history would have been released."""


@dataclass(frozen=True)
class Watermark:
    """Spark's own watermark, beside which the others are shown: the newest time of all rows, less a delay.

    A batch runs under the watermark that the batches before have left, so that a window comes out one trigger after the
    batch whose rows have passed it. That next batch runs also if no row comes, and its own rows still count. Spark
    reads times to the millisecond.
    """

    delay: int
    guess = True
    needs = "no row is later than the delay and a trigger behind the newest of all rows"

    def release(self, history: History) -> Release:
        passed = history.newest(False, near=False).passes(self.delay, step=1000)
        return Release(np.where(passed == NEVER, NEVER, passed + history.trigger))


@dataclass(frozen=True)
class Frontier:
    """The front `Frontier`: the newest time of all rows, or of each scope's, less a delay.

    A window is released with the batch whose rows have passed it.
    """

    delay: int
    per_scope: bool = False
    guess = True

    @property
    def needs(self) -> str:
        """A clause."""
        whose = "a scope's rows" if self.per_scope else "rows"
        return f"{whose} are never later than {in_words(self.delay)} behind the newest, which is a guess"

    def release(self, history: History) -> Release:
        if self.per_scope and not history.scoped:
            raise ReplayError("a promise for each scope needs the column with the scopes: give it, or try frontier=1h")
        scoped = ", per_scope=True" if self.per_scope else ""
        front = f'Frontier("{in_words(self.delay)}"{scoped}{_ahead(history)})'
        return Release(history.newest(self.per_scope).passes(self.delay), front)


@dataclass(frozen=True)
class Least:
    """A frontier, for each scope if there are scopes, whose delay is chosen on the first half of the history.

    The delay is the least one under which the given share of the windows in the first half would have been right, in
    whole seconds. It is judged on the windows of which no row was in that half, so that no figure flatters itself.
    """

    share: float
    guess = True
    needs = "arrivals stay as they were: the delay was chosen on the first half of the history, and tried on the rest"

    def release(self, history: History) -> Release:
        half = int(np.sort(history.batch)[(len(history.batch) - 1) // 2])
        needed = np.sort(history.newest(history.scoped).delays_needed(half))
        delay = -(-int(needed[rank(self.share, len(needed))]) // 1_000_000) * 1_000_000
        chosen = Frontier(delay, history.scoped).release(history)
        return Release(chosen.at, chosen.front, history.first > half, f"{in_words(delay)}, judged on the second half")


@dataclass(frozen=True)
class Measured:
    """The front `Frontier.measured`, for each scope if there are scopes: its delay is learnt from batch to batch.

    A window is released with the batch after which it is promised to be over.
    """

    share: float
    ceiling: int
    guess = True
    needs = "rows are as late as they lately were, which is a guess that is corrected"

    def release(self, history: History) -> Release:
        near, at = np.flatnonzero(history.near), np.full(len(history.end), NEVER)
        front = f'Frontier.measured("{round(100 * self.share, 9):g}%", ceiling="{in_words(self.ceiling)}"'
        front += f"{_ahead(history)})"
        if not len(near):
            return Release(at, front)
        batches, batch = np.unique(history.batch[near], return_inverse=True)
        groups = Groups(batch * len(history.end) + history.window[near])
        window = history.window[near][groups.first]
        told = zip(
            batch[groups.first].tolist(),
            history.scope[window].tolist(),
            history.end[window].tolist(),
            groups.most(history.event[near]).tolist(),
            strict=True,
        )
        learning = lateness.Lateness(self.share, self.ceiling)
        promised: dict[int, list[tuple[int, int]]] = {}
        for place, rows in groupby(told, key=itemgetter(0)):
            passed = learning.batch((str(scope), end, newest) for _, scope, end, newest in rows)
            for scope, time in passed.items():
                promised.setdefault(int(scope), []).append((time, int(batches[place])))
        for own_scope, found in promised.items():
            times, triggers = np.array(found).T
            own = np.flatnonzero(history.scope == own_scope)
            place = np.searchsorted(times, history.end[own])
            at[own] = np.where(place < len(times), triggers[np.minimum(place, len(times) - 1)], NEVER)
        return Release(at, front, note=f"at the end at most {in_words(learning.delay // 1_000_000 * 1_000_000)}")


@dataclass(frozen=True)
class Counts:
    """The number of rows of each window, known in time: a window is released with the batch of its last row."""

    guess = False
    needs = "the source knows how many rows each window will have: from a timetable, a manifest, a control table"

    def release(self, history: History) -> Release:
        return Release(history.last, "Schedule(counts)")


@dataclass(frozen=True)
class Wait:
    """A fixed time by the clock on the wall after a window's end, whatever has arrived by then."""

    delay: int
    guess = True

    @property
    def needs(self) -> str:
        """A clause."""
        return f"no row arrives later than {in_words(self.delay)} after its window's end, which is a guess"

    def release(self, history: History) -> Release:
        # The window that `through` falls into is the last one that is complete, and it has to have ended before.
        through = f"datetime.now(timezone.utc) - timedelta(milliseconds={(self.delay + history.cut.length) // 1000})"
        front = f"Schedule(lambda: Counts([], through={through}))"
        overlap = 0 < history.cut.slide < history.cut.length
        return Release(history.at_trigger(history.end + self.delay), "" if overlap else front)


def share(text: str) -> float:
    """Return a share, such as ``0.1%``, as a number from 0 to 1.

    Raises:
        ReplayError: the text is no share from 0 to 100 %.
    """
    try:
        return lateness.share(text)
    except ValueError as error:
        raise ReplayError(str(error)) from None


def measured(text: str) -> Measured:
    """Return a promise that is measured: of a share of windows, and behind a slash its ceiling.

    >>> measured("99%/6h")
    Measured(share=0.99, ceiling=21600000000)
    """
    part, _, ceiling = text.partition("/")
    if share(part) in (0, 1):
        raise ReplayError(f"{text!r}: no delay can promise all windows, and none is needed for none: give 99.9%")
    return Measured(share(part), microseconds(ceiling or "1d"))


def rank(share: float, number: int) -> int:
    """Return the place of a quantile among so many sorted values: the least that so large a share does not exceed.

    >>> rank(0.5, 4), rank(0.95, 20), rank(1.0, 3)
    (1, 18, 2)
    """
    return max(0, -int(-round(share * number, 9) // 1) - 1)


#: Of each kind, how a promise is made of the text behind ``=``.
KINDS: Final[Mapping[str, Callable[[str], Promise]]] = {
    "watermark": lambda value: Watermark(microseconds(value)),
    "frontier": lambda value: Frontier(microseconds(value)),
    "per-scope": lambda value: Frontier(microseconds(value), per_scope=True),
    "wait": lambda value: Wait(microseconds(value)),
    "least": lambda value: Least(share(value)),
    "measured": measured,
    "counts": lambda _: Counts(),
}


def parse(texts: Sequence[str]) -> dict[str, Promise]:
    """Return promises by the texts that name them.

    Args:
        texts: ``kind=value``, such as ``watermark=5min`` or ``least=99.9%``, or ``counts``.

    Raises:
        ReplayError: an unknown kind, or a value that the kind does not take.

    >>> parse(["per-scope=1h", "counts"])
    {'per-scope=1h': Frontier(delay=3600000000, per_scope=True), 'counts': Counts()}
    """
    found: dict[str, Promise] = {}
    for text in texts:
        kind, _, value = text.partition("=")
        if kind not in KINDS or (kind == "counts" and value):
            raise ReplayError(f"{text!r} is no promise: there are {', '.join(KINDS)}, as in watermark=5min")
        found[text] = KINDS[kind](value)
    return found


def usual(scoped: bool) -> list[str]:
    """Return the promises that are tried if none is given.

    >>> usual(False)[-4:]
    ['least=99%', 'least=99.9%', 'measured=99%', 'counts']
    """
    frontier = "per-scope" if scoped else "frontier"
    delays = [f"{kind}={delay}" for kind in ("watermark", frontier) for delay in ("5min", "1h", "1d")]
    return [*delays, "wait=1h", "wait=1d", "least=99%", "least=99.9%", "measured=99%", "counts"]
