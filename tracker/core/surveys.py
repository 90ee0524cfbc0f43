"""Waits of a job's open substreams: counted or looked for a few thousand at a time.

A look at a million substreams takes long, so it is cut into steps, between which commands may be carried out. So in a
busy job the counts are of no single moment; in a quiet one they are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracker.contract.status import SOLE_OWNER, Found, OpenSubstream, Survey, Unbalanced, Wanted
from tracker.contract.values import NO_END_TIME

from .accounts import PAGE
from .cells import RECEIVED, SENT, Mask, Rows, do_not_balance, extended, flight_of
from .fronts import Front, FrontGroup
from .job import Job
from .lifecycle import AWAITING_RECOMMIT, ENDED, KNOWN, PARTLY_ENDED, SOLE, STALLED

_PAGES = 8  # of ids that one step looks at
STEP = _PAGES * PAGE  #: the most substreams that one step looks at
MOST_FRONTS = 64  # of a group that are told apart: the slowest
_FEW = 5  # fronts and segments that are named of one substream
_OLDEST = 10  # substreams that a survey names


class Surveyor:
    """Counter of what a job's open substreams wait for.

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
    """Return some open substreams that are wanted, by creation; and where to go on.

    At most `STEP` ids are looked at, so there may be none among them although there are some later on.

    Args:
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
    rows = len(job.accounts.flags)
    return extended(staged, rows) if len(staged) < rows else staged


class Standing(NamedTuple):
    """Waits of some open rows."""

    rows: Rows
    fronts: dict[str, Mask]  #: by front, those that it has not closed
    any_front: Mask  #: those that some front has not closed
    at: Rows  #: of accumulators that do not balance, where the row has not ended: the places in `rows`
    segments: Rows  #: likewise
    words: NDArray[np.uint64]  #: four for each
    staged: Mask

    @property
    def unbalanced(self) -> Mask:
        """Those that do not balance on some segment."""
        found = np.zeros(len(self.rows), np.bool_)
        found[self.at] = True
        return found

    @property
    def ordered(self) -> Mask:
        """Those that wait for nothing that is their own."""
        rest: Mask = ~(self.any_front | self.unbalanced | self.staged)
        return rest


def standing(job: Job, rows: Rows, staged: Mask) -> Standing:
    """Return what open rows wait for.

    Args:
        staged: by row of the job, whether an epoch that is not committed has something of it.
    """
    at, segments, words = job.accounts.cells.touched(rows)
    off = do_not_balance(words)
    at, segments, words = at[off], segments[off], words[off]
    runs = job.accounts.cells.reasons(rows[at], segments) == 0
    waits = _open_groups(job, rows)
    awaiting = job.accounts.life.are(rows, AWAITING_RECOMMIT)
    fronts = _fronts(job, rows, waits)
    any_front: Mask = np.logical_or.reduce(waits, axis=1)
    return Standing(rows, fronts, any_front, at[runs], segments[runs], words[runs], staged[rows] | awaiting)


def staged_rows(job: Job) -> Mask:
    """Return, by row, whether an epoch that is not committed has something of it. Costs as much as is staged."""
    found = np.zeros(len(job.accounts.flags), np.bool_)
    found[job.staged_rows()] = True
    return found


def _open_groups(job: Job, rows: Rows) -> Mask:
    """Return, for each row and group of segments, whether fronts have not closed it where it has not ended."""
    groups, group_of = len(job.fronts.groups), np.array(job.fronts.group_of)
    waits: Mask = ~job.closing.closed_groups_of(rows)
    waits[job.accounts.life.are(rows, SOLE)] = False
    if groups > 1:
        partly = np.flatnonzero(job.accounts.life.are(rows, PARTLY_ENDED))
        if partly.size:
            running = ~job.accounts.cells.has_ended(rows[partly])
            for place in range(groups):
                waits[partly, place] &= running[:, group_of == place].any(axis=1)
    return waits


def _fronts(job: Job, rows: Rows, waits: Mask) -> dict[str, Mask]:
    """Return, by front, which rows wait for it."""
    accounts, waiting = job.accounts, job.closing.waiting
    found: dict[str, Mask] = {}

    def mark(front: str, places: Rows) -> None:
        if places.size:
            found.setdefault(front, np.zeros(len(rows), np.bool_))[places] = True

    ids = accounts.ids_of(rows).tolist() if waiting.closes or waiting.expectations else []
    expecting = [place for place, id_ in enumerate(ids) if id_ in waiting.expectations]
    named = np.zeros(len(rows), np.bool_)
    named[[place for place, id_ in enumerate(ids) if id_ in waiting.closes]] = True
    alike = np.ones(len(rows), np.bool_)
    alike[expecting] = False
    for place, group in enumerate(job.fronts.groups):
        some = np.flatnonzero(waits[:, place] & alike)
        if not some.size:
            continue
        if not group.members:
            mark(SOLE_OWNER, some)
            continue
        scopes, which = np.unique(accounts.scope[rows[some]], return_inverse=True)
        end_times = accounts.end_time[rows[some]]
        for front in _slowest(group):
            late = some[(end_times == NO_END_TIME) | (end_times > _times(job, front, scopes)[which])]
            closed = [at for at in late[named[late]].tolist() if front.name in waiting.closes[ids[at]]]
            mark(front.name, np.setdiff1d(late, closed, assume_unique=True) if closed else late)
    ended = accounts.cells.has_ended(rows[expecting]).tolist()
    for place, on in zip(expecting, ended, strict=True):  # one by one: each has numbers of its own
        for front_name in waiting.waiting_for(int(rows[place]), on) if waits[place].any() else ():
            mark(front_name, np.array([place]))
    return found


def _slowest(group: FrontGroup) -> list[Front]:
    waited = group.waited()
    return waited if len(waited) <= MOST_FRONTS else sorted(waited, key=lambda front: front.time(None))[:MOST_FRONTS]


def _times(job: Job, front: Front, scopes: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return a front's time for each of some scopes."""
    names = job.accounts.scope_names
    if not front.promised.keys() - {None}:
        times = [front.time(None)] * len(scopes)
    else:
        times = [front.time(names[scope]) for scope in scopes.tolist()]
    return np.array([min(max(time, -(2**63)), 2**63 - 1) for time in times], np.int64)


# ---------------------------------------------------------------- one by one


def described(job: Job, standing: Standing, place: int) -> OpenSubstream:
    """Return one of the rows, in words."""
    accounts, row = job.accounts, int(standing.rows[place])
    fronts = [front for front, mask in standing.fronts.items() if mask[place]]
    cells = np.flatnonzero(standing.at == place)
    words = standing.words[cells]
    flight = flight_of(words)
    end_time = int(accounts.end_time[row])
    return OpenSubstream(
        scope=accounts.scope_names[int(accounts.scope[row])],
        name=accounts.names[row],
        end_time=None if end_time == NO_END_TIME else end_time,
        created=int(accounts.created[row]),
        changed=int(accounts.changed[row]),
        fronts=tuple(fronts[:_FEW]),
        more_fronts=max(0, len(fronts) - _FEW),
        unbalanced=tuple(
            Unbalanced(job.graph.names[segment], int(word[SENT]), int(word[RECEIVED]))
            for segment, word in zip(standing.segments[cells[:_FEW]].tolist(), words[:_FEW], strict=True)
        ),
        more_unbalanced=max(0, len(cells) - _FEW),
        in_flight=int(flight[flight > 0].sum()),
        staged=bool(standing.staged[place]),
        ordered=bool(standing.ordered[place]),
        stalled=bool(accounts.flags[row] & STALLED),
    )
