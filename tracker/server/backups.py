"""Backups of a state, and journals that continue with one.

A restored state is older than what its clients have seen, unless the journal ended with the backup. So every job's log
gets a new id, which watchers notice, and every run is fenced, which its reporter notices: it opens another run, and
learns which of its epochs count.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import msgpack  # type: ignore[import-untyped]

import tracker
from tracker.backup.form import BackupError, Checked, Draft, Header, JobLog
from tracker.journal import (
    JournalError,
    JournalLossError,
    LeftOut,
    Record,
    open_journal,
    set_journal_aside,
)
from tracker.journal.snapshots import decode, encode
from tracker.wire.codec import Method

from .replayable import ReplayableState

_EMPTY = "name an empty journal, or set aside what is there: --replace"


def draft(journal: str, record: int, dump: dict[str, Any], made: float, final: bool = False) -> Draft:
    """Return a backup of a state, not sealed yet.

    Args:
        journal: the kind of the journal.
        record: the journal's record after which the state stood so.
        dump: the state, as `ReplayableState` gives it.
        made: Unix time in seconds.
        final: whether no tracker continues on the journal.
    """
    jobs = {}
    for job in dump["tracker"]["jobs"]:
        log = job["log"]
        jobs[job["spec"][0]] = JobLog(log["log_id"], log["first_seq"] + len(log["events"]) - 1)
    return Draft(tracker.__version__, journal, record, made, jobs, list(encode(dump)), final)


def of_journal(where: str, final: bool = False) -> Draft:
    """Return a backup of a journal that no tracker uses, not sealed yet.

    Args:
        where: the journal, as `open_journal` takes it.
        final: end the journal: no tracker starts on it any more.

    Raises:
        BackupError: there is nothing in it.
        tracker.journal.JournalError: it cannot be read, or a tracker uses it.
        ValueError: `where` has another form.
    """
    with closing(open_journal(where, must_exist=True)) as journal:
        recovery = journal.recover()
        state = ReplayableState(recovery.state)
        number, ended = recovery.number, False
        for number, record in enumerate(recovery.records, recovery.number + 1):
            ended = record.method == Method.MOVED
            if LeftOut.of(number, record) not in recovery.set_aside and not ended:
                state.replay(number, record)
        if not state.has_begun:
            raise BackupError(f"there is nothing in the journal {where}; check its address")
        if final and not ended:
            journal.append([Record(Method.MOVED, state.at, b"")])
        return draft(journal.name, number - ended, state.dump(), time.time(), final)


@dataclass(frozen=True, slots=True)
class Restored:
    """A journal that continues with a backup."""

    header: Header  #: the backup's
    logs: dict[str, str]  #: the ids of the jobs' logs now, by job
    ended_runs: int  #: how many runs were open, and are fenced
    set_aside: str  #: where the journal is that was there before; empty: it was empty


def restore(where: str, backup: Checked, replace: bool = False, same_log: bool = False) -> Restored:
    """Make a journal continue with a backup.

    Args:
        where: the journal, which must be empty.
        backup: the backup, not read yet.
        replace: set aside what is in the journal.
        same_log: keep the logs' ids and the open runs. Only for a backup with which its journal has ended.

    Raises:
        BackupError: the backup is damaged or not allowed, or the journal is not empty.
        tracker.journal.JournalError: the journal cannot be used, or this version cannot read the state.
        ValueError: `where` has another form.
    """
    header = backup.header
    if where == "memory":
        raise BackupError("a journal in memory ends with this command; name another one, such as sqlite:PATH")
    if same_log and not header.final:
        raise BackupError(
            "the backup was made of a tracker that went on, so clients may know of more than is in it: leave out "
            "--same-log. To move a tracker, stop it and make a backup with `tracker backup --journal ADDRESS --final`"
        )
    state = ReplayableState(decode(b"".join(backup.state())))
    ended = 0
    if not same_log:
        jobs = [state.tracker.view(job).status() for job in state.tracker.jobs()]
        ended = sum(not producer.closed for job in jobs for producer in job.producers)
        state.renew_logs()
    aside = set_journal_aside(where) if replace else ""
    payload = msgpack.packb({**asdict(header), "jobs": len(header.jobs), "same_log": same_log})
    with closing(open_journal(where, restoring=True)) as journal:
        if not _is_empty(journal):
            raise BackupError(f"the journal {where} is not empty; {_EMPTY}")
        number = journal.append([Record(Method.RESTORED, state.at, payload)])
        journal.snapshot(number, state.dump())
        journal.end_restore()
    _check(where, number)
    logs = {job: state.tracker.view(job).log_id for job in state.tracker.jobs()}
    return Restored(header, logs, ended, aside)


def _is_empty(journal: Any) -> bool:
    try:
        recovery = journal.recover()
    except JournalLossError:
        return False
    return recovery.state is None and not recovery.number and next(recovery.records, None) is None


def _check(where: str, number: int) -> None:
    """Read what was written."""
    with closing(open_journal(where)) as journal:
        recovery = journal.recover()
        if recovery.number != number or any(recovery.records):
            raise JournalError(
                f"the journal {where} does not have what was written; restore the backup again (--replace)"
            )
        ReplayableState(recovery.state)
