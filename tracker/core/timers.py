"""The effects of time alone on a job: idle fronts, stalls and expiry, ends without a promise, a drain's timeout,
retention.

Each rule runs when a `Tick` comes, and `next_due` gives the time of the next `Tick` that is needed. So a report pays
nothing for them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tracker.contract.events import DrainTimedOut, FrontIdle, Stalled
from tracker.contract.spec import MILLION
from tracker.contract.values import NO_END_TIME, DrainState, Reason

from .cells import WHO, Rows, distinct
from .fronts import EVERYTHING, Front
from .job import NO_ROWS, Job
from .lifecycle import AWAITING_RECOMMIT, CLOSED, ENDED, KNOWN, STALLED

_RETAINED_CHECKS = 8  # how often within retention to look whether what is retained may go
_LOOKS = 8  # within the shortest duration
_SECOND = 10**9  # ns: between two looks while a front is silent and others promise
_US = 1000  # ns of a microsecond


def next_due(job: Job, retention: int) -> int | None:
    """Return when a tick would do something at the earliest (ns)."""
    due = [] if (unpromised_at := _unpromised_due(job)) is None else [unpromised_at]
    if (idle_after := _idle_after(job)) is not None:
        awake = [front for front in job.fronts.unfinished() if not front.idle and not _has_staged(job, front)]
        due += [front.last_contact + idle_after for front in awake]
    stalls = job.spec.stall_after is not None or job.spec.expire_after is not None
    if stalls and job.accounts.life.open and not job.drain.handed_over:
        due.append(job.stalls_from if job.stalls_from is not None else job.now)
    if job.drain.state is DrainState.DRAINING and job.drain.deadline is not None:
        due.append(job.drain.deadline)
    oldest = job.log.oldest_at()
    if oldest is not None:
        due.append(oldest + retention)
    expires = job.subscriptions.next_due(job.now)
    if expires is not None:
        due.append(expires)
    if job.to_forget:
        due.append(job.to_forget[0][0] + retention)
    if job.retained.size:
        due.append(job.retained_checked + retention // _RETAINED_CHECKS)
    if job.spec.remember is not None and (sweep := job.tombstones.next_sweep(job.spec.remember)) is not None:
        due.append(sweep)
    return min(due, default=None)


def tick(job: Job, retention: int) -> None:
    """Do what is due by time alone: idleness, expiry, stalls, a drain's timeout, retention."""
    _turn_idle(job)
    _close_unpromised(job)
    _look_for_stalls(job)
    deadline = job.drain.deadline
    if job.drain.state is DrainState.DRAINING and deadline is not None and job.now >= deadline:
        job.drain = replace(job.drain, state=DrainState.TIMED_OUT, deadline=None)
        job.announce(DrainTimedOut(job.drain.drain_id))
    _forget(job, job.now - retention)
    if job.spec.remember is not None:
        job.tombstones.forget_until(job.now - job.spec.remember)
        job.tombstones.sweep(job.spec.remember)


def _has_staged(job: Job, front: Front) -> bool:
    owner = job.owner(front)
    return owner is not None and bool(owner.staged)


def _idle_after(job: Job) -> int | None:
    """Return after how long a silent front turns idle (ns).

    Never in a hand-over: all fall silent, and the next deployment goes on.
    """
    return None if job.drain.hands_over else job.spec.idle_after


def _turn_idle(job: Job) -> None:
    idle_after = _idle_after(job)
    if idle_after is None:
        return
    changed = False
    for front in job.fronts.unfinished():
        if front.idle or _has_staged(job, front) or job.now - front.last_contact < idle_after:
            continue
        front.idle = changed = True
        if not front.silent:
            job.announce(FrontIdle(front.name, True))
    if changed:
        job.closing.fronts_changed()
        job.evaluate()


def restart_timers(job: Job) -> None:
    """Start idle timers again: nobody could report while the state was rebuilt or handed over."""
    for front in job.fronts:
        front.last_contact = job.now


def resume(job: Job) -> None:
    """Go on after a cancelled hand-over, or with the next deployment: what was owed could not come meanwhile."""
    open_rows = job.accounts.open_rows()
    job.accounts.changed[open_rows] = job.now
    job.accounts.life.unmark(open_rows, STALLED)
    job.changes.look_at(open_rows)
    restart_timers(job)
    for front in job.fronts:
        front.quiet_since = job.now


def _look_for_stalls(job: Job) -> None:
    """Announce stalled and expired substreams. It scans the rows, but never before one can be due."""
    stall, expire = job.spec.stall_after, job.spec.expire_after
    patience = min((each for each in (stall, expire) if each is not None), default=None)
    if patience is None or (job.stalls_from is not None and job.now < job.stalls_from):
        return
    if job.drain.handed_over:
        return  # nobody can deliver what is owed before the next deployment
    accounts = job.accounts
    rows = accounts.open_rows(CLOSED)
    rows = rows[job.now - accounts.changed[rows] >= patience]
    if rows.size:
        rows = rows[_owing(job, rows) | accounts.life.are(rows, AWAITING_RECOMMIT)]
        rows = accounts.in_order(rows)
    both = accounts.in_order(np.union1d(rows, missing)) if (missing := _missing(job)).size else rows
    if stall is not None:
        due = (job.now - accounts.changed[both] >= stall) & ~accounts.life.are(both, STALLED)
        _announce_stalls(job, both[due])
    if job.spec.expire_expected and len(both) > len(rows):
        rows = accounts.in_order(np.union1d(rows, _begun(job, missing)))
    waited = job.now - accounts.changed[rows]
    if expire is not None and (waited >= expire).any():
        job.end_by_force(rows[waited >= expire].tolist(), Reason.EXPIRED)
        job.evaluate()
    job.stalls_from = _next_stall(job, stall, expire, patience)


def _owing(job: Job, rows: Rows) -> NDArray[np.bool_]:
    """Return which rows do not balance on a segment for which they are closed, and on which they have not ended.

    In a hand-over, segments of state owe nothing: what they hold stays for the next deployment.
    """
    cells = job.accounts.cells
    closed = job.closing.closed_somewhere_only(rows)
    if closed is None and not job.drain.hands_over:
        return cells.owing(rows)
    unbalanced = cells.unbalanced(rows) & ~cells.has_ended(rows)
    if job.drain.hands_over:
        unbalanced[:, [job.graph.number[name] for name in job.spec.state_segments]] = False
    if closed is not None:
        unbalanced &= closed
    owing: NDArray[np.bool_] = np.logical_or.reduce(unbalanced, axis=1)
    return owing


def _missing(job: Job) -> Rows:
    """Return the rows of which more is expected than was sent on a segment for which they are not closed.

    None in a hand-over: the sources have stopped, and the next deployment's send the rest.
    """
    if not job.closing.expectations or job.drain.hands_over:
        return NO_ROWS
    missing = job.closing.expectations.missing(job.closing.waiting.counted_rows())
    closed = job.closing.closed_on(missing.rows)[np.arange(len(missing.rows)), missing.segments]
    return np.unique(missing.rows[~closed])


def _begun(job: Job, rows: Rows) -> Rows:
    """Return which rows have had an element: what has not begun does not expire."""
    cells, found = job.accounts.cells, [NO_ROWS]
    for part in cells.parts(rows):
        touched = cells.touched(part)
        found.append(part[distinct(touched.at[touched.words[:, :WHO].any(axis=1)])])
    return np.concatenate(found)


def _next_stall(job: Job, stall: int | None, expire: int | None, patience: int) -> int:
    """Return when the next stall may be due: not before `patience` has passed, unless a closed row is due earlier."""
    accounts = job.accounts
    rows = accounts.open_rows(CLOSED)
    due = job.now + patience
    if (missing := _missing(job)).size:
        rows = np.union1d(rows, missing)
    if not rows.size:
        return due
    stalled = accounts.life.are(rows, STALLED)
    for wait, among in ((stall, rows[~stalled]), (expire, rows)):
        if wait is not None and among.size:
            after = accounts.changed[among] + wait
            after = after[after > job.now]
            if after.size:
                due = min(due, int(after.min()))
    return due


def _announce_stalls(job: Job, rows: Rows) -> None:
    """Announce that rows have stalled, in this order."""
    accounts, cells = job.accounts, job.accounts.cells
    for part in cells.parts(rows):
        owing = cells.unbalanced(part) & ~cells.has_ended(part)
        in_flight = np.where(owing, cells.in_flight_each(part), 0)
        missing = job.closing.expectations.missing(part if job.closing.expectations else NO_ROWS)
        in_order = np.argsort(part)
        places = in_order[np.searchsorted(part, missing.rows, sorter=in_order)]
        owing[places, missing.segments] = True
        expected, sent = np.zeros(len(part), np.uint64), np.zeros(len(part), np.uint64)
        np.add.at(expected, places, missing.expected)
        np.add.at(sent, places, missing.sent)
        unread = np.maximum(in_flight, 0).sum(axis=1)
        # Where nothing is missing, something was received more often than sent.
        balance = np.where(unread, unread, in_flight.sum(axis=1))
        columns = (column.tolist() for column in (part, owing, balance, expected, sent))
        for row, owes, flight, wanted, came in zip(*columns, strict=True):
            accounts.life.mark(row, STALLED)
            job.announce(
                Stalled(
                    accounts.scope_names[int(accounts.scope[row])],
                    accounts.names[row],
                    tuple(name for name, at_fault in zip(job.graph.names, owes, strict=True) if at_fault),
                    flight,
                    wanted,
                    came,
                )
            )


def _forget(job: Job, until: int) -> None:
    """Drop events, and substreams that ended or were only named, that are not younger than `until`: the retention.

    A substream that a staged epoch refers to stays. One that has ended leaves a tombstone, unless the committed
    watermark already shows it.
    """
    job.subscriptions.retire(until, job.now)
    due = []
    while job.to_forget and job.to_forget[0][0] <= until:
        due.append(job.to_forget.popleft()[1])
    if not due and not job.retained.size:
        return
    rows = np.unique(np.concatenate([job.retained, *due]))
    accounts = job.accounts
    flags = accounts.flags[rows]
    done = (flags & ENDED) != 0
    young = accounts.changed[rows] > until
    # One that came to be known since it was listed is listed again when it has ended; but one that was retained stays,
    # which is young again if retention has grown.
    listed = ((flags & KNOWN) == 0) | (done & (~young | np.isin(rows, job.retained)))
    rows, young = rows[listed], young[listed]
    retained = young | np.isin(rows, job.staged_rows())
    job.retained, job.retained_checked = rows[retained], job.now
    rows = rows[~retained]
    ids = accounts.ids_of(rows).tolist() if rows.size else []
    for id_ in ids:
        job.late_by_id.pop(id_, None)
    job.closing.expectations.forget(ids)
    shown = job.closing.waiting.passed(rows, job.fronts.lowest_committed_watermark)
    buried = rows[~shown & accounts.life.are(rows, ENDED)]
    job.tombstones.add(accounts.named(buried), accounts.changed[buried].tolist())
    for scope in accounts.forget(rows):
        job.closing.forget_scope(scope)


def _unpromised_due(job: Job) -> int | None:
    """Return when a tick would close something without a promise at the earliest (ns)."""
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
            due.append((least + deadline // _US + 1) * _US)
    return min(due, default=None)


def _close_unpromised(job: Job) -> None:
    """Close what is due without a promise: by a deadline, a threshold, or the silence of a scope or a front.

    A scope is silent by the elements of others and a front by their promises, not by the clock: where all are, it is
    the job that has an outage. A deadline is exact, since the least open end time is known; what counts from the last
    change is looked for a few times within its duration, so that a report pays nothing.
    """
    if (due := _unpromised_due(job)) is None or job.now < due:
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
        past = ends < min(job.event_time, job.now // _US) - deadline // _US
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
    if job.folded_at is None:
        return NO_ROWS
    accounts = job.accounts
    known, rows = accounts.in_use(int(KNOWN)), accounts.open_rows()
    last = np.full(len(accounts.scope_names), np.iinfo(np.int64).min)
    np.maximum.at(last, accounts.scope[known], accounts.changed[known])
    rows = _waiting(job, rows[last[accounts.scope[rows]] <= job.folded_at - silence])
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
