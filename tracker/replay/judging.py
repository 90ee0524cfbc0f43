"""Outcomes of a history's windows under each promise, and which promise to take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tracker.contract.values import I8
from tracker.replay.history import NEVER, History
from tracker.replay.promises import Promise, rank

_BINS: Final = 80  #: of the timelines
_MOST_NEVER: Final = 0.05  #: of the windows: beyond, the 95th percentile of delays is never


@dataclass(frozen=True)
class Delays:
    """Delays in microseconds: the median, the 95th percentile and the longest. Negative: before it was due."""

    p50: int
    p95: int
    longest: int


@dataclass(frozen=True)
class Figures:
    """Figures of a promise, for all windows or for those of a scope.

    Attributes:
        windows: how many there are.
        wrong: how many of them were released without all of their rows.
        never: how many were not released within the history.
        rows: how many all windows have; a row counts in each of its windows.
        late: how many of the rows came after their window's release.
        after_last: delays of those that were released, from the arrival of the window's last row; None: none was.
        after_end: the same from the end of the window.
    """

    windows: int
    wrong: int
    never: int
    rows: int
    late: int
    after_last: Delays | None
    after_end: Delays | None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a promise.

    Attributes:
        name: as the promise was given: ``watermark=5min``.
        all: for all windows that count.
        scopes: for each scope that has such windows, in the order of their names; empty if rows have no scope.
        front: the argument ``front=`` of `tracking.source`, as Python; empty: it takes no such promise.
        needs: a clause: what has to be true of the source.
        guess: whether it rests on arrivals that may be others tomorrow.
        note: a remark for readers.
        timeline: how many wrong windows ended in each part of the history's time.
    """

    name: str
    all: Figures
    scopes: Mapping[str, Figures]
    front: str
    needs: str
    guess: bool
    note: str
    timeline: Sequence[int]

    def kept(self, wrong: float) -> bool:
        """Return whether so small a share of windows was wrong, and nearly all were released."""
        allowed = self.all.wrong <= wrong * self.all.windows and self.all.never <= _MOST_NEVER * self.all.windows
        return allowed and self.all.after_last is not None


def judge(history: History, name: str, promise: Promise) -> Outcome:
    """Return the outcome of a promise over a history."""
    release = promise.release(history)
    judged = np.ones(len(history.end), np.bool_) if release.judged is None else release.judged
    late = np.bincount(history.window[history.batch > release.at[history.window]], minlength=len(history.end))
    scopes = {}
    if history.scoped:
        found = _figures(history, release.at, late, judged, history.scope)
        scopes = {history.scopes[place]: found[place] for place in sorted(found, key=history.scopes.__getitem__)}
    whole = _figures(history, release.at, late, judged, np.zeros_like(history.scope))
    first, last = int(history.end.min()), int(history.end.max())
    part = (history.end[judged & (late > 0)] - first) * _BINS // (last - first + 1)
    return Outcome(
        name=name,
        all=whole.get(0, Figures(0, 0, 0, 0, 0, None, None)),
        scopes=scopes,
        front=release.front,
        needs=promise.needs,
        guess=promise.guess,
        note=release.note,
        timeline=tuple(np.bincount(part, minlength=_BINS).tolist()),
    )


def _figures(history: History, at: I8, late: I8, judged: NDArray[np.bool_], scope: I8) -> dict[int, Figures]:
    """Return the figures of each scope that has windows that count."""
    number = int(scope.max()) + 1
    released = np.flatnonzero(judged & (at < NEVER))
    last = _delays(at[released] - history.last_arrived[released], scope[released])
    end = _delays(at[released] - history.end[released], scope[released])

    def added(values: NDArray[Any]) -> list[int]:
        return [round(each) for each in np.bincount(scope, np.where(judged, values, 0), number).tolist()]

    windows, wrong, never = added(judged), added(late > 0), added(at == NEVER)
    rows, late_rows = added(history.rows), added(late)
    return {
        each: Figures(
            windows[each], wrong[each], never[each], rows[each], late_rows[each], last.get(each), end.get(each)
        )
        for each in range(number)
        if windows[each]
    }


def _delays(values: I8, scope: I8) -> dict[int, Delays]:
    order = np.lexsort((values, scope))
    scopes, starts, sizes = np.unique(scope[order], return_index=True, return_counts=True)
    values = values[order]
    return {
        int(place): Delays(*(int(values[start + rank(share, int(size))]) for share in (0.5, 0.95, 1.0)))
        for place, start, size in zip(scopes, starts, sizes, strict=True)
    }


def best(outcomes: Iterable[Outcome], wrong: float) -> list[Outcome]:
    """Return the promises to take: the soonest of those that kept, and if it needs knowledge, the soonest guess too.

    The soonest has the least 95th percentile of delays from a window's last row. Promises that `tracking.source` does
    not take are left out.

    Args:
        wrong: the share of windows that may be wrong.
    """
    kept = [each for each in outcomes if each.front and each.kept(wrong)]
    kept.sort(key=lambda each: each.all.after_last.p95 if each.all.after_last else NEVER)
    return kept[:1] + [each for each in kept if each.guess][:1] if kept and not kept[0].guess else kept[:1]
