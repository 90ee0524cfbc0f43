"""The tracker's state, and how a journal restores it.

The journal also has every other input of the state: the time of each command and, in a `Started` record for each start,
the server's own settings. So a journal alone restores the same state, answers and events, whatever options the server
is started with next.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgpack

import tracker
from tracker.contract.commands import Answer, Command, DefineJob, Recovered
from tracker.core import Prepared, Refused, Tracker
from tracker.journal import (
    FollowableJournal,
    Journal,
    JournalError,
    JournalLossError,
    LeftOut,
    LostTrackError,
    Place,
    Record,
    Recovery,
)
from tracker.wire.codec import Method, read_command

log = logging.getLogger("tracker.replayable")

_STARTS = 2  # after so many starts that ended at the same record, the log names it
_FORM = 2  # the format of a dump: raised when the core's format changes so that an older version cannot read it
_READ = (1, 2)  # the formats that this version reads


@dataclass(frozen=True, slots=True)
class Started:
    """A server's own inputs to the state when it started."""

    prefix: str  #: of the log ids, if the state begins with this start
    lost_tail: str  #: a new prefix for log ids, if the journal had lost its tail; else empty
    retention: int  #: ns, for jobs that do not give one
    fences: bool = False  #: with `lost_tail`: open runs are fenced (no start before version 0.2 did)

    def payload(self) -> bytes:
        """Return the content of the journal's record."""
        return bytes(msgpack.packb({name: value for name, value in asdict(self).items() if value is not False}))

    @classmethod
    def read(cls, payload: bytes) -> Started:
        """Return what `payload` was made of."""
        return cls(**msgpack.unpackb(payload))


class ReplayableState:
    """The state machine together with the server's own inputs to it.

    Args:
        state: a result of `dump`; None: the state begins with the first `Started` record.

    Raises:
        tracker.journal.JournalError: this version of the program cannot read the dump.
    """

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        self._tracker: Tracker | None = None
        self._retention = 0
        self.at = 0  #: the time of the last command, in ns since the Unix epoch
        self.told = 0  #: the number of the last start, of those replayed, that gave the logs new ids after a loss
        if state is not None:
            if state["form"] not in _READ:
                raise JournalError(
                    f"the snapshot has format {state['form']}, and this version reads formats {_READ}; start the "
                    "version that wrote it, or a newer one"
                )
            self._tracker = Tracker.load(state["tracker"])
            self._retention = state["retention"]
            self.at = state["at"]

    @property
    def tracker(self) -> Tracker:
        """The core.

        Raises:
            ValueError: no server has started on this state.
        """
        if self._tracker is None:
            raise ValueError("the state has not begun: no server has started on it")
        return self._tracker

    @property
    def has_begun(self) -> bool:
        """Return whether a server has started on it."""
        return self._tracker is not None

    def renew_logs(self) -> None:
        """Give every job's log a new id, and fence open runs: the state is older than what clients know."""
        self.apply(Recovered(secrets.token_hex(6), fences=True), self.at)

    def start(self, started: Started, at: int) -> None:
        """Note that a server has started on this state.

        Args:
            at: the time, in ns since the Unix epoch.
        """
        if self._tracker is None:
            self._tracker = Tracker(started.prefix)
        self._retention = started.retention
        self.at = at
        self.apply(Recovered(started.lost_tail, started.fences), at)

    def apply(self, command: Command | Prepared, at: int) -> Answer:
        """Carry out a command. Call it in the job's lane.

        Args:
            at: the time, in ns since the Unix epoch; not before that of the job's previous command.

        Raises:
            tracker.core.Refused: for the core's reasons.
        """
        asked = command.command if isinstance(command, Prepared) else command
        if isinstance(asked, DefineJob) and asked.spec.retention is None:
            command = replace(asked, spec=replace(asked.spec, retention=self._retention))
        return self.tracker.apply(command, at)

    def replay(self, number: int, record: Record) -> None:
        """Carry out a record of the journal, with the same outcome as before.

        Raises:
            tracker.journal.JournalError: a newer version of the program wrote the record.
        """
        method = _method(number, record)
        refuse_ended(number, record)
        if method is Method.STARTED:
            started = Started.read(record.payload)
            self.start(started, record.at)
            if started.lost_tail:
                self.told = number
            return
        self.at = record.at
        job = ""
        try:
            read = read_command(method, record.payload)
            job = read.job
            self.apply(read, record.at)
        except Refused:
            pass  # the command was refused when it arrived, too
        except Exception:
            # The program has a fault, which the command met when it arrived, too: its caller learnt that the command
            # failed. If recovery stopped here, it would stop at every start.
            log.exception(
                "a command failed again at recovery; it is skipped, and the others are carried out",
                extra={"record": number, "method": method.name, "job": job, "time": record.at},
            )

    def forget_news(self) -> None:
        """Forget which jobs' logs have grown: nobody reads them yet."""
        if self._tracker is not None:
            self._tracker.pop_changed_jobs()

    def dump(self) -> dict[str, Any]:
        """Return a consistent copy, for `ReplayableState`. Another thread may encode it."""
        return self.dump_whole(self.tracker.dump_head(), map(self.tracker.copy_job, self.tracker.timed()), self.at)

    def dump_whole(
        self, head: dict[str, Any], copies: Iterable[Callable[[], dict[str, Any]]], at: int
    ) -> dict[str, Any]:
        """Put a dump together from copies of jobs, of which each is a function that returns its part.

        Args:
            at: the time of the copies, in ns since the Unix epoch.
        """
        whole = Tracker.dump_whole(head, (copy() for copy in copies))
        return {"form": _FORM, "tracker": whole, "retention": self._retention, "at": at}


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """State that goes on in a journal."""

    state: ReplayableState
    journal: Journal
    number: int  #: of the journal's last record


@dataclass(frozen=True, slots=True)
class Followed:
    """Journal that is a standby's own now, as far as it was read."""

    journal: FollowableJournal
    state: ReplayableState
    place: Place | None  #: None: the log breaks off before its end, so all of it is to be recovered


def recover(
    journal: Journal,
    retention: int,
    now: int,
    accept_loss: bool = False,
    set_aside: frozenset[int] = frozenset(),
    followed: Followed | None = None,
) -> RecoveredState:
    """Restore the state from a journal.

    A record is left out if it ended the process when it was carried out, and again at a start, and no caller had an
    answer to it.

    Args:
        retention: ns, for jobs that are defined from now on and do not give one.
        now: ns since the Unix epoch.
        accept_loss: continue even if acknowledged records are lost, or are to be set aside.
        set_aside: numbers of records to leave out from now on.

    Raises:
        tracker.journal.JournalLossError: acknowledged records would be lost, and `accept_loss` is False.
        tracker.journal.JournalError: a newer version of the program wrote a record.
    """
    recovery = None
    if followed is not None and followed.place is not None:
        try:
            recovery = followed.journal.recover(accept_loss, followed.place)
        except LostTrackError as lost_track:
            log.info("what was followed does not count any more; all is recovered: %s", lost_track)
            followed = None
    if recovery is None:
        recovery = journal.recover(accept_loss)
    for damage in recovery.damage:
        log.error(
            "the journal was damaged: %s",
            damage,
            extra={"file": damage.file, "record": damage.record, "lost": damage.lost, "set_aside": damage.set_aside},
        )
    left_out = _left_out(recovery, accept_loss, set_aside)
    restored = followed.state if followed is not None and followed.place else ReplayableState(recovery.state)
    number, replayed, lost = recovery.number, 0, recovery.tail_lost
    untold = {each: each.untold for each in recovery.set_aside}
    # The last record at which an acknowledged one was left out; a standby has left it out before.
    owed = followed.place.untold if followed is not None and followed.place is not None else 0
    for number, record in enumerate(recovery.records, recovery.number + 1):
        if (out := LeftOut.of(number, record)) in untold:
            owed = max(owed, untold[out])
            continue
        if number in left_out:
            _leave_out(journal, number, record, number not in recovery.unanswered)
            lost = lost or number not in recovery.unanswered
            continue
        refuse_ended(number, record)
        journal.replaying(number)
        restored.replay(number, record)
        replayed += 1
    journal.replaying(0)
    # A start that had left out an acknowledged record, and ended before its own record, has changed no log's id; and
    # where a claim was lost with it, another leader may have gone on since.
    lost = lost or owed > restored.told
    prefix = secrets.token_hex(6)
    started = Started(prefix, prefix if lost else "", retention, lost)
    record = Record(Method.STARTED, max(now, restored.at), started.payload())
    number = journal.append([record])
    restored.start(started, record.at)
    restored.forget_news()
    log.info(
        "recovered",
        extra={
            "snapshot": recovery.number,
            "replayed": replayed,
            "jobs": len(restored.tracker.jobs()),
            "record": number,
        },
    )
    return RecoveredState(restored, journal, number)


def refuse_ended(number: int, record: Record) -> None:
    """Refuse a record after which no state can be continued.

    Raises:
        tracker.journal.JournalError: the journal has ended with a backup, or has lost the backup that was restored.
    """
    if record.method == Method.MOVED:
        moved_to = record.payload.decode()
        go_there = (
            f"It continues as the tracker {moved_to}: name {moved_to!r} as the server instead of this journal"
            if moved_to
            else "Start the tracker on the journal to which it was moved"
        )
        raise JournalError(
            f"the journal ends at record {number}, where its tracker was moved (`tracker import`, or `tracker backup "
            f"--final`). {go_there}; to continue here, restore a backup of it here: "
            "`tracker restore FILE --journal ADDRESS --same-log --replace`"
        )
    if record.method == Method.RESTORED:
        raise JournalError(
            f"the backup that was restored at record {number} is missing: the restore was interrupted, or its snapshot "
            "was lost. Restore it again: `tracker restore FILE --journal ADDRESS --replace`"
        )


def _method(number: int, record: Record) -> Method:
    try:
        return Method(record.method)
    except ValueError:
        raise JournalError(
            f"record {number} of the journal has kind {record.method}, which version {tracker.__version__} cannot "
            "read: a newer version wrote it; start that version"
        ) from None


def _left_out(recovery: Recovery, accept_loss: bool, asked: frozenset[int]) -> frozenset[int]:
    """Return the numbers of the records that are not to be replayed."""
    before = {each.number for each in recovery.set_aside}
    answered = sorted(asked - recovery.unanswered - before)
    if answered and not accept_loss:
        raise JournalLossError(
            f"records {answered} were acknowledged, or may have been; to continue without them, add --accept-loss"
        )
    suspect = recovery.suspect
    if not suspect or suspect in asked | before:
        return asked
    if suspect in recovery.unanswered:
        return asked | {suspect}
    if recovery.starts >= _STARTS:
        log.error(
            "the last starts ended during the replay of the same record; if this one ends there, too, give the "
            "process more memory, or start it once with --set-aside %d --accept-loss",
            suspect,
            extra={"record": suspect, "starts": recovery.starts},
        )
    return asked


def _leave_out(journal: Journal, number: int, record: Record, answered: bool) -> None:
    method = _method(number, record)
    try:
        job = read_command(method, record.payload).job
    except Exception:  # the record is left out, whatever is wrong with it
        job = ""
    why = "asked for" if answered else "the process ended while the command was carried out; no caller had an answer"
    journal.set_aside(number, record, why, answered)
    log.error(
        "a command is left out of the journal from now on",
        extra={
            "record": number,
            "method": method.name,
            "job": job,
            "bytes": len(record.payload),
            "acknowledged": answered,
            "why": why,
        },
    )
