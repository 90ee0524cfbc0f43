"""Closing without a promise: by a deadline, once most of what is expected is there, and in a scope that fell silent.

A scope is silent by the others' changes, not by the clock: where all are, it is the job that has an outage.

They come with a `Tick`. A deadline is exact, since the least open end time is known; what counts from the last change
is looked for a few times within its duration, so that a report pays nothing.
"""

from __future__ import annotations

import numpy as np

from tracker.contract.spec import MILLION
from tracker.contract.values import NO_END_TIME, Reason

from .cells import Rows
from .job import NO_ROWS, Job
from .lifecycle import KNOWN

_LOOKS = 8  # within the shortest duration
_US = 1000  # ns of a microsecond


def next_due(job: Job) -> int | None:
    """Return when a tick would close something at the earliest (ns)."""
    if job.drain.hands_over or not job.accounts.life.open:
        return None
    due = []
    if (every := _looks_every(job)) is not None:
        due.append(job.now if job.looked_at is None else job.looked_at + every)
    if (deadline := job.spec.deadline) is not None:
        least = job.least_end_time
        if least is None or job.closing.reopened:
            due.append(job.now)
        elif not job.spec.deadline_by_event_time:
            due.append(min(job.least_created, least * _US) + deadline)
        elif job.event_time is not None and least + deadline // _US < job.event_time:
            due.append(job.now)
    return min(due, default=None)


def tick(job: Job) -> None:
    """Close what is due."""
    if (due := next_due(job)) is None or job.now < due:
        return
    if job.spec.deadline is not None:
        _give_up(job, _overdue(job, job.spec.deadline), Reason.DEADLINE)
        rows = _waiting(job, job.accounts.open_rows())
        job.least_end_time = int(job.accounts.end_time[rows].min(initial=NO_END_TIME))
        untimed = rows[job.accounts.end_time[rows] == NO_END_TIME]
        job.least_created = int(job.accounts.created[untimed].min(initial=job.now))
        job.closing.reopened = False
    every = _looks_every(job)
    if every is None or (job.looked_at is not None and job.now < job.looked_at + every):
        return
    job.looked_at = job.now
    if job.spec.threshold_after is not None:
        _give_up(job, _mostly_there(job, job.spec.threshold_after), Reason.THRESHOLD)
    if job.spec.scope_idle_after is not None:
        _give_up(job, _of_silent_scopes(job, job.spec.scope_idle_after), Reason.IDLE)


def _looks_every(job: Job) -> int | None:
    waits = [wait for wait in (job.spec.threshold_after, job.spec.scope_idle_after) if wait is not None]
    return max(1, min(waits) // _LOOKS) if waits else None


def _give_up(job: Job, rows: Rows, reason: Reason) -> None:
    if rows.size:
        job.closing.give_up(rows, reason)
        job.evaluate()


def _waiting(job: Job, rows: Rows) -> Rows:
    """Return those of some open rows that are not closed for a segment on which they have not ended."""
    if not rows.size:
        return rows
    waiting: Rows = rows[~(job.closing.closed_on(rows) | job.accounts.cells.has_ended(rows)).all(axis=1)]
    return waiting


def _overdue(job: Job, deadline: int) -> Rows:
    accounts = job.accounts
    rows = accounts.open_rows()
    ends = accounts.end_time[rows]
    if not job.spec.deadline_by_event_time:
        timed = ends != NO_END_TIME
        past = np.where(timed, ends <= (job.now - deadline) // _US, accounts.created[rows] <= job.now - deadline)
    elif job.event_time is not None:
        past = ends < job.event_time - deadline // _US
    else:
        return NO_ROWS
    return _waiting(job, rows[past])


def _mostly_there(job: Job, quiet: int) -> Rows:
    """Find the rows that wait for nothing but expected elements, have enough of them, and have not changed for long."""
    accounts, waiting = job.accounts, job.closing.waiting
    missing = waiting.expectations.missing(waiting.counted_rows()) if waiting.expectations else None
    if missing is None or not missing.rows.size:
        return NO_ROWS
    wholes, rest = np.divmod(missing.expected, np.uint64(MILLION))
    ppm = np.uint64(job.spec.threshold_ppm)
    enough = missing.sent >= wholes * ppm + (rest * ppm + np.uint64(MILLION - 1)) // np.uint64(MILLION)
    rows = np.setdiff1d(missing.rows[enough], missing.rows[~enough])
    rows = _waiting(job, rows[job.now - accounts.changed[rows] >= quiet])
    return np.array([row for row in rows.tolist() if _waits_for_numbers_only(job, row)], np.int64)


def _waits_for_numbers_only(job: Job, row: int) -> bool:
    waiting = job.closing.waiting
    ended = job.accounts.cells.has_ended(np.array([row]))[0].tolist()
    numbers = waiting.expectations.of(job.accounts.id_of(row))
    expecting = {front for _, front in numbers}
    return expecting.issuperset(waiting.waiting_for(row, ended)) and all(
        ended[segment] or waiting.complete(row, segment) for segment, _ in numbers
    )


def _of_silent_scopes(job: Job, silence: int) -> Rows:
    accounts = job.accounts
    known, rows = accounts.in_use(int(KNOWN)), accounts.open_rows()
    last = np.full(len(accounts.scope_names), np.iinfo(np.int64).min)
    np.maximum.at(last, accounts.scope[known], accounts.changed[known])
    rows = _waiting(job, rows[last[accounts.scope[rows]] <= last.max(initial=silence) - silence])
    if job.closing.expectations:
        rows = np.setdiff1d(rows, job.closing.expectations.missing(rows).rows)
    return rows
