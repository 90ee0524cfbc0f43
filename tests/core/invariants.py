"""Invariants of the core between any two commands: its running counts equal a recount.

The model cannot see a count that is wrong, an index that has lost a row or a row that is used again before it is clean,
until something comes of it, which may be long after. Here it is seen at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from tracker.contract.events import Advanced, Drained, Ended
from tracker.contract.values import NO_END_TIME, Mode, Ordering, Reason
from tracker.core import JobView, Tracker
from tracker.core.ends import NONE_OPEN
from tracker.core.job import Job
from tracker.core.lifecycle import AWAITING_RECOMMIT, CLOSED, ENDED, KNOWN, NAMED, PARTLY_ENDED, SOLE
from tracker.core.provisional import COMMITTED


def broken(tracker: Tracker) -> str:
    """Return the first thing that does not hold, in words; empty if everything does.

    Args:
        tracker: after a command that was carried out or refused.
    """
    for name, job in tracker._jobs.items():
        if tracker.next_due(name) != tracker._find_due(name):
            return f"A tick of {name} is due at {tracker._find_due(name)}, remembered as {tracker.next_due(name)}"
        for holds in INVARIANTS:
            try:
                holds(job)
            except AssertionError as error:
                return f"{(holds.__doc__ or '').strip()} Not so: {error}"
    return ""


def _names_lead_to_their_rows(job: Job) -> None:
    """Check that each name in use is found, alone and among others, and each row has its id."""
    accounts = job.accounts
    rows = np.flatnonzero(accounts.flags & NAMED)
    ids = accounts.ids_of(rows)
    _same(accounts.rows_of(ids.astype(np.uint64)).tolist(), rows.tolist())
    _same([accounts.id_of(row) for row in rows.tolist()], ids.tolist())
    assert not ids.size or int(ids.max()) < accounts.next_id
    named = list(accounts.named(rows))
    _same([accounts.find_one(*each) for each in named], rows.tolist())
    scopes = list(dict.fromkeys(scope for scope, _ in named))
    index = np.array([scopes.index(scope) for scope, _ in named], np.uint32)
    _same(accounts.find(scopes, index, [name for _, name in named]).tolist(), rows.tolist())


def _counts_are_right(job: Job) -> None:
    """Check that the counts of substreams equal a recount."""
    accounts = job.accounts
    flags = accounts.flags
    _same(accounts.life.named, np.count_nonzero(flags & NAMED))
    _same(accounts.life.open, np.count_nonzero((flags & (KNOWN | ENDED)) == KNOWN))
    _same(accounts.life.ended, np.count_nonzero(flags & ENDED))
    in_flight = accounts.cells.in_flight_each(np.array(_open(job), np.int64))
    _same(accounts.cells.in_flight, int(np.maximum(in_flight, 0).sum()))
    of_scope = Counter(accounts.scope[np.flatnonzero(flags & NAMED)].tolist())
    _same(Counter({n: count for n, count in enumerate(accounts._rows_of_scope) if count}), of_scope)
    _same({accounts.scope_names[number]: number for number in of_scope}, accounts.scope_number)
    _same(set(accounts._free_scopes), set(range(len(accounts.scope_names))) - set(of_scope))
    _same(len(accounts._free_scopes), len(set(accounts._free_scopes)))


def _free_rows_are_clean(job: Job) -> None:
    """Check that a row that nobody has a name for has no flag, no element and no end."""
    accounts = job.accounts
    rows = np.flatnonzero((accounts.flags & NAMED) == 0)
    assert not accounts.flags[rows].any(), "flags"
    assert not any(accounts.names[row] for row in rows.tolist()), "names"
    assert not len(accounts.cells.touched(rows).at), "elements"
    assert not accounts.cells.has_ended(rows).any(), "ends"


def _marks_are_those_of_the_states(job: Job) -> None:
    """Check that only a known row has marks, and only a closed one was closed by its sole owner."""
    flags = job.accounts.flags
    assert not (flags[(flags & KNOWN) == 0] & ~NAMED).any(), "a row that is not known has a mark"
    assert ((flags & NAMED) != 0)[(flags & KNOWN) != 0].all(), "a row is known, and not named"
    sole = flags[(flags & (SOLE | ENDED)) == SOLE]
    assert ((sole & CLOSED) != 0).all(), "closed by its sole owner, and not closed"


def _flags_agree_with_cells(job: Job) -> None:
    """Check that a row has ended everywhere, or somewhere, if its cells have; and only what is known has."""
    accounts = job.accounts
    rows = np.flatnonzero(accounts.flags & KNOWN)
    ended = accounts.cells.has_ended(rows)
    _same(((accounts.flags[rows] & ENDED) != 0).tolist(), ended.all(axis=1).tolist())
    marked = (accounts.flags[rows] & PARTLY_ENDED) != 0
    assert (marked | ~ended.any(axis=1) | ended.all(axis=1)).all(), "ended somewhere, and not marked"
    assert not accounts.cells.has_ended(np.flatnonzero((accounts.flags & KNOWN) == 0)).any()


def _closed_is_what_the_fronts_promised(job: Job) -> None:
    """Check that each open row is closed for the groups for which the fronts' promises close it."""
    closing, accounts = job.closing, job.accounts
    for row in _open(job):
        told = closing.closed_groups_of(np.array([row]))[0].tolist()
        assert told == closing._closed_for(row), f"{accounts.names[row]}: {told}"
        assert bool(accounts.flags[row] & CLOSED) == any(told), accounts.names[row]


def _nothing_that_can_end_is_open(job: Job) -> None:
    """Check that, without an ordering, what is closed, balances and is not held has ended."""
    if job.spec.ordering is Ordering.NONE:
        rows = np.array(_open(job), np.int64)
        ending, _ = job.ends._endable(job.ends._eligible(rows))
        assert not ending.size, [job.accounts.names[row] for row in ending.tolist()]


def _limits_are_the_least_of_the_fronts(job: Job) -> None:
    """Check that the watermark of a group's fronts is the least of the fronts' own."""
    for group in job.fronts.groups:
        waited = group.waited()
        for scope in [None, *job.fronts.scoped]:
            if waited:
                _same(group.watermark(scope), min(front.time(scope) for front in waited))


def _what_is_held_is_flagged(job: Job) -> None:
    """Check that a row is flagged as held while any producer holds it, and no longer."""
    held = {row for rows in job.provisional.awaiting.values() for row in rows}
    _same(set(np.flatnonzero(job.accounts.flags & AWAITING_RECOMMIT).tolist()), held)


def _what_is_staged_is_counted(job: Job) -> None:
    """Check that staged epochs count as a unit each beside their own, and with all their entries and promises."""
    epochs = [epoch for producer in job.producers.values() for epoch in producer.staged.values()]
    units = [unit for epoch in epochs for piece in epoch.pieces for unit in piece.units]
    _same(job.staged_units, len(epochs) + len(units))
    kept = [len(piece.entries.rows) + len(piece.pledges) for epoch in epochs for piece in epoch.pieces]
    folded = [len(entries.rows) for epoch in epochs for entries in epoch.folded]
    _same(job.staged_entries, sum(kept) + sum(folded))


def _what_can_be_withdrawn_is_staged(job: Job) -> None:
    """Check that a promise that can still be withdrawn was made by a staged IMMEDIATE epoch."""
    staged = {
        (producer.name, number)
        for producer in job.producers.values()
        if producer.mode is Mode.IMMEDIATE
        for number in producer.staged
    }
    provisional, closing = job.provisional, job.closing
    for front in job.fronts:
        tentative = provisional.frontiers.get(front.name, [])
        assert {by for by, _, _ in tentative} <= staged, front.name
        expected = dict(front.committed)
        for _, scope, time in tentative:
            expected[scope] = max(time, expected.get(scope, time))
        _same(front.promised, expected)
        finishes = provisional.finishes.get(front.name, set())
        assert finishes <= staged, front.name
        assert not (finishes and front.finish_committed), front.name
        _same(front.finished, front.finish_committed or bool(finishes))
    assert provisional.frontiers.keys() | provisional.finishes.keys() <= job.fronts.by_name.keys()
    closes = [(id_, *each) for id_, fronts in provisional.closes.items() for each in fronts.items()]
    for id_, front_name, origins in closes:
        assert origins, "a close of nobody"
        assert origins <= staged, origins
        if front_name:
            assert front_name in closing.waiting.closes.get(id_, ()), front_name
        else:
            assert job.accounts.flags[job.accounts.row_of(id_)] & SOLE, "the sole owner's"
    for id_, key, given in [(id_, *each) for id_, keys in provisional.numbers.items() for each in keys.items()]:
        origins = {by for by, _ in given if by is not COMMITTED}
        assert origins <= staged, origins
        assert origins, "it cannot be withdrawn, and is kept as if it could"
        _same(closing.expectations.of(id_).get(key), given[-1][1])


def _expectations_are_counted(job: Job) -> None:
    """Check that fronts' numbers are counted, of substreams that there are, and those to come are waited for."""
    expectations, accounts = job.closing.expectations, job.accounts
    added = expectations.identified()
    _same(expectations.count, sum(len(expectations.of(id_)) for id_ in expectations.ids()) + len(added))
    assert all(accounts.row_of(id_) >= 0 for id_, *_ in added), "of a substream that is forgotten"
    rows = accounts.rows_of(np.array(expectations.ids(), np.uint64))
    assert (rows >= 0).all(), "of a substream that is forgotten"
    for id_, row in zip(expectations.ids(), rows.tolist(), strict=True):
        assert expectations.of(id_), "empty"
        met = [accounts.sent(row, on) >= (expectations.total(id_, on) or 0) for on, _ in expectations.of(id_)]
        if any(met):
            _same(expectations.to_look_at(np.array([row])).tolist(), [row])
    missing = expectations.missing(np.flatnonzero(accounts.flags & NAMED))
    found = sorted(zip(*(column.tolist() for column in missing), strict=True))
    expected = {
        (row, on, expectations.total(id_, on) or 0, accounts.sent(row, on))
        for id_, row in zip(expectations.ids(), rows.tolist(), strict=True)
        for on, _ in expectations.of(id_)
    }
    short = sorted(
        (row, on, number, sent)
        for row, on, number, sent in expected
        if (sent < number or expectations.differs(accounts.id_of(row), on)) and not accounts.reason(row, on)
    )
    _same(found, short)
    in_all = (len({row for row, *_ in short}), sum(each[2] for each in short), sum(each[3] for each in short))
    _same(tuple(expectations.shortfall()), in_all)


def _open_times_are_those_of_open_rows(job: Job) -> None:
    """Check that the least open end time on a segment is the one that ordering and progress wait for."""
    accounts, rows = job.accounts, np.array(_open(job), np.int64)
    rows = rows[accounts.end_time[rows] != NO_END_TIME]
    open_on = ~accounts.cells.has_ended(rows)
    for group, times in job.ends._times.items():
        inside = np.ones(len(rows), np.bool_) if group < 0 else accounts.scope[rows] == group
        for segment in range(len(job.graph)):
            open_times = accounts.end_time[rows[inside & open_on[:, segment]]]
            _same(times.least(segment), min(open_times.tolist(), default=NONE_OPEN))


def _readers_are_counted(job: Job) -> None:
    """Check that a retained event has as many readers as subscriptions wait for it, or have just left it."""
    log = job.log
    waiting = Counter(seq for each in job.subscriptions._by_name.values() for seq in each.waiting)
    waiting.update(job.subscriptions._to_release)
    _same(Counter(log.retained._readers), waiting)
    _same([event.seq for event in log.retained.after(0)], sorted(waiting))
    kept, last = log.read_kept(0, 0, 10**9)
    _same(len(kept), log.kept)
    _same(last, log.last_seq)
    _same([event.seq for event in kept], sorted({event.seq for event in kept}))


def _producers_have_numbers_of_their_own(job: Job) -> None:
    """Check that each producer's number leads to its name."""
    for producer in job.producers.values():
        _same(job.numbers.names[producer.number], producer.name)
        _same(job.numbers.of(producer.name), producer.number)


def _a_hand_over_is_followed_by_the_next_deployment(job: Job) -> None:
    """Check that an operator alone abandons anything between a hand-over and the next deployment."""
    if not job.drain.handed_over:
        return
    bodies = [event.kind for event in job.log.read_kept(0, 0, 10**9)[0]]
    drained = [place for place, body in enumerate(bodies) if isinstance(body, Drained)]
    after = bodies[drained[-1] + 1 :] if drained else []  # or retention has dropped it
    # An abandoned substream may have kept others waiting, by the job's ordering.
    abandoned = bool(after) and isinstance(after[0], Ended) and after[0].reason is Reason.ABANDONED
    assert all(isinstance(body, Ended | Advanced) and abandoned for body in after), after


def _an_end_is_found_as_it_was_announced(job: Job) -> None:
    """Check that an end that has come is found as its event has it, and no other is found."""
    names = job.graph.names
    for row in _open(job)[:3]:
        scope, name = job.accounts.scope_names[int(job.accounts.scope[row])], job.accounts.names[row]
        for segment in [segment for number, segment in enumerate(names) if not job.accounts.reason(row, number)]:
            assert JobView(job).ended(segment, scope, name) is None, (segment, scope, name)
    first = max(job.log.first_seq - 1, job.log.last_seq - 20)
    events, _ = job.log.read_kept(first, job.log.last_seq, 20)
    # Earlier deployments may have had another graph.
    of_this = [event.kind for event in events if event.deployment == job.spec.deployment]
    announced = [body for body in of_this if isinstance(body, Ended)]
    for end in {(body.segment, body.scope, body.name): body for body in announced}.values():
        row = job.accounts.find_one(end.scope, end.name)
        number = job.graph.number.get(end.segment)
        if row < 0 or number is None or not job.accounts.flags[row] & KNOWN or not job.accounts.reason(row, number):
            continue  # it is forgotten, or open again
        _same(JobView(job).ended(end.segment, end.scope, end.name, end.end_time), end)


def _open(job: Job) -> list[int]:
    rows: list[int] = np.flatnonzero((job.accounts.flags & (KNOWN | ENDED)) == KNOWN).tolist()
    return rows


def _same(kept: Any, counted: Any) -> None:
    assert kept == counted, f"{kept} is kept, and {counted} is so"


INVARIANTS: tuple[Callable[[Job], None], ...] = (
    _names_lead_to_their_rows,
    _counts_are_right,
    _free_rows_are_clean,
    _marks_are_those_of_the_states,
    _flags_agree_with_cells,
    _closed_is_what_the_fronts_promised,
    _nothing_that_can_end_is_open,
    _limits_are_the_least_of_the_fronts,
    _what_is_held_is_flagged,
    _what_is_staged_is_counted,
    _what_can_be_withdrawn_is_staged,
    _expectations_are_counted,
    _open_times_are_those_of_open_rows,
    _readers_are_counted,
    _producers_have_numbers_of_their_own,
    _a_hand_over_is_followed_by_the_next_deployment,
    _an_end_is_found_as_it_was_announced,
)
