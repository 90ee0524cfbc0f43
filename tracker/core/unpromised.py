"""Closing without a promise: by a deadline, once most of what is expected is there, in a scope and of a front that fell
silent.

A scope is silent by the others' changes and a front by the others' promises, not by the clock: where all are, it is the
job that has an outage.

They come with a `Tick`. A deadline is exact, since the least open end time is known; what counts from the last change
is looked for a few times within its duration, so that a report pays nothing.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tracker.contract.events import FrontIdle
from tracker.contract.spec import MILLION
from tracker.contract.values import NO_END_TIME, Reason

from .cells import Rows
from .fronts import EVERYTHING, Front
from .job import NO_ROWS, Job
from .lifecycle import KNOWN

_LOOKS = 8  # within the shortest duration
_SECOND = 10**9  # ns: between two looks while a front is silent and others promise
_US = 1000  # ns of a microsecond


def next_due(job: Job) -> int | None:
    """Return when a tick would close something at the earliest (ns)."""
    if job.drain.hands_over or not job.accounts.life.open:
        return None
    due = []
    if (look := _next_look(job)) is not None:
        due.append(look)
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
    look = _next_look(job)
    if look is None or job.now < look:
        return
    job.looked_at = job.now
    if job.spec.threshold_after is not None:
        _give_up(job, _mostly_there(job, job.spec.threshold_after), Reason.THRESHOLD)
    if job.spec.scope_idle_after is not None:
        _give_up(job, _of_silent_scopes(job, job.spec.scope_idle_after), Reason.IDLE)
    if job.spec.front_idle_after is not None:
        _fall_silent(job, job.spec.front_idle_after)
        _give_up(job, _of_silent_fronts(job), Reason.IDLE)


def _next_look(job: Job) -> int | None:
    """Return when a tick looks next for what has been quiet (ns); None: never."""
    spec = job.spec
    waits = [each for each in (spec.threshold_after, spec.scope_idle_after, spec.front_idle_after) if each is not None]
    if not waits:
        return None
    if job.looked_at is None:
        return job.now
    every = max(1, min(waits) // _LOOKS)
    if job.promised_at >= job.looked_at and any(front.silent for front in job.fronts):
        every = min(every, _SECOND)
    return job.looked_at + every


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


def _fall_silent(job: Job, silence: int) -> None:
    """Find the fronts that have promised nothing for long before others that feed the same segments."""
    newest: dict[frozenset[int] | None, int] = {}
    for front in job.fronts:
        if front.last_promise is not None:
            newest[front.fed] = max(front.last_promise, newest.get(front.fed, 0))
    staged: set[str] | None = None
    for front in job.fronts.unfinished():
        if front.silent or newest.get(front.fed, front.quiet_since) - front.quiet_since < silence:
            continue
        if staged is None:
            epochs = [epoch for producer in job.producers.values() for epoch in producer.staged.values()]
            staged = {pledge.front for epoch in epochs for pledge in epoch.pledges}
        if front.name not in staged:
            front.silent = True
            if not front.idle:
                job.announce(FrontIdle(front.name, True))


def _of_silent_fronts(job: Job) -> Rows:
    """Find the rows that wait for nothing but silent fronts."""
    if not any(front.silent for front in job.fronts):
        return NO_ROWS
    accounts, waiting = job.accounts, job.closing.waiting
    rows = _waiting(job, accounts.open_rows())
    if job.closing.expectations:
        rows = np.setdiff1d(rows, job.closing.expectations.missing(rows).rows)
    if not rows.size:
        return rows
    ended = accounts.cells.has_ended(rows)
    named = np.isin(accounts.ids_of(rows), np.array([*waiting.closes, *waiting.expectations.ids()], np.uint64))
    only = np.ones(len(rows), np.bool_)
    group_of = np.array(job.fronts.group_of)
    for place, group in enumerate(job.fronts.groups):
        others = [front for front in group.waited() if not front.silent]
        passed = waiting.passed(rows, partial(_least, others))
        only &= passed | ended[:, group_of == place].all(axis=1)
    for at in np.flatnonzero(named).tolist():
        names = waiting.waiting_for(int(rows[at]), ended[at].tolist())
        only[at] = all(job.fronts.by_name[name].silent for name in names)
    found: Rows = rows[only]
    return found


def _least(fronts: list[Front], scope: str) -> int:
    return min((front.time(scope) for front in fronts), default=EVERYTHING)
