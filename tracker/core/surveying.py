"""What the open substreams of a job wait for: counted or looked for a few thousand at a time.

A look at a million substreams takes long, so it is cut into steps, between which commands may be carried out. So in a
busy job the counts are of no single moment; in a quiet one they are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import numpy as np

from tracker.contract.survey import Found, OpenSubstream, Survey, Wanted

from .accounts import PAGE, Rows
from .cells import Mask, flight_of
from .job import Job
from .lifecycle import ENDED, KNOWN, STALLED
from .standing import Standing, described, staged_rows, standing

_PAGES = 8  # of ids that one step looks at
STEP = _PAGES * PAGE  #: the most substreams that one step looks at
_OLDEST = 10  # substreams that a survey names


class Surveyor:
    """Counts what the open substreams of a job wait for.

    >>> surveyor = Surveyor()               # doctest: +SKIP
    >>> while surveyor.step(job): pass      # doctest: +SKIP
    >>> surveyor.survey(job).in_flight      # doctest: +SKIP
    {'clean': 3, 'raw': 0}
    """

    def __init__(self) -> None:
        self._after = -1
        self._looked = self._staged_count = self._ordered = self._stalled = 0
        self._all_fronts = self._all_segments = 0
        self._fronts: Counter[str] = Counter()
        self._segments: Counter[str] = Counter()
        self._flight: Counter[str] = Counter()
        self._staged: Mask | None = None  # what was staged when the survey began
        self._oldest: list[tuple[int, int, OpenSubstream]] = []

    def step(self, job: Job) -> bool:
        """Look at the next substreams; whether there may be more."""
        if self._staged is None:
            self._staged = staged_rows(job)
        before = self._after
        for last, rows in _pages(job, self._after):
            self._count(job, standing(job, rows, _fitting(self._staged, job)))
            self._after = last
        return self._after != before

    def _count(self, job: Job, of: Standing) -> None:
        names = job.graph.names
        self._looked += len(of.rows)
        for front, mask in of.fronts.items():
            self._fronts[front] += int(np.count_nonzero(mask))
        self._all_fronts += int(np.count_nonzero(of.any_front))
        self._all_segments += int(np.count_nonzero(of.unbalanced))
        pairs = np.bincount(of.segments, minlength=len(names))
        flight = np.zeros(len(names), np.int64)
        np.add.at(flight, of.segments, np.maximum(flight_of(of.words), 0))
        for number in np.flatnonzero(pairs).tolist():
            self._segments[names[number]] += int(pairs[number])
            self._flight[names[number]] += int(flight[number])
        self._staged_count += int(np.count_nonzero(of.staged))
        self._ordered += int(np.count_nonzero(of.ordered))
        self._stalled += int(np.count_nonzero(job.accounts.flags[of.rows] & STALLED))
        self._keep_oldest(job, of)

    def _keep_oldest(self, job: Job, of: Standing) -> None:
        stuck = np.flatnonzero(of.unbalanced & ~of.any_front)
        changed = job.accounts.changed[of.rows[stuck]]
        if len(self._oldest) == _OLDEST:
            younger = changed < self._oldest[-1][0]
            stuck, changed = stuck[younger], changed[younger]
        for place in stuck[np.argsort(changed, kind="stable")[:_OLDEST]].tolist():
            row = int(of.rows[place])
            self._oldest.append((int(job.accounts.changed[row]), job.accounts.id_of(row), described(job, of, place)))
        self._oldest.sort(key=lambda each: each[:2])
        del self._oldest[_OLDEST:]

    def survey(self, job: Job) -> Survey:
        """Return what was counted so far."""
        return Survey(
            self._looked,
            dict(self._fronts),
            self._all_fronts,
            {name: self._segments[name] for name in job.graph.names if name in self._segments},
            self._all_segments,
            {name: self._flight[name] for name in job.graph.names},
            self._staged_count,
            self._ordered,
            self._stalled,
            tuple(each for _, _, each in self._oldest),
        )


def found(job: Job, wanted: Wanted, limit: int, after: int) -> Found:
    """Some open substreams that are wanted, by creation; and where to go on.

    At most `STEP` ids are looked at, so there may be none among them although there are some later on.

    Args:
        job: whose.
        wanted: which.
        limit: at most so many.
        after: what the answer before gave; -1 for the first.
    """
    staged, search, looked = staged_rows(job), _Search(job, wanted), 0
    taken: list[OpenSubstream] = []
    pages = 0
    for last, rows in _pages(job, after):
        pages, after = pages + 1, last
        looked += len(rows)
        rows = search.named(search.stalled(rows))
        of = standing(job, rows, staged)
        places = np.flatnonzero(search.chosen(of)).tolist()
        for place in places:
            taken.append(described(job, of, place))
            if len(taken) == limit:
                return Found(tuple(taken), looked, job.accounts.id_of(int(rows[place])))
    return Found(tuple(taken), looked, after if pages == _PAGES else None)


class _Search:
    def __init__(self, job: Job, wanted: Wanted) -> None:
        self._job = job
        self._wanted = wanted
        self._words = wanted.text.casefold().split()
        self._scopes: dict[int, str] = {}  # folded

    def stalled(self, rows: Rows) -> Rows:
        """Return those of some rows that are stalled, if that is wanted."""
        return rows[self._job.accounts.life.are(rows, STALLED)] if self._wanted.stalled else rows

    def named(self, rows: Rows) -> Rows:
        """Return those of some rows whose names have all words."""
        if not self._words:
            return rows
        accounts, scopes, words = self._job.accounts, self._scopes, self._words
        for number in np.unique(accounts.scope[rows]).tolist():
            if number not in scopes:
                scopes[number] = accounts.scope_names[number].casefold()
        names = accounts.names
        has = np.ones(len(rows), np.bool_)
        for place, (row, scope) in enumerate(zip(rows.tolist(), accounts.scope[rows].tolist(), strict=True)):
            name = names[row].casefold()
            for word in words:
                if word not in name and word not in scopes[scope]:
                    has[place] = False
                    break
        return rows[has]

    def chosen(self, of: Standing) -> Mask:
        """Return which rows wait for what is wanted."""
        wanted, none = self._wanted, np.zeros(len(of.rows), np.bool_)
        chosen = np.ones(len(of.rows), np.bool_)
        if wanted.front is not None:
            chosen &= of.fronts.get(wanted.front, none)
        if wanted.segment is not None:
            number = self._job.graph.number.get(wanted.segment, -1)
            on = none.copy()
            on[of.at[of.segments == number]] = True
            chosen &= on
        if wanted.staged:
            chosen &= of.staged
        if wanted.ordered:
            chosen &= of.ordered
        return chosen


def _pages(job: Job, after: int) -> Iterator[tuple[int, Rows]]:
    """Return the open rows after an id, a page at a time, as far as one step goes."""
    return islice(job.accounts.by_creation(after, int(KNOWN), int(KNOWN | ENDED)), _PAGES)


def _fitting(staged: Mask, job: Job) -> Mask:
    """Return what was found staged, for as many rows as there are now."""
    more = len(job.accounts.flags) - len(staged)
    return np.concatenate([staged, np.zeros(more, np.bool_)]) if more > 0 else staged
