"""What time alone does to a job: idle fronts, stalls and expiry, a drain's timeout, retention.

Each rule looks when a `Tick` comes, and `next_due` says when one is needed; so nothing here is on the way of a report.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .accounts import CLOSED, DONE, HELD, KNOWN, STALLED, Rows
from .commands import NO_END_TIME, DrainState
from .drains import DrainRecord
from .events import DrainTimedOut, FrontIdle, Reason, Stalled
from .fronts import Front
from .job import NO_ROWS, Job

_PIN_CHECKS = 8  # how often within retention to look whether what is pinned may go


def next_due(job: Job, retention: int) -> int | None:
    """When a tick would do something at the earliest (ns)."""
    due = []
    if job.spec.idle_after is not None:
        awake = [front for front in job.fronts.unfinished() if not front.idle and not _has_staged(job, front)]
        due += [front.heard_at + job.spec.idle_after for front in awake]
    if job.accounts.open and (job.spec.stall_after is not None or job.spec.expire_after is not None):
        due.append(job.stalls_from if job.stalls_from is not None else job.now)
    if job.drain.state is DrainState.DRAINING and job.drain.deadline is not None:
        due.append(job.drain.deadline)
    oldest = job.log.oldest_at()
    if oldest is not None:
        due.append(oldest + retention)
    if job.to_forget:
        due.append(job.to_forget[0][0] + retention)
    if job.pinned.size and _may_be_free(job):
        due.append(job.pins_checked + retention // _PIN_CHECKS)
    return min(due, default=None)


def tick(job: Job, retention: int) -> None:
    """Do what is due by time alone: idleness, expiry, stalls, a drain's timeout, retention."""
    _turn_idle(job)
    _look_for_stalls(job)
    deadline = job.drain.deadline
    if job.drain.state is DrainState.DRAINING and deadline is not None and job.now >= deadline:
        job.drain = DrainRecord(DrainState.TIMED_OUT, job.drain.drain_id)
        job.announce(DrainTimedOut(job.drain.drain_id))
    _forget(job, job.now - retention)


def _has_staged(job: Job, front: Front) -> bool:
    owner = job.producers.get(front.owner) if front.owner is not None else None
    return owner is not None and bool(owner.staged)


def _turn_idle(job: Job) -> None:
    if job.spec.idle_after is None:
        return
    turned = False
    for front in job.fronts.unfinished():
        if front.idle or _has_staged(job, front) or job.now - front.heard_at < job.spec.idle_after:
            continue
        front.idle = turned = True
        job.announce(FrontIdle(front.name, True))
    if turned:
        job.closing.fronts_changed()
        job.evaluate()


def restart_timers(job: Job) -> None:
    """The state was rebuilt: nobody could be heard meanwhile."""
    for front in job.fronts:
        front.heard_at = job.now


def _look_for_stalls(job: Job) -> None:
    """Find what is closed and owes a change. A scan, but never before something can be due."""
    stall, expire = job.spec.stall_after, job.spec.expire_after
    patience = min((each for each in (stall, expire) if each is not None), default=None)
    if patience is None or (job.stalls_from is not None and job.now < job.stalls_from):
        return
    accounts = job.accounts
    rows = accounts.in_use(int(KNOWN | CLOSED), int(KNOWN | CLOSED | DONE))
    rows = rows[job.now - accounts.changed[rows] >= patience]
    if rows.size:
        owing = accounts.unbalanced(rows) & ~accounts.has_ended(rows)
        rows = rows[owing.any(axis=1) | ((accounts.flags[rows] & HELD) != 0)]
        rows = accounts.in_order(rows)
    waited = job.now - accounts.changed[rows]
    if stall is not None:
        for row in rows[(waited >= stall) & ((accounts.flags[rows] & STALLED) == 0)].tolist():
            accounts.flags[row] |= STALLED
            _announce_stall(job, row)
    if expire is not None and (waited >= expire).any():
        for row in rows[waited >= expire].tolist():
            job.ends.force(row, Reason.EXPIRED)
        job.evaluate()
    job.stalls_from = _next_stall(job, stall, expire, patience)


def _next_stall(job: Job, stall: int | None, expire: int | None, patience: int) -> int:
    """What changes from now on owes nothing before `patience` has passed; what is closed may be due earlier."""
    accounts = job.accounts
    rows = accounts.in_use(int(KNOWN | CLOSED), int(KNOWN | CLOSED | DONE))
    due = job.now + patience
    if not rows.size:
        return due
    stalled = (accounts.flags[rows] & STALLED) != 0
    for wait, among in ((stall, rows[~stalled]), (expire, rows)):
        if wait is not None and among.size:
            after = accounts.changed[among] + wait
            after = after[after > job.now]
            if after.size:
                due = min(due, int(after.min()))
    return due


def _announce_stall(job: Job, row: int) -> None:
    at = np.array([row])
    owing = job.accounts.unbalanced(at)[0] & ~job.accounts.has_ended(at)[0]
    in_flight = job.accounts.in_flight_each(at)[0][owing]
    missing = int(np.maximum(in_flight, 0).sum())
    job.announce(
        Stalled(
            job.accounts.scope_names[int(job.accounts.scope[row])],
            job.accounts.names[row],
            tuple(name for name, at_fault in zip(job.graph.names, owing.tolist(), strict=True) if at_fault),
            # Where nothing is missing, something was received more often than sent.
            missing or int(in_flight.sum()),
        )
    )


def _forget(job: Job, until: int) -> None:
    """Retention: drop events, and substreams that ended or were only named, that are not younger than `until`.

    What a staged epoch speaks of stays, and so does what has ended above the floor: nothing but the tracker's memory
    of it would tell that it is over.
    """
    job.log.drop_until(until)
    due = []
    while job.to_forget and job.to_forget[0][0] <= until:
        due.append(job.to_forget.popleft()[1])
    if not due and not (job.pinned.size and _may_be_free(job)):
        return
    rows = np.unique(np.concatenate([job.pinned, *due]))
    flags = job.accounts.flags[rows]
    done = (flags & DONE) != 0
    young = job.accounts.changed[rows] > until
    # One that came to be known since it was listed is listed again when it has ended; but one that was pinned stays,
    # which is young again if retention has grown.
    listed = ((flags & KNOWN) == 0) | (done & (~young | np.isin(rows, job.pinned)))
    rows, young = rows[listed], young[listed]
    passing = young | np.isin(rows, np.concatenate([NO_ROWS, *_staged_rows(job)]))
    pinned = passing | _above_floor(job, rows)
    job.pinned, job.pins_pass = rows[pinned], bool(passing.any())
    job.pins_checked, job.pins_seen = job.now, job.fronts.version
    rows = rows[~pinned]
    for id_ in job.accounts.ids_of(rows).tolist() if rows.size else ():
        job.late_by_id.pop(id_, None)
    for scope in job.accounts.forget(rows):
        job.closing.forget_scope(scope)


def _may_be_free(job: Job) -> bool:
    """Whether anything has happened that could let pinned rows go."""
    return job.pins_pass or job.pins_seen != job.fronts.version


def _above_floor(job: Job, rows: Rows) -> NDArray[np.bool_]:
    """Which rows have ended where their fronts have not come to yet."""
    accounts, fronts = job.accounts, job.fronts
    above: NDArray[np.bool_] = ((accounts.flags[rows] & DONE) != 0) & (accounts.end_time[rows] != NO_END_TIME)
    if not fronts or fronts.all_finished_firmly():
        return np.zeros(len(rows), np.bool_)
    scopes, which = np.unique(accounts.scope[rows], return_inverse=True)
    # A floor that is unset lies below every end time; numpy has no number for that.
    floors = [fronts.floor(accounts.scope_names[scope]) for scope in scopes.tolist()]
    times = np.array([max(floor, -(2**63)) for floor in floors], np.int64)[which]
    unset = np.array([floor < -(2**63) for floor in floors], np.bool_)[which]
    return above & (unset | (accounts.end_time[rows] > times))


def _staged_rows(job: Job) -> list[Rows]:
    return [rows for producer in job.producers.values() for rows in producer.staged_rows()]
