"""What open substreams wait for, many at a time: as `waiting` and the accumulators have it, by whole columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracker.contract.survey import SOLE_OWNER, OpenSubstream, Unbalanced
from tracker.contract.values import NO_END_TIME

from .accounts import Rows
from .cells import RECEIVED, SENT, Mask, do_not_balance, flight_of
from .frontgroups import Front, FrontGroup
from .job import Job
from .lifecycle import AWAITING_RECOMMIT, PARTLY_ENDED, SOLE, STALLED
from .producers import CloseOf, ExpectOf

MOST_FRONTS = 64  # of a group that are told apart: the slowest
_FEW = 5  # fronts and segments that are named of one substream


class Standing(NamedTuple):
    """What some open rows wait for."""

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
        job: whose.
        rows: open ones.
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
    """By row, whether an epoch that is not committed has something of it. Costs as much as is staged."""
    found = np.zeros(len(job.accounts.flags), np.bool_)
    for producer in job.producers.values():
        for epoch in producer.staged.values():
            for entries in [*(piece.entries for piece in epoch.pieces), *epoch.folded]:
                found[entries.rows] = True
            for piece in epoch.pieces:
                found[[pledge.row for pledge in piece.pledges if isinstance(pledge, CloseOf | ExpectOf)]] = True
    return found


def _open_groups(job: Job, rows: Rows) -> Mask:
    """For each row and group of segments, whether fronts have not closed it where it has not ended."""
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
    """By front, which rows wait for it."""
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
