"""Opening substreams: which of those named for the first time open, and which reports are late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tracker.contract.events import Late

from .accounts import Entries, Rows
from .cells import distinct
from .lifecycle import KNOWN
from .producers import CloseOf, ExpectOf, Pledge, Producer

if TYPE_CHECKING:
    from .job import Job


def make_known(job: Job, entries: Entries, pledges: Sequence[Pledge]) -> NDArray[np.bool_] | None:
    """Open named substreams, except those that the fronts have closed and those that had ended.

    Returns:
        where segments wait for different fronts, the entries of substreams that were not known which the fronts
        of their segments have closed already.
    """
    accounts = job.accounts
    named = [pledge.row for pledge in pledges if isinstance(pledge, CloseOf | ExpectOf)]
    rows = np.concatenate([entries.rows, np.array(named, np.int64)]) if named else entries.rows
    unknown = rows[(accounts.flags[rows] & KNOWN) == 0]
    if not unknown.size:
        return None
    unknown = distinct(unknown)
    already_closed = None
    if len(job.fronts.groups) > 1:
        unknown, already_closed = _open_in_groups(job, unknown, entries, pledges)
    elif job.fronts or job.fronts.has_committed_watermark:
        is_open = [
            not job.closing.is_closed(accounts.scope_names[scope], end_time, 0)
            for scope, end_time in zip(
                accounts.scope[unknown].tolist(), accounts.end_time[unknown].tolist(), strict=True
            )
        ]
        unknown = unknown[is_open]
    if job.tombstones and unknown.size:
        unknown = unknown[~job.tombstones.has(accounts.named(unknown))]
    if unknown.size:
        accounts.life.open_up(unknown)
        job.closing.join(unknown)
        job.ends.join(unknown)
    return already_closed


def _open_in_groups(
    job: Job, unknown: Rows, entries: Entries, pledges: Sequence[Pledge]
) -> tuple[Rows, NDArray[np.bool_]]:
    """Return the rows to open, for which a segment still waits, and the late entries on other segments."""
    accounts, group_of = job.accounts, job.fronts.group_of
    named: dict[int, set[int]] = {row: set() for row in unknown.tolist()}
    for row, segment in zip(entries.rows.tolist(), entries.segments.tolist(), strict=True):
        if row in named:
            named[row].add(group_of[segment])
    for pledge in pledges:
        if isinstance(pledge, CloseOf) and pledge.row in named:
            named[pledge.row].update(job.closing.groups_of(pledge.front))
        elif isinstance(pledge, ExpectOf) and pledge.row in named:
            named[pledge.row].add(group_of[pledge.segment])
    already_closed = {
        row: job.closing.closed_groups(accounts.scope_names[int(accounts.scope[row])], int(accounts.end_time[row]))
        for row in named
    }
    is_open = [row for row, places in named.items() if not all(already_closed[row][place] for place in places)]
    late = [
        row in already_closed and already_closed[row][group_of[segment]]
        for row, segment in zip(entries.rows.tolist(), entries.segments.tolist(), strict=True)
    ]
    return np.array(is_open, np.int64), np.array(late, np.bool_)


def announce_late(job: Job, producer: Producer, late: Entries) -> None:
    """One event for each substream and segment, in order of first mention."""
    accounts = job.accounts
    sums: dict[tuple[int, int], list[int]] = {}
    for row, segment, sent, received in zip(
        late.rows.tolist(), late.segments.tolist(), late.sent.tolist(), late.received.tolist(), strict=True
    ):
        counts = sums.setdefault((row, segment), [0, 0])
        counts[0] += sent
        counts[1] += received
    for (row, segment), (sent, received) in sums.items():
        scope = accounts.scope_names[int(accounts.scope[row])]
        job.announce(Late(job.graph.names[segment], scope, accounts.names[row], producer.name, sent, received))
        id_ = accounts.id_of(row)
        job.late_by_id[id_] = job.late_by_id.get(id_, 0) + 1
    job.late_reports += len(sums)
