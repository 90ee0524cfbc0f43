"""The tracker's state, and how a journal gives it back.

What the state depends on beside the callers' requests is journaled too: the time of each command, and, in a `Started`
record for each start, what the server itself brought. So a journal alone rebuilds the same state, answers and events,
whatever the server is started with next.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgpack  # type: ignore[import-untyped]

import tracker
from tracker.contract.answers import Answer
from tracker.contract.commands import Command, DefineJob, Recovered
from tracker.core import Refused, Tracker
from tracker.journal import Journal, JournalError, JournalLossError, Record, Recovery
from tracker.wire.codec import Method, read_command

log = logging.getLogger("tracker.replayable")

_STARTS = 2  # that ended at the same record: then it is named
_FORM = 2  # of a dump: raised when the core's changes so that an older version cannot read it
_READ = (1, 2)  # the forms that this version reads


@dataclass(frozen=True, slots=True)
class Started:
    """What a server brought when it started."""

    prefix: str  #: for the log ids of a state that begins here
    lost_tail: str  #: a new prefix for log ids, if the journal had lost its tail; else empty
    retention: int  #: ns, for jobs that name none

    def payload(self) -> bytes:
        return bytes(msgpack.packb(asdict(self)))

    @classmethod
    def read(cls, payload: bytes) -> Started:
        return cls(**msgpack.unpackb(payload))


class ReplayableState:
    """The state machine with the server's own inputs to it.

    Args:
        state: what `dump` gave; None: a state that begins with the first `Started` record.

    Raises:
        tracker.journal.JournalError: another version of the program made the dump.
    """

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        self._tracker: Tracker | None = None
        self._retention = 0
        self.at = 0  #: the time of the last command, in ns since the Unix epoch
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
        if self._tracker is None:
            raise ValueError("the state has not begun: no server has started on it")
        return self._tracker

    def start(self, started: Started, at: int) -> None:
        """A server has started on this state."""
        if self._tracker is None:
            self._tracker = Tracker(started.prefix)
        self._retention = started.retention
        self.at = at
        self.apply(Recovered(started.lost_tail), at)

    def apply(self, command: Command, at: int) -> Answer:
        """Carry out a command at a time that is not before the last one's for its job. In the job's lane.

        Raises:
            tracker.core.Refused: as the core does.
        """
        if isinstance(command, DefineJob) and command.spec.retention is None:
            command = replace(command, spec=replace(command.spec, retention=self._retention))
        return self.tracker.apply(command, at)

    def replay(self, number: int, record: Record) -> None:
        """Apply what a journal remembers, with the outcome that it had.

        Raises:
            tracker.journal.JournalError: a newer version of the program wrote the record.
        """
        method = _method(number, record)
        if method is Method.STARTED:
            self.start(Started.read(record.payload), record.at)
            return
        self.at = record.at
        job = ""
        try:
            read = read_command(method, record.payload)
            job = read.job
            self.apply(read, record.at)
        except Refused:
            pass  # as it was when it was taken
        except Exception:
            # A fault in the program, which the command met when it was taken, too. To stop here would be to stop
            # at every start; what its caller was answered then was that the command had failed.
            log.exception(
                "a command failed again at recovery; it is skipped, and the others are carried out",
                extra={"record": number, "method": method.name, "job": job, "time": record.at},
            )

    def dump(self) -> dict[str, Any]:
        """A consistent copy, for `ReplayableState`; it may be encoded in another thread."""
        parts = list(map(self.tracker.dump_job, self.tracker.timed()))
        return self.dump_whole(self.tracker.dump_head(), parts, self.at)

    def dump_whole(self, head: dict[str, Any], parts: list[dict[str, Any]], at: int) -> dict[str, Any]:
        """The same from its parts, as they were at `at`."""
        whole = Tracker.dump_whole(head, parts)
        return {"form": _FORM, "tracker": whole, "retention": self._retention, "at": at}


def recover(
    journal: Journal, retention: int, now: int, accept_loss: bool = False, set_aside: frozenset[int] = frozenset()
) -> tuple[ReplayableState, int]:
    """The state that a journal gives, built from scratch, and the number of its last record.

    A record that ended the process when it was carried out, and again at a start, is left out if nobody was answered.

    Args:
        retention: ns, for jobs that are defined from now on and name none.
        now: ns since the Unix epoch.
        accept_loss: go on without acknowledged records that are lost, or are to be set aside.
        set_aside: records to leave out from now on.

    Raises:
        tracker.journal.JournalLossError: acknowledged records would be lost, and nobody has accepted that.
        tracker.journal.JournalError: a newer version of the program wrote a record.
    """
    recovery = journal.recover(accept_loss)
    for damage in recovery.damage:
        log.error(
            "the journal was damaged: %s",
            damage,
            extra={"file": damage.file, "record": damage.record, "lost": damage.lost, "set_aside": damage.set_aside},
        )
    left_out = _left_out(recovery, accept_loss, set_aside)
    restored = ReplayableState(recovery.state)
    number, replayed, lost = recovery.number, 0, recovery.tail_lost
    for number, record in enumerate(recovery.records, recovery.number + 1):
        if number in recovery.set_aside:
            continue
        if number in left_out:
            _leave_out(journal, number, record, number not in recovery.unanswered)
            lost = lost or number not in recovery.unanswered
            continue
        journal.replaying(number)
        restored.replay(number, record)
        replayed += 1
    journal.replaying(0)
    prefix = secrets.token_hex(6)
    started = Started(prefix, prefix if lost else "", retention)
    record = Record(Method.STARTED, max(now, restored.at), started.payload())
    number = journal.append([record])
    restored.start(started, record.at)
    restored.tracker.pop_changed_jobs()
    log.info(
        "recovered",
        extra={
            "snapshot": recovery.number,
            "replayed": replayed,
            "jobs": len(restored.tracker.jobs()),
            "record": number,
        },
    )
    return restored, number


def _method(number: int, record: Record) -> Method:
    try:
        return Method(record.method)
    except ValueError:
        raise JournalError(
            f"record {number} of the journal has kind {record.method}, which version {tracker.__version__} cannot "
            "read: a newer version wrote it; start that version"
        ) from None


def _left_out(recovery: Recovery, accept_loss: bool, asked: frozenset[int]) -> frozenset[int]:
    """Which records are not to be replayed."""
    answered = sorted(asked - recovery.unanswered - recovery.set_aside)
    if answered and not accept_loss:
        raise JournalLossError(
            f"records {answered} were acknowledged, or may have been; to continue without them, add --accept-loss"
        )
    suspect = recovery.suspect
    if not suspect or suspect in asked | recovery.set_aside:
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
    except Exception:  # whatever is wrong with it, it is left out
        job = ""
    why = "asked for" if answered else "the process ended while the command was carried out; no caller had an answer"
    journal.set_aside(number, record, why)
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
