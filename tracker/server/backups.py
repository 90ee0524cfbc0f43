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

import msgpack

import tracker
from tracker.backup import BackupError, Checked, Draft, Header, JobLog
from tracker.journal import (
    Journal,
    JournalError,
    JournalLockedError,
    JournalLossError,
    LeftOut,
    NoJournalError,
    Record,
    RestoreUnfinishedError,
    open_journal,
    set_journal_aside,
)
from tracker.journal.snapshots import decode, encode
from tracker.wire.codec import Method

from .replayable import ReplayableState

_OTHER_IDS = "Leave out --same-log: then every log gets a new id, and clients notice"
_EMPTY = "name an empty journal, or set aside what is there: --replace"


def draft(journal: str, record: int, dump: dict[str, Any], made: float, final: bool = False) -> Draft:
    """Return a backup of a state, not sealed yet.

    Args:
        record: the journal's record after which the state stood so.
        made: Unix time in seconds.
        final: whether no tracker continues on the journal.
    """
    jobs = {}
    for job in dump["tracker"]["jobs"]:
        log = job["log"]
        jobs[job["spec"][0]] = JobLog(log["log_id"], log["first_seq"] + len(log["events"]) - 1)
    return Draft(tracker.__version__, journal, record, made, jobs, list(encode(dump)), final)


def of_journal(where: str, final: bool = False, moved_to: str = "") -> Draft:
    """Return a backup of a journal that no tracker uses, not sealed yet.

    Args:
        where: the journal, as `open_journal` takes it.
        final: end the journal: no tracker starts on it any more.
        moved_to: with `final`, ``HOST:PORT`` of the tracker that continues, for those who still name this journal.

    Raises:
        BackupError: there is nothing in it, or it has ended with another note.
        tracker.journal.JournalError: it cannot be read, or a tracker uses it.
        ValueError: `where` has another form.
    """
    with closing(open_journal(where, must_exist=True)) as journal:
        state, number, ended = _read_begun(journal, where, moved_to)
        if final and not ended:
            _end(journal, state, moved_to)
        return draft(journal.name, number, state.dump(), time.time(), final)


def _read_begun(journal: Journal, where: str, moved_to: str) -> tuple[ReplayableState, int, bool]:
    """Return a journal's state, the number of its last record, and whether a backup or a move has ended it.

    Args:
        moved_to: the tracker that a journal which has ended has to name; empty: any.

    Raises:
        BackupError: there is nothing in it, or it has ended with another note.
    """
    state, number, end = _read(journal)
    if not state.has_begun:
        raise BackupError(f"there is nothing in the journal {where}; check its address")
    noted = "" if end is None else end.payload.decode()
    if end is not None and moved_to not in ("", noted):
        raise BackupError(
            f"the journal {where} has ended before, and names {noted or 'no tracker'} as the one that continues: "
            "name that one. To name another one, restore a backup of it here (`tracker restore FILE --journal "
            "ADDRESS --same-log --replace`) and end it again"
        )
    return state, number, end is not None


def _end(journal: Journal, state: ReplayableState, moved_to: str) -> None:
    """End a journal: no tracker starts on it any more."""
    journal.append([Record(Method.MOVED, state.at, moved_to.encode())])


def _logs(state: ReplayableState) -> dict[str, str]:
    """Return the ids of the jobs' logs, by job."""
    return {job: state.tracker.view(job).log_id for job in state.tracker.jobs()}


def _read(journal: Journal) -> tuple[ReplayableState, int, Record | None]:
    """Return a journal's state, the number of its last record, and the record with which a backup has ended it."""
    recovery = journal.recover()
    state, number = ReplayableState(recovery.state), recovery.number
    for number, record in enumerate(recovery.records, recovery.number + 1):
        if record.method == Method.MOVED:
            return state, number - 1, record
        if LeftOut.of(number, record) not in recovery.set_aside:
            state.replay(number, record)
    return state, number, None


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
        replace: set aside what is in the journal.
        same_log: keep the logs' ids and the open runs. Only for a backup with which its journal has ended, and only
            as long as no tracker has gone on from it in the journal that is replaced.

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
    elif replace:
        _check_not_continued(where, state)
    aside = set_journal_aside(where) if replace else ""
    payload = msgpack.packb({**asdict(header), "jobs": len(header.jobs), "same_log": same_log})
    with closing(open_journal(where, restoring=True)) as journal:
        if not _is_empty(journal):
            raise BackupError(f"the journal {where} is not empty; {_EMPTY}")
        number = journal.append([Record(Method.RESTORED, state.at, payload)])
        journal.snapshot(number, state.dump())
        journal.end_restore()
    _check(where, number)
    return Restored(header, _logs(state), ended, aside)


def _check_not_continued(where: str, state: ReplayableState) -> None:
    """Find out that a journal has not gone on from a backup: under the same ids of logs nobody would notice a loss.

    Raises:
        BackupError: it has, or that cannot be found out.
    """
    try:
        with closing(open_journal(where, must_exist=True)) as journal:
            there, _, _ = _read(journal)
    except (NoJournalError, RestoreUnfinishedError):
        return
    except JournalLockedError:
        raise
    except JournalError as error:
        raise BackupError(
            f"the journal {where} may have gone on from this backup, and cannot be read: {error}. {_OTHER_IDS}"
        ) from error
    continues = there.has_begun and there.tracker.dump_head()["log_prefix"] == state.tracker.dump_head()["log_prefix"]
    if continues and there.at > state.at:
        raise BackupError(
            f"the journal {where} has gone on from this backup, so clients may know of more than is in it. {_OTHER_IDS}"
        )


def move(where: str, into: str, moved_to: str) -> dict[str, str]:
    """Move a tracker from one journal to another one, with its logs and open runs as they are.

    The other journal opens for nobody before the first one has ended, so no two trackers go on. A move that was
    interrupted is repeated: until the first journal ends, its tracker goes on, and what was copied is copied again.

    Args:
        where: the journal, which no tracker uses.
        into: the other one, which has no jobs, or what a move that was interrupted has left.
        moved_to: ``HOST:PORT`` of the tracker that will continue, for those who still name the first journal.

    Returns:
        The ids of the jobs' logs, by job.

    Raises:
        BackupError: there is nothing to move, it was moved to another tracker, or the other journal has jobs.
        tracker.journal.JournalError: a journal cannot be used.
        ValueError: an address has another form.
    """
    with closing(open_journal(where, must_exist=True)) as journal:
        state, record, ended = _read_begun(journal, where, moved_to)
        logs = _logs(state)
        if there := _logs_of(into):
            if ended and logs.items() <= there.items():
                return logs  # it was moved before
            raise BackupError(f"the journal {into} has jobs; name an empty one")
        note = msgpack.packb({"journal": where, "record": record, "same_log": True})
        with closing(open_journal(into, restoring=True)) as other:
            other.recover()
            other.begin_restore()
            number = other.append([Record(Method.RESTORED, state.at, note)])
            other.snapshot(number, state.dump())
            if not ended:
                _end(journal, state, moved_to)
            other.end_restore()
    return logs


def _logs_of(where: str) -> dict[str, str]:
    """Return the ids of the logs in a journal; none of what a move has left that was interrupted."""
    try:
        with closing(open_journal(where, must_exist=True)) as journal:
            return _logs(_read_begun(journal, where, "")[0])
    except (BackupError, NoJournalError, RestoreUnfinishedError):
        return {}


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
